"""README shows what memlint does: the sample it prints, and commands and options that exist."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from memlint.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.S)
    for line in block.splitlines()
    if line.startswith("memlint ")
]
FIGURE = re.compile(r"\d+\.\d+")


def test_the_sample_is_what_the_first_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words, places and keys are equal; figures may have moved by 10 %, as in the rule fixtures."""
    monkeypatch.chdir(ROOT)
    assert main(["check", "--exit-zero", os.path.join("docs", "examples"), "--offline", "--isolated"]) == 0
    printed = capsys.readouterr().out
    sample = re.search(r"```text\n(docs/examples.*?)```", README, re.S)
    assert sample is not None
    lines = {FIGURE.sub("N", line): line for line in printed.splitlines()}
    for line in sample.group(1).splitlines():
        actual = lines.get(FIGURE.sub("N", line))
        assert actual is not None, f"not printed: {line}"
        for shown, now in zip(FIGURE.findall(line), FIGURE.findall(actual)):
            assert float(now) == pytest.approx(float(shown), rel=0.1), line


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_and_their_options_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()
    with pytest.raises(SystemExit) as stopped:
        sys.exit(main([words[1], "--help"]))
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    for word in words[2:]:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", shown), word


def test_there_are_commands_to_test() -> None:
    assert len(COMMANDS) >= 8
