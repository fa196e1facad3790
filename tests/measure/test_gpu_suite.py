"""The GPU suite runs end to end on a CPU with tiny models of the same kinds, and its lines become tables."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="the measure extra is not installed")
pytest.importorskip("transformers", reason="the measure extra is not installed")
pytest.importorskip("peft", reason="the measure extra is not installed")

from benchmarks.gpu import run as suite_run  # noqa: E402
from benchmarks.gpu.suite import CASES, Case  # noqa: E402
from benchmarks.gpu.tables import NOTHING, markdown  # noqa: E402

pytestmark = pytest.mark.measure

WANTED = (
    "context", "workspace", "slack", "eager attention", "fused loss", "8-bit optimizer", "QLoRA", "checkpointing",
    "long sequence", "mixture of experts",
)  # fmt: skip


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """The suite's file, of tiny models on the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("suite") / "tiny.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        # No network may be needed: every connection would fail.
        import socket

        def refused(*args, **kwargs):
            raise OSError("no network")

        patch.setattr(socket.socket, "connect", refused)
        assert suite_run.main(["--device", "cpu", "--tiny", "--output", str(path)]) == 0
    torch.set_num_threads(before)
    return path


def test_every_job_runs(lines):
    read = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["name"] for line in read] == [case.name for case in CASES]
    assert {line["name"]: line["reason"] for line in read if line["kind"] == suite_run.SKIPPED} == {}
    for line in read:
        assert line["measured"]["parameters"] == line["prediction"]["parameters"], line["name"]
        assert line["out_of_memory"] is None


def test_the_suite_separates_the_sources_of_error():
    assert len(CASES) >= 30
    assert len({case.name for case in CASES}) == len(CASES)
    assert set(WANTED) <= {case.separates for case in CASES}


def test_every_job_can_be_predicted_and_run_as_it_stands(tmp_path):
    """The real sizes, without running them: the catalog knows the model, and no setting is refused."""
    from memlint.engine.predict import predict
    from memlint.engine.source import open_source
    from memlint.measure.verify.request import plan_run

    for case in CASES:
        path = tmp_path / f"{case.name}.json"
        path.write_text(json.dumps(case.native()))
        source = open_source(str(path), offline=True, isolated=True)
        assert source.problems == (), case.name
        plan_run(source.job, 1, "cuda")
        estimate, _ = predict(source.job, None)
        assert estimate is not None and estimate.method == "simulated", case.name
        assert case.layers is not None or estimate.high_bytes < 75 * 2**30, f"{case.name} needs more than an 80 GB GPU"


def test_jobs_that_would_end_too_late_are_left_out():
    made = list(suite_run.run_suite(CASES[:3], device="cpu", minutes=-1.0, small=True))
    assert [line["reason"] for line in made] == ["out of time"] * 3


def test_a_job_that_fails_costs_no_other_its_run():
    bad = Case(name="bad", separates="nothing", model="openai-community/gpt2", training={
        "objective": "dpo", "sequence_length": 32, "micro_batch_size": 1})  # fmt: skip
    (line,) = suite_run.run_suite([bad], device="cpu", small=True)
    assert line["kind"] == suite_run.SKIPPED
    assert "training.objective: dpo" in line["reason"]


def test_lines_of_a_gpu_become_tables(lines, tmp_path):
    """CPU runs have no memory figures and give no table; the same lines with figures of a GPU do."""
    assert markdown(str(lines)) == NOTHING == markdown(str(tmp_path / "missing.jsonl"))
    from tests.measure.test_verify_parts import report

    path = tmp_path / "gpu.jsonl"
    machine = {"device": "cuda", "name": "H200", "versions": {"torch": "2.13.0"}}
    made = [
        {
            **report(name, error=error),
            "separates": group,
            "machine": machine,
            "date": "2026-01-02T00:00:00Z",
            "memlint": "0",
        }
        for name, group, error in (("a|b", "slack", 0.1), ("c", "slack", -0.01), ("d", "loss", 0.02))
    ]
    skipped = {"kind": suite_run.SKIPPED, "name": "q", "separates": "QLoRA", "reason": "no bitsandbytes"}
    path.write_text("".join(json.dumps(line) + "\n" for line in [*made, skipped]))
    text = markdown(str(path))
    assert text.startswith("3 jobs, two real training steps each, on H200 (2026-01-02; torch 2.13.0; memlint 0).")
    assert "| a\\|b | slack | 9.09 | 10.00 | +10.00% | backward |" in text
    assert "| slack | 2 | +4.50% | +10.00% |" in text
    assert "| context and libraries | 3 | 450 |" in text
    assert text.rstrip().endswith("Not run: q (no bitsandbytes).")
