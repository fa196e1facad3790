"""``memlint models``: what is known, and saving a config beside the project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.cli import run
from memlint.commands.models import add, rows
from memlint.errors import UserError
from memlint.models.resolve import resolve_model
from memlint.settings.load import forget_settings

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(folder)
    forget_settings()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_the_table_names_type_size_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "llama-3.2-1b-instruct"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["meta-llama/Llama-3.2-1B-Instruct", "llama", "16", "x", "2048", "catalog"]
    assert out[-1].startswith("4 models (layers x hidden size)")


def test_json_has_every_known_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--output-format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) >= 150
    assert {"id", "model_type", "family", "hidden_size", "num_hidden_layers", "vocab_size", "where", "source"} <= set(
        found[0]
    )


def test_words_that_nothing_has_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "no-such-thing"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "memlint: error: no known model has `no-such-thing` in its ID\n"


def test_a_saved_model_is_known_afterwards(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "add", "me/mine", "--config", "config.json"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "saved `.memlint/models/me__mine.json`\n"
    assert [(row["id"], row["where"]) for row in rows(["me/mine"])] == [("me/mine", "project")]
    found = resolve_model(
        "me/mine", base_dir=str(project / "deep"), settings_models={}, search_root=str(project), offline=True
    )
    assert found.architecture is not None
    assert found.architecture.source == "project"


def test_it_is_saved_at_the_root_of_the_repository_or_beside_the_settings(project: Path) -> None:
    assert add("me/mine", folder="deep/down", config_file="config.json") == str(
        project / ".memlint" / "models" / "me__mine.json"
    )
    (project / "deep" / "memlint.toml").write_text("offline = true\n")
    forget_settings()
    assert add("me/mine", folder="deep", config_file="config.json") == str(
        project / "deep" / ".memlint" / "models" / "me__mine.json"
    )


def test_the_cache_serves_without_a_network(project: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "hf" / "hub" / "models--me--mine" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    assert json.loads(Path(add("me/mine")).read_text()) == CONFIG


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add"], "needs a model ID"),
        (["add", "../../etc/passwd"], "is not a Hugging Face model ID"),
        (["add", "a//b"], "is not a Hugging Face model ID"),
        (["add", "me/mine"], "is not in the Hugging Face cache"),
        (["add", "me/mine", "you/yours", "--config", "config.json"], "name exactly one ID"),
        (["add", "me/mine", "--config", "absent.json"], "there is no config.json at `absent.json`"),
        (["add", "me/mine", "--config", "broken.json"], "`broken.json` is not JSON"),
        (["add", "me/mine", "--config", "unsound.json"], "the config of `me/mine` is not sound"),
        (["add", *[f"me/m{i}" for i in range(200)]], "at most 100 models"),
        (["gpt2", "--config", "config.json"], "belongs to `memlint models add"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "broken.json").write_text("{")
    (project / "unsound.json").write_text(json.dumps({**CONFIG, "vocab_size": "many"}))
    assert run(["models", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert not (project / ".memlint").exists()


def test_a_saved_config_is_replaced_whole_or_not_at_all(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that runs beside `models add` must never read half a config."""
    path = Path(add("me/mine", config_file="config.json"))
    before = path.read_text()
    (project / "other.json").write_text(json.dumps({**CONFIG, "vocab_size": 4096}))

    def fail(*names: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UserError, match="cannot write"):
        add("me/mine", config_file="other.json")
    assert path.read_text() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_saved_file_that_broke_is_left_out_of_the_list(project: Path) -> None:
    path = Path(add("me/mine", config_file="config.json"))
    path.write_text("{")
    assert rows(["me/mine"]) == []


def test_the_file_is_plain_json_with_sorted_keys(project: Path) -> None:
    text = Path(add("me/mine", config_file="config.json")).read_text()
    saved: dict[str, Any] = json.loads(text)
    assert list(saved) == sorted(saved)
    assert text.endswith("\n")


def test_add_refuses_what_it_could_not_read_back(project: Path) -> None:
    (project / "other.json").write_text(json.dumps({"model_type": "efficientnet"}))
    with pytest.raises(UserError, match="no transformer shape"):
        add("me/mine", config_file="other.json")
