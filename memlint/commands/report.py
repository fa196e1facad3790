"""Draw the predictions of a set of configs: one self-contained HTML page, or PNG and SVG charts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memlint.errors import UserError
from memlint.exits import Exit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint report`."""
    parser.add_argument("paths", metavar="PATH", nargs="*", default=["."], help="configs and folders (default: .)")
    parser.add_argument("--html", metavar="FILE", help="write one page that needs no network")
    parser.add_argument("--png", metavar="FOLDER", help="write PNG charts (extra: plot)")
    parser.add_argument("--svg", metavar="FOLDER", help="write SVG charts (extra: plot)")
    parser.add_argument("--target", metavar="TARGET", help="GPU to compare with, e.g. A100-80GB or 8xH100")
    parser.add_argument("--offline", action="store_true", help="never ask the hub for a model's config")
    parser.add_argument("--isolated", action="store_true", help="read no settings file")


def run(args: Namespace) -> int:
    """Write the pictures; exit 2 when no config has a prediction."""
    if not (args.html or args.png or args.svg):
        raise UserError("say what to write: --html FILE, --png FOLDER or --svg FOLDER")
    from memlint.pictures.collect import collect

    pictures, missing = collect(tuple(args.paths), target=args.target, offline=args.offline, isolated=args.isolated)
    for gap in missing:
        print(f"memlint: {gap.name}: {gap.reason}", file=sys.stderr)
    if not pictures:
        raise UserError(f"no training config with a prediction in {', '.join(args.paths)}")
    written: list[str] = []
    if args.html:
        from memlint.pictures.page import page
        from memlint.report.write import write_atomically

        write_atomically(args.html, page(pictures, missing))
        written.append(args.html)
    for kind, folder in (("png", args.png), ("svg", args.svg)):
        if folder:
            from memlint.pictures.plots import save_plots

            written += save_plots(pictures, folder, kind)
    print(f"drew {len(pictures)} job{'s' if len(pictures) != 1 else ''}: {', '.join(written)}")
    return Exit.OK
