"""The choices CUDA makes, restored on a machine without a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from memlint.measure.trace.cuda_choices import attention_kernel
from tests.measure.trace.shapes import tiny, traced

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def heads(count: int, dtype: str = "bfloat16", size: int = 64, length: int = 32) -> torch.Tensor:
    return torch.empty(1, count, length, size, dtype=getattr(torch, dtype), device="meta")


@pytest.mark.parametrize(
    ("query", "key", "mask", "grouped", "kernel"),
    [
        (heads(8), heads(8), False, False, "flash"),
        (heads(8), heads(2), False, True, "flash"),
        (heads(8), heads(8), True, False, "efficient"),
        (heads(8, "float32"), heads(8, "float32"), False, False, "efficient"),
        (heads(8, "float32"), heads(2, "float32"), False, True, "math"),
        (heads(8), heads(1), False, False, "math"),
        (heads(8, size=256), heads(8, size=256), False, False, "flash"),
        (heads(8, size=264), heads(8, size=264), False, False, "efficient"),
        (heads(8, size=36), heads(8, size=36), True, False, "math"),
    ],
    ids=[
        "half", "half grouped", "half masked", "fp32", "fp32 grouped", "multi-query without enable_gqa", "wide head",
        "too wide for flash", "unaligned",
    ],
)  # fmt: skip
def test_attention_kernel(query, key, mask, grouped, kernel) -> None:
    bias = torch.empty(1, 1, 32, 32, device="meta") if mask else None
    assert attention_kernel(query, key, key, bias, grouped) == kernel


def test_a_trace_uses_the_kernel_that_cuda_would() -> None:
    assert traced().sdpa_backend == {"flash": 4}
    assert traced(precision="fp32").sdpa_backend == {"efficient": 4}
    assert traced(tiny(num_key_value_heads=2), precision="fp32").sdpa_backend == {"math": 4}
    assert traced(padding=True).sdpa_backend == {"efficient": 4}
    assert traced(attention="eager").sdpa_backend == {}


def test_a_window_within_the_sequence_costs_the_flash_kernel() -> None:
    mistral = tiny(model_type="mistral", sliding_window=128)
    assert traced(mistral, seq=256).sdpa_backend == {"efficient": 4}
    assert traced(mistral, seq=64).sdpa_backend == {"flash": 4}


def test_flash_attention_by_name_keeps_what_sdpa_flash_keeps() -> None:
    assert traced(attention="flash").saved_activation_bytes == traced(attention="sdpa").saved_activation_bytes


def test_experts_run_as_grouped_products_in_every_precision() -> None:
    mixtral = tiny(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    for precision in ("bf16", "fp32"):
        result = traced(mixtral, precision=precision, seq=64)
        assert any(op.name == "aten::_grouped_mm" for op in result.recorder.ops)


def test_tied_embeddings_sum_two_gradients_beside_their_sum() -> None:
    """FACTS.md, seen on real CPU tensors: out of place when the first gradient is a view, in place after a cast."""
    size = 8192 * 64
    half = traced(tiny(vocab_size=8192, tie_word_embeddings=True), seq=64)
    assert sums_of_embedding_gradients(half, size)
    mixed = traced(tiny(vocab_size=8192, tie_word_embeddings=True), seq=64, precision="bf16-autocast")
    assert not sums_of_embedding_gradients(mixed, size)


def sums_of_embedding_gradients(result, size: int) -> list:
    events = [e for e in result.recorder.events if e.sign > 0 and e.storage.phase == "backward"]
    return [e for e in events if e.storage.op == "aten::add" and e.storage.shape == (8192, 64)]


def test_fused_and_foreach_adamw_differ_by_one_temporary() -> None:
    wide = tiny(hidden_size=256)
    foreach, fused = traced(wide, seq=16), traced(wide, seq=16, optimizer="adamw-fused")
    temporary = foreach.phase_peaks["optimizer"] - foreach.phase_ends["optimizer"]
    assert temporary == foreach.param_bytes
    assert fused.phase_peaks["optimizer"] - fused.phase_ends["optimizer"] == 0


def test_what_a_padded_run_computes_is_finite() -> None:
    bart = {
        "model_type": "bart", "d_model": 64, "vocab_size": 1024, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_ffn_dim": 160, "decoder_ffn_dim": 160, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "max_position_embeddings": 512,
    }  # fmt: skip
    half, brain = (traced(bart, head="seq2seq", precision=kind, padding=True) for kind in ("fp16", "bf16"))
    assert half.saved_activation_bytes == brain.saved_activation_bytes  # no clamp, which BART has for infinities only
