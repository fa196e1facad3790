"""What `verify` and `check --verify` say on a machine without a GPU or without the extra, and what they report."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

from memlint.cli import run as memlint
from memlint.engine.options import CheckOptions
from memlint.engine.run import check_paths
from memlint.report.registry import render
from memlint.rules.context import Measured

HAS_EXTRA = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "accelerate", "peft"))
needs_extra = pytest.mark.skipif(not HAS_EXTRA, reason="the measure extra is not installed")

JOB = {
    "memlint": 1,
    "model": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
    "training": {"sequence_length": 32},
}


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    return "job.json"


@pytest.fixture
def without_extra(monkeypatch):
    real = importlib.util.find_spec

    def find(name, *rest):
        return None if name in ("torch", "peft") else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)


@pytest.mark.parametrize("command", [["verify", "job.json"], ["check", "--force-exclude", "--verify", "job.json"]])
def test_a_missing_extra_is_one_message_with_both_cures(job, without_extra, capsys, command):
    assert memlint(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert " needs torch, " in err
    assert "peft" in err
    assert "pip install 'memlint-gpu[measure]'" in err
    assert 'additional_dependencies: [".[measure]"]' in err
    assert "id: memlint-verify" in err


@needs_extra
@pytest.mark.measure
@pytest.mark.parametrize("command", [["verify", "job.json"], ["check", "--force-exclude", "--verify", "job.json"]])
def test_without_a_gpu_one_sentence_says_so(job, capsys, monkeypatch, command):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert memlint(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "there is no GPU" in err
    assert "--device cpu" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--gpus", "0"], "--gpus takes the number"),
        (["--layers", "0"], "--layers takes a number"),
        (["--set", "training.nothing=1"], "nothing"),
    ],
)
@needs_extra
def test_mistakes_are_one_sentence(job, capsys, words, sentence):
    assert memlint(["verify", job, "--device", "cpu", *words]) == 2
    assert sentence in capsys.readouterr().err


@needs_extra
def test_gpus_beside_another_launcher_must_agree(job, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert memlint(["verify", job, "--device", "cpu", "--gpus", "2"]) == 2
    assert "torchrun has started 4 processes" in capsys.readouterr().err


def test_verify_and_fix_do_not_go_together(job, capsys):
    assert memlint(["check", "--verify", "--fix", job]) == 2
    assert "--verify runs the configs as they are" in capsys.readouterr().err


@needs_extra
@pytest.mark.measure
def test_check_verify_runs_each_job_and_keeps_the_report(job, capsys):
    """On the CPU, so that the whole way is walked; nothing is found, because memory is not compared."""
    options = CheckOptions(
        paths=(job,), isolated=True, offline=True, details=True, target=None, verify=True, verify_device="cpu"
    )
    result = check_paths(options)
    assert result.crashes == []
    assert "MEM901" not in [finding.code for report in result.reports for finding in report.findings]
    assert "job.json: ran; memory was not compared" in capsys.readouterr().err
    data = json.loads(render(result, "json"))
    verification = data["files"][0]["estimate"]["verification"]
    assert verification["kind"] == "memlint-verify"
    assert verification["measured"]["phases"] == ["forward", "loss", "backward", "clip", "optimizer"]


@needs_extra
@pytest.mark.measure
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core runs one process")
def test_check_verify_runs_on_as_many_gpus_as_the_job_has(job, tmp_path, capsys):
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "parallelism": {"strategy": "fsdp", "gpus": 2}}))
    options = CheckOptions(
        paths=("job.json",), isolated=True, offline=True, details=True, verify=True, verify_device="cpu"
    )
    data = json.loads(render(check_paths(options), "json"))
    assert "job.json: running in 2 processes" in capsys.readouterr().err
    verification = data["files"][0]["estimate"]["verification"]
    assert (verification["machine"]["launcher"], verification["machine"]["world"]) == ("torchrun", 2)
    assert verification["job"]["parallelism"]["gpus"] == 2


class TestProcesses:
    def count(self, monkeypatch, strategy, gpus, here, said=None):
        from memlint.job import Parallelism, TrainingJob
        from memlint.measure.verify.checked import processes

        monkeypatch.setattr(os, "cpu_count", lambda: here)
        made = TrainingJob(model="m", parallelism=Parallelism(strategy=strategy))
        return processes(made, "cpu", gpus, (said if said is not None else []).append)

    @pytest.mark.parametrize(
        ("strategy", "gpus", "here", "count"),
        [("none", 8, 8, 1), ("ddp", 1, 8, 1), ("ddp", 8, 8, 8), ("fsdp", 4, 8, 4), ("device-map", 4, 8, 1)],
    )
    def test_one_for_each_gpu_of_a_divided_job(self, job, monkeypatch, strategy, gpus, here, count):
        assert self.count(monkeypatch, strategy, gpus, here) == count

    def test_a_smaller_machine_runs_what_it_can_and_says_so(self, job, monkeypatch):
        said = []
        assert self.count(monkeypatch, "zero2", 8, 2, said) == 2
        assert said == ["the job runs on 8 GPUs, and this machine has 2 CPU cores"]

    def test_a_launcher_has_decided_already(self, job, monkeypatch):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert self.count(monkeypatch, "fsdp", 4, 8) == 1


@needs_extra
@pytest.mark.measure
def test_a_job_that_cannot_be_run_is_said_and_is_no_finding(job, tmp_path, capsys):
    (tmp_path / "dpo.json").write_text(json.dumps({**JOB, "training": {"objective": "dpo"}}))
    options = CheckOptions(paths=("dpo.json",), isolated=True, offline=True, verify=True, verify_device="cpu")
    result = check_paths(options)
    assert result.crashes == []
    assert "dpo.json: not verified: memlint verify does not run `training.objective: dpo`" in capsys.readouterr().err


GIB = 2**30


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (dict(measured_bytes=9 * GIB), "measured peak 9.0 GiB on H200 is above predicted 5.0 GiB (4.0-6.0)"),
        (dict(measured_bytes=3 * GIB), "measured peak 3.0 GiB on H200 is below predicted 5.0 GiB (4.0-6.0)"),
        (dict(measured_bytes=6 * GIB), None),
        (
            dict(measured_bytes=None, usable_bytes=8 * GIB),
            "the run on H200 ran out of memory although predicted 5.0 GiB (4.0-6.0) fits 8.0 GiB usable",
        ),
        (dict(measured_bytes=None, usable_bytes=5 * GIB), None),
    ],
    ids=["above", "below", "inside", "out of memory, unexpected", "out of memory, expected"],
)
def test_a_run_outside_the_interval_is_a_finding(job, monkeypatch, run, said):
    """What `check` makes of a run, whichever GPU it was made on."""
    from memlint.measure.verify import checked

    found = Measured(
        low_bytes=4 * GIB, expected_bytes=5 * GIB, high_bytes=6 * GIB, where="on H200", notes=("measured loss",), **run
    )
    monkeypatch.setattr(checked, "verify_checked", lambda *args: checked.Verified(measured=found, report={"kind": "x"}))
    result = check_paths(CheckOptions(paths=(job,), select=("MEM901",), isolated=True, offline=True, verify=True))
    assert [finding.message for report in result.reports for finding in report.findings] == ([said] if said else [])
    assert result.failed == (said is not None)


@needs_extra
@pytest.mark.measure
def test_a_report_becomes_what_the_rule_compares():
    from memlint.measure.verify.checked import measured_of, summary
    from tests.measure.test_verify_parts import report

    found = report(result={"verdict": "above", "figure": "device", "measured_bytes": 14 * GIB, "low_bytes": 10 * GIB,
                           "high_bytes": 13 * GIB}, layers={"run": [2, 4], "of": 8})  # fmt: skip
    found["machine"]["usable_bytes"] = 80 * GIB
    run = measured_of(found)
    assert run is not None
    assert (run.measured_bytes, run.high_bytes, run.where) == (14 * GIB, 13 * GIB, "on H200")
    assert "measured allocated 9.09 GiB, predicted 10.00" in run.notes
    assert run.notes[-1] == "measured with 4 of 8 layers, carried on to all of them"
    assert summary(found) == "measured 14.0 GiB, 10.0-13.0 GiB predicted"
