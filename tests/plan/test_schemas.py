"""What `plan`, `compare`, `diff` and `oom` print as JSON agrees with the schemas that `memlint schema` prints."""

from __future__ import annotations

import json
import subprocess

import pytest
from jsonschema import Draft202012Validator

from memlint.__main__ import main
from memlint.resources import schema_text
from memlint.settings.load import forget_settings

JOB = "memlint: 1\nmodel: meta-llama/Llama-3.2-1B\ntraining: {micro_batch_size: 8, sequence_length: 2048}\n"
EVALUATED = JOB.replace("2048}", "2048, eval_micro_batch_size: 64, loss: fused}")
FLOOR = "memlint: 1\nmodel: Qwen/Qwen3-8B\ntraining: {precision: bf16, optimizer: sgd, sequence_length: 512}\n"
TEXT = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 1 has a total capacity of "
    "23.64 GiB of which 1.10 GiB is free. Process 4242 has 2.00 GiB memory in use. Including non-PyTorch memory, this "
    "process has 20.51 GiB memory in use. Of the allocated memory 19.80 GiB is allocated by PyTorch, and 210.00 MiB is "
    "reserved by PyTorch but unallocated.\n"
)
NAMES = ("plan", "compare", "diff", "oom")


@pytest.fixture
def memlint(tmp_path, monkeypatch, capsys):
    forget_settings()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(JOB)
    (tmp_path / "b.yaml").write_text(EVALUATED)
    (tmp_path / "c.yaml").write_text(FLOOR)

    def run(name, *argv):
        main([name, *argv, "--offline", "--output-format", "json"])
        data = json.loads(capsys.readouterr()[0])
        Draft202012Validator(json.loads(schema_text(name))).validate(data)
        return data

    return run


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_schema_and_closed(name):
    schema = json.loads(schema_text(name))
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["version"] == {"const": 1}
    assert schema["$id"].endswith(f"/{name}.schema.json")


@pytest.mark.parametrize("name", NAMES)
def test_each_is_listed(name, capsys):
    assert main(["schema"]) == 0
    assert name in capsys.readouterr()[0].split()


class TestPlan:
    @pytest.mark.parametrize("goal", ["fit", "speed", "headroom"])
    def test_a_plan_that_fits(self, memlint, goal):
        assert memlint("plan", "a.yaml", "--target", "RTX-4090", "--for", goal)["plans"]

    def test_an_evaluation_that_does_not_fit(self, memlint):
        data = memlint("plan", "b.yaml", "--target", "A100-40GB")
        assert data["now"]["peak"]["evaluation"]["micro_batch_size"] == 64
        below = memlint("plan", "b.yaml", "--target", "A100-40GB", "--set", "training.eval_micro_batch_size=8")
        assert below["now"]["peak"]["evaluation"] is None, "no more rows than the step has, and the same loss"

    def test_a_floor_where_nothing_fits(self, memlint):
        assert memlint("plan", "c.yaml", "--target", "T4")["floor"] is not None

    def test_no_target(self, memlint):
        assert memlint("plan", "a.yaml")["target"] is None


def test_compare(memlint):
    assert memlint("compare", "a.yaml", "b.yaml", "--target", "A100-80GB")["settings"]


def test_diff_with_a_new_a_changed_and_a_removed_file(memlint, tmp_path):
    def git(*words):
        identity = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", ".")
    git("add", "a.yaml", "c.yaml")
    git("commit", "-qm", "first")
    (tmp_path / "a.yaml").write_text(EVALUATED)
    (tmp_path / "c.yaml").unlink()
    assert [entry["name"] for entry in memlint("diff")["files"]] == ["a.yaml", "b.yaml", "c.yaml"]


def test_oom_with_and_without_a_config(memlint, tmp_path):
    (tmp_path / "log.txt").write_text(TEXT)
    assert memlint("oom", "log.txt")["predicted"] is None
    data = memlint("oom", "log.txt", "--config", "a.yaml", "--target", "RTX-4090")
    assert data["messages"][0]["other_processes"] == [{"process": 4242, "bytes": 2 << 30}]
    assert data["recovery"]


def test_an_estimate_shows_the_evaluation_and_the_hosts_memory(tmp_path, monkeypatch, capsys):
    forget_settings()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.yaml").write_text(EVALUATED)
    main(["check", "b.yaml", "--target", "p4d.24xlarge", "--offline", "--output-format", "json", "--exit-zero"])
    report = json.loads(capsys.readouterr()[0])
    Draft202012Validator(json.loads(schema_text("report"))).validate(report)
    estimate = report["files"][0]["estimate"]
    assert estimate["evaluation"]["micro_batch_size"] == 64
    assert sum(estimate["evaluation"]["components"].values()) == estimate["evaluation"]["allocated_bytes"]
    assert estimate["host"] == {"bytes": 0, "available_bytes": 1152 << 30}
    main(["estimate", "b.yaml", "--offline"])
    assert "An evaluation of 64 rows takes " in capsys.readouterr()[0]
