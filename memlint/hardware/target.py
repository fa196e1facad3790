"""A declared GPU target, resolved."""

from __future__ import annotations

from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One machine shape: how many GPUs of which kind, and what CUDA reports as usable on each."""

    name: str
    """Canonical name, e.g. ``A100-80GB``."""
    spec: str
    """The target as declared, normalised: ``8xA100-80GB``."""
    gpus: int
    """GPUs in all (nodes x GPUs per node)."""
    nodes: int
    usable_bytes: int
    """total memory that CUDA reports on one GPU (torch.cuda.mem_get_info), the smaller figure where drivers differ."""
    usable_high_bytes: int
    """The larger figure among drivers and systems; equals ``usable_bytes`` where only one is known."""
    compute_capability: tuple[int, int] | None
    """None for a bare size such as ``16GiB``."""
    bf16: bool | None
    fp8: bool | None
    source: str
    """Where the memory figure was read."""
    assumption: str | None = None
    """What was taken for granted because the declared name fits several GPUs; a sentence for the user."""
    host_bytes: int | None = None
    """Main memory of one node; None where the declaration does not name a machine."""


def host_memory(declared: int | None, target: Target | None) -> int | None:
    """Return a node's main memory in bytes: as declared for the job, else the target's; None where it is not known."""
    if declared is not None:
        return declared
    return target.host_bytes if target is not None else None
