"""What the driver says about this process on its GPU, before and after the run."""

from __future__ import annotations

from typing import Any

from memlint.hardware.target import Target
from memlint.measure.verify.nvml import Nvml, open_nvml, own_pids
from memlint.records import dataclass


@dataclass(slots=True, kw_only=True)
class Driver:
    """NVML, and what was in use on every GPU before this process touched one."""

    nvml: Nvml | None
    before: dict[str, int] | None
    """Bytes by UUID; None where CUDA was already in use, or there is no NVML."""


def look_before() -> Driver:
    """Look at the GPUs; must run before CUDA is first used in this process to know what others hold."""
    import torch

    nvml = open_nvml()
    started = torch.cuda.is_initialized()
    return Driver(nvml=nvml, before=nvml.used_bytes() if nvml is not None and not started else None)


def device_bytes(driver: Driver) -> tuple[int | None, str]:
    """Return what this process holds on the current GPU, and how that is known.

    First what the driver counts for the process; else the growth since before the process began, which other processes
    may have changed; None where neither is to be had.
    """
    import torch

    uuid = gpu_uuid()
    if driver.nvml is not None and uuid is not None:
        own = driver.nvml.process_bytes(uuid, own_pids())
        if own:
            return own, "the driver's figure for this process (NVML)"
        after = driver.nvml.used_bytes().get(uuid)
        if driver.before is not None and after is not None and uuid in driver.before:
            return after - driver.before[uuid], "growth of the GPU's used memory since this process began (NVML)"
    free, total = torch.cuda.mem_get_info()
    return None, f"unknown: the driver only says that {total - free} bytes are in use by all processes"


def gpu_uuid() -> str | None:
    """Return the UUID of the current GPU as NVML writes it."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def target_at_hand(world: int) -> Target:
    """Return the GPU that torch uses as a target, with the memory that CUDA reports."""
    import torch

    index = torch.cuda.current_device()
    _, total = torch.cuda.mem_get_info(index)
    capability: Any = torch.cuda.get_device_capability(index)
    name = torch.cuda.get_device_name(index)
    return Target(
        name=name,
        spec=f"{world}x{name}" if world > 1 else name,
        gpus=world,
        nodes=1,
        usable_bytes=total,
        usable_high_bytes=total,
        compute_capability=(int(capability[0]), int(capability[1])),
        bf16=capability >= (8, 0),
        fp8=capability >= (8, 9),
        source="torch.cuda.mem_get_info on this machine",
    )
