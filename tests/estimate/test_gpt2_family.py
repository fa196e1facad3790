"""GPT-2 and its kin: parameters of public models, memory against traces, and what their settings cost."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.job import Lora, replace_fields
from tests.estimate.family_points import (
    agrees_with_its_trace,
    count,
    is_extended_exactly,
    job,
    names_of,
    simulated,
    title,
)
from tests.estimate.traced import points

POINTS = points("traces_decoders.jsonl")

PUBLISHED: list[tuple[str, dict[str, Any], int]] = [
    # Elements of the public checkpoints, equal to what transformers 5.24 builds from their configs on the meta device.
    ("gpt2", {"model_type": "gpt2"}, 124_439_808),
    ("gpt2-xl", {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200),
    (
        "pythia-70m",
        {
            "model_type": "gpt_neox",
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "vocab_size": 50304,
        },
        70_426_624,
    ),
    ("gpt-neox-20b", {"model_type": "gpt_neox"}, 20_554_567_680),
    ("opt-125m", {"model_type": "opt"}, 125_239_296),
    (
        "opt-350m",
        {
            "model_type": "opt",
            "hidden_size": 1024,
            "ffn_dim": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
        331_196_416,
    ),
    ("bloom-7b1", {"model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32}, 7_069_016_064),
    (
        "falcon-40b",
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
        },
        41_303_293_952,
    ),
    (
        "falcon-rw-1b",
        {
            "model_type": "falcon",
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "alibi": True,
            "vocab_size": 50304,
        },
        1_311_625_216,
    ),
    (
        "phi-2",
        {"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32},
        2_779_683_840,
    ),
    ("gpt-j-6b", {"model_type": "gptj"}, 6_050_882_784),
    (
        "codegen-350m",
        {"model_type": "codegen", "n_embd": 1024, "n_layer": 20, "n_head": 16, "rotary_dim": 32, "vocab_size": 51200},
        356_712_448,
    ),
    ("gpt-neo-1.3b", {"model_type": "gpt_neo"}, 1_315_575_808),
    (
        "starcoder",
        {
            "model_type": "gpt_bigcode",
            "n_embd": 6144,
            "n_layer": 40,
            "n_head": 48,
            "n_inner": 24576,
            "n_positions": 8192,
            "vocab_size": 49152,
        },
        15_517_456_384,
    ),
    (
        "mpt-7b",
        {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432},
        6_649_286_656,
    ),
]


def point(model_type: str, **fields: Any) -> dict[str, Any]:
    start = next(p for p in POINTS if p["config"]["model_type"] == model_type and p["checkpointing"] == "none")
    return {**start, **fields}


def saved(run: dict[str, Any]) -> int:
    return simulated(run).forward_end_bytes


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_the_simulation_agrees_with_the_trace(run: dict[str, Any]) -> None:
    agrees_with_its_trace(run)


@pytest.mark.parametrize("run", POINTS, ids=title)
def test_one_layer_stands_for_all_equal_ones(run: dict[str, Any]) -> None:
    is_extended_exactly(run)


@pytest.mark.parametrize(("config", "elements"), [row[1:] for row in PUBLISHED], ids=[row[0] for row in PUBLISHED])
def test_the_parameters_of_a_public_model_are_counted_exactly(config: dict[str, Any], elements: int) -> None:
    assert count(config) == elements


def test_gpt2s_default_dropout_is_kept_for_backward() -> None:
    run = point("gpt2")
    without = {**run["config"], "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    assert saved({**run, "config": without}) < 0.9 * saved(run)


def test_gpt2s_composed_gelu_keeps_more_than_the_fused_one() -> None:
    run = point("gpt2")
    fused = {**run["config"], "activation_function": "gelu_pytorch_tanh"}
    layers, mlp_bytes = 6, run["batch"] * run["seq"] * 4 * 256 * 2
    # x, half of x, tanh and its shifted copy instead of x alone.
    assert saved(run) - saved({**run, "config": fused}) == layers * 3 * mlp_bytes


@pytest.mark.parametrize("model_type", ["bloom", "mpt", "gpt_neo"])
def test_a_type_without_sdpa_runs_eager_whatever_the_job_says(model_type: str) -> None:
    run = point(model_type)
    assert saved({**run, "attention": "sdpa"}) == saved({**run, "attention": "eager"})


def test_falcon_never_takes_the_flash_kernel_under_sdpa() -> None:
    run = next(p for p in POINTS if p["config"].get("multi_query") and p["attention"] == "sdpa")
    square = run["batch"] * 8 * run["seq"] ** 2 * 4
    assert saved(run) > 6 * square


def test_tied_heads_add_no_elements_and_untied_ones_a_matrix() -> None:
    config = {"model_type": "gpt_neox", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6}
    config |= {"num_attention_heads": 8, "vocab_size": 50304}
    assert count(config) - count({**config, "tie_word_embeddings": True}) == 50304 * 512


def test_names_are_those_of_transformers() -> None:
    names = names_of(point("gpt2"))
    assert {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.3.attn.c_attn.weight"} <= names
    assert "lm_head.weight" not in names


def test_an_adapter_finds_pefts_default_targets() -> None:
    run = point("gpt2")
    adapted = replace_fields(job(run), {"training.method": "lora", "training.lora": Lora(rank=8, targets="default")})
    from memlint.estimate.simulate import run_step

    step = run_step(adapted, (8, 0))
    trained = sum(r.count * r.numel for r in step.build.records if r.trainable)
    assert trained == 6 * 8 * (256 + 3 * 256)
