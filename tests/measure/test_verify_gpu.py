"""Real steps on a real GPU; every figure that needs one. Skipped elsewhere."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="the measure extra is not installed")
pytest.importorskip("transformers", reason="the measure extra is not installed")

from memlint.cli import run as memlint  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.measure,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

MODEL = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}


@pytest.fixture
def verify(tmp_path, monkeypatch):
    """Runs `memlint verify` on a job and returns (exit code, report)."""
    monkeypatch.chdir(tmp_path)

    def run(training=None, *words, **rest):
        job = {"memlint": 1, "model": MODEL, "training": {"sequence_length": 1024, **(training or {})}, **rest}
        (tmp_path / "job.json").write_text(json.dumps(job))
        code = memlint(["verify", "job.json", "--isolated", "--output", "report.json", *words])
        return code, json.loads((tmp_path / "report.json").read_text())

    return run


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"precision": "bf16", "optimizer": "adamw-fused"},
        {"activation_checkpointing": "full", "micro_batch_size": 4},
        {"attention": "eager"},
        {"method": "lora", "precision": "bf16"},
    ],
    ids=["autocast", "bf16", "checkpointing", "eager", "lora"],
)
def test_the_measured_peak_is_what_was_predicted(verify, training):
    code, report = verify(training)
    assert (code, report["result"]["verdict"]) == (0, "inside"), report["comparison"]
    errors = {row["name"]: row["error"] for row in report["comparison"]}
    assert abs(errors["allocated"]) < 0.03
    for name in ("parameters", "gradients", "optimizer_states"):
        assert abs(errors[name]) < 0.001
    assert report["measured"]["phase"] == report["prediction"]["phase"]


def test_a_second_run_in_the_process_starts_from_the_same_baseline(verify):
    first, second = verify()[1], verify()[1]
    for name in ("allocated_bytes", "forward_end_activation_bytes"):
        assert first["measured"][name] == pytest.approx(second["measured"][name], rel=0.001)


def test_fewer_layers_carried_on_give_the_whole(verify):
    whole, part = verify()[1], verify({}, "--layers", "4")[1]
    assert part["layers"]["run"] == [2, 4]
    assert part["measured"]["allocated_bytes"] == pytest.approx(whole["measured"]["allocated_bytes"], rel=0.02)


def test_running_out_of_memory_is_an_answer(verify):
    held = []
    free, _ = torch.cuda.mem_get_info()
    try:
        held.append(torch.empty(max(0, free - 2**30), dtype=torch.uint8, device="cuda"))
        code, report = verify({"micro_batch_size": 16})
    finally:
        held.clear()
        torch.cuda.empty_cache()
    assert code == 1
    assert report["out_of_memory"]["requested_bytes"] > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_fsdp2_over_two_gpus(verify):
    code, report = verify({}, "--gpus", "2", parallelism={"strategy": "fsdp"})
    assert (code, report["machine"]["world"]) == (0, 2), report["comparison"]
