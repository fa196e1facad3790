"""Types beside the families' first ones: memory against traces, parameters, and the shortcut over equal layers."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from memlint import models
from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import run_step
from memlint.job import Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from tests.estimate.family_points import count, job, names_of, phases_of, simulated, title
from tests.estimate.traced import peak, points

POINTS = [*points("traces_further.jsonl"), *points("traces_recent.jsonl")]


def elements(run: dict[str, Any]) -> int:
    """Elements of the model without its adapters."""
    records = simulated(run).build.records
    return sum(record.count * record.numel for record in records if "lora_" not in record.name)


def point(model_type: str, **fields: Any) -> dict[str, Any]:
    start = next(p for p in POINTS if p["config"]["model_type"] == model_type)
    return {**start, **fields}


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_the_simulation_agrees_with_the_trace(run: dict[str, Any]) -> None:
    step = simulated(run)
    assert elements(run) == run["parameters"]
    phases = phases_of(run, step)
    assert peak(phases)[1] == pytest.approx(peak(run["phase_peaks"])[1], rel=0.01)
    assert step.forward_end_bytes == pytest.approx(run["forward_end_bytes"], rel=0.005)
    for name, traced in run["phase_peaks"].items():
        assert phases[name] == pytest.approx(traced, rel=0.01), name


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    short, full = simulated(run), simulated(run, full=True)
    assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]
    assert short.forward_end_bytes == full.forward_end_bytes


def test_xglm_has_a_table_of_sines_and_biogpt_a_trained_one() -> None:
    assert not [name for name in names_of(point("xglm")) if "embed_positions" in name]
    assert "biogpt.embed_positions.weight" in names_of(point("biogpt"))


def test_mpnets_bias_is_trained_once_for_all_layers() -> None:
    names = [name for name in names_of(point("mpnet")) if "relative_attention_bias" in name]
    assert names == ["mpnet.encoder.relative_attention_bias.weight"]


DEEPSEEK_MOE = {
    "model_type": "deepseek",
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
}


def test_deepseeks_first_mixture_has_the_published_number_of_parameters() -> None:
    assert count(DEEPSEEK_MOE) == 16_375_728_128


def test_deepseeks_experts_are_linear_layers_that_adapters_and_quantisation_see() -> None:
    small = {**DEEPSEEK_MOE, "num_hidden_layers": 3, "n_routed_experts": 8, "vocab_size": 2048}
    run = point("biogpt", config=small, lora={"rank": 8, "targets": ["gate_proj"]})
    adapted = {name for name in names_of(run) if name.endswith("lora_A")}
    assert "model.layers.1.mlp.experts.7.gate_proj.lora_A" in adapted
    assert "model.layers.0.mlp.gate_proj.lora_A" in adapted


@pytest.mark.parametrize("missing", ["deepseek", "dots1"])
def test_a_choice_among_experts_without_a_number_is_the_configs_fault(missing: str) -> None:
    fields = {**DEEPSEEK_MOE, "model_type": missing}
    del fields["num_experts_per_tok"]
    problems = read_config(fields)
    assert isinstance(problems, list)
    assert "`num_experts_per_tok` is missing" in problems[0].message


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "rwkv"}, "no memory model for `rwkv`"),
        ({"model_type": "dots1"}, "does not state"),
        ({"model_type": "gemma4_text", "enable_moe_block": True, "num_experts": 8}, "does not state `top_k_experts`"),
    ],
)
def test_what_has_no_model_says_so_in_a_sentence(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Unsupported, match=sentence):
        count(config)


NLLB_600M = {
    "model_type": "m2m_100",
    "vocab_size": 256206,
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
}


def test_nllb_has_its_published_size_and_no_trained_positions() -> None:
    assert count(NLLB_600M, "seq2seq") == 615_073_792
    assert not [name for name in names_of(point("m2m_100")) if "embed_positions" in name]


def test_dinov2_is_trained_on_crops_smaller_than_its_table_of_positions() -> None:
    config = {**point("dinov2")["config"], "image_size": 518}
    run = point("dinov2", config=config)
    crop, whole = (replace_fields(job(run), {"training.image_pixels": side**2}) for side in (224, 518))
    assert run_step(crop).forward_end_bytes == run_step(job(run)).forward_end_bytes
    assert run_step(whole).forward_end_bytes > 5 * run_step(crop).forward_end_bytes


def catalogued() -> list[tuple[str, dict[str, Any]]]:
    """The first bundled config of each model type."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    with open(os.path.join(os.path.dirname(models.__file__), "catalog.jsonl"), encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            if "config" in entry:
                found.setdefault(entry["config"]["model_type"], (entry["id"], entry["config"]))
    return list(found.values())


@pytest.mark.parametrize(("name", "config"), catalogued(), ids=[name for name, _ in catalogued()])
def test_every_bundled_type_is_computed_or_refused_in_a_sentence(name: str, config: dict[str, Any]) -> None:
    architecture = read_config(config, name)
    if not isinstance(architecture, Architecture):
        return
    objective = {"encoder": "masked-lm", "encoder-decoder": "seq2seq-lm"}.get(architecture.family, "causal-lm")
    training = Training(sequence_length=64, objective=objective)
    sentence = ""
    step = None
    try:
        step = run_step(TrainingJob(model=name, architecture=architecture, training=training))
    except Unsupported as reason:
        sentence = str(reason)
    assert "`" in sentence if step is None else step.forward_end_bytes > 0
