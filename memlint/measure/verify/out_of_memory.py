"""Where a run ran out of memory, and with how much."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_TRIED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"total capacity of {_SIZE} of which {_SIZE} is free")
_CPU = re.compile(r"not enough memory: you tried to allocate (\d+) bytes|tried to allocate (\d+) bytes")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device's, or the host's, memory is used up."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return "DefaultCPUAllocator" in text or "CUDA out of memory" in text or "CUBLAS_STATUS_ALLOC_FAILED" in text


def describe(
    error: BaseException, *, name: Callable[[Any], str], phase: str, step: int, allocated: int
) -> dict[str, Any]:
    """Return the place (step, phase, module) and the sizes that the message states. ``name`` gives a module's path."""
    text = str(error)
    return {
        "step": step,
        "phase": phase,
        "module": _module(error, name),
        "requested_bytes": _requested(text),
        "allocated_bytes": allocated,
        **_capacity(text),
        "message": " ".join(text.split())[:400],
    }


def _requested(text: str) -> int | None:
    found = _TRIED.search(text)
    if found is not None:
        return _bytes(found.group(1), found.group(2))
    plain = _CPU.search(text)
    return int(plain.group(1) or plain.group(2)) if plain is not None else None


def _capacity(text: str) -> dict[str, int | None]:
    found = _CAPACITY.search(text)
    if found is None:
        return {"capacity_bytes": None, "free_bytes": None}
    return {
        "capacity_bytes": _bytes(found.group(1), found.group(2)),
        "free_bytes": _bytes(found.group(3), found.group(4)),
    }


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _module(error: BaseException, name: Callable[[Any], str]) -> str | None:
    """The innermost module whose forward was running; the frames of the traceback still know it."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            found = name(owner)
        trace = trace.tb_next
    return found or None
