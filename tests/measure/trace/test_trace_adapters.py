"""Adapters and sharded parameters in a trace: their bytes are exact."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from memlint.errors import UserError
from memlint.job import Precision, Quantization, Training, TrainingJob
from memlint.measure.trace.from_job import settings_of
from memlint.measure.trace.recorder import rounded
from memlint.measure.trace.settings import LoraSettings
from tests.measure.trace.shapes import tiny, traced

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]

H, MLP, V = 64, 160, 1024
LINEAR = [(H, H)] * 4 + [(MLP, H)] * 2 + [(H, MLP)]
"""(out, in) of the linear layers of one block."""


def adapter_tensors(rank: int, layers: int = 2) -> list[int]:
    return [n for out, inputs in LINEAR for n in (rank * inputs, rank * out)] * layers


def test_lora_trains_fp32_factors_of_every_linear_layer_over_a_frozen_half_base() -> None:
    rank = 8
    result = traced(lora=LoraSettings(rank=rank))
    adapters = adapter_tensors(rank)
    assert result.trainable_parameters == sum(adapters)
    assert result.grad_bytes == sum(rounded(4 * n) for n in adapters)
    assert result.optim_bytes == 2 * result.grad_bytes
    base = traced()
    assert result.param_bytes == base.param_bytes + result.grad_bytes
    assert result.parameters == base.parameters
    assert result.bwd_end_bytes < base.bwd_end_bytes


def test_adapter_on_named_modules_only() -> None:
    result = traced(lora=LoraSettings(rank=4, targets=("q_proj", "v_proj")))
    assert result.trainable_parameters == 2 * 2 * 4 * (H + H)


def test_dora_adds_a_magnitude_for_each_output() -> None:
    rank = 4
    result = traced(lora=LoraSettings(rank=rank, dora=True))
    assert result.trainable_parameters == sum(adapter_tensors(rank)) + 2 * sum(out for out, _ in LINEAR)


def test_targets_that_the_model_does_not_have_are_a_user_error() -> None:
    with pytest.raises(UserError, match="PEFT cannot add this adapter"):
        traced(lora=LoraSettings(targets=("no_such_module",)))


def test_a_checkpointed_adapter_still_gets_gradients_in_both_kinds() -> None:
    kept = {}
    for kind in ("nonreentrant", "reentrant"):
        result = traced(lora=LoraSettings(rank=4), checkpointing=kind)
        assert result.grad_bytes == sum(rounded(4 * n) for n in adapter_tensors(4))
        kept[kind] = result.peak_bytes
    assert kept["nonreentrant"] == kept["reentrant"]


@pytest.mark.parametrize("world", [2, 8, 64])
def test_shards_of_all_ranks_add_up_to_the_model(world: int) -> None:
    whole = traced(precision="bf16-autocast")
    one = traced(precision="bf16-autocast", shards=world)
    assert one.parameters == whole.parameters
    # Every tensor of the tiny model divides by 64 along its first dimension, the MLP's 160 rows do not.
    ways = [(V, H), (V, H), *([(H,)] * 5), *(LINEAR * 2)]
    shards = [4 * -(-rows // world) * (rest[0] if rest else 1) for rows, *rest in ways]
    assert one.param_bytes == sum(rounded(size) for size in shards)
    assert one.grad_bytes <= one.param_bytes
    assert one.optim_bytes == 2 * one.param_bytes
    assert one.phase_breakdowns["backward"]["communication"] > 0


def test_a_gathered_unit_is_freed_again_after_forward_unless_told_otherwise() -> None:
    freed = traced(precision="bf16-autocast", shards=8)
    held = traced(precision="bf16-autocast", shards=8, reshard_after_forward=False)
    layers = 2 * 2 * (4 * H * H + 3 * H * MLP + 2 * H)
    assert held.fwd_end_bytes - freed.fwd_end_bytes >= layers


def test_a_sharded_deep_trace_carried_on_equals_the_whole() -> None:
    deep = tiny(num_hidden_layers=14)
    settings = {"precision": "bf16-autocast", "shards": 4, "seq": 128}
    whole, carried = traced(deep, **settings), traced(deep, every_layer=False, **settings)
    assert carried.extended_from == (4, 6)
    assert carried.peak_phase == whole.peak_phase
    assert carried.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.002)
    assert carried.first_step_peak_bytes == pytest.approx(whole.first_step_peak_bytes, rel=0.002)


def test_settings_carry_the_quantisation_of_lora_and_qlora_alike() -> None:
    for method, kind in (("lora", "int8"), ("qlora", "fp4")):
        training = Training(
            method=method, quantization=Quantization(type=kind), precision=Precision(weights="bf16", autocast="bf16")
        )
        assert settings_of(TrainingJob(model="m", training=training), 1).quantised == kind


def test_a_format_of_another_library_is_refused_by_name() -> None:
    job = TrainingJob(model="m", training=Training(method="lora", quantization=Quantization(type="gptq")))
    with pytest.raises(UserError, match=r"does not follow `training\.quantization\.type: gptq`"):
        settings_of(job, 1)


def test_without_bitsandbytes_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "bitsandbytes":
            raise ImportError("No module named 'bitsandbytes'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'bitsandbytes>=0\.46'") as raised:
        traced(quantised="nf4")
    assert "\n" not in str(raised.value)
