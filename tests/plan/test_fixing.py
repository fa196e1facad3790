"""Fixes of a plan: what is safe, what a DeepSpeed file needs, and that nothing but the intended lines changes."""

from __future__ import annotations

import io
import json
import sys

import pytest

from memlint.__main__ import main
from memlint.settings.load import forget_settings

FACTORY = """\
### model
model_name_or_path: Qwen/Qwen3-8B  # the base
stage: sft
do_train: true
finetuning_type: full
output_dir: out
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-5
cutoff_len: 1024
bf16: true
deepspeed: examples/deepspeed/ds_z2_config.json
"""

TRAINER = """\
output_dir: out
model_name_or_path: Qwen/Qwen3-8B
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-05
dataset_name: d
dtype: bfloat16
bf16: true
max_length: 1024
deepspeed: ds.json
"""

STAGE_1 = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}


@pytest.fixture
def memlint(tmp_path, monkeypatch, capsys):
    forget_settings()
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()

    def run(*argv):
        code = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def out_of_memory(memlint, *argv):
    _, out, _ = memlint("check", *argv, "--offline", "--output-format", "json")
    (report,) = json.loads(out)["files"]
    found = next((f for f in report["findings"] if f["code"] == "MEM101"), None)
    return report["estimate"]["peak"]["device_bytes"], found


class TestAFileThatTheFrameworkShips:
    TARGET = ("--target", "8xRTX-4090")

    @pytest.fixture(autouse=True)
    def _config(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "sft.yaml").write_text(FACTORY)

    def test_it_is_named_in_the_plan(self, memlint):
        _, found = out_of_memory(memlint, "run", *self.TARGET)
        assert "`deepspeed: examples/deepspeed/ds_z3" in found["help"][0]["text"]

    def test_it_is_created_where_the_framework_looks(self, memlint, tmp_path):
        before, found = out_of_memory(memlint, "run", *self.TARGET)
        assert memlint("check", "run", *self.TARGET, "--offline", "--fix", "--unsafe-fixes")[0] == 0
        (made,) = (tmp_path / "examples" / "deepspeed").iterdir()
        content = json.loads(made.read_text())
        assert content["zero_optimization"]["stage"] == 3
        assert content["train_micro_batch_size_per_gpu"] == "auto"
        after, left = out_of_memory(memlint, "run", *self.TARGET)
        assert left is None
        assert before - after == found["saves_bytes"]

    def test_every_other_line_stays(self, memlint, tmp_path):
        memlint("check", "run", *self.TARGET, "--offline", "--fix", "--unsafe-fixes")
        after = (tmp_path / "run" / "sft.yaml").read_text()
        changed = [new for old, new in zip(FACTORY.splitlines(), after.splitlines(), strict=False) if old != new]
        assert len(changed) == 1
        assert changed[0].startswith("deepspeed: examples/deepspeed/ds_z3")
        assert all(": " in line for line in after.splitlines()[len(FACTORY.splitlines()) :])

    def test_safe_fixes_create_nothing(self, memlint, tmp_path):
        memlint("check", "run", *self.TARGET, "--offline", "--fix")
        assert not (tmp_path / "examples").exists()

    def test_a_diff_shows_it_and_writes_nothing(self, memlint, tmp_path):
        _, out, _ = memlint("check", "run", *self.TARGET, "--offline", "--diff", "--unsafe-fixes")
        assert "--- /dev/null\n+++ b/examples/deepspeed/ds_z3" in out
        assert '+    "stage": 3,' in out
        assert not (tmp_path / "examples").exists()
        assert (tmp_path / "run" / "sft.yaml").read_text() == FACTORY

    def test_one_that_is_there_is_left_as_it_is(self, memlint, tmp_path):
        memlint("check", "run", *self.TARGET, "--offline", "--fix", "--unsafe-fixes")
        (made,) = (tmp_path / "examples" / "deepspeed").iterdir()
        own = json.dumps({**json.loads(made.read_text()), "steps_per_print": 7})
        made.write_text(own)
        (tmp_path / "run" / "sft.yaml").write_text(FACTORY)
        assert memlint("check", "run", *self.TARGET, "--offline", "--fix", "--unsafe-fixes")[0] == 0
        assert (tmp_path / "run" / "sft.yaml").read_text() != FACTORY
        assert made.read_text() == own


