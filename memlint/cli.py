"""The command line: one table of subcommands, each module imported when it is called."""

from __future__ import annotations

import sys
from typing import NamedTuple

from memlint.errors import UserError
from memlint.exits import Exit


class Command(NamedTuple):
    """One subcommand; its module offers ``configure(parser)`` and ``run(args) -> int``."""

    name: str
    module: str
    summary: str


COMMANDS: tuple[Command, ...] = (
    Command("check", "memlint.commands.check", "lint training configs in files and folders"),
    Command("estimate", "memlint.commands.estimate", "peak memory of one job or model"),
    Command("plan", "memlint.commands.plan", "cheapest changes that fit; largest micro batch; smallest GPU"),
    Command("trace", "memlint.commands.trace", "the same figures from the real model code on fake tensors"),
    Command("verify", "memlint.commands.verify", "two real training steps on the GPU beside the prediction"),
    Command("calibrate", "memlint.commands.calibrate", "error statistics over stored reports of verify"),
    Command("oom", "memlint.commands.oom", "what an out-of-memory message means and what to do next"),
    Command("compare", "memlint.commands.compare", "what differs between the peaks of two jobs"),
    Command("diff", "memlint.commands.diff", "what the changes since a revision do to the peaks"),
    Command("report", "memlint.commands.report", "predictions of a set of configs as a page or as charts"),
    Command("scale", "memlint.commands.scale", "table of models: parameters, static memory, activations"),
    Command("explain", "memlint.commands.explain", "why a rule exists; with a file, the arithmetic for that file"),
    Command("rules", "memlint.commands.rules", "list the rules"),
    Command("targets", "memlint.commands.targets", "list the GPUs and instances that are known"),
    Command("dialects", "memlint.commands.dialects", "list the config formats that are read"),
    Command("models", "memlint.commands.models", "list known models; save one beside the project"),
    Command("init", "memlint.commands.init", "write settings and the pre-commit stanza"),
    Command("schema", "memlint.commands.schema", "print a JSON Schema"),
)
"""Every subcommand, in the order of the help text."""

USAGE = "usage: memlint [--version] [-h] COMMAND ..."


def run(argv: list[str]) -> int:
    """Run ``argv``, return the exit code. A user's mistake is one sentence on stderr; tracebacks are for our bugs.

    Nothing that stops the work exits 1, which stands for findings.
    """
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"memlint: error: {error}", file=sys.stderr)
        return Exit.FAILED
    except BrokenPipeError:
        # The reader (`head`) has gone before it was known what there is to find: neither 0 nor 1 would be true.
        _abandon_stdout()
        return 141  # 128 + SIGPIPE, as shells report it
    except KeyboardInterrupt:
        print("memlint: interrupted", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells report it
    except RecursionError:
        print("memlint: error: the input is nested too deeply", file=sys.stderr)
        return Exit.FAILED
    except OSError as error:
        # A full disk behind stdout, most of all: what is left in its buffer would fail once more at exit.
        _abandon_stdout()
        place = f"{error.filename}: " if error.filename is not None else ""
        print(f"memlint: error: {place}{error.strerror or error}", file=sys.stderr)
        return Exit.FAILED
    except Exception:
        import traceback

        traceback.print_exc()
        print("memlint: internal error: please report it with the lines above", file=sys.stderr)
        return Exit.FAILED


def _dispatch(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        print(help_text())
        return Exit.OK
    if name in ("-V", "--version"):
        from memlint import __version__

        print(f"memlint {__version__}")
        return Exit.OK
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        raise UserError(_no_such_command(name))
    from importlib import import_module

    from memlint.fastargs import FastParser

    module = import_module(command.module)
    fast = FastParser()
    module.configure(fast)
    accepted = fast.parse(argv[1:])
    if accepted is not None:
        return int(module.run(accepted))
    from memlint.slowargs import parser_for

    parser = parser_for(name, module)
    try:
        args = parser.parse_intermixed_args(argv[1:])
    except SystemExit as done:  # argparse has printed usage or help
        return int(done.code or 0)
    return int(module.run(args))


def help_text() -> str:
    """Return the help of the program: every command with its one line."""
    width = max(len(command.name) for command in COMMANDS)
    lines = [
        USAGE,
        "",
        "Predicts the peak GPU memory of training runs from their configs.",
        "",
        "commands:",
        *(f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS),
        "",
        "`memlint COMMAND --help` shows the options of a command.",
        "Exit codes: 0 nothing to report, 1 findings (or the job does not fit), 2 memlint could not do its job.",
    ]
    return "\n".join(lines)


def _no_such_command(name: str) -> str:
    import os
    from difflib import get_close_matches

    if name.startswith("-"):
        return f"`{name}` must follow a command, as in `memlint check {name}`; see `memlint --help`"
    close = get_close_matches(name, [command.name for command in COMMANDS], n=1)
    if close:
        return f"no command is called `{name}`; did you mean `{close[0]}`?"
    if os.path.exists(name):
        return f"no command is called `{name}`; did you mean `memlint check {name}`?"
    return f"no command is called `{name}`; see `memlint --help`"


def _abandon_stdout() -> None:
    import os

    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        pass
