"""The shipped hooks, run by the real pre-commit as a user's repository would run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))

FITS = """\
# memlint: target=A100-80GB
memlint: 1
model: Qwen/Qwen2.5-0.5B
training: {sequence_length: 512}
"""
TOO_LARGE = """\
memlint: 1
model: meta-llama/Llama-3.1-8B
training:
  precision: fp32
  micro_batch_size: 4
hardware: {target: rtx4090}
"""
WORKFLOW = """\
name: ci
on: [push]
jobs: {test: {runs-on: ubuntu-latest, steps: [{run: make}]}}
"""
MEGABYTE = 10**6


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as a git repository that a user's pre-commit config can point to."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path_factory.mktemp("published")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git checkout")
    for name in listed.stdout.decode().split("\0"):
        wanted = name.startswith(("memlint/", "schemas/")) or "/" not in name
        if name and wanted and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "all")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pre-commit's cache, where it builds the hook environment once."""
    return tmp_path_factory.mktemp("pre-commit-home")


def _project(folder: Path, published: Path, files: dict[str, str]) -> Path:
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=published, capture_output=True, text=True, check=True
    ).stdout.strip()
    hooks = [{"id": hook["id"]} for hook in HOOKS if hook["id"] in ("memlint", "memlint-project")]
    config = {"repos": [{"repo": str(published), "rev": revision, "hooks": hooks}]}
    for name, text in {**files, ".pre-commit-config.yaml": yaml.safe_dump(config)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    return folder


def _run(folder: Path, cache: Path, *hook: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color=never", "--verbose", *hook]
    if offline:
        command = ["unshare", "--map-root-user", "--net", *command]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(cache)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_hooks_run_in_pre_commit_with_and_without_a_network(published: Path, cache: Path, tmp_path: Path) -> None:
    project = _project(tmp_path, published, {"fits.yaml": FITS, "large.yaml": TOO_LARGE, "workflow.yml": WORKFLOW})
    first = _run(project, cache, "memlint")
    if "Could not find a version" in first.stdout or "No matching distribution" in first.stdout:
        pytest.skip("the package index is not reachable, so pre-commit cannot build the environment")
    assert first.returncode == 1, first.stdout + first.stderr
    assert "large.yaml:5:21: error[MEM101]" in first.stdout
    assert "fits.yaml: predicted peak" in first.stdout
    assert "workflow" not in first.stdout

    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file() and not file.is_symlink())
    assert size < 60 * MEGABYTE, f"the hook environment takes {size / MEGABYTE:.0f} MB"
    assert not list(cache.rglob("site-packages/torch"))

    project_wide = _run(project, cache, "memlint-project")
    assert project_wide.returncode == 1
    assert "large.yaml:5:21: error[MEM101]" in project_wide.stdout

    probe = subprocess.run(["unshare", "--map-root-user", "--net", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("this machine does not let a test cut the network off (unshare); the rest has passed")
    cut_off = _run(project, cache, "memlint", offline=True)
    assert (cut_off.returncode, _report(cut_off)) == (1, _report(first))

    (project / "large.yaml").unlink()
    _git(project, "add", "-A")
    assert _run(project, cache, offline=True).returncode == 0


def _report(run: subprocess.CompletedProcess[str]) -> str:
    return re.sub(r"- duration: .*|\[INFO\] .*\n", "", run.stdout)


def test_every_hook_names_a_command_that_exists() -> None:
    for hook in HOOKS:
        words = hook["entry"].split()
        assert words[:2] == ["memlint", "check"]
        shown = subprocess.run(
            [sys.executable, "-m", "memlint", "check", "--help"], capture_output=True, text=True, check=True
        ).stdout
        for word in words[2:]:
            if word.startswith("--"):
                assert word in shown, f"{hook['id']}: {word}"


def test_the_manual_hook_waits_until_it_is_asked_for() -> None:
    stages = {hook["id"]: hook.get("stages") for hook in HOOKS}
    assert stages == {"memlint": None, "memlint-project": None, "memlint-fix": None, "memlint-verify": ["manual"]}
