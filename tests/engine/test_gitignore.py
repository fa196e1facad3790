"""Folders are searched as git lists them: every case is held against git itself."""

from __future__ import annotations

import subprocess
import time

import pytest

from memlint.engine.discover import discover
from memlint.engine.gitignore import LARGEST, compile_rules
from memlint.settings.load import forget_settings

FILES = (
    "a.yaml",
    "keep.yaml",
    "#hash.yaml",
    "!bang.yaml",
    "conf/a.yaml",
    "conf/deep/a.yaml",
    "conf/deep/keep.yaml",
    "out/a.yaml",
    "conf/out/a.yaml",
    "conf/run.1/a.yaml",
    "conf/run.2/b.yaml",
    "data/x/y/z.yaml",
    "data/z.yaml",
    "out.yaml",
)

RULES = (
    "",
    "# a comment\n\n*.json\n",
    "a.yaml\n",
    "/a.yaml\n",
    "out/\n",
    "out\n",
    "/out/\n",
    "conf/out\n",
    "conf/*.yaml\n",
    "conf/**\n",
    "**/deep/\n",
    "conf/**/a.yaml\n",
    "data/**/z.yaml\n",
    "*.yaml\n!keep.yaml\n",
    "conf/*\n!conf/deep\n",
    "conf/\n!conf/deep/keep.yaml\n",
    "run.[12]/\n",
    "run.?\n",
    "[!a]*.yaml\n",
    "\\#hash.yaml\n\\!bang.yaml\n",
    "a.yaml   \n",
    "!a.yaml\na.yaml\n",
    "a.yaml\n!a.yaml\n",
    "deep/keep.yaml\n",
    "*/a.yaml\n",
    "/*/deep\n",
    "*.2\nrun.1\n*eep/\n",
)


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path, monkeypatch):
    forget_settings()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git(tmp_path, "init", "-q", ".")
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a: 1\n")
    return tmp_path


def found(*paths):
    return [item.path for item in discover(paths or (".",), isolated=True, force_exclude=False) if item.skipped is None]


def listed(folder):
    names = git(folder, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return sorted(name for name in names if name.endswith(".yaml"))


@pytest.mark.parametrize("rules", RULES)
def test_git_lists_the_same_files(tree, rules):
    (tree / ".gitignore").write_text(rules)
    assert found() == listed(tree)


@pytest.mark.parametrize("rules", RULES)
def test_rules_of_a_deeper_folder_come_after_those_above(tree, rules):
    (tree / ".gitignore").write_text("deep/\n*.2\n")
    (tree / "conf" / ".gitignore").write_text(rules + "!deep/\n")
    assert found() == listed(tree)


def test_the_repositorys_own_excludes_count(tree):
    (tree / ".git" / "info" / "exclude").write_text("conf/\n")
    assert found() == listed(tree)
    assert not any(name.startswith("conf/") for name in found())


def test_rules_above_the_folder_that_is_searched_hold_in_it(tree):
    (tree / ".gitignore").write_text("/conf/deep/keep.yaml\n*.1\n")
    assert found("conf/deep") == ["conf/deep/a.yaml"]
    assert "conf/run.1/a.yaml" not in found("conf")


def test_a_folder_or_file_that_is_named_counts_although_it_is_ignored(tree):
    (tree / ".gitignore").write_text("out/\nkeep.yaml\n")
    assert found("out") == ["out/a.yaml"]
    assert found("keep.yaml") == ["keep.yaml"]


def test_what_is_left_out_says_why(tree):
    (tree / ".gitignore").write_text("a.yaml\n")
    skipped = {item.path: item.skipped for item in discover((".",), isolated=True, force_exclude=False)}
    assert skipped["a.yaml"] == "ignored by git"


def test_outside_a_repository_nothing_is_ignored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "a.yaml").write_text("a: 1\n")
    assert found() == ["a.yaml"]


def test_a_repository_inside_has_rules_of_its_own(tree):
    git(tree, "init", "-q", "data")
    (tree / ".gitignore").write_text("z.yaml\n")
    (tree / "data" / ".gitignore").write_text("x/\n")
    assert [name for name in found() if name.startswith("data/")] == ["data/z.yaml"]


@pytest.mark.parametrize("rules", ["[", "a[b", "*" * 40 + "b\n", "*a" * 40, "\x00\n", "(?P<x>\n", "a" * (LARGEST + 1)])
def test_hostile_rules_are_harmless(tree, rules):
    (tree / ".gitignore").write_text(rules)
    started = time.perf_counter()
    assert "conf/deep/a.yaml" in found()
    assert time.perf_counter() - started < 2


def test_wildcards_are_bounded():
    (segment,) = compile_rules("*a*a*b\n*a*a*a*a*a*b\n")
    started = time.perf_counter()
    assert not segment("a" * 255, "a" * 255, False)
    assert time.perf_counter() - started < 2
