"""GPU memory that a run needs beside its tensors: context, cuBLAS workspaces, NCCL buffers, allocator slack.

Every figure is a range with its source. A process's total minus what PyTorch says it allocated and reserved, in
public out-of-memory texts, is 0.42 to 0.58 GiB on one GPU (six rows: litgpt tutorials/oom.md, OpenBMB/MiniCPM-V#588,
Wan-Video/Wan2.1#465, DINGYANB/MTVCrafter#21, bmaltais/kohya_ss#2724, 3DTopia/Phidias-Diffusion#8); these hold the
context, the kernels that training loads and the libraries' own buffers, so the context figures below are of that kind,
not the smaller one of an idle process. Among their bounds 400 MiB is what the first CUDA operation takes
(pytorch/pytorch#109888) and 700 the most between machines (pytorch/pytorch#28113); those for which no figure was found
are margins of judgement: the upper ones of 8.6 and 8.9, both of 10.0, NCCL's least, and the half of the network's
buffers that several nodes are expected to add. All sizes in bytes.
"""

from __future__ import annotations

from memlint.estimate.result import Overhead
from memlint.units import MIB

Capability = tuple[int, int]

_CONTEXTS: tuple[tuple[Capability, int, int, int, str], ...] = (
    (
        (7, 0),
        300,
        430,
        1343,
        "V100: 300-400 MiB after the first tensor, pytorch/pytorch#20532; 1343 MiB with eager module loading, "
        "transformers docs model_memory_anatomy",
    ),
    (
        (7, 5),
        274,
        430,
        700,
        "no figure for Turing: 274 MiB with lazy module loading, pytorch/pytorch#86509; 0.42 GiB is the least "
        "in training",
    ),
    ((8, 0), 400, 522, 700, "A100/H100: 0.51 GiB outside PyTorch in training, litgpt tutorials/oom.md"),
    (
        (8, 6),
        256,
        492,
        620,
        "A10G: 0.48 GiB outside PyTorch in training, OpenBMB/MiniCPM-V#588; RTX 3090 idle 256 MiB, "
        "invoke-ai/InvokeAI#9413",
    ),
    (
        (8, 9),
        426,
        500,
        620,
        "RTX 6000 Ada 426 MiB idle, unslothai/unsloth-zoo#1053; 0.42 GiB (DINGYANB/MTVCrafter#21), L40S 0.51 GiB "
        "(bmaltais/kohya_ss#2724), RTX 4090 0.49 GiB (3DTopia/Phidias-Diffusion#8) in use",
    ),
    (
        (9, 0),
        400,
        522,
        700,
        "A100/H100: 0.51 GiB outside PyTorch in training, litgpt tutorials/oom.md; 616 MiB for an idle context "
        "on an 8-GPU node, LMCache/LMCache#4019",
    ),
    (
        (10, 0),
        500,
        618,
        800,
        "B300: 618 MiB for another process's context in OOM texts (public code, repository not named)",
    ),
    ((12, 0), 426, 594, 700, "RTX 5090: 0.58 GiB outside PyTorch in use, Wan-Video/Wan2.1#465"),
)
"""From which compute capability on, then low, expected and high MiB, and source."""

_CONTEXT_UNKNOWN = (
    256,
    522,
    800,
    "kind of GPU unknown: 0.42 to 0.58 GiB outside PyTorch in six OOM texts; 256 MiB (RTX 3090, idle) to 618 "
    "MiB (B300)",
)

_CUBLAS_SOURCE = (
    "PyTorch aten/src/ATen/cuda/CublasHandlePool.cpp: :4096:2:16:8 = 8.125 MiB, 32 MiB from compute capability "
    "9.0; one for each thread that multiplies (forward, autograd). Releases after 2.13 keep none unless "
    "TORCH_CUBLAS_WORKSPACE_CACHE=1"
)

