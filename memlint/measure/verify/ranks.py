"""Which process of how many this is: as torchrun says, as Slurm's srun says, or alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from memlint.errors import UserError
from memlint.records import dataclass

_PORTS = 16384
"""Ports from 29500 (torchrun's default) on, over which Slurm jobs are spread by their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The place of this process among those that train together."""

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    launcher: str | None = None
    """torchrun, srun, or None for a process on its own."""
    address: str | None = None
    port: int | None = None


def ranks_from(environment: Mapping[str, str]) -> Ranks:
    """Return the place that the launcher's variables name. Raises UserError for values that make no sense."""
    try:
        if "RANK" in environment and "WORLD_SIZE" in environment:
            return Ranks(
                rank=int(environment["RANK"]),
                local_rank=int(environment.get("LOCAL_RANK", "0")),
                world=int(environment["WORLD_SIZE"]),
                launcher="torchrun",
                address=environment.get("MASTER_ADDR", "127.0.0.1"),
                port=int(environment.get("MASTER_PORT", "29500")),
            )
        # SLURM_STEP_ID: inside `srun`. In an sbatch script without it, SLURM_NTASKS is set too but one process runs.
        if "SLURM_STEP_ID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
            nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST") or ""
            job = int(environment.get("SLURM_JOB_ID", "0")) + int(environment["SLURM_STEP_ID"])
            return Ranks(
                rank=int(environment["SLURM_PROCID"]),
                local_rank=int(environment.get("SLURM_LOCALID", "0")),
                world=int(environment["SLURM_NTASKS"]),
                launcher="srun",
                address=environment.get("MASTER_ADDR") or first_host(nodes) or "127.0.0.1",
                port=int(environment.get("MASTER_PORT") or 29500 + job % _PORTS),
            )
    except (KeyError, ValueError) as error:
        raise UserError(f"the launcher's environment is incomplete or odd: {error}") from None
    return Ranks()


def first_host(nodes: str) -> str | None:
    """Return the first host of a Slurm node list: ``gpu[003-005,9],login1`` -> ``gpu003``."""
    found = re.match(r"([^,\[\]]+)(?:\[(\d+)[^\]]*\]([^,\[\]]*))?", nodes)
    if found is None:
        return None
    return f"{found.group(1)}{found.group(2) or ''}{found.group(3) or ''}"


@contextmanager
def process_group(ranks: Ranks, device: str) -> Iterator[Any]:
    """Join the process group (NCCL on GPUs, gloo on CPUs) and leave it again; yields the device mesh of all ranks."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    options: dict[str, Any] = {}
    if ranks.launcher is None:
        options["store"] = dist.HashStore()
    else:
        options["init_method"] = f"tcp://{ranks.address}:{ranks.port}"
        if ranks.launcher == "torchrun":
            options["init_method"] = "env://"
    if device == "cuda":
        import torch

        options["device_id"] = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=ranks.rank, world_size=ranks.world, **options)
    try:
        yield init_device_mesh(device, (ranks.world,))
    finally:
        dist.destroy_process_group()
