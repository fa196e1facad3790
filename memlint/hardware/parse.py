"""Read a declared target: ``[NODESx][COUNTx]GPU[:PARTITION]``, a cloud instance, or a bare size.

Case and separators are free. Beside the forms of the contract, the count may follow the GPU as launchers write it
(``A100-80GB:8``, ``H100x8``, ``8 x H100``).
"""

from __future__ import annotations

from memlint.errors import UserError
from memlint.hardware.catalog import (
    Assumed,
    Gpu,
    Instance,
    Partition,
    find_gpu,
    find_instance,
    gpu_named,
    gpu_names,
    instance_index,
    partitions,
)
from memlint.hardware.names import key
from memlint.hardware.target import Target
from memlint.units import GIB, MIB, gib

MAX_LENGTH = 100
"""Longest text that is looked at: the longest real name has some 50 characters."""
MAX_GPUS = 1_000_000
"""More than the largest cluster; beyond it a number is a typing error."""
MAX_SIZE = 4096 * GIB

_DIGITS = "0123456789"
_TIMES = ("x", "X", "×", "*")
_SIZES = {"gib": GIB, "gi": GIB, "gb": 10**9, "g": 10**9, "mib": MIB, "mi": MIB, "mb": 10**6, "m": 10**6}
"""``GB`` is decimal, as on the box; a lone ``G`` is read as GB, the smaller of the two."""

_Counts = tuple[int, int]
"""Nodes, and GPUs (or instances) in each."""


def parse_target(text: str) -> Target:
    """Return the machine that a declared target means.

    Raises UserError, with the nearest known names, for a text that is no target.
    """
    if not isinstance(text, str) or not text.strip():
        raise UserError("a target is text such as `8xA100-80GB`, `p4d.24xlarge` or `16GiB`")
    text = text.strip()
    if len(text) > MAX_LENGTH:
        raise UserError(f"target `{text[:40]}...` is too long: write it as `8xA100-80GB`")
    shape = text
    if text[:3].lower() == "gpu" and text[3:4] in ("_", ":", " "):  # gpu_8x_a100 (Lambda), gpu:a100:4 (Slurm)
        shape = text[3:].lstrip("_: ")
    head, separator, partition = (part.strip() for part in shape.partition(":"))
    numbers: list[int] = []
    while not (size := _size(head)) and len(numbers) < 2 and find_gpu(head) is None:  # "4070 Ti" counts nothing
        counted = _count_before(head)
        if counted is None:
            break
        numbers.append(counted[0])
        head = counted[1]
    if partition.isdigit() and partition.isascii() and not numbers:  # A100-80GB:8, as SkyPilot and Modal write it
        numbers, separator, partition = [int(partition)], "", ""
    if separator and not partition:
        raise UserError(f"target `{text}` ends in a colon: write a partition after it, or leave it out")
    if not numbers and not size and find_gpu(head) is None and find_instance(head) is None:
        head, numbers = _count_behind(head)
    counts = _counts(text, numbers)
    if size:
        if partition:
            raise UserError(
                f"target `{text}` names a partition of a bare size: name the GPU, as in `A100-80GB:3g.40gb`"
            )
        return _bare(head, size, counts)
    found = find_gpu(head)
    if found is None:
        instance = find_instance(head)
        if instance is not None:
            return _instance(text, instance, counts, partition)
        raise UserError(f"unknown target `{text}`{_near(head)}; `memlint targets` lists what is known")
    return _target(text, found, counts, partition)


def _size(text: str) -> int:
    """Return the bytes of ``24GiB``; 0 when the text is no size."""
    number = text[: len(text) - len(text.lstrip(_DIGITS + "."))]
    unit = _SIZES.get(text[len(number) :].strip().lower())
    if not number or unit is None:
        return 0
    try:
        size = int(float(number) * unit)
    except ValueError:  # 1.2.3GB
        return 0
    if not 0 < size <= MAX_SIZE:
        raise UserError(f"target `{text}` is no memory size of one GPU: write it as `24GiB`")
    return size


def _count_before(head: str) -> tuple[int, str] | None:
    """Split ``8xH100``, ``8 x H100`` or ``8 H100`` into count and name."""
    rest = head.lstrip(_DIGITS)
    digits = head[: len(head) - len(rest)]
    name = rest.lstrip()
    if name[:1] in _TIMES:
        name = name[1:].lstrip(" _-")
    elif name == rest:
        return None
    if not digits or len(digits) > 7 or not name[:1].isalnum():
        return None
    return int(digits), name


def _count_behind(head: str) -> tuple[str, list[int]]:
    """Split ``H100x8`` into name and count, where the name alone is known."""
    rest = head.rstrip(_DIGITS)
    digits = head[len(rest) :]
    rest = rest.rstrip()
    name = rest[:-1].rstrip(" _-")
    known = rest[-1:] in _TIMES and 0 < len(digits) <= 7 and (find_gpu(name) or find_instance(name)) is not None
    return (name, [int(digits)]) if known else (head, [])