class TestTheUsersOwnDeepSpeedFile:
    TARGET = ("--target", "8xA100-40GB")

    def test_the_plan_edits_it_in_place_and_says_so(self, memlint, tmp_path):
        (tmp_path / "sft.yaml").write_text(TRAINER)
        (tmp_path / "ds.json").write_text(json.dumps(STAGE_1, indent=4) + "\n")
        before, found = out_of_memory(memlint, "sft.yaml", *self.TARGET)
        assert " in ds.json" in found["help"][0]["text"]
        assert {edit.get("file") for edit in found["fix"]["edits"]} >= {"ds.json"}
        memlint("check", "sft.yaml", *self.TARGET, "--offline", "--fix", "--unsafe-fixes")
        after, left = out_of_memory(memlint, "sft.yaml", *self.TARGET)
        assert left is None
        assert before - after == found["saves_bytes"]
        changed = json.loads((tmp_path / "ds.json").read_text())
        assert changed["zero_optimization"]["stage"] > 1
        assert changed["bf16"] == STAGE_1["bf16"]


class TestSafePlans:
    JOB = """\
memlint: 1
model: meta-llama/Llama-3.2-1B
training:
  micro_batch_size: 7
  sequence_length: 4096   # tokens
  loss: fused
  activation_checkpointing: offload
  optimizer: adafactor
"""

    def test_accumulation_instead_of_rows_needs_no_unsafe_flag(self, memlint, tmp_path):
        (tmp_path / "job.yaml").write_text(self.JOB)
        target = ("--target", "15.4GiB")
        _, out, _ = memlint("check", "job.yaml", *target, "--offline", "--fix")
        assert ": fits" in out
        after = (tmp_path / "job.yaml").read_text()
        assert after == self.JOB.replace("size: 7", "size: 1") + "  gradient_accumulation_steps: 7\n"

    def test_a_plan_with_one_unsafe_step_is_unsafe(self, memlint, tmp_path):
        (tmp_path / "job.yaml").write_text(self.JOB.replace("optimizer: adafactor", "optimizer: adamw"))
        _, found = out_of_memory(memlint, "job.yaml", "--target", "RTX-4080")
        assert found["fix"]["safe"] is False


class TestTheBlockUnderOutOfMemory:
    JOB = """\
memlint: 1
model: meta-llama/Llama-3.2-1B
training:
  micro_batch_size: 8
  sequence_length: 2048
"""

    def test_the_whole_plan_first_then_each_step_with_its_figure(self, memlint, tmp_path):
        (tmp_path / "job.yaml").write_text(self.JOB)
        _, found = out_of_memory(memlint, "job.yaml", "--target", "RTX-4090")
        whole, *steps = found["help"]
        assert whole["fits_after"] is True
        assert whole["fix"] == found["fix"]
        assert [step["text"].partition(":")[0] for step in steps] == [f"step {n}" for n in range(1, len(steps) + 1)]
        assert steps[-1]["saves_bytes"] == whole["saves_bytes"]
        assert all(step["fix"] is None for step in steps)

    def test_suggestions_say_which_step_of_the_plan_they_are(self, memlint, tmp_path):
        (tmp_path / "job.yaml").write_text(self.JOB)
        _, out, _ = memlint("check", "job.yaml", "--target", "RTX-4090", "--offline")
        for code in ("MEM303", "MEM301", "MEM401"):
            block = out[out.index(f"[{code}]") :]
            assert "   = note: step " in block[: block.index("= help")]

    def test_where_nothing_fits_the_floor_and_other_methods_are_named(self, memlint, tmp_path):
        (tmp_path / "job.yaml").write_text(
            "memlint: 1\nmodel: Qwen/Qwen3-8B\ntraining: {precision: bf16, optimizer: sgd, sequence_length: 512}\n"
        )
        _, found = out_of_memory(memlint, "job.yaml", "--target", "T4")
        assert found["fix"] is None
        assert any("no setting of this file fits: the lowest it reaches is " in note for note in found["notes"])
        assert [line for line in found["help"] if line["text"].startswith("another method: `training.method: qlora`")]


