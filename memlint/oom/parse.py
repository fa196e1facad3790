"""Find out-of-memory messages in a log and read their figures, in every form PyTorch has used.

Forms, by the PyTorch release that printed them (c10/cuda/CUDACachingAllocator.cpp and, before, THC):

* up to 1.3: ``(GPU 0; 10.76 GiB total capacity; 9.79 GiB already allocated; 20.00 MiB free; 60.00 MiB cached)``
* 1.4 to 2.0: ``(...; 9.92 GiB reserved in total by PyTorch)``, and a hint about max_split_size_mb
* from 2.1: ``GPU 0 has a total capacity (capacty) of 79.15 GiB of which 10.62 MiB is free. Process 7 has 79.13 GiB
  memory in use. Of the allocated memory 77.50 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but
  unallocated``
* without figures: ``CUDA error: out of memory``, ``CUBLAS_STATUS_ALLOC_FAILED``, NCCL's, and the host's allocator.
"""

from __future__ import annotations

import re

from memlint.records import dataclass

_UNITS = {"bytes": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4}
_UNITS.update({"kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4})
_SIZE = r"(?<![\d.,])(\d[\d,]{0,19}(?:\.\d{1,9})?)\s*(bytes|[KMGT]i?B)"
"""A number and its unit. A log is anybody's text: more digits than 64 bits have, or two points, are no size."""
LIMIT = 64 * 1024 * 1024
"""Longest log that is read; of a longer one the end, where the crash is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """One message. Sizes in bytes, None where this form does not say."""

    device: str
    """cuda, host or nccl."""
    gpu: int | None = None
    rank: str | None = None
    requested: int | None = None
    requested_step: int = 0
    """How exact the printed request is: half of its last digit, in bytes."""
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    reserved_free: int | None = None
    """Reserved by PyTorch but not allocated."""
    process: int | None = None
    """This process in all, non-PyTorch memory included."""
    others: tuple[tuple[str, int], ...] = ()
    """Other processes on the GPU: number and bytes."""
    allowed: int | None = None
    """Cap set by set_per_process_memory_fraction."""
    private_pools: int | None = None
    line: int = 0
    text: str = ""
    frames: tuple[str, ...] = ()
    """``file:function: source`` of the traceback before it, outermost first."""


def _bytes(number: str, unit: str) -> int:
    return int(float(number.replace(",", "")) * _UNITS[unit.lower()])


def _step(number: str, unit: str) -> int:
    decimals = len(number.partition(".")[2])
    return int(_UNITS[unit.lower()] * 0.5 / 10**decimals) + 1


_START = re.compile(
    r"(?:(?:CUDA|HIP) out of memory|CUDA error: out of memory|out of memory at|CUBLAS_STATUS_ALLOC_FAILED|"
    r"CUDNN_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|"
    r"Cuda failure \d* ?'out of memory'|failed to cuda calloc async)",
    re.I,
)
_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
_RANK = re.compile(r"^\s*(?:\[?(?:rank|default)\s*(\d+)\]?\s*[:|]|(\d{1,4}):\s)", re.I)
_PREFIX = re.compile(
    r"^\s*(?:\[?(?:rank|default)\s*\d+\]?\s*[:|]\s?|\d{1,4}:\s|[│|]\s?|(?:\d{1,3}\.){3}\d{1,3}:\s)", re.I
)


def find(text: str) -> list[OutOfMemory]:
    """Every out-of-memory message of a log, in order; repeated texts of one rank count once."""
    if len(text) > LIMIT:
        text = text[-LIMIT:]
    lines = text.splitlines()
    found: list[OutOfMemory] = []
    seen: set[tuple[object, ...]] = set()
    frames: list[str] = []
    pending: str | None = None
    for number, raw in enumerate(lines, 1):
        line = _PREFIX.sub("", raw)
        if "Traceback (most recent call last)" in line:
            frames, pending = [], None
            continue
        frame = _FRAME.search(line)
        if frame:
            pending = f"{frame.group(1)}:{frame.group(2)}"
            frames.append(pending + ":")
            frames = frames[-200:]
            continue
        if pending is not None and line.strip() and not set(line.strip()) <= set("^~ "):
            frames[-1] = f"{pending}: {line.strip()}"
            pending = None
        match = _START.search(line)
        if match is None:
            continue
        joined = " ".join(_PREFIX.sub("", part).strip() for part in lines[number - 1 : number + 7])
        event = _read(joined[joined.find(match.group(0)) :], raw, number, tuple(frames))
        key = (event.rank, event.gpu, event.requested, event.allocated, event.device)
        if key not in seen:
            seen.add(key)
            found.append(event)
    return found


def _read(text: str, raw: str, line: int, frames: tuple[str, ...]) -> OutOfMemory:
    text = re.split(r"\s(?:Traceback|During handling|Process finished)", text)[0]
    end = text.find("Memory Management")
    text = text[: end if end > 0 else 1200]
    rank = _RANK.match(raw)
    if "CPUAllocator" in text:
        asked = re.search(r"allocate (\d{1,19}) bytes", text)
        return OutOfMemory(
            device="host", requested=int(asked.group(1)) if asked else None, line=line, text=text.strip(), frames=frames
        )

    def size(pattern: str) -> int | None:
        match = re.search(pattern, text, re.I)
        return _bytes(match.group(1), match.group(2)) if match else None

    requested = re.search(rf"Tried to allocate {_SIZE}", text, re.I)
    gpu = re.search(r"GPU:? (\d{1,4})\b", text)
    allocated = size(rf"{_SIZE} already allocated") or size(rf"Of the allocated memory {_SIZE} is allocated")
    total_reserved = size(rf"{_SIZE} reserved in total") or size(rf"{_SIZE} cached")
    unallocated = size(rf"{_SIZE} is reserved by PyTorch but unallocated")
    if unallocated is None and total_reserved is not None and allocated is not None:
        # Before 1.4 "cached" already excluded what was allocated.
        unallocated = total_reserved if "cached" in text else max(0, total_reserved - allocated)
    own = size(rf"this process has {_SIZE} memory in use")
    processes = re.findall(rf"Process (\d{{1,19}}) has {_SIZE} memory in use", text, re.I)
    others: list[tuple[str, int]] = [
        (number, _bytes(value, unit)) for number, value, unit in processes if float(value.replace(",", ""))
    ]
    if own is None and others:
        place = _own(others, allocated, unallocated)
        own = others.pop(place)[1] if place is not None else None
    return OutOfMemory(
        device="nccl" if re.search(r"nccl|cuda calloc", text + raw, re.I) and requested is None else "cuda",
        gpu=int(gpu.group(1)) if gpu else None,
        rank=(rank.group(1) or rank.group(2)) if rank else None,
        requested=_bytes(*requested.groups()) if requested else None,
        requested_step=_step(*requested.groups()) if requested else 0,
        capacity=size(rf"{_SIZE} total capacity") or size(rf"total capaci?ty of {_SIZE}"),
        free=size(rf"of which {_SIZE} is free") or size(rf"{_SIZE} free"),
        allocated=allocated,
        reserved_free=unallocated,
        process=own,
        others=tuple(others),
        allowed=size(rf"{_SIZE} allowed"),
        private_pools=size(rf"{_SIZE} allocated in private pools"),
        line=line,
        text=" ".join(text.split()),
        frames=frames,
    )


def _own(processes: list[tuple[str, int]], allocated: int | None, unallocated: int | None) -> int | None:
    """Which of the listed processes is ours, by place: the one that holds what PyTorch says it reserved, and little
    more; the first of those that hold the same.
    """
    if allocated is None:
        return None
    reserved = allocated + (unallocated or 0)
    fitting = [place for place, (_, size) in enumerate(processes) if size >= reserved * 0.99]
    return min(fitting, key=lambda place: processes[place][1], default=None)
