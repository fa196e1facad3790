"""memlint plan: what it prints, its JSON, its exit code, its goals."""

from __future__ import annotations

import json
import re

import pytest

from memlint.__main__ import main
from memlint.settings.load import forget_settings

JOB = """\
memlint: 1
model: meta-llama/Llama-3.2-1B
training:
  micro_batch_size: 8   # rows
  sequence_length: 2048
"""


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    forget_settings()
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "job.yaml").write_text(JOB)

    def run(*argv):
        code = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def data(plan, *more, target="RTX-4090"):
    code, out, _ = plan("plan", "job.yaml", "--target", target, "--output-format", "json", "--offline", *more)
    return code, json.loads(out)


def test_the_report_shows_before_after_steps_and_reach(plan):
    code, out, err = plan("plan", "job.yaml", "--target", "RTX-4090", "--offline")
    assert (code, err) == (0, "")
    assert "job.yaml (native): predicted peak " in out
    assert "out of memory" in out.splitlines()[0]
    assert "  now    W" in out
    assert "\n1. " in out
    assert "  after  W" in out
    assert "reaches micro batch " in out
    assert "smallest GPU that fits: " in out
    assert "another GPU" not in out
    assert "Another method" in out
    assert "`training.method: lora`" in out


def bars(out):
    return [line for line in out.splitlines() if line.startswith(("  now  ", "  after  "))]


