"""Write settings and the pre-commit stanza into the current folder. What is there already is never overwritten."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from memlint import __version__
from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

STANZA = f"""\
- repo: local
  hooks:
  - id: memlint
    name: memlint
    description: predicted peak GPU memory of training configs
    entry: memlint check --force-exclude --offline
    language: python
    additional_dependencies: [memlint-gpu=={__version__}]
    types_or: [yaml, json]
    require_serial: true
"""
"""A hook that installs the light package from the package index; needs no network when it runs."""


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint init`."""
    parser.add_argument("--target", metavar="TARGET", help="GPU of this project, e.g. 8xA100-80GB")
    parser.add_argument("--no-pre-commit", action="store_true", help="write settings only")


def run(args: Namespace) -> int:
    """Write what is missing; say on stderr what was done."""
    if args.target is not None:
        from memlint.engine.targets import parse

        parse(args.target, source="--target")
    _write_settings(args.target)
    if not args.no_pre_commit:
        _write_hook()
    return Exit.OK


def _write_settings(target: str | None) -> None:
    from memlint.report.write import write_atomically
    from memlint.settings.load import settings_for

    found = settings_for(".")
    if found.source is not None and os.path.dirname(found.source) == os.getcwd():
        _say(f"{os.path.basename(found.source)}: settings are there already, left as they are")
        return
    lines = ["# Settings of memlint; `memlint schema settings` describes every key."]
    if target is not None:
        lines.append(f'target = "{target}"')
    else:
        lines.append('# target = "8xA100-80GB"   # the GPU that training runs on; `memlint targets` lists names')
    lines.append("# margin = 0.05            # share of usable memory that should stay free")
    write_atomically("memlint.toml", "\n".join(lines) + "\n")
    _say("memlint.toml: written")


def _write_hook() -> None:
    from memlint.report.write import write_atomically

    path = ".pre-commit-config.yaml"
    if not os.path.exists(path):
        write_atomically(path, "repos:\n" + STANZA)
        _say(f"{path}: written; `pre-commit install` activates it")
        return
    try:
        with open(path, encoding="utf-8", newline="") as handle:
            text = handle.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"{path} cannot be read: {reason}; repair it first, or use --no-pre-commit") from None
    if "memlint" in text:
        _say(f"{path}: memlint is there already, left as it is")
        return
    changed = _with_stanza(text)
    if changed is None:
        _say(f"{path}: could not be extended safely; add this under `repos:`")
        sys.stdout.write(STANZA)
        return
    write_atomically(path, changed)
    _say(f"{path}: hook added")


def _with_stanza(text: str) -> str | None:
    """Return the text with the stanza at the end of ``repos``, or None where that is not the last block of the file."""
    import yaml

    try:
        before = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # ValueError: a date that does not exist
        raise UserError(".pre-commit-config.yaml is not valid YAML; repair it first") from None
    if not isinstance(before, dict) or not isinstance(before.get("repos"), list):
        return None
    newline = "\r\n" if "\r\n" in text else "\n"
    start = next((line for line in text.splitlines() if line.lstrip().startswith("- ")), "")
    indent = start[: len(start) - len(start.lstrip())]
    stanza = "".join(indent + line + newline for line in STANZA.splitlines())
    changed = text + ("" if text.endswith("\n") else newline) + stanza
    try:
        after = yaml.safe_load(changed)
        added = yaml.safe_load(STANZA)
    except yaml.YAMLError:
        return None
    return changed if after == {**before, "repos": [*before["repos"], *added]} else None


def _say(sentence: str) -> None:
    print(f"memlint: {sentence}", file=sys.stderr)
