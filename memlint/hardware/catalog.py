"""The known GPUs, MIG partitions and cloud instances, and how their names are looked up.

Names are compared by key: lower case, letters and digits alone, without the maker's words, so that ``A100-80GB``,
``a100_80g`` and ``NVIDIA A100 80GB PCIe`` (what ``torch.cuda.get_device_name`` prints) are all understood.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from memlint.hardware.gpus import ASSUMED, GPUS, PARTITIONS

_MAKERS = (
    "nvidia",
    "geforce",
    "tesla",
    "amd",
    "instinct",
    "intel",
    "habana",
    "gpu",
    "graphics",
    "generation",
    "edition",
    "tensorcore",
)
"""Words of the makers' product names that do not tell GPUs apart."""


class Gpu(NamedTuple):
    """One kind of GPU. Sizes in bytes."""

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


class Assumed(NamedTuple):
    """A text that names several GPUs."""

    text: str
    gpu: str
    """The GPU it is taken as; empty where the user is asked."""
    others: tuple[str, ...]
    """Names of the other GPUs it may mean."""
    why: str


class Partition(NamedTuple):
    """One MIG profile of a GPU."""

    profile: str
    """NVIDIA's name of it: ``3g.40gb``."""
    usable_bytes: int
    source: str


class Instance(NamedTuple):
    """One cloud instance type."""

    name: str
    gpu: str
    gpus: int
    """GPUs in one instance."""
    source: str


def key(text: str) -> str:
    """Return the form in which names are compared."""
    squeezed = "".join(character for character in text.lower() if character.isalnum() and character.isascii())
    for word in _MAKERS:
        squeezed = squeezed.replace(word, "")
    return squeezed.replace("gib", "gb")


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """Return every known GPU; a name that covers several form factors comes before them."""
    return tuple(Gpu(*row) for row in GPUS)


@lru_cache(maxsize=1)
def instances() -> tuple[Instance, ...]:
    """Return every known cloud instance type."""
    from memlint.hardware.instances import INSTANCES  # half of the lookups need no instance

    return tuple(Instance(name, gpu, count, source) for names, gpu, count, source in INSTANCES for name in names)


@lru_cache(maxsize=1)
def gpu_index() -> dict[str, Gpu | Assumed]:
    """Return GPUs and ambiguous names by key."""
    index: dict[str, Gpu | Assumed] = {}
    for gpu in gpus():
        for name in (gpu.name, *gpu.aliases):
            index.setdefault(key(name), gpu)
    for row in ASSUMED:
        index[key(row[0])] = Assumed(*row)
    return index


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


def find_gpu(text: str) -> Gpu | Assumed | None:
    """Return the GPU of that name, an ambiguity, or None when the name is unknown. ``80G`` reads as ``80GB``."""
    index = gpu_index()
    name = key(text)
    found = index.get(name)
    if found is None and name.endswith("g"):
        found = index.get(name + "b")
    return found


def find_instance(text: str) -> Instance | None:
    """Return the cloud instance of that name, or None."""
    return instance_index().get(key(text))


def gpu_named(name: str) -> Gpu:
    """Return the GPU whose canonical name is ``name``; KeyError for any other text."""
    found = gpu_index()[key(name)]
    if not isinstance(found, Gpu):
        raise KeyError(name)
    return found


def partitions(gpu: Gpu) -> tuple[Partition, ...]:
    """Return the MIG profiles of a GPU, smallest first; empty where it has none (or none is known)."""
    for names, rows in PARTITIONS:
        if gpu.name in names:
            return tuple(Partition(*row) for row in rows)
    return ()
