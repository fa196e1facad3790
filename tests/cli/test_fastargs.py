"""The quick parser accepts what argparse accepts, with the same values, and refuses to judge the rest."""

from __future__ import annotations

from argparse import ArgumentParser
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.cli import COMMANDS
from memlint.fastargs import FastParser

WORDS = [
    "a.yaml",
    "-",
    "--target",
    "T4",
    "--target=T4",
    "--select",
    "MEM3",
    "--select=MEM1",
    "--fail-on",
    "warning",
    "--fail-on=never",
    "--exit-zero",
    "--exit-zero=1",
    "-j",
    "2",
    "-j2",
    "--jobs=x",
    "--output-format",
    "json",
    "--",
    "--unknown",
    "--sel",
    "-h",
    "--color",
    "auto",
    "--set",
    "a=1",
    "--method",
    "lora",
    "",
]


def parsers(command):
    module = import_module(command.module)
    fast, slow = FastParser(), ArgumentParser(allow_abbrev=False, exit_on_error=False)
    module.configure(fast)
    module.configure(slow)
    return fast, slow


def agree(command, words, capsys=None):
    fast, slow = parsers(command)
    accepted = fast.parse(words)
    if accepted is None:
        return None
    assert vars(accepted) == vars(slow.parse_intermixed_args(words))
    return accepted


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
@given(words=st.lists(st.sampled_from(WORDS), max_size=5))
def test_what_is_accepted_means_the_same_to_argparse(command, words):
    agree(command, words)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a.yaml", "b.yaml"],
        ["a.yaml", "--target", "8xA100-80GB", "--select", "MEM1", "--select", "MEM3", "-j", "2"],
        ["--output", "json:a.json", "--output=b.sarif", "-"],
        ["--exit-zero", "a.yaml", "--offline"],
    ],
)
def test_the_usual_command_lines_of_check_are_accepted(words):
    assert agree(COMMANDS[0], words) is not None


@pytest.mark.parametrize(
    "line",
    ["--help", "-h", "--targt T4", "--fail-on never", "--target", "-j two", "--exit-zero=1", "--"],
)
def test_what_needs_an_explanation_is_left_to_argparse(line):
    assert parsers(COMMANDS[0])[0].parse(line.split()) is None
