"""What a run needs beside its tensors: every figure a range with a source."""

from __future__ import annotations

import pytest

from memlint.hardware.catalog import gpus
from memlint.hardware.overheads import (
    allocator_slack,
    cublas_workspace,
    cublas_workspace_bytes,
    cuda_context,
    device_overheads,
    nccl_buffers,
)
from memlint.units import GIB, MIB

CAPABILITIES = sorted({gpu.compute_capability for gpu in gpus() if gpu.compute_capability})


@pytest.mark.parametrize("capability", [None, *CAPABILITIES], ids=str)
def test_every_known_gpu_has_ordered_ranges_with_sources(capability: tuple[int, int] | None) -> None:
    for overhead in device_overheads(20 * GIB, capability=capability, gpus=8, nodes=2, sharded=True):
        assert 0 <= overhead.low_bytes <= overhead.expected_bytes <= overhead.high_bytes, overhead.name
        assert overhead.source


@pytest.mark.parametrize(
    ("process_total", "allocated", "reserved_free", "capability"),
    [  # GiB, from out-of-memory texts of single processes; sources in the module's docstring
        (78.93, 76.28, 2.14, (8, 0)),
        (31.34, 30.74, 0.02, (12, 0)),
        (44.40, 43.94, 0.04, (8, 9)),
        (44.51, 42.17, 1.83, (8, 9)),
        (14.56, 13.86, 0.21, (8, 9)),
    ],
)
def test_public_out_of_memory_texts_lie_inside_the_interval(
    process_total: float, allocated: float, reserved_free: float, capability: tuple[int, int]
) -> None:
    context = cuda_context(capability)
    slack = allocator_slack(int(allocated * GIB))
    outside = (process_total - allocated - reserved_free) * GIB
    assert context.low_bytes - 8 * MIB <= outside <= context.high_bytes
    assert slack.low_bytes <= reserved_free * GIB <= slack.high_bytes
    assert context.low_bytes + slack.low_bytes <= (process_total - allocated) * GIB
    assert (process_total - allocated) * GIB <= context.high_bytes + slack.high_bytes


def test_cublas_workspace_is_pytorchs_default_for_the_gpu() -> None:
    assert cublas_workspace_bytes((8, 0)) == 2 * 4096 * 1024 + 8 * 16 * 1024 == 8_519_680
    assert cublas_workspace_bytes((9, 0)) == 32 * MIB
    assert cublas_workspace_bytes(None) == 8_519_680
    assert cublas_workspace((8, 6)).expected_bytes == 2 * 8_519_680  # the forward thread's and the autograd thread's


def test_nccl_counts_only_with_several_gpus_and_grows_with_them() -> None:
    assert nccl_buffers((8, 0), 1) is None
    two, four = nccl_buffers((8, 0), 2), nccl_buffers((8, 0), 4)
    assert two is not None
    assert four is not None
    assert (two.expected_bytes, four.expected_bytes) == (544 * MIB, 688 * MIB)
    over_pcie, over_nodes = nccl_buffers((8, 6), 4), nccl_buffers((8, 6), 8, nodes=2)
    assert over_pcie is not None
    assert over_nodes is not None
    assert over_pcie.expected_bytes < four.expected_bytes
    assert over_pcie.high_bytes < over_nodes.high_bytes
    assert [overhead.name for overhead in device_overheads(GIB)] == [
        "cublas_workspace",
        "allocator_slack",
        "cuda_context",
    ]
    assert device_overheads(GIB, gpus=2)[-1].name == "nccl"


def test_slack_is_wider_where_layers_come_and_go() -> None:
    plain, sharded = allocator_slack(40 * GIB), allocator_slack(40 * GIB, sharded=True)
    assert plain.expected_bytes < sharded.expected_bytes
    assert plain.high_bytes < sharded.high_bytes
    assert allocator_slack(40 * GIB, sharded=True, expandable_segments=True).high_bytes < sharded.high_bytes


@pytest.mark.parametrize(("active", "reserved"), [(18.02, 22.20), (65.223, 72.356), (58.079, 70.336), (24.81, 33.82)])
def test_reserved_figures_of_sharded_runs_lie_inside_the_interval(active: float, reserved: float) -> None:
    # GiB (the last row: % of 80 GB): xtuner get_started/sft.md, Megatron-Bridge cards gemma-4-26b and
    # nemotron-3-super-120b, torchtitan#165
    slack = allocator_slack(int(active * GIB), sharded=True)
    assert slack.low_bytes <= (reserved - active) * GIB <= slack.high_bytes
