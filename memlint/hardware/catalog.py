"""The known GPUs, MIG partitions and cloud instances, and how their names are looked up.

Names are compared by key (:func:`memlint.hardware.names.key`), so that ``A100-80GB``, ``a100_80g`` and ``NVIDIA A100
80GB PCIe`` (what ``torch.cuda.get_device_name`` prints) are all understood. The records are plain classes: this module
is on the path of every check, and each named tuple or dataclass would add a third of a millisecond to its start.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from memlint.hardware.gpus import ASSUMED, ASSUMED_KEYS, GPU_KEYS, GPUS, PARTITIONS
from memlint.hardware.names import key


class _Row:
    """A row of a generated table, its columns as attributes."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, *row: Any) -> None:
        for name, value in zip(self.__slots__, row, strict=True):
            setattr(self, name, value)


class Gpu(_Row):
    """One kind of GPU. Sizes in bytes."""

    __slots__ = (  # noqa: RUF023  # the order of the columns
        "name",
        "aliases",
        "marketing_gb",
        "usable_bytes",
        "usable_high_bytes",
        "compute_capability",
        "bf16",
        "fp8",
        "source",
    )
    name: str
    """Canonical name, as printed: ``A100-80GB``."""
    aliases: tuple[str, ...]
    marketing_gb: int
    """The number on the box."""
    usable_bytes: int
    """Total memory that CUDA (HIP) reports, the smallest figure known."""
    usable_high_bytes: int
    """The largest figure known among drivers and systems."""
    compute_capability: tuple[int, int] | None
    """None where the maker is not NVIDIA."""
    bf16: bool
    fp8: bool
    source: str
    """Where the memory figures were read."""


class Assumed(_Row):
    """A text that names several GPUs."""

    __slots__ = ("text", "gpu", "others", "why")  # noqa: RUF023  # the order of the columns
    text: str
    gpu: str
    """The GPU it is taken as; empty where the user is asked."""
    others: tuple[str, ...]
    """Names of the other GPUs it may mean."""
    why: str


class Partition(_Row):
    """One MIG profile of a GPU."""

    __slots__ = ("profile", "usable_bytes", "source")  # noqa: RUF023  # the order of the columns
    profile: str
    """NVIDIA's name of it: ``3g.40gb``."""
    usable_bytes: int
    source: str


class Instance(_Row):
    """One cloud instance type."""

    __slots__ = ("name", "gpu", "gpus", "source")  # noqa: RUF023  # the order of the columns
    name: str
    gpu: str
    gpus: int
    """GPUs in one instance."""
    source: str


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """Return every known GPU; a name that covers several form factors comes before them."""
    return tuple(Gpu(*row) for row in GPUS)


@lru_cache(maxsize=1)
def instances() -> tuple[Instance, ...]:
    """Return every known cloud instance type."""
    from memlint.hardware.instances import INSTANCES  # most lookups need no instance

    return tuple(Instance(name, gpu, count, source) for names, gpu, count, source in INSTANCES for name in names)


@lru_cache(maxsize=1)
def instance_index() -> dict[str, Instance]:
    """Return cloud instances by key; Azure's ``Standard_`` and SageMaker's ``ml.`` may be left out or added."""
    index: dict[str, Instance] = {}
    for instance in instances():
        name = key(instance.name)
        index[name] = instance
        if name.startswith("standard"):
            index[name.removeprefix("standard")] = instance
        else:
            index["ml" + name] = instance
    return index


def gpu_names() -> dict[str, str]:
    """Return the printed name of every GPU and ambiguous text by key."""
    names = {name: GPUS[index][0] for name, index in GPU_KEYS.items()}
    return names | {name: ASSUMED[index][0] for name, index in ASSUMED_KEYS.items()}


def find_gpu(text: str) -> Gpu | Assumed | None:
    """Return the GPU of that name, an ambiguity, or None when the name is unknown. ``80G`` reads as ``80GB``."""
    name = key(text)
    for wanted in (name, name + "b") if name.endswith("g") else (name,):
        index = GPU_KEYS.get(wanted)
        if index is not None:
            return Gpu(*GPUS[index])
        index = ASSUMED_KEYS.get(wanted)
        if index is not None:
            return Assumed(*ASSUMED[index])
    return None


def find_instance(text: str) -> Instance | None:
    """Return the cloud instance of that name, or None."""
    return instance_index().get(key(text))


def gpu_named(name: str) -> Gpu:
    """Return the GPU whose canonical name is ``name``; KeyError for any other text."""
    return Gpu(*GPUS[GPU_KEYS[key(name)]])


def partitions(gpu: Gpu) -> tuple[Partition, ...]:
    """Return the MIG profiles of a GPU, smallest first; empty where it has none (or none is known)."""
    for names, rows in PARTITIONS:
        if gpu.name in names:
            return tuple(Partition(*row) for row in rows)
    return ()
