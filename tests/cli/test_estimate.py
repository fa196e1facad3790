"""`memlint estimate`: one job, from whatever names it."""

from __future__ import annotations

import io
import json
import sys

import jsonschema
import pytest

from memlint.estimate.result import COMPONENTS
from memlint.resources import schema_text


@pytest.fixture
def estimate(project, memlint):
    """Runs `estimate ... --output-format json --offline`: (exit code, object)."""

    def run(*argv):
        code, out, err = memlint("estimate", *argv, "--output-format", "json", "--offline")
        assert out, err
        return code, json.loads(out)

    return run


@pytest.mark.parametrize("source", ["big.yaml", "shapes/one-b", "shapes/one-b/config.json", "Qwen/Qwen3-0.6B", "gpt2"])
def test_every_kind_of_source_gives_the_contracts_object(estimate, source):
    code, data = estimate(source)
    schema = json.loads(schema_text("report"))
    jsonschema.Draft202012Validator({"$ref": "#/$defs/estimate", "$defs": schema["$defs"]}).validate(data)
    assert code == 0
    assert data["verdict"] == "unknown"
    peak = data["peak"]
    assert list(peak["components"]) == list(COMPONENTS)
    assert sum(peak["components"].values()) == peak["allocated_bytes"]
    assert peak["allocated_bytes"] <= peak["reserved_bytes"] <= peak["device_bytes"]
    assert peak["low_bytes"] <= peak["device_bytes"] <= peak["high_bytes"]


def test_one_billion_parameters_are_counted_once(estimate):
    _, data = estimate("shapes/one-b")
    assert data["model"]["parameters"] == 1235814400  # Llama-3.2-1B, model card
    assert data["model"]["family"] == "llama"


def test_a_model_goes_by_its_own_type_not_by_the_family_it_has_the_shape_of(memlint):
    code, out, _ = memlint("estimate", "EleutherAI/pythia-1b", "--offline", "--isolated")
    assert (code, out.splitlines()[0]) == (0, "EleutherAI/pythia-1b: gpt_neox, 1.01 B parameters, all trained")


def test_exit_code_1_when_it_does_not_fit(estimate):
    assert estimate("big.yaml", "--target", "24GiB")[0] == 1
    assert estimate("small.yaml", "--target", "80GiB")[0] == 0


def test_set_is_applied_last_and_short_forms_are_the_same(estimate):
    by_set = estimate("shapes/one-b", "--set", "training.micro_batch_size=4", "--set", "training.optimizer=sgd")[1]
    short = estimate("shapes/one-b", "--micro-batch-size", "4", "--optimizer", "sgd")[1]
    assert by_set["peak"] == short["peak"]
    assert by_set["job"]["training"]["micro_batch_size"] == 4
    lowered = estimate("big.yaml", "--set", "training.micro_batch_size=1")[1]
    assert lowered["peak"]["device_bytes"] < estimate("big.yaml")[1]["peak"]["device_bytes"]


def test_method_names_the_prediction_or_what_is_trained(estimate):
    assert estimate("shapes/one-b", "--method", "first-order")[1]["method"] == "first-order"
    _, data = estimate("shapes/one-b", "--method", "lora", "--precision", "bf16")
    assert data["method"] == "simulated"
    assert data["model"]["trainable_parameters"] < data["model"]["parameters"] / 20
    _, data = estimate("shapes/one-b", "--method", "lora", "--method", "first-order")
    assert (data["method"], data["job"]["training"]["method"]) == ("first-order", "lora")


def test_every_origin_has_a_place_a_default_or_an_assumption(estimate):
    _, data = estimate("big.yaml")
    origins = data["job"]["origins"]
    assert origins["training.micro_batch_size"] == {"file": "big.yaml", "line": 4, "column": 21}
    assert origins["model"] == {"file": "big.yaml", "line": 2, "column": 8}
    assert all(set(origin) in ({"file", "line", "column"}, {"default"}, {"assumed"}) for origin in origins.values())


def test_text_shows_parts_that_add_up_target_and_textbook_figure(project, memlint):
    code, out, err = memlint("estimate", "big.yaml", "--target", "24GiB", "--offline")
    assert (code, err) == (1, "")
    assert "1.24 B parameters, all trained" in out
    assert "micro batch 32 x 4096 tokens" in out
    assert "= predicted peak" in out
    assert "out of memory" in out
    assert "Textbook formulas give" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ci.yaml"], "ci.yaml is neither a training config that memlint reads"),
        (["missing.yaml"], "missing.yaml: no such file or folder, and no Hugging Face model ID"),
        (["shapes"], "shapes is a folder without config.json"),
        (["nobody/no-such-model"], "`nobody/no-such-model` is not known offline"),
        (["big.yaml", "--set", "training.micro_batch_sizes=1"], "did you mean `training.micro_batch_size`?"),
        (["big.yaml", "--target", "A1000"], "--target: "),
        (["big.yaml", "--job", "2"], "big.yaml has 1 job, and no job 2"),
        (["broken.yaml"], "broken.yaml:2:9: "),
    ],
)
def test_mistakes_exit_2_with_one_sentence(project, memlint, argv, message):
    (project / "broken.yaml").write_text("memlint: 1\nmodel: [\n")
    code, out, err = memlint("estimate", *argv, "--offline")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["yes", "null", "1.5", "1e5", "0x10", "2024-01-01"])