def _counts(text: str, numbers: list[int]) -> _Counts:
    nodes, per_node = [1, 1, *numbers][-2:] if len(numbers) != 1 else (1, numbers[0])
    if not (nodes and per_node) or nodes * per_node > MAX_GPUS:
        raise UserError(f"target `{text}` has no possible number of GPUs: write it as `8xA100-80GB`")
    return nodes, per_node


def _prefix(counts: _Counts) -> str:
    nodes = f"{counts[0]}x" if counts[0] > 1 else ""
    return nodes + (f"{counts[1]}x" if counts[1] > 1 or nodes else "")


def _bare(text: str, size: int, counts: _Counts) -> Target:
    name = text.replace(" ", "")
    assumption = None
    if size % 10**9 == 0:
        assumption = (
            f"`{name}` is read as {size // 10**9} x 10^9 bytes, {gib(size)} GiB; a card sold with that number has more:"
            f" name the GPU, or write `{size // 10**9}GiB`"
        )
    return Target(
        name=name,
        spec=_prefix(counts) + name,
        gpus=counts[0] * counts[1],
        nodes=counts[0],
        usable_bytes=size,
        usable_high_bytes=size,
        compute_capability=None,
        bf16=None,
        fp8=None,
        source="declared size, taken as what CUDA reports",
        assumption=assumption,
    )


def _instance(text: str, instance: Instance, counts: _Counts, partition: str) -> Target:
    if counts[0] > 1:
        raise UserError(
            f"target `{text}` counts GPUs twice: `{instance.name}` already has {instance.gpus}, "
            f"write `{counts[0] * counts[1]}x{instance.name}` for that many instances"
        )
    nodes = counts[1]
    target = _target(text, gpu_named(instance.gpu), (nodes, instance.gpus), partition)
    spec = (f"{nodes}x" if nodes > 1 else "") + instance.name + (f":{partition}" if partition else "")
    from memlint.hardware.host_memory import host_bytes_of  # most targets are no instance
    from memlint.records import replace

    return replace(
        target,
        spec=spec,
        source=f"{instance.gpus}x {instance.gpu}: {instance.source}; {target.source}",
        host_bytes=host_bytes_of(instance.name),
    )


def _target(text: str, found: Gpu | Assumed, counts: _Counts, partition: str) -> Target:
    gpu, assumption = _choose(text, found, partition)
    name, low, high, source = gpu.name, gpu.usable_bytes, gpu.usable_high_bytes, gpu.source
    if partition:
        part = _partition(text, gpu, partition)
        name, low, high, source = f"{gpu.name}:{part.profile}", part.usable_bytes, part.usable_bytes, part.source
    return Target(
        name=name,
        spec=_prefix(counts) + name,
        gpus=counts[0] * counts[1],
        nodes=counts[0],
        usable_bytes=low,
        usable_high_bytes=high,
        compute_capability=gpu.compute_capability,
        bf16=gpu.bf16,
        fp8=gpu.fp8,
        source=f"{source} ({assumption})" if assumption else source,
        assumption=assumption,
    )


def _choose(text: str, found: Gpu | Assumed, partition: str) -> tuple[Gpu, str | None]:
    """Return the GPU that an ambiguous name is taken as, and the sentence that says so."""
    if isinstance(found, Gpu):
        return found, None
    if partition:  # only one of the sizes may have such a partition: A100:3g.40gb is the 80 GB card
        fitting = [gpu_named(name) for name in (found.gpu, *found.others) if name]
        fitting = [gpu for gpu in fitting if _find_partition(gpu, partition)]
        if len(fitting) == 1:
            return fitting[0], None
    if not found.gpu:
        raise UserError(f"target `{text}` is ambiguous: {found.why}; write {_choices(found.others)}")
    others = f"; write {_choices(found.others)} if that is meant" if found.others else ""
    return gpu_named(found.gpu), found.why + others


def _find_partition(gpu: Gpu, text: str) -> Partition | None:
    wanted = key(text.split("+")[0]).removeprefix("mig")  # 1g.10gb+me has media engines, not other memory
    return next((part for part in partitions(gpu) if key(part.profile) == wanted), None)


def _partition(text: str, gpu: Gpu, partition: str) -> Partition:
    found = _find_partition(gpu, partition)
    if found is not None:
        return found
    known = [part.profile for part in partitions(gpu)]
    if not known:
        raise UserError(
            f"target `{text}`: no MIG partition of {gpu.name} is known; declare a bare size such as `16GiB`"
        )
    raise UserError(f"target `{text}`: {gpu.name} has no partition `{partition}`; write {_choices(known)}")


def _choices(names: tuple[str, ...] | list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def _near(head: str) -> str:
    """Return ``: did you mean ...`` with up to three known names, or nothing."""
    from difflib import get_close_matches  # only on the way to an error

    canonical = gpu_names()
    for name, instance in instance_index().items():
        canonical.setdefault(name, instance.name)
    names: list[str] = []
    for match in get_close_matches(key(head), canonical, n=8, cutoff=0.7):
        if canonical[match] not in names:
            names.append(canonical[match])
    return f": did you mean {_choices(names[:3])}?" if names else ""
