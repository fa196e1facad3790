"""Optional packages: what their Functions keep, when a job is taken to have them, and what an estimate says of them.

``traces_kernels.jsonl``: steps of transformers 5.24 with fla-core 0.6.0, mamba-ssm 2.3.2 and causal-conv1d 1.7.0 on
fake tensors. Their own Python ran, with launches of Triton kernels and the two C++ extensions replaced by what these
allocate (selective_scan.cpp, causal_conv1d.cpp); otherwise made as the other traces.
"""

from __future__ import annotations

from math import prod
from typing import Any, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.engine.predict import judge
from memlint.estimate.engine.pool import rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families.xielu import Xielu
from memlint.estimate.kernels import ABSENT, CONV, FLA, MAMBA, OPTIONAL, XIELU, installed
from memlint.estimate.ops import fla, mamba2_kernels, mamba_kernels
from memlint.estimate.ops.linear import Weight
from memlint.estimate.simulate import run_step, simulate
from memlint.hardware.parse import parse_target
from memlint.job import TrainingJob, replace_fields
from memlint.models.resolve import resolve_model
from memlint.records import replace
from tests.estimate.jobs import job as tiny_job
from tests.estimate.traced import job, peak, phases_of, points, title

POINTS = points("traces_kernels.jsonl")
EVERY = frozenset(OPTIONAL)
FURTHER = ("granitemoehybrid bf16 reentrant",)

B, S = 2, 512


def active(f: Tape, *shape: int, dtype: str = "bf16") -> Tensor:
    """An activation that needs a gradient."""
    tensor = f.new(shape, dtype)
    tensor.node = Leaf(shape, dtype)
    return tensor


def weight(*shape: int, dtype: str = "bf16") -> Weight:
    return Weight("weight", shape, dtype, True, dtype)


def kept_beside(f: Tape, inputs: tuple[Any, ...], call: Callable[..., Tensor]) -> int:
    """Bytes that live because of an operation, beyond its inputs and its result."""
    before = f.pool.live
    result = call(f, *inputs)
    return f.pool.live - before - rounded(result.size)


def test_the_delta_rule_keeps_normalised_heads_a_triangle_and_no_state() -> None:
    """ChunkGatedDeltaRuleFunction: q and k normalised, with a root each; v; the gate cumulated; the solved triangle."""
    f, h, j, k, v = Tape(), 4, 8, 64, 128
    inputs = (
        active(f, B, S, h, k),
        active(f, B, S, h, k),
        active(f, B, S, j, v),
        active(f, B, S, j, dtype="fp32"),
        active(f, B, S, j),
    )
    tokens = B * S
    heads = 2 * (tokens * h * k * 2 + tokens * h * 4)
    assert kept_beside(f, inputs, fla.chunk_gated_delta_rule) == (
        heads + tokens * j * v * 2 + tokens * j * 4 + tokens * j * 64 * 2
    )


def test_the_gated_norm_keeps_one_value_a_row() -> None:
    f = Tape()
    inputs = (active(f, B, S, 8, 128), active(f, B, S, 8, 128), weight(128))
    assert kept_beside(f, inputs, fla.gated_norm) == B * S * 8 * 4


@pytest.mark.parametrize("convolution", [mamba_kernels.causal_conv, fla.short_convolution])
def test_a_convolution_keeps_nothing_but_its_input(convolution: Callable[..., Tensor]) -> None:
    f = Tape()
    assert kept_beside(f, (active(f, B, 1024, S), weight(1024, 1, 4), None), convolution) == 0


def test_the_selective_scan_keeps_a_state_for_every_2048_positions() -> None:
    """SelectiveScanFn: copies of u, z, B and C, two fp32 values a state, and the output before the gate."""
    f, i, n, s = Tape(), 512, 16, 4096
    inputs = (
        active(f, B, i, s),
        active(f, B, i, s),
        active(f, i, n, dtype="fp32"),
        active(f, B, s, n),
        active(f, B, s, n),
        active(f, i, dtype="fp32"),
        active(f, B, i, s),
        active(f, i, dtype="fp32"),
    )
    expected = 2 * B * i * s * 2 + 2 * B * n * s * 2 + B * i * 2 * (2 * n) * 4 + B * i * s * 2
    assert kept_beside(f, inputs, mamba_kernels.selective_scan) == expected


@pytest.mark.parametrize("autocast", [None, "bf16"])
def test_the_whole_mixer_keeps_two_copies_of_the_inner_width_and_one_result(autocast: str | None) -> None:
    """MambaInnerFn, checkpoint_lvl 1: xz, x_dbl, B, C, the states, the scan's output; under autocast half weights."""
    f, i, n, rank, width = Tape(), 512, 16, 16, 256
    f.autocast = autocast
    stored = "fp32" if autocast else "bf16"
    weights = (weight(rank + 2 * n, i, dtype=stored), weight(i, rank, dtype=stored), weight(width, i, dtype=stored))
    inputs = (
        active(f, B, 2 * i, S),
        weight(i, 1, 4, dtype=stored),
        None,
        *weights,
        None,
        active(f, i, n, dtype="fp32"),
        active(f, i, dtype="fp32"),
        active(f, i, dtype="fp32"),
    )
    expected = B * 2 * i * S * 2 + B * S * (rank + 2 * n) * 2 + 2 * B * n * S * 2 + B * i * 2 * n * 4 + B * i * S * 2
    if autocast:
        expected += sum(2 * prod(one.shape) for one in weights)
    assert kept_beside(f, inputs, mamba_kernels.mamba_inner) == expected


