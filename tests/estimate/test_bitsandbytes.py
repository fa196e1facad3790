"""bitsandbytes' products may hold their inputs in attributes of the graph's nodes, where checkpointing cannot reach."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.engine.pool import rounded
from memlint.estimate.result import Estimate
from memlint.estimate.simulate import run_step, simulate
from memlint.job import Lora, Precision, Quantization, Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from tests.estimate.jobs import architecture

HIDDEN, INNER, LAYERS, TOKENS = 128, 384, 5, 256

KEPT = LAYERS * (3 * rounded(2 * TOKENS * HIDDEN) + rounded(2 * TOKENS * INNER))
"""bf16 inputs of each layer's products: of q, k, v; of o; of gate and up; of down. The first needs a gradient as well:
checkpointing makes the embeddings require one (transformers' enable_input_require_grads)."""


def job(**changes: Any) -> TrainingJob:
    shape = architecture(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=1000,
    )
    training = Training(
        method="lora",
        lora=Lora(rank=4),
        quantization=Quantization(bits=8, type="int8", kbit_preparation=False),
        precision=Precision(weights="bf16", autocast="bf16"),
        sequence_length=TOKENS,
    )
    return replace_fields(TrainingJob(model="m", architecture=shape, training=training), changes)


def estimate(**changes: Any) -> Estimate:
    return simulate(job(**{"training.checkpointing.mode": "full", **changes}))


def activations(**changes: Any) -> int:
    return estimate(**changes).forward_end_activation_bytes


def test_int8_holds_every_products_input_through_a_checkpoint_without_reentry() -> None:
    """MatMul8bitLt, bitsandbytes 0.50.2 autograd/_functions.py: ctx.tensors = (CAt, subA, A)."""
    packed: dict[str, Any] = {"training.quantization.type": "nf4", "training.quantization.bits": 4}
    assert activations() - activations(**packed) == KEPT


def test_a_reentrant_checkpoint_runs_without_a_graph_and_so_holds_nothing() -> None:
    reentrant: dict[str, Any] = {"training.checkpointing.reentrant": True}
    assert activations() - activations(**reentrant) == KEPT


@pytest.mark.parametrize(("version", "holds"), [("0.41.3", True), ("0.43.1", True), ("0.43.2", False), ("", False)])
def test_4_bit_products_did_so_until_0_43_1(version: str, holds: bool) -> None:
    """MatMul4Bit: ctx.tensors = (A, B), from 0.43.2 on (None, B)."""
    old = job(**{"training.checkpointing.mode": "full", "training.quantization.type": "nf4"})
    changed = replace_fields(old, {"training.quantization.bits": 4})
    found = simulate(_with_version(changed, version)).forward_end_activation_bytes
    assert found - simulate(changed).forward_end_activation_bytes == (KEPT if holds else 0)


def _with_version(job: TrainingJob, version: str) -> TrainingJob:
    from memlint.records import replace

    return replace(job, versions={"bitsandbytes": version} if version else {})


@pytest.mark.parametrize("mode", ["none", "full"])
def test_equal_layers_are_extended_exactly(mode: str) -> None:
    asked = job(**{"training.checkpointing.mode": mode})
    short, full = run_step(asked, None), run_step(asked, None, full=True)
    assert [(p.phase, p.peak_bytes, p.end_bytes) for p in short.timeline] == [
        (p.phase, p.peak_bytes, p.end_bytes) for p in full.timeline
    ]


@pytest.mark.parametrize(("version", "packed"), [("5.4.0", True), ("5.5.0", False), (None, False)])
def test_subclasses_of_linear_stay_as_they_are_from_transformers_5_5_on(version: str | None, packed: bool) -> None:
    falcon = read_config({"model_type": "falcon", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4})
    assert isinstance(falcon, Architecture)
    versions = {} if version is None else {"transformers": version}
    step = run_step(replace_fields(job(), {"architecture": falcon, "versions": versions}))
    dtypes = {record.name: record.dtype for record in step.build.records}
    assert (dtypes["transformer.h.0.mlp.dense_h_to_4h.weight"] == "int8") == packed
