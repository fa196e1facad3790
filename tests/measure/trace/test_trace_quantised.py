"""4-bit and 8-bit bases in a trace: bitsandbytes' own layers, operators and PEFT's layers over them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("bitsandbytes", reason="the trace of 4-bit and 8-bit weights runs bitsandbytes' own code")

import torch

from benchmarks.accuracy.grid_quantised import kept, points, traced
from memlint.measure.trace.recorder import rounded
from memlint.measure.trace.settings import LoraSettings
from tests.measure.trace import shapes
from tests.measure.trace.shapes import tiny

pytestmark = [
    pytest.mark.measure,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

H, MLP, V = 64, 160, 1024
LINEAR = [(H, H)] * 4 + [(MLP, H)] * 2 + [(H, MLP)]
"""(out, in) of the linear layers of one block."""
ADAPTERS = sum(rounded(4 * n) for out, inputs in LINEAR for n in (4 * inputs, 4 * out)) * 2
CODE, MAP, OFFSET = rounded(16 * 4), rounded(256 * 4), rounded(4)


def quantised(kind: str = "nf4", **settings: Any) -> Any:
    return shapes.traced(lora=LoraSettings(rank=4), quantised=kind, **{"optimizer": "sgd", **settings})


def made(result: Any, shape: tuple[int, int], dtype: str) -> list[Any]:
    """Whole weights that the last step made."""
    storages = [event.storage for event in result.recorder.events if event.sign > 0]
    return [s for s in storages if s.shape == shape and s.dtype == dtype and s.step == 2]


@pytest.mark.parametrize("double_quant", [True, False])
def test_four_bit_weights_are_packed_with_one_statistic_for_64_values(double_quant: bool) -> None:
    result = quantised(double_quant=double_quant)
    stored = 0
    for out, inputs in LINEAR * 2:
        blocks = out * inputs // 64
        stored += rounded(out * inputs // 2) + CODE
        nested = rounded(blocks) + rounded(-(-blocks // 256) * 4) + MAP + OFFSET
        stored += nested if double_quant else rounded(4 * blocks)
    # Embedding, output head and norms are not quantised; k-bit preparation makes them fp32.
    plain = 2 * 4 * V * H + 5 * rounded(4 * H)
    assert result.param_bytes == stored + plain + ADAPTERS


def test_a_dequantised_weight_is_gone_after_its_product() -> None:
    result = quantised(seq=1600)
    dequantised = made(result, (MLP, H), "bfloat16")
    # gate and up of two layers, each in the forward and in the backward.
    assert [storage.phase for storage in dequantised].count("backward") == 4
    assert len(dequantised) == 8
    assert all(storage.died >= 0 for storage in dequantised)


def test_a_short_batch_runs_the_fused_kernel_which_dequantises_nothing() -> None:
    """gemm_4bit, bitsandbytes 0.50.2 backends/cuda/ops.py _gemm_4bit_use_custom_cuda, on an A100."""
    result = quantised(seq=64)
    assert {storage.phase for storage in made(result, (MLP, H), "bfloat16")} == {"backward"}


def test_int8_weights_are_one_byte_a_value_and_one_scale_a_row() -> None:
    result = quantised("int8", kbit_preparation=False)
    stored = sum(rounded(out * inputs) + rounded(4 * out) for out, inputs in LINEAR) * 2
    plain = 2 * 2 * V * H + 5 * rounded(2 * H)
    assert result.param_bytes == stored + plain + ADAPTERS


def test_modules_that_are_skipped_stay_as_they_are() -> None:
    skipped = quantised(skip_quantization=("lm_head", "down_proj"))
    everywhere = quantised()
    out, inputs = H, MLP
    assert skipped.param_bytes - everywhere.param_bytes > 2 * (4 * out * inputs - out * inputs)


def test_a_bias_takes_the_dtype_that_its_layer_computes_in() -> None:
    biased = tiny(model_type="qwen2")
    result = shapes.traced(biased, lora=LoraSettings(rank=4), quantised="nf4", optimizer="sgd")
    storages = [event.storage for event in result.recorder.events if event.sign > 0]
    cast = [s for s in storages if s.component == "params" and s.phase == "forward"]
    # k-bit preparation has made them fp32; q, k and v of two layers, once.
    assert [(s.shape, s.dtype, s.step) for s in cast] == [((H,), "bfloat16", 1)] * 6


@pytest.mark.parametrize("setup", ["nf4 autocast", "int8 autocast prepared checkpointing"])
def test_recorded_points_are_traced_again(setup: str) -> None:
    job = next(job for kind, name, job in points(["llama"]) if name == setup)
    stored = next(row for row in kept() if (row["type"], row["setup"]) == ("llama", setup))
    assert traced("llama", setup, job) == stored


def test_nothing_of_it_stays_behind() -> None:
    """The process can go on with bitsandbytes on real tensors."""
    import bitsandbytes

    before = dict(bitsandbytes.functional.name2qmap)
    quantised()
    assert bitsandbytes.functional.name2qmap == before
    assert not hasattr(torch._C, "_cuda_getCurrentRawStream") or torch.cuda.is_available()