SCAN = mamba2_kernels.Scan(rows=B, length=S, heads=8, head_dim=64, groups=2, state=64, chunk=256)


@pytest.mark.parametrize("normed", [True, False])
def test_the_whole_second_mixer_keeps_the_scans_output(normed: bool) -> None:
    """MambaSplitConv1dScanCombinedFn: the projection, the output before norm or gate, and a root a row and group."""
    f, inner, channels = Tape(), 512, 512 + 2 * 2 * 64
    inputs = (
        SCAN,
        active(f, B, S, inner + channels + 8),
        weight(channels, 1, 4),
        weight(channels),
        weight(8),
        active(f, 8, dtype="fp32"),
        weight(8),
        weight(inner) if normed else None,
        weight(256, inner),
        None,
    )
    roots = B * S * 2 * 4 if normed else 0
    assert kept_beside(f, inputs, mamba2_kernels.split_conv_scan) == B * S * inner * 2 + roots


def test_the_scan_alone_keeps_the_cumulated_decays() -> None:
    """MambaChunkScanCombinedFn: dA_cumsum [b, h, chunks, chunk] in fp32 beside inputs and output; no decay matrix."""
    f = Tape()
    inputs = (
        SCAN,
        active(f, B, S, 8, 64),
        active(f, B, S, 8),
        active(f, 8, dtype="fp32"),
        active(f, B, S, 2, 64),
        active(f, B, S, 2, 64),
        weight(8),
        weight(8),
    )
    assert kept_beside(f, inputs, mamba2_kernels.chunk_scan_combined) == B * 8 * S * 4


def test_xielu_can_do_with_its_input() -> None:
    f, start = Tape(), tiny_job()
    env = replace(Env.of(start, None), kernels=frozenset({XIELU}))
    from memlint.estimate.build import Build

    module = Xielu(Build(start), "act_fn")
    assert kept_beside(f, (env, active(f, B, S, 256)), module) == 0


@pytest.mark.parametrize("point", POINTS, ids=title)
def test_the_simulation_agrees_with_the_packages_own_code(point: dict[str, Any]) -> None:
    step = run_step(job(point), (8, 0), kernels=EVERY)
    phase, traced = peak(point["phase_peaks"])
    predicted_phase, predicted = peak(phases_of(step))
    assert predicted_phase == phase
    # 1.4 % in the reentrant granite, which holds one more hidden state than the trace; the others within 0.15 %.
    assert predicted == pytest.approx(traced, rel=0.015 if title(point) in FURTHER else 0.002)
    assert step.forward_end_bytes == pytest.approx(point["forward_end_bytes"], rel=0.002)


@pytest.mark.parametrize("point", POINTS, ids=title)
def test_one_block_stands_for_many_with_kernels_too(point: dict[str, Any]) -> None:
    quick, whole = (run_step(job(point), (8, 0), kernels=EVERY, full=full) for full in (False, True))
    assert quick.timeline == whole.timeline
    for phase in quick.timeline:
        assert sum(phase.components.values()) == phase.peak_bytes


# LFM2 is not among them: over fp32 projections (k-bit preparation) its kernel keeps an fp32 input, PyTorch's
# convolution under autocast a half one.
MODELS = (
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "state-spaces/mamba-370m-hf",
    "tiiuae/falcon-mamba-7b",
    "ai21labs/Jamba-v0.1",
    "ibm-granite/granite-4.0-h-tiny",
    "nvidia/Nemotron-H-56B-Base-8K",
    "swiss-ai/Apertus-8B-2509",
)


def known(model: str, changes: dict[str, Any] | None = None) -> TrainingJob:
    """A job of a model in the catalog, on bf16 weights."""
    found = resolve_model(model, base_dir=".", settings_models={}, search_root=".", offline=True)
    start = TrainingJob(model=model, architecture=found.architecture)
    fields = {"training.precision.weights": "bf16", "training.precision.autocast": None, **(changes or {})}
    return replace_fields(start, fields)


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    batch=st.integers(1, 4),
    length=st.sampled_from((512, 1000, 2048, 4096)),
    mode=st.sampled_from(("none", "full")),
    method=st.sampled_from(("full", "lora", "qlora")),
    autocast=st.sampled_from((None, "bf16")),
)
def test_kernels_never_need_more_at_real_sizes(
    model: str, batch: int, length: int, mode: str, method: str, autocast: str | None
) -> None:
    changes: dict[str, Any] = {
        "training.micro_batch_size": batch,
        "training.sequence_length": length,
        "training.checkpointing.mode": mode,
        "training.method": method,
        "training.precision.autocast": autocast,
    }
    if method == "qlora":
        changes["training.quantization.bits"] = 4
    if method != "full":
        changes["training.lora.targets"] = ("in_proj", "q_proj", "v_proj", "up_proj")
    one = known(model, changes)
    without, with_them = (run_step(one, kernels=kernels) for kernels in (frozenset(), EVERY))
    assert with_them.forward_end_bytes <= without.forward_end_bytes
    assert peak(phases_of(with_them))[1] <= peak(phases_of(without))[1]


