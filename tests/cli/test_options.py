"""Commands and options are a contract: adding or renaming one is a decision, and changes these lists."""

from __future__ import annotations

from importlib import import_module

import pytest

from memlint.cli import COMMANDS

OPTIONS = {
    "check": "--target --select --ignore --fail-on --exit-zero --output-format --output --fix --unsafe-fixes --diff "
    "--baseline --write-baseline --force-exclude --isolated --show-files --show-settings --no-cache --offline --color "
    "-j --jobs --verify --stdin-filename",
    "verify": "--target --set --micro-batch-size --sequence-length --precision --optimizer --activation-checkpointing "
    "--method --job --offline --isolated --device --gpus --layers --output-format --output --color",
    "calibrate": "--output-format",
    "estimate": "--target --set --micro-batch-size --sequence-length --precision --optimizer "
    "--activation-checkpointing --method --job --offline --isolated --output-format --color",
    "plan": "--target --set --micro-batch-size --sequence-length --precision --optimizer "
    "--activation-checkpointing --method --job --offline --isolated --for --output-format --color",
    "compare": "--target --set --offline --isolated --output-format --color",
    "diff": "--base --target --offline --isolated --output-format --color",
    "explain": "--file --target --offline --color",
    "rules": "--output-format",
    "dialects": "--output-format",
    "init": "--target --no-pre-commit",
    "schema": "",
}


class Recorder:
    def __init__(self):
        self.names = []

    def add_argument(self, *names, **given):
        assert given.get("help"), f"{names} has no help text"
        self.names += [name for name in names if name.startswith("-")]


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    module = import_module(next(command.module for command in COMMANDS if command.name == name))
    recorder = Recorder()
    module.configure(recorder)
    assert recorder.names == OPTIONS[name].split()


def test_commands_are_those_of_the_contract(memlint):
    names = [command.name for command in COMMANDS]
    for name in ("check", "estimate", "scale", "explain", "rules", "targets", "dialects", "models", "init", "schema"):
        assert name in names
    assert len(set(names)) == len(names)
    code, out, _ = memlint("--help")
    assert code == 0
    for command in COMMANDS:
        assert f"  {command.name} " in out
        assert command.summary in out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_shows_its_help(memlint, command):
    code, out, err = memlint(command.name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: memlint {command.name}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["chek"], "no command is called `chek`; did you mean `check`?"),
        (["big.yaml"], "did you mean `memlint check big.yaml`?"),
        (["--target", "T4"], "`--target` must follow a command"),
        (["zzz"], "no command is called `zzz`; see `memlint --help`"),
        (["check", "--targt", "T4"], "did you mean `--target`?"),
        (["check", "--gpu", "T4"], "did you mean `--target`?"),
        (["estimate", "gpt2", "--batch_size=4"], "did you mean `--micro-batch-size`?"),
        (["check", "--fail-on", "never"], "invalid choice"),
        (["explain"], "name a rule, as in `memlint explain MEM101`"),
        (["explain", "MEM3"], "`MEM3` stands for several rules"),
        (["explain", "MEM999"], "no rule is called `MEM999`"),
        (["explain", "MEM101", "--file", "none.yaml"], "none.yaml: no such file"),
        (["schema", "jobb"], "no schema is called `jobb`; did you mean `job`?"),
    ],
)
def test_mistakes_on_the_command_line_exit_2_and_say_what_to_do(project, memlint, argv, message):
    code, out, err = memlint(*argv)
    assert (code, out) == (2, "")
    assert message in err


def test_no_arguments_show_help(memlint):
    code, out, _ = memlint()
    assert code == 0
    assert out.startswith("usage: memlint")
