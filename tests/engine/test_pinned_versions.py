"""Which release of a library a prediction is made for: pins beside the config, settings, else the newest, said so."""

from __future__ import annotations

from pathlib import Path

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
        ("pyproject.toml", '[project]\ndependencies = ["trl==1.4.0", "torch"]\n', {"trl": "1.4.0"}),
    ],
)
def test_exact_pins_are_read(tmp_path: Path, name: str, text: str, expected: dict[str, str]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert pinned_versions(str(tmp_path), str(tmp_path)) == expected


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
    other = tmp_path / "old"
    other.mkdir()
    (other / "requirements.txt").write_text("trl==1.4.0\n")
    config = config.rename(other / "sft.yaml")
    assert logits() > newest, "before 1.6 the loss made all logits at once"
