"""The program as a process: start-up, pipes, colour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FORBIDDEN = (
    "torch",
    "transformers",
    "jsonschema",
    "attr",
    "requests",
    "huggingface_hub",
    "click",
    "rich",
    "logging",
    "importlib.metadata",
    "importlib.resources",
    "difflib",
    "uuid",
    "tempfile",
    "subprocess",
    "dataclasses",
    "inspect",
    "argparse",
    "tomllib",
    "pathlib",
    "concurrent",
    "asyncio",
    "numpy",
)
"""style.md, Speed; and what the engine avoids beside."""


def run(project, *argv, **rest):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("FORCE_COLOR", None)
    environment.update(rest.pop("env", {}))
    return subprocess.run(
        [sys.executable, *argv], cwd=project, capture_output=True, text=True, env=environment, timeout=120, **rest
    )


def test_checking_a_good_file_imports_nothing_heavy(project):
    code = (
        "import sys; before = set(sys.modules)\n"
        "from memlint.__main__ import main\n"
        "code = main(['check', 'small.yaml', '--target', '80GiB'])\n"
        "print(code, sorted(set(sys.modules) - before))\n"
    )
    result = run(project, "-c", code)
    shown, _, modules = result.stdout.splitlines()[-1].partition(" ")
    assert shown == "0", result.stderr
    loaded = {name.strip("' []") for name in modules.split(",")}
    heavy = {name for name in loaded if name.split(".")[0] in FORBIDDEN or name in FORBIDDEN}
    assert heavy == set()


def test_a_file_that_is_no_config_is_skipped_without_parsing_it(project):
    code = (
        "import sys; from memlint.__main__ import main\n"
        "main(['check', 'ci.yaml'])\n"
        "print('yaml' in sys.modules, 'json' in sys.modules)\n"
    )
    assert run(project, "-c", code).stdout.splitlines()[-1] == "False False"


def test_module_and_version(project):
    result = run(project, "-m", "memlint", "--version")
    assert result.stdout.startswith("memlint ")
    assert result.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_reader_that_leaves_early_is_no_traceback(project):
    for number in range(400):
        (project / f"n{number}.yaml").write_text((project / "small.yaml").read_text())
    command = f"{sys.executable} -m memlint check --target 24GiB; echo $? >&2"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = ["sh", "-c", f"({command}) | head -1"]
    result = subprocess.run(pipe, cwd=project, capture_output=True, text=True, env=environment, timeout=120)
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr
    assert result.stdout.startswith("big.yaml: predicted peak")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_what_nobody_reads_is_no_clean_run(project):
    """With pipefail, 0 would say that nothing was found."""
    command = f"(sleep 1; {sys.executable} -m memlint check --target 24GiB big.yaml; echo $? >&2) | true"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(["sh", "-c", command], cwd=project, capture_output=True, text=True, env=environment)
    assert result.stderr == "141\n"


def test_no_escape_codes_when_piped_unless_forced(project):
    command = ("-m", "memlint", "check", "--target", "24GiB", "big.yaml")
    assert "\x1b" not in run(project, *command).stdout
    assert "\x1b[" in run(project, *command, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b" not in run(project, *command, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout
    assert "\x1b[" in run(project, *command, "--color", "always", env={"NO_COLOR": "1"}).stdout
    assert "\x1b" not in run(project, *command, "--color", "never", env={"FORCE_COLOR": "1"}).stdout


def test_output_survives_a_terminal_without_unicode(project):
    (project / "small.yaml").write_text("memlint: 1\nmodel: caf\u00e9\u2603\n", encoding="utf-8")
    result = run(project, "-m", "memlint", "check", "small.yaml", "--offline", env={"PYTHONIOENCODING": "ascii"})
    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 1)


@pytest.mark.parametrize("form", ["json", "sarif", "gitlab"])
def test_machine_formats_are_utf8_whatever_the_locale_says(project, form):
    (project / "small.yaml").write_text("memlint: 1\nmodel: caf\u00e9\u2603\n", encoding="utf-8")
    command = [sys.executable, "-m", "memlint", "check", "small.yaml", "--offline", "--output-format", form]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONIOENCODING": "ascii"}
    out = subprocess.run(command, cwd=project, capture_output=True, env=environment, check=False, timeout=120).stdout
    assert "caf\u00e9\u2603" in json.dumps(json.loads(out.decode("utf-8")), ensure_ascii=False)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_no_finding(project):
    for command in (("check", "big.yaml", "--target", "24GiB"), ("rules",), ("--version",)):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "memlint", *command],
                cwd=project,
                stdout=full,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                check=False,
                timeout=120,
            )
        assert (done.returncode, done.stderr) == (2, b"memlint: error: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 1), ("2>&-", 1), (">&- 2>&-", 1), ("<&-", 1), ("- <&-", 0), ("- <&- >&-", 0)]
)
def test_closed_streams_change_nothing(project, redirection, code):
    paths = "" if redirection.startswith("-") else "big.yaml"
    command = f"{sys.executable} -m memlint check --target 24GiB {paths} {redirection}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["sh", "-c", command], cwd=project, capture_output=True, env=environment, timeout=120)
    assert b"Traceback" not in done.stderr
    assert done.returncode == code


def test_a_bug_of_ours_exits_2(project, memlint, monkeypatch):
    """Exit code 1 stands for findings, in every pipeline that calls memlint."""

    def broken(args):
        raise KeyError("nothing")

    monkeypatch.setattr("memlint.commands.rules.run", broken)
    code, out, err = memlint("rules")
    assert (code, out) == (2, "")
    assert err.endswith("KeyError: 'nothing'\nmemlint: internal error: please report it with the lines above\n")


def seconds(command, project, times=5):
    """Least processor time of a command, children included: wall time on a shared machine measures the neighbours."""
    resource = pytest.importorskip("resource")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(project / "bytecode")
    best = float("inf")
    for _ in range(times + 1):  # the first run compiles
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=project, capture_output=True, env=environment, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return best
