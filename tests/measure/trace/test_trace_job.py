"""`memlint trace`: a job in, the contract's estimate out, the simulation beside it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memlint.commands import trace as command
from memlint.errors import UserError
from memlint.estimate.result import COMPONENTS
from tests.estimate.vision_configs import CONFIGS
from tests.measure.trace.shapes import TINY

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def job(tmp_path: Path) -> Any:
    def write(training: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **parallelism: Any) -> str:
        path = tmp_path / "job.yaml"
        settings = {"sequence_length": 128, "precision": "bf16", **(training or {})}
        document: dict[str, Any] = {"memlint": 1, "model": model or TINY, "training": settings}
        if parallelism:
            document["parallelism"] = parallelism
        path.write_text(json.dumps(document))
        return str(path)

    return write


def run(*argv: str) -> int:
    parser = ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args([*argv, "--isolated", "--offline"]))


def test_json_is_the_estimate_with_the_comparison(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job(), "--output-format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["method"] == "traced"
    peak = data["peak"]
    assert sum(peak["components"].values()) == peak["allocated_bytes"]
    assert set(peak["components"]) == set(COMPONENTS)
    assert [p["phase"] for p in data["timeline"]] == ["forward", "loss", "backward", "clip", "optimizer"]
    assert max(p["peak_bytes"] for p in data["timeline"]) == peak["allocated_bytes"]
    assert peak["low_bytes"] <= peak["device_bytes"] <= peak["high_bytes"]
    comparison = data["comparison"]
    assert comparison["peak"]["simulated"] == pytest.approx(comparison["peak"]["traced"], rel=0.03)
    assert [row["name"] for row in comparison["layers"]][-1].startswith("layer")


def test_text_shows_both_methods_and_names_no_tensor_where_they_agree(
    job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job({"precision": "bf16-mixed", "sequence_length": 512})) == 0
    out = capsys.readouterr().out
    assert "Trace beside simulation" in out
    assert "Both keep the same tensors for backward." in out


def test_frozen_parts_get_no_adapters(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"method": "lora", "freeze": ["visual.blocks", "visual.merger"]}
    assert run(job(settings, CONFIGS["qwen2_5_vl"]), "--output-format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in data["comparison"]["phases"]}
    assert rows["optimizer"]["traced"] == pytest.approx(rows["optimizer"]["simulated"], rel=1e-5)


def test_the_first_tensor_that_differs_is_named(job: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from memlint.measure.trace import compare, simulation

    kept = simulation.simulated_kept

    def without_one(*args: Any) -> Any:
        found = kept(*args)
        victim = next(i for i, item in enumerate(found) if item.layer == 1 and item.bytes == 128 * 160 * 2 * 8)
        return found[:victim] + found[victim + 1 :]

    monkeypatch.setattr(compare, "simulated_kept", without_one)
    assert run(job({"micro_batch_size": 8})) == 0
    out = capsys.readouterr().out
    assert "First tensor that differs, layer 1:" in out
    assert "the trace keeps 327680 bytes: [8, 128, 160] bfloat16 of " in out
    assert "model.layers.1.mlp" in out


def test_events_and_saved_lists(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = tmp_path / "events.tsv"
    assert run(job(), "--events", str(events), "--saved") == 0
    head, *lines = events.read_text().splitlines()
    assert head.split("\t")[:4] == ["event", "phase", "sign", "bytes"]
    signs = [line.split("\t")[2] for line in lines]
    assert set(signs) == {"+", "-"}
    assert {line.split("\t")[6] for line in lines} >= {"logits_loss", "activations", "grads"}
    assert "model.layers.*.mlp" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("training", "setting"),
    [
        ({"objective": "dpo"}, "training.objective: dpo"),
        ({"loss": "fused"}, "training.loss: fused"),
        ({"optimizer": "muon"}, "training.optimizer: muon"),
        ({"attention": "flex"}, "training.attention: flex"),
        ({"activation_checkpointing": "selective"}, "training.activation_checkpointing: selective"),
        ({"method": "qlora", "quantization": {"experts": "linear"}}, "training.quantization.experts: linear"),
    ],
)
def test_a_setting_that_no_trace_follows_is_named(job: Any, training: dict[str, Any], setting: str) -> None:
    with pytest.raises(UserError, match="memlint trace does not follow") as caught:
        run(job(training))
    assert setting in str(caught.value)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"loss": "fused"}, "memlint trace does not follow"),
        ({"freeze": ["model", "lm_head"]}, "nothing of the model trains"),
        ({"method": "lora", "lora": {"targets": "(("}}, "PEFT cannot add this adapter: missing"),
        ({"method": "lora", "lora": {"targets": ["nope"]}}, "PEFT cannot add this adapter: Target modules"),
    ],
)
def test_the_place_of_what_cannot_be_traced_is_named(job: Any, training: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=rf"job\.yaml:\d+:\d+: {said}"):
        run(job(training))


def test_sharding_other_than_fsdp2_is_refused(job: Any) -> None:
    with pytest.raises(UserError, match=r"does not follow `parallelism\.strategy: zero3`"):
        run(job(None, strategy="zero3", gpus=8))


def test_code_of_the_models_repository_is_not_run_unasked(job: Any) -> None:
    own = {**TINY, "model_type": "our_llama", "auto_map": {"AutoConfig": "configuration_ours.OurConfig"}}
    with pytest.raises(UserError, match="--trust-remote-code"):
        run(job(None, own))


def test_model_code_that_fails_is_one_sentence(job: Any) -> None:
    uneven = {**TINY, "hidden_size": 66, "num_attention_heads": 4, "head_dim": 15, "num_key_value_heads": 3}
    with pytest.raises(UserError) as caught:
        run(job(None, uneven))
    assert "\n" not in str(caught.value)


def test_blocks_that_differ_by_a_rounding_are_the_same() -> None:
    from memlint.measure.trace.compare import _first_differences
    from memlint.measure.trace.simulation import Kept

    def kept(*sizes: int) -> list[Kept]:
        return [Kept(size, 0, None, f"tensor {size}") for size in sizes]

    million = 1_048_576
    assert _first_differences(kept(million), kept(million + 512)) == (None, None)
    assert _first_differences(kept(million, 512), kept(million)) == (None, None)
    ours, theirs = _first_differences(kept(million, 2 * million), kept(3 * million, million))
    assert ours == f"{2 * million} bytes: tensor {2 * million}"
    assert theirs == f"{3 * million} bytes: tensor {3 * million}"


def test_sharded_job_is_traced_as_one_rank(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source = job({"precision": "bf16-mixed"}, strategy="fsdp", gpus=8)
    assert run(source, "--output-format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["peak"]["components"]["communication"] > 0
    alone = job({"precision": "bf16-mixed"})
    assert run(alone, "--output-format", "json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert data["static"]["optimizer_states"] < whole["static"]["optimizer_states"] / 7


def test_missing_extra_names_both_cures(job: Any, monkeypatch: Any) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        run(job())
    assert "pip install 'memlint-gpu[measure]'" in str(caught.value)
    assert "additional_dependencies" in str(caught.value)


@pytest.mark.parametrize("asked", [False, True])
def test_embeddings_keep_32_bit_states_in_both_where_the_trainer_asks(
    job: Any, asked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job({"optimizer": "adamw-8bit", "fp32_embedding_states": asked})
    assert run(path, "--output-format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    embedding = TINY["vocab_size"] * TINY["hidden_size"]
    states = data["peak"]["components"]["optimizer_states"]
    assert (states > 8 * embedding) is asked
    assert data["comparison"]["peak"]["simulated"] == pytest.approx(data["comparison"]["peak"]["traced"], rel=0.01)


def test_kinds_of_layers_that_a_class_computes_are_left_to_it(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mamba = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 32}
    bamba = {**TINY, "model_type": "bamba", "attn_layer_indices": [1], **mamba}
    assert run(job({"sequence_length": 32}, bamba), "--output-format", "json") == 0
    assert json.loads(capsys.readouterr().out)["method"] == "traced"


@pytest.mark.parametrize(
    "config",
    [
        {**TINY, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
        {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1024},
        {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 1024},
    ],
    ids=lambda config: str(config["model_type"]),
)
def test_a_class_without_sdpa_is_traced_with_what_transformers_takes_by_default(
    job: Any, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job({"sequence_length": 32}, config), "--output-format", "json") == 0
    peak = json.loads(capsys.readouterr().out)["comparison"]["peak"]
    assert peak["simulated"] == pytest.approx(peak["traced"], rel=0.001)


def test_a_deep_gpt_neo_is_traced_shallow_with_its_own_kinds_of_layers(
    job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {"num_layers": 16, "attention_types": [[["global", "local"], 8]], "window_size": 16}
    neo = {"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "vocab_size": 1024, **kinds}
    peaks = []
    for option in ("--quiet", "--every-layer"):
        assert run(job({"sequence_length": 32, "attention": "eager"}, neo), "--output-format", "json", option) == 0
        peaks.append(json.loads(capsys.readouterr().out)["peak"]["allocated_bytes"])
    assert peaks[0] == peaks[1]


def test_a_model_that_takes_no_text_is_refused_in_a_sentence(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    vit = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    with pytest.raises(UserError, match=r"no `vit` that takes text .* a trace makes no images or sound"):
        run(job(None, vit))
