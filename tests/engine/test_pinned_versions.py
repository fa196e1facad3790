"""Which release of a library a prediction is made for: pins beside the config, settings, else the newest, said so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from memlint.engine.versions import pinned_versions, version_assumptions


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("requirements.txt", "transformers==4.57.1  # note\ntorch>=2.1\n", {"transformers": "4.57.1"}),
        (
            "requirements-train.txt",
            "trl[peft]==0.19.0\nliger_kernel == 0.5.2\n",
            {"trl": "0.19.0", "liger-kernel": "0.5.2"},
        ),
        ("requirements.txt", "# transformers==4.0\ntransformers-stream-generator==0.0.4\n", {}),
        ("uv.lock", '[[package]]\nname = "transformers"\nversion = "5.1.0"\n', {"transformers": "5.1.0"}),
        ("Pipfile.lock", '{"default": {"torch": {"hashes": [], "version": "==2.6.0"}}}', {"torch": "2.6.0"}),
        (
            "environment.yml",
            "dependencies:\n  - pip:\n    - peft==0.15.0\n  - torch=2.5.1\n",
            {"peft": "0.15.0", "torch": "2.5.1"},
        ),
        (
            "requirements.txt",
            "mamba_ssm>=2.0 ; python_version < '3.13'\nfla-core\ncausal-conv1d==1.7.0\nmamba-ssm-extra\n",
            {"mamba-ssm": "any", "fla-core": "any", "causal-conv1d": "1.7.0"},
        ),
        (
            "requirements.txt",
            "git+https://github.com/state-spaces/mamba.git@v2.3\nxielu @ git+https://github.com/nickjbrowning/XIELU\n",
            {"mamba-ssm": "any", "xielu": "any"},
        ),
        ("pyproject.toml", '[project.optional-dependencies]\nfast = ["mamba-ssm"]\n', {}),
        ("pyproject.toml", '[project]\ndependencies = ["trl==1.4.0", "torch"]\n', {"trl": "1.4.0"}),
    ],
)
def test_exact_pins_are_read(tmp_path: Path, name: str, text: str, expected: dict[str, str]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert pinned_versions(str(tmp_path), str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "\n" * 250_000 + "x"),
        ("requirements.txt", " " * 250_000),
        ("requirements.txt", "torch[" * 40_000),
        ("requirements.txt", "git+" * 60_000),
        ("requirements.txt", "mamba-ssm " * 25_000),
        ("uv.lock", 'name = "torch"\n' * 250_000),
        ("poetry.lock", 'name = "torch"' + "\n" * 4_000_000),
        ("Pipfile.lock", '"torch": {' * 400_000),
    ],
    ids=lambda value: value[:12].strip(),
)
def test_a_hostile_file_ends_soon(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    started = time.process_time()
    pinned_versions(str(tmp_path), str(tmp_path))
    assert time.process_time() - started < 2


def test_the_nearest_folder_decides_and_the_boundary_is_kept(tmp_path: Path) -> None:
    inner = tmp_path / "repo" / "configs" / "sft"
    inner.mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("peft==0.1.0\n")
    (tmp_path / "repo" / "requirements.txt").write_text("transformers==4.50.0\ntrl==0.9.0\n")
    (inner / "requirements.txt").write_text("trl==1.16.0\n")
    assert pinned_versions(str(inner), str(tmp_path / "repo")) == {"transformers": "4.50.0", "trl": "1.16.0"}


def test_a_lock_file_wins_over_requirements(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.1.0\n")
    (tmp_path / "poetry.lock").write_text('[[package]]\nname = "torch"\nversion = "2.7.0"\n')
    assert pinned_versions(str(tmp_path), str(tmp_path)) == {"torch": "2.7.0"}


def test_what_no_file_pins_is_said() -> None:
    assert version_assumptions({"trl": "1.16"}, {"trl": "0.9"}) == ()
    (sentence,) = version_assumptions({"trl": "1.16", "transformers": "5.24"}, {"trl": "1.16"})
    assert sentence.startswith("read as transformers 5.24: no requirements")


def test_a_pin_changes_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from memlint.__main__ import main

    config = tmp_path / "sft.yaml"
    config.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: x\nper_device_train_batch_size: 1\n"
        "output_dir: out\nmax_length: 1024\ndtype: bfloat16\n"
    )

    def logits() -> int:
        main(["estimate", str(config), "--output-format", "json", "--offline"])
        answer = json.loads(capsys.readouterr().out)
        return int(answer["peak"]["allocated_bytes"])

    newest = logits()
    main(["estimate", str(config), "--offline"])
    assert "no requirements or lock file pins another release" in capsys.readouterr().out
    other = tmp_path / "old"
    other.mkdir()
    (other / "requirements.txt").write_text("trl==1.4.0\n")
    config = config.rename(other / "sft.yaml")
    assert logits() > newest, "before 1.6 the loss made all logits at once"


MAMBA = """memlint: 1
model: state-spaces/mamba-370m-hf
training: {method: full, micro_batch_size: 1, sequence_length: 2048, precision: bf16}
"""


def test_a_package_in_the_requirements_runs_its_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from memlint.__main__ import main

    def peak(folder: Path) -> dict[str, int]:
        main(["estimate", str(folder / "job.yaml"), "--output-format", "json", "--offline"])
        found: dict[str, int] = json.loads(capsys.readouterr().out)["peak"]
        return found

    ruled_out = '[tool.memlint.versions]\nmamba-ssm = "none"\ncausal-conv1d = "none"\n'
    settings = {"unsaid": "", "named": "", "ruled": ruled_out}
    for name, text in settings.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(MAMBA)
        (tmp_path / name / "pyproject.toml").write_text(text)
    (tmp_path / "named" / "requirements.txt").write_text("mamba-ssm\ncausal-conv1d\n")
    unsaid, named, ruled = (peak(tmp_path / name) for name in settings)
    assert named["allocated_bytes"] < unsaid["allocated_bytes"] == ruled["allocated_bytes"]
    assert unsaid["low_bytes"] == named["low_bytes"] < ruled["low_bytes"]


PACKED = """base_model: Qwen/Qwen3.5-9B
datasets: [{path: x, type: alpaca}]
adapter: lora
lora_target_linear: true
lora_r: 16
micro_batch_size: 1
gradient_accumulation_steps: 1
sequence_len: 4096
bf16: true
sample_packing: true
attn_implementation: flash_attention_2
"""


def test_axolotl_packs_qwen_with_the_kernels_it_brings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from memlint.__main__ import main

    def answer(name: str, settings: str) -> dict[str, Any]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "qwen.yaml").write_text(PACKED)
        (tmp_path / name / "memlint.toml").write_text(settings)
        main(["estimate", str(tmp_path / name / "qwen.yaml"), "--output-format", "json", "--offline"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    brought = answer("brought", "")
    assert any(text.startswith("flash-linear-attention taken as installed") for text in brought["assumptions"])
    without = answer("without", 'versions = {flash-linear-attention = "none"}\n')
    assert brought["peak"]["allocated_bytes"] < without["peak"]["allocated_bytes"]


@pytest.mark.parametrize(
    ("settings", "rule", "code"),
    [
        ("", "MEM102", 0),
        ('versions = {mamba-ssm = "none", causal-conv1d = "none"}\n', "MEM101", 1),
        ('versions = {mamba-ssm = "2.3.2", causal-conv1d = "1.7.0"}\n', None, 0),
    ],
)
def test_a_job_that_the_packages_let_fit_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, rule: str | None, code: int
) -> None:
    """Neither a false alarm nor silence, until somebody says which it is."""
    from memlint.__main__ import main

    job = tmp_path / "job.yaml"
    job.write_text(MAMBA + "hardware: {target: RTX4090}\n")
    (tmp_path / "memlint.toml").write_text(settings)
    assert main(["check", str(job), "--offline", "--select", "MEM101,MEM102"]) == code
    said = capsys.readouterr().out
    assert {name for name in ("MEM101", "MEM102") if f"[{name}]" in said} == ({rule} if rule else set())
    assert ("are not pinned" in said) == (settings == "")