def test_a_model_without_such_layers_asks_for_nothing() -> None:
    assert run_step(tiny_job()).asked == frozenset()


def versions(*names: str, value: str = "1.0") -> dict[str, str]:
    return dict.fromkeys(names, value)


@pytest.mark.parametrize(
    ("stated", "packages"),
    [
        ({}, set()),
        ({"flash-linear-attention": "0.6.0"}, {FLA}),
        ({"fla-core": "0.6.0"}, {FLA}),
        ({"mamba_ssm": "2.3.2", "Causal-Conv1d": "any"}, {MAMBA, CONV}),
        ({"mamba-ssm": ABSENT, "torch": "2.13"}, set()),
    ],
)
def test_versions_say_what_is_installed(stated: dict[str, str], packages: set[str]) -> None:
    assert installed(replace(tiny_job(), versions=stated)) == packages


def test_a_stated_package_is_expected_and_its_absence_only_allowed_for() -> None:
    one = known("state-spaces/mamba-370m-hf")
    unstated = simulate(one)
    present = simulate(replace(one, versions=versions(MAMBA, CONV)))
    absent = simulate(replace(one, versions=versions(MAMBA, CONV, value=ABSENT)))
    assert unstated.allocated_bytes == absent.allocated_bytes > present.allocated_bytes
    assert unstated.low_bytes <= present.low_bytes < absent.low_bytes
    assert unstated.high_bytes == absent.high_bytes
    (sentence,) = [text for text in unstated.assumptions if MAMBA in text]
    assert sentence.startswith("causal-conv1d and mamba-ssm are not pinned")
    assert not [text for text in (*present.assumptions, *absent.assumptions) if MAMBA in text]


def test_a_job_that_fits_with_kernels_alone_is_tight() -> None:
    """Neither a false alarm nor a promise: MEM102 says what the packages change."""
    one = known("state-spaces/mamba-2.8b-hf", {"training.method": "lora", "training.lora.targets": ("in_proj",)})
    target = parse_target("RTX4090")
    unstated = simulate(one, target)
    assert unstated.allocated_bytes > target.usable_high_bytes > unstated.low_bytes
    assert judge(unstated, one, target, 0.05) == "tight"
    stated = replace(one, versions=versions(MAMBA, CONV))
    assert judge(simulate(stated, target), stated, target, 0.05) == "fits"
    without = replace(one, versions=versions(MAMBA, CONV, value=ABSENT))
    assert judge(simulate(without, target), without, target, 0.05) == "oom"


def test_axolotl_brings_flash_linear_attention_and_packs_with_it() -> None:
    changes = {"training.packing": True, "training.varlen": True}
    one = known("Qwen/Qwen3.5-9B", changes)
    packed = replace(one, framework="axolotl 0.19")
    assert installed(packed) == {FLA}
    estimate = simulate(packed)
    assert estimate.allocated_bytes < simulate(one).allocated_bytes
    assert "flash-linear-attention taken as installed: axolotl requires it for this job" in estimate.assumptions
    old = replace(packed, versions={"axolotl": "0.13.1"})
    assert installed(old) == {FLA}, "packed rows raise without it in any release"
    assert installed(replace_fields(old, {"training.packing": False})) == frozenset()


def test_axolotl_refuses_packed_mamba_layers_without_their_kernels() -> None:
    one = replace(known("nvidia/Nemotron-H-56B-Base-8K", {"training.packing": True}), framework="axolotl 0.19")
    assert installed(one) == {FLA, MAMBA, CONV}
    assert installed(replace_fields(one, {"training.packing": False})) == {FLA}


def test_a_quantised_output_projection_leaves_the_scan_alone() -> None:
    """The fused Function multiplies by the weight itself: then projection, convolution and scan run one by one."""
    plain = known("nvidia/Nemotron-H-56B-Base-8K", {"training.method": "lora", "training.lora.targets": ("in_proj",)})
    packed = replace_fields(plain, {"training.method": "qlora", "training.quantization.bits": 4})
    fused, apart = (run_step(one, kernels=EVERY).forward_end_bytes for one in (plain, packed))
    fallback = run_step(packed, kernels=frozenset()).forward_end_bytes
    assert fused < apart < fallback