def test_a_model_may_be_called_what_yaml_takes_for_something_else(project, memlint, name):
    code, _, err = memlint("estimate", name, "--offline")
    assert (code, err.split(" offline")[0]) == (2, f"memlint: error: the shape of `{name}` is not known")


def test_a_model_that_is_not_known_is_said_on_the_line_that_names_it(project, memlint):
    (project / "unknown.yaml").write_text("memlint: 1\nmodel: nobody/no-such-model\n")
    code, _, err = memlint("estimate", "unknown.yaml", "--offline")
    assert (code, err.split(": the shape")[0]) == (2, "memlint: error: unknown.yaml:2:8")


def test_standard_input_is_a_source_too(project, memlint, monkeypatch):
    class Input:
        buffer = io.BytesIO((project / "big.yaml").read_bytes())

    monkeypatch.setattr("sys.stdin", Input)
    code, out, err = memlint("estimate", "-", "--target", "24GiB", "--offline")
    assert (code, err) == (1, "")
    assert out == memlint("estimate", "big.yaml", "--target", "24GiB", "--offline")[1]


def test_what_is_wrong_on_standard_input_has_its_place(project, memlint, monkeypatch):
    class Input:
        buffer = io.BytesIO(b"memlint: 1\nmodel: [\n")

    monkeypatch.setattr("sys.stdin", Input)
    code, _, err = memlint("estimate", "-", "--offline")
    assert code == 2 and err.startswith("memlint: error: <stdin>:2:9: ")


def test_compare_and_oom_say_what_is_wrong_in_a_config_as_estimate_does(project, memlint, monkeypatch):
    """A bad value is replaced by a default: the figures are those of another run, which must be said."""
    (project / "bad.yaml").write_text("memlint: 1\nmodel: shapes/one-b\ntraining: {micro_batchsize: 4}\n")
    log = b"\xff\xfe CUDA out of memory. Tried to allocate 2.00 GiB\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log), encoding="utf-8"))
    for argv in (("estimate", "bad.yaml"), ("compare", "bad.yaml", "small.yaml"), ("oom", "-", "--config", "bad.yaml")):
        code, out, err = memlint(*argv)
        assert code == 0
        assert out
        assert "bad.yaml:3:29: unknown key `micro_batchsize`" in err or "bad.yaml:3:12: unknown key" in err


def test_explain_with_a_file_shows_its_arithmetic(project, memlint):
    code, out, _ = memlint("explain", "MEM101", "--file", "big.yaml", "--target", "24GiB")
    assert code == 0
    assert "## How the number is made" in out
    assert "big.yaml:4:21: error[MEM101]" in out
    assert "At the peak, in " in out
    assert "has nothing to say here" in memlint("explain", "MEM302", "--file", "big.yaml", "--target", "24GiB")[1]


def test_lists_come_as_text_and_json(memlint):
    for command in ("rules", "dialects"):
        rows = json.loads(memlint(command, "--output-format", "json")[1])
        text = memlint(command)[1]
        for row in rows:
            assert row["name"] in text


def test_schema_prints_every_schema_and_lists_their_names(memlint):
    names = memlint("schema")[1].split()
    assert {"settings", "report", "job", "hf-config"} <= set(names)
    for name in names:
        jsonschema.Draft202012Validator.check_schema(json.loads(memlint("schema", name)[1]))


def test_the_line_of_settings_says_what_is_trained_in_another_dtype(project, memlint):
    half = "{weights: bf16, trainable_weights: fp32, autocast: bf16}"
    (project / "half.yaml").write_text(f"memlint: 1\nmodel: gpt2\ntraining: {{precision: {half}}}\n")
    assert "bf16 weights (trained ones fp32), bf16 autocast" in memlint("estimate", "half.yaml", "--offline")[1]
    assert "(trained ones" not in memlint("estimate", "gpt2", "--offline")[1]


def test_the_line_of_settings_says_how_the_base_is_stored_and_what_else_is_held(project, memlint):
    text = "memlint: 1\nmodel: gpt2\ntraining: {objective: dpo, reference_model: copy}\n"
    (project / "dpo.yaml").write_text(text + "parallelism: {strategy: zero2, gpus: 2, offload: optimizer}\n")
    line = memlint("estimate", "dpo.yaml", "--offline")[1].splitlines()[1]
    assert "dpo, full beside a reference model" in line
    assert line.endswith("zero2, optimizer offloaded")
    assert "nf4 base, other weights fp32" in memlint("estimate", "gpt2", "--offline", "--method", "qlora")[1]


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ("method: lora, lora: {rank: 8}", "causal-lm, lora (rank 8), "),
        ("method: oft, lora: {block_size: 32}", "causal-lm, oft (blocks of 32), "),
        ("method: ia3", "causal-lm, ia3, "),
    ],
)
def test_an_adapter_is_shown_with_the_size_that_it_has(project, memlint, training, words):
    (project / "adapter.yaml").write_text(f"memlint: 1\nmodel: gpt2\ntraining: {{{training}}}\n")
    assert words in memlint("estimate", "adapter.yaml", "--offline")[1]