class TestFragmentation:
    """A job that is tight for its high end alone: PyTorch's allocator has a setting against that."""

    JOB = TestTheBlockUnderOutOfMemory.JOB.replace("size: 8", "size: 4")

    def check(self, memlint, tmp_path, target):
        (tmp_path / "job.yaml").write_text(self.JOB)
        _, out, _ = memlint("check", "job.yaml", "--target", target, "--offline", "--output-format", "json")
        (report,) = json.loads(out)["files"]
        return report["estimate"], next((f for f in report["findings"] if f["code"] == "MEM102"), None)

    def hints(self, finding):
        return [line for line in finding["help"] if "expandable_segments" in line["text"]]

    def test_the_hint_comes_where_it_is_enough_and_has_no_edit(self, memlint, tmp_path):
        estimate, _ = self.check(memlint, tmp_path, "H200")
        high = estimate["peak"]["high_bytes"] / 2**30
        _, finding = self.check(memlint, tmp_path, f"{high * 1.04:.2f}GiB")
        (hint,) = self.hints(finding)
        assert hint["fits_after"] is True
        assert hint["fix"] is None

    def test_it_is_silent_where_the_peak_itself_is_too_near(self, memlint, tmp_path):
        estimate, _ = self.check(memlint, tmp_path, "H200")
        expected = estimate["peak"]["device_bytes"] / 2**30
        _, finding = self.check(memlint, tmp_path, f"{expected:.2f}GiB")
        assert self.hints(finding) == []


class TestWhatFits:
    """A job that fits: its evaluation is put right, its batch is left alone."""

    JOB = """\
memlint: 1
model: meta-llama/Llama-3.2-1B
training:
  micro_batch_size: 4
  sequence_length: 2048
  eval_micro_batch_size: 64
"""

    def test_a_batch_is_made_smaller_only_where_that_is_asked_for(self, memlint, tmp_path):
        (tmp_path / "job.yaml").write_text(self.JOB)
        _, out, _ = memlint("check", "job.yaml", "--target", "A100-80GB", "--offline", "--fix")
        assert "predicted peak" in out
        after = (tmp_path / "job.yaml").read_text()
        assert after == self.JOB.replace("eval_micro_batch_size: 64", "eval_micro_batch_size: 16")
        memlint("check", "job.yaml", "--target", "A100-80GB", "--offline", "--fix", "--select", "MEM601")
        assert "\n  micro_batch_size: 2\n" in (tmp_path / "job.yaml").read_text()


def test_a_diff_of_standard_input_may_say_fix_too(memlint, monkeypatch):
    content = b"memlint: 1\nmodel: Qwen/Qwen3-0.6B\ntraining: {micro_batch_size: 64, sequence_length: 4096}\n"
    words = ("check", "-", "--stdin-filename", "job.yaml", "--target", "A100-40GB", "--fix", "--unsafe-fixes")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    _, out, err = memlint(*words, "--diff")
    assert out.startswith("--- a/job.yaml\n+++ b/job.yaml\n") and not err
    code, _, err = memlint(*words)
    assert code == 2 and "--fix cannot write standard input; use --diff" in err


ROWS = """\
memlint: 1
model: Qwen/Qwen3-1.7B
training: {micro_batch_size: 16, sequence_length: 4096, activation_checkpointing: full}
"""


@pytest.mark.parametrize(("target", "left"), [("T4", 16), ("A100-80GB", 4)], ids=["one is too many", "four fit"])
def test_the_micro_batch_is_fixed_only_where_that_makes_the_job_fit(memlint, tmp_path, target, left):
    """A run on another GPU, or with the rest of the plan, wants its rows: one row for nothing makes it slow."""
    (tmp_path / "job.yaml").write_text(ROWS)
    memlint("check", "job.yaml", "--offline", "--fix", "--target", target, "--ignore", "MEM101,MEM102,MEM401")
    assert f"micro_batch_size: {left}," in (tmp_path / "job.yaml").read_text()
