"""Show what the changes since a revision do to the predicted peak of every config.

The working tree is compared with the configs as they stand at --base; files that those configs point to count too.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

FORMATS = ("text", "markdown", "json")

Jobs = dict[tuple[str, str], dict[str, Any]]


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint diff`."""
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files and folders (default: the whole repository)")
    add("--base", metavar="REV", help="revision to compare with, e.g. origin/main or HEAD~1 (default: HEAD)")
    add("--target", metavar="TARGET", help="GPU to hold both sides against; wins over every other declaration")
    add("--offline", action="store_true", help="never ask the hub for a model's config")
    add("--isolated", action="store_true", help="read no settings file")
    add("--output-format", choices=FORMATS, default="text", help="text, Markdown for a review comment, or JSON")
    add("--color", choices=("auto", "always", "never"), default="auto", help="colour in text output")


def run(args: Namespace) -> int:
    """Compare and print; exit 1 where a config that changed does not fit its target."""
    from tempfile import TemporaryDirectory

    from memlint.plan.base_tree import toplevel, write_tree
    from memlint.plan.difference import difference

    root = toplevel()
    asked = [os.path.relpath(os.path.realpath(path), os.path.realpath(root)) for path in args.paths or [root]]
    if any(path == os.pardir or path.startswith(os.pardir + os.sep) for path in asked):
        raise UserError("`diff` compares files of this repository only")
    base = args.base or "HEAD"
    with TemporaryDirectory(prefix="memlint-") as folder:
        commit = write_tree(base, folder)
        before = _jobs(folder, asked, args)
    after = _jobs(root, asked, args)
    missing = [path for path in asked if not os.path.exists(os.path.join(root, path))]
    if missing and not any(key[0] == path for key in before for path in missing):
        raise UserError(f"{missing[0]}: no such file or folder here or at {base}")
    entries = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        found = difference(old, new)
        if found["change"] is None or found["change"]["device_bytes"] or found["settings"]:
            entries.append((_name(key), found))
    _print(args, base, commit, entries)
    return (
        Exit.FINDINGS if any(f["after"] is not None and f["after"]["verdict"] == "oom" for _, f in entries) else Exit.OK
    )


def _name(key: tuple[str, str]) -> str:
    return f"{key[0]} ({key[1]})" if key[1] else key[0]


def _jobs(root: str, asked: list[str], args: Namespace) -> Jobs:
    """Predict every job below ``root``, by path relative to it and label."""
    from memlint.engine.options import CheckOptions
    from memlint.engine.run import check_paths
    from memlint.settings.load import forget_settings

    forget_settings()
    paths = tuple(full for path in asked if os.path.exists(full := os.path.normpath(os.path.join(root, path))))
    if not paths:
        return {}
    options = CheckOptions(
        paths=paths, target=args.target, offline=args.offline, isolated=args.isolated, details=True, use_baseline=False
    )
    found: Jobs = {}
    for report in check_paths(options).reports:
        if report.estimate is not None:
            path = os.path.relpath(os.path.realpath(report.path), os.path.realpath(root)).replace(os.sep, "/")
            found[path, report.label or ""] = {**report.estimate, "file": path}
    return found


def _print(args: Namespace, base: str, commit: str, entries: list[tuple[str, dict[str, Any]]]) -> None:
    if args.output_format == "json":
        import json

        files = [{"name": name, **found} for name, found in entries]
        data = {"version": 1, "base": {"revision": base, "commit": commit}, "files": files}
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    elif args.output_format == "markdown":
        from memlint.plan.difference_text import markdown

        sys.stdout.write(markdown(entries, "Predicted GPU memory of changed configs"))
    else:
        from memlint.plan.difference_text import text
        from memlint.report.style import Style, wants_color

        style = Style(wants_color(args.color, sys.stdout))
        for name, found in entries:
            sys.stdout.write(text(name, found, style))
        count = f"{len(entries)} config{'' if len(entries) == 1 else 's'}"
        sys.stdout.write(f"{count} with another prediction than at {base}.\n")