def test_bars_keep_to_a_narrow_terminal(plan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, narrow, _ = plan("plan", "job.yaml", "--target", "RTX-4090", "--offline")
    monkeypatch.delenv("COLUMNS")
    _, piped, _ = plan("plan", "job.yaml", "--target", "RTX-4090", "--offline")
    assert max(map(len, bars(narrow))) <= 40 < max(map(len, bars(piped)))


def test_bars_are_coloured_where_colour_is_on_and_the_same_letters_else(plan):
    _, coloured, _ = plan("plan", "job.yaml", "--target", "RTX-4090", "--offline", "--color", "always")
    _, plain, _ = plan("plan", "job.yaml", "--target", "RTX-4090", "--offline", "--color", "never")
    assert "\x1b[38;5;0;48;5;67mW" in bars(coloured)[0]
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "W weights, G gradients, " in plain.splitlines()[-1]


def test_the_declared_gpu_is_named_before_another_of_its_size(plan):
    for target in ("A100-80GB", "H100-80GB"):
        _, report = data(plan, "--set", "training.micro_batch_size=10", "--set", "training.loss=fused", target=target)
        assert report["now"]["hardware"]["gpu"] == target


def test_plans_are_a_front_best_first(plan):
    _, report = data(plan)
    plans = report["plans"]
    assert plans[0]["verdict"] == "fits"
    sizes = [one["peak"]["device_bytes"] for one in plans]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    assert all(one["verdict"] == "fits" for one in plans)


def test_components_sum_to_the_allocated_peak(plan):
    _, report = data(plan)
    for one in (report["now"], *report["plans"], *report["offers"]):
        assert sum(one["peak"]["components"].values()) == one["peak"]["allocated_bytes"]


def test_the_steps_add_up(plan):
    _, report = data(plan)
    for one in report["plans"]:
        saved = sum(step["saves_bytes"] for step in one["steps"])
        assert report["now"]["peak"]["device_bytes"] - saved == one["peak"]["device_bytes"]
        assert all(step["cost"]["source"] for step in one["steps"])


def test_the_first_plan_is_what_unsafe_fixes_write(plan, tmp_path):
    _, report = data(plan)
    assert plan("check", "job.yaml", "--target", "RTX-4090", "--offline", "--fix", "--unsafe-fixes")[0] == 0
    assert "# rows" in (tmp_path / "job.yaml").read_text()
    _, after = data(plan)
    assert after["now"]["peak"] == report["plans"][0]["peak"]
    assert after["now"]["verdict"] == "fits"
    assert after["plans"][0]["edits"] == []


def test_limits_are_exact(plan):
    _, report = data(plan)
    limits = report["plans"][0]["limits"]
    edits = report["plans"][0]["changes"]
    sets = [f"--set={_native(name)}={value}" for name, value in edits.items()]
    for field, step in (("micro_batch_size", 1), ("sequence_length", 64)):
        most = limits[field]
        at = json.loads(plan(*_estimate(sets, field, most))[1])
        above = json.loads(plan(*_estimate(sets, field, most + step))[1])
        assert at["verdict"] == "fits"
        assert above["verdict"] != "fits" or most + step > 131_072


def _native(name):
    return name.replace("training.checkpointing.mode", "training.activation_checkpointing")


def _estimate(sets, field, value):
    return (
        "estimate",
        "job.yaml",
        "--target",
        "RTX-4090",
        *sets,
        f"--set=training.{field}={value}",
        "--output-format",
        "json",
        "--offline",
    )


def test_what_fits_already_needs_no_change(plan):
    code, report = data(plan, target="H200")
    assert code == 0
    assert report["now"]["verdict"] == "fits"
    assert report["plans"][0]["steps"] == []
    assert report["offers"] == []
    assert report["now"]["limits"]["micro_batch_size"] >= 8


def test_nothing_fits_names_the_floor_and_exits_1(plan, tmp_path):
    (tmp_path / "job.yaml").write_text(
        "memlint: 1\nmodel: Qwen/Qwen3-8B\ntraining: {precision: bf16, optimizer: sgd, sequence_length: 512}\n"
    )
    code, out, _ = plan("plan", "job.yaml", "--target", "T4", "--offline")
    assert code == 1
    assert "Nothing fits" in out
    assert "made of parameters 15.3, gradients 15.3" in out
    assert "QLoRA" in out
    code, report = data(plan, target="T4")
    assert code == 1
    assert report["plans"] == []
    assert report["floor"]["peak"]["components"]["parameters"] == pytest.approx(2 * 8.19e9, rel=0.01)


def test_without_a_target_the_front_starts_from_the_job(plan):
    code, out, _ = plan("plan", "job.yaml", "--offline")
    assert code == 0
    assert "usable" not in out.splitlines()[0]
    assert "smallest GPU that fits" in out
    assert "\n1. " in out


def test_a_bare_model_with_settings_is_planned_on_the_job(plan):
    code, out, _ = plan(
        "plan",
        "huggyllama/llama-7b",
        "--target",
        "A100-80GB",
        "--precision",
        "fp32",
        "--micro-batch-size",
        "4",
        "--offline",
    )
    assert code == 0
    assert "1. Mixed precision, activation checkpointing and 8-bit AdamW: fits" in out


def test_set_wins_over_the_file(plan):
    _, report = data(plan, "--set", "training.micro_batch_size=1")
    assert "micro-batch" not in json.dumps([step["name"] for one in report["plans"] for step in one["steps"]])


class TestGoals:
    def test_speed_never_recomputes_where_it_need_not(self, plan):
        _, fit = data(plan, target="A100-80GB")
        _, speed = data(plan, "--for", "speed", target="A100-80GB")
        assert speed["plans"][0]["compute"] <= fit["plans"][0]["compute"]

    def test_speed_takes_checkpointing_back_where_there_is_room(self, plan, tmp_path):
        (tmp_path / "job.yaml").write_text(JOB + "  activation_checkpointing: full\n  loss: fused\n")
        _, report = data(plan, "--for", "speed", target="H200")
        first = report["plans"][0]
        assert "checkpointing-none" in [step["name"] for step in first["steps"]]
        assert first["compute"] < 0
        assert first["verdict"] == "fits"

    def test_headroom_keeps_a_quarter_free(self, plan):
        _, report = data(plan, "--for", "headroom")
        first = report["plans"][0]
        assert first["peak"]["high_bytes"] <= 0.75 * report["target"]["usable_bytes"]

    def test_an_unknown_goal_is_refused(self, plan):
        code, out, err = plan("plan", "job.yaml", "--for", "luck")
        assert (code, out) == (2, "")
        assert "invalid choice" in err


def test_hardware_says_the_smallest_and_the_fewest(plan):
    _, report = data(plan, target="RTX-4090")
    need = report["now"]["hardware"]
    assert need["gpu"] is not None
    assert need["usable_bytes"] > report["now"]["peak"]["device_bytes"]
    _, larger = data(plan, target=need["gpu"])
    assert larger["now"]["verdict"] == "fits"


def test_first_order_formulas_cannot_be_planned_with(plan):
    code, _, err = plan("plan", "job.yaml", "--method", "first-order")
    assert code == 2
    assert "leave out --method" in err


def test_each_document_of_a_file_is_a_job(plan, tmp_path):
    second = "memlint: 1\nmodel: Qwen/Qwen3-0.6B\n"
    (tmp_path / "job.yaml").write_text(f"{JOB}---\nkind: note\n---\n{second}")
    code, out, err = plan("plan", "job.yaml", "--job", "2", "--target", "RTX-4090", "--offline")
    assert (code, out.splitlines()[0].partition("predicted")[0]) == (0, "job.yaml (native): ")
    assert "has 2 jobs; this is job 2" in err
    _, alone, _ = plan("estimate", "Qwen/Qwen3-0.6B", "--offline", "--output-format", "json")
    _, both, _ = plan("estimate", "job.yaml", "--job", "2", "--offline", "--output-format", "json")
    assert json.loads(both)["peak"] == json.loads(alone)["peak"]
    code, _, err = plan("plan", "job.yaml", "--job", "3", "--target", "RTX-4090", "--offline")
    assert code == 2 and "job.yaml has 2 jobs, and no job 3" in err


def test_states_that_page_are_the_last_resort(plan, tmp_path):
    (tmp_path / "job.yaml").write_text(
        "memlint: 1\nmodel: Qwen/Qwen3-8B\n"
        "training: {precision: bf16, sequence_length: 1024, activation_checkpointing: full, loss: fused}\n"
        "hardware: {target: 36GiB, host_memory: 17179869184}\n"
    )
    code, out, _ = plan("plan", "job.yaml", "--offline", "--output-format", "json")
    report = json.loads(out)
    (only,) = report["plans"]
    assert (code, only["verdict"]) == (1, "tight")
    assert only["steps"][-1]["name"] == "optimizer-paged-adamw-8bit"
    states = only["peak"]["components"]["optimizer_states"]
    assert only["peak"]["device_bytes"] - only["peak"]["low_bytes"] >= states, "the low end has them on the host"
