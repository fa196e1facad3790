"""Numbers of a config that no run has are said, whatever dialect states them, and never cost a minute."""

from __future__ import annotations

import json
import time

import pytest

from memlint.__main__ import main
from memlint.settings.load import forget_settings

TRL = "output_dir: o\nnum_train_epochs: 1\nuse_peft: true\nmodel_name_or_path: Qwen/Qwen3-0.6B\n"
AXOLOTL = "num_epochs: 1\ndatasets: [{path: x, type: alpaca}]\nbase_model: Qwen/Qwen3-0.6B\n"
FACTORY = "stage: sft\nfinetuning_type: lora\ntemplate: qwen\nmodel_name_or_path: Qwen/Qwen3-0.6B\n"
TRAINER = "output_dir: o\nnum_train_epochs: 1\nwarmup_ratio: 0.1\nmodel_name_or_path: Qwen/Qwen3-0.6B\n"
NATIVE = "memlint: 1\nmodel: Qwen/Qwen3-0.6B\ntraining:\n"
MANY = "99999999999999999999"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (
            f"{TRL}per_device_train_batch_size: 1\nmax_length: {MANY}\n",
            (6, 13),
            "`max_length` must be at most 100,000,000",
        ),
        (f"{TRL}max_length: 10\nper_device_train_batch_size: {MANY}\n", (6, 30), "at most 1,000,000, not"),
        (f"{TRL}per_device_train_batch_size: 5000\nbeta: 0.1\nmax_length: 64\n", (5, 30), "more than 4,096 for `dpo`"),
        (f"{TRL}per_device_train_batch_size: 1000000\nmax_length: 1024\n", (5, 30), "more than 134,217,728 tokens"),
        (f"{TRL}per_device_train_batch_size: 1\nlora_r: {MANY}\n", (6, 9), "`lora_r` must be at most 65,536"),
        (f"{AXOLOTL}micro_batch_size: 1\nsequence_len: {MANY}\n", (5, 15), "`sequence_len` must be at most"),
        (f"{AXOLOTL}sequence_len: 8\nmicro_batch_size: {MANY}\n", (5, 19), "`micro_batch_size` must be at most"),
        (f"{FACTORY}per_device_train_batch_size: 1\ncutoff_len: {MANY}\n", (6, 13), "`cutoff_len` must be at most"),
        (f"{TRAINER}per_device_train_batch_size: 1\nmax_seq_length: 9999999999\n", (6, 17), "`max_seq_length` must be"),
        (f"{NATIVE}  micro_batch_size: 500\n  length_deviation: 9\n", (4, 21), "lengths are drawn for 128 at most"),
        (
            f"{NATIVE}  length_mean: 90000\n  length_deviation: 9\n  drops_long: true\n",
            (4, 16),
            "nearly every sample of 90,000 tokens is longer than 2,048",
        ),
        (f"{NATIVE}  method: hra\n  lora: {{rank: 65536}}\n", (5, 16), "more than 512 reflections"),
    ],
)
def test_a_number_beyond_any_run_is_said_on_its_line_and_not_computed(
    tmp_path, monkeypatch, capsys, text, place, words
):
    monkeypatch.chdir(tmp_path)
    forget_settings()
    (tmp_path / "run.yaml").write_text(text)
    started = time.process_time()
    code = main(["check", "run.yaml", "--offline", "--target", "RTX4090", "--output-format", "json"])
    assert time.process_time() - started < 2
    (file,) = json.loads(capsys.readouterr().out)["files"]
    (finding,) = [found for found in file["findings"] if found["code"] != "MEM007"]
    assert (code, file["estimate"], finding["code"]) == (1, None, "MEM003")
    assert (finding["line"], finding["column"]) == place
    assert words in finding["message"]
    assert main(["estimate", "run.yaml", "--offline"]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_what_is_set_on_the_command_line_is_bounded_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sets = ("--set", "micro_batch_size=1000000", "--set", "sequence_length=100000000")
    assert main(["estimate", "Qwen/Qwen3-0.6B", "--offline", *sets]) == 2
    assert "more than 134,217,728 tokens in one forward" in capsys.readouterr().err


@pytest.mark.parametrize("length", [4_000_000, 100_000_000])
def test_trls_tiles_cost_the_same_for_any_length(tmp_path, monkeypatch, capsys, length):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"{TRL}per_device_train_batch_size: 1\nmax_length: {length}\n")
    started = time.process_time()
    assert main(["check", "run.yaml", "--offline", "--target", "RTX4090"]) == 1
    assert time.process_time() - started < 4
    assert "error[MEM101]" in capsys.readouterr().out
