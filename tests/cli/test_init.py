"""`memlint init` writes what is missing and never overwrites."""

from __future__ import annotations

import yaml

from memlint.settings.load import forget_settings, settings_for


def test_init_writes_settings_and_a_hook(tmp_path, monkeypatch, memlint):
    monkeypatch.chdir(tmp_path)
    forget_settings()
    code, out, err = memlint("init", "--target", "8xA100-80GB")
    assert (code, out) == (0, "")
    assert "memlint.toml: written" in err
    forget_settings()
    assert settings_for(".").target == "8xA100-80GB"
    (repo,) = yaml.safe_load((tmp_path / ".pre-commit-config.yaml").read_text())["repos"]
    (hook,) = repo["hooks"]
    assert hook["id"] == "memlint"
    assert hook["entry"].startswith("memlint check --force-exclude --offline")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "left as" in memlint("init")[2]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_init_says_what_it_cannot_read(tmp_path, monkeypatch, memlint):
    monkeypatch.chdir(tmp_path)
    forget_settings()
    path = tmp_path / ".pre-commit-config.yaml"
    for content, words in ((b"repos:\n# \xff\n", "it is not UTF-8"), (b"a: 2024-13-45\n", "not valid YAML")):
        path.write_bytes(content)
        code, out, err = memlint("init")
        assert (code, out) == (2, "")
        assert words in err.splitlines()[-1]
        assert path.read_bytes() == content


def test_init_extends_a_pre_commit_config_and_keeps_the_rest(tmp_path, monkeypatch, memlint):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ".pre-commit-config.yaml"
    for text in (
        "# ours\nrepos:\n  - repo: https://example.org/a\n    rev: v1\n    hooks:\n      - id: x  # keep\n",
        "repos:\n- repo: local\n  hooks: []",
    ):
        path.write_text(text)
        memlint("init")
        after = path.read_text()
        assert after.startswith(text)
        repos = yaml.safe_load(after)["repos"]
        assert len(repos) == 2
        assert repos[-1]["hooks"][0]["id"] == "memlint"


def test_init_prints_the_stanza_where_it_cannot_be_added_safely(tmp_path, monkeypatch, memlint):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ".pre-commit-config.yaml"
    text = "repos:\n- repo: local\n  hooks: []\nci: {autofix_prs: false}\n"
    path.write_text(text)
    _, out, err = memlint("init")
    assert "- id: memlint" in out
    assert "could not be extended safely" in err
    assert path.read_text() == text


def test_init_refuses_a_target_that_does_not_exist(tmp_path, monkeypatch, memlint):
    monkeypatch.chdir(tmp_path)
    assert memlint("init", "--target", "A1000")[0] == 2
    assert list(tmp_path.iterdir()) == []