_POINT_TO_POINT = ((7, 0), (8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities of the parts that servers join by NVLink (V100, A100, H100, B200, B300)."""


def cuda_context(capability: Capability | None) -> Overhead:
    """Return the CUDA context with loaded kernels and libraries, outside the allocator, of one process on one GPU."""
    low, expected, high, source = _CONTEXT_UNKNOWN
    if capability is not None:
        for row in _CONTEXTS:
            if capability >= row[0]:
                _, low, expected, high, source = row
    return Overhead(
        name="cuda_context",
        low_bytes=low * MIB,
        expected_bytes=expected * MIB,
        high_bytes=high * MIB,
        source=source,
    )


def cublas_workspace_bytes(capability: Capability | None) -> int:
    """Return the size of one cuBLAS workspace, allocated inside the caching allocator.

    8,519,680 bytes before Hopper (2 x 4096 KiB + 8 x 16 KiB), 32 MiB from 9.0 on; PyTorch 2.x before 2026-02 kept
    8.125 MiB on Blackwell too (pytorch/pytorch#175344). An unknown GPU gets the smaller one.
    """
    return 32 * MIB if capability is not None and capability >= (9, 0) else 8_519_680


def cublas_workspace(capability: Capability | None) -> Overhead:
    """Return the cuBLAS workspaces of one training process, inside the allocator (they count as allocated)."""
    size = cublas_workspace_bytes(capability)
    return Overhead(
        name="cublas_workspace",
        low_bytes=0,
        expected_bytes=2 * size,
        high_bytes=2 * size + 2 * MIB,  # cuBLASLt keeps 1 MiB a thread of its own where the two are not unified
        source=_CUBLAS_SOURCE,
    )


def nccl_buffers(capability: Capability | None, gpus: int, *, nodes: int = 1) -> Overhead | None:
    """Return NCCL's buffers on one GPU for a process group of so many, outside the allocator; None for one GPU.

    One communicator is counted; a run that mixes data, tensor and pipeline parallelism has several, and NCCL's memory
    grows linearly in them (NVIDIA/nccl#986).
    """
    if gpus < 2:
        return None
    measured = 544 if gpus == 2 else 688
    low, expected, high = 60, 160, measured
    source = (
        "0.48 GiB outside PyTorch on 4 x A10G, OpenBMB/MiniCPM-V#588, leaves at most 160 MiB to NCCL; over "
        "NVLink 544 MiB (2 GPUs) and 688 MiB (4 x A100), NVIDIA/nccl#964"
    )
    if capability is None or capability in _POINT_TO_POINT:
        expected, high = measured, 1600
        source = "544 MiB for 2 GPUs, 688 MiB for 4 x A100 over NVLink, NVIDIA/nccl#964; 1.6 GB in NVIDIA/nccl#864"
    if nodes > 1:
        expected += 256
        high += 512
        source += "; network buffers of up to 512 MiB, NVIDIA/nccl#2363"
    return Overhead(
        name="nccl",
        low_bytes=low * MIB,
        expected_bytes=expected * MIB,
        high_bytes=high * MIB,
        source=source,
    )


def allocator_slack(churn_bytes: int, *, sharded: bool = False, expandable_segments: bool = False) -> Overhead:
    """Return what the caching allocator holds above the allocated peak: rounding to segments and fragmentation.

    ``churn_bytes`` come and go within the step. The sources give shares of all that was allocated; they are taken of
    the churn, since weights and states are laid down once and fragment nothing. ``sharded`` jobs (FSDP, ZeRO) allocate
    and free whole layers on several streams; ``expandable_segments`` is PYTORCH_CUDA_ALLOC_CONF, which removes most
    fragmentation. Batches of varying length are replayed instead (estimate/varying_lengths.py).
    """
    low, expected, high = 0.0, 0.022, 0.144
    source = (
        "reserved but free when memory ran out: 0.1 to 14.4 % of allocated, median 2.2 %, in six OOM texts (litgpt "
        "tutorials/oom.md, OpenBMB/MiniCPM-V#588, Wan-Video/Wan2.1#465, DINGYANB/MTVCrafter#21, "
        "bmaltais/kohya_ss#2724, 3DTopia/Phidias-Diffusion#8)"
    )
    if sharded:
        low, expected, high = 0.03, 0.144, 0.37
        source = (
            "sharded: 3 to 37 % of allocated, torchtitan#165 and Megatron-Bridge verification cards; 14.4 % "
            "when memory ran out, OpenBMB/MiniCPM-V#588"
        )
    if expandable_segments:
        expected, high = min(expected, 0.03), min(high, 0.10)
        source += "; expandable segments remove most of it, Megatron-Bridge skill nemo-mbridge-perf-memory-tuning"
    rounding = 20 * MIB  # a segment of the 1-10 MiB pool, partly used: c10/cuda/CUDACachingAllocator.cpp kLargeBuffer
    return Overhead(
        name="allocator_slack",
        low_bytes=int(churn_bytes * low),
        expected_bytes=int(churn_bytes * expected) + rounding,
        high_bytes=int(churn_bytes * high) + 2 * rounding,
        source=source,
    )


def device_overheads(
    churn_bytes: int,
    *,
    capability: Capability | None = None,
    gpus: int = 1,
    nodes: int = 1,
    sharded: bool = False,
) -> tuple[Overhead, ...]:
    """Return every overhead of one training process above its allocated peak, in report order.

    The first two (``cublas_workspace``, ``allocator_slack``) lie inside what PyTorch reserves, the others outside.
    """
    nccl = nccl_buffers(capability, gpus, nodes=nodes)
    inside = (cublas_workspace(capability), allocator_slack(churn_bytes, sharded=sharded))
    return (*inside, cuda_context(capability), *(() if nccl is None else (nccl,)))
