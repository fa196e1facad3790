"""Lint training configs: predict the peak GPU memory of each and compare it with the declared GPU.

Files that are no training config are skipped silently.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memlint.errors import UserError
from memlint.exits import Exit
from memlint.report.registry import DETAILED, FORMATS, render

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from memlint.engine.options import CheckOptions
    from memlint.engine.result import CheckResult


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint check`."""
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files and folders (default: .); - reads standard input")
    add("--target", metavar="TARGET", help="GPU to check against, e.g. 8xA100-80GB; wins over every other declaration")
    add("--select", metavar="RULE", action="append", default=[], help="run only these rules: codes, MEM3, or names")
    add("--ignore", metavar="RULE", action="append", default=[], help="leave out these rules")
    add("--fail-on", choices=("error", "warning", "info"), help="lowest severity that exits 1 (default: error)")
    add("--exit-zero", action="store_true", help="exit 0 whatever is found")
    add("--output-format", choices=FORMATS, default="text", help="form of the report on standard output")
    add(
        "--output",
        metavar="[FORMAT:]FILE",
        action="append",
        default=[],
        help="write a report to FILE as well; repeatable",
    )
    add("--fix", action="store_true", help="apply fixes that leave the training result unchanged")
    add("--unsafe-fixes", action="store_true", help="with --fix or --diff: apply the other fixes too")
    add("--diff", action="store_true", help="show what --fix would change, write nothing")
    add("--baseline", metavar="FILE", help="do not report what FILE already lists, unless it got worse")
    add("--write-baseline", action="store_true", help="list what is found now in the baseline file, exit 0")
    add("--force-exclude", action="store_true", help="excludes also apply to files named on the command line")
    add("--isolated", action="store_true", help="read no settings file")
    add("--show-files", action="store_true", help="list the files that would be checked, and why others are skipped")
    add("--show-settings", action="store_true", help="print the settings that apply to each path")
    add("--no-cache", action="store_true", help="take no model's config from this machine's Hugging Face cache")
    add("--offline", action="store_true", help="never ask the hub for a model's config")
    add("--color", choices=("auto", "always", "never"), default="auto", help="colour in text output")
    add("-j", "--jobs", type=int, default=1, metavar="N", help="processes to use (default: 1; 0: one for each CPU)")
    add("--verify", action="store_true", help="run two real training steps of each job on the GPU as well")
    add("--stdin-filename", metavar="PATH", help="name of what standard input holds, for settings and positions")


def run(args: Namespace) -> int:
    """Check, print, write reports; return the exit code."""
    outputs = [_output(text) for text in args.output]
    formats = {args.output_format, *(output_format for output_format, _ in outputs)}
    options = options_from(args, details=not DETAILED.isdisjoint(formats))
    if args.show_settings:
        from memlint.commands.show import show_settings

        return show_settings(options)
    if args.write_baseline and options.baseline is None and _settings_baseline(options) is None:
        raise UserError("--write-baseline needs a file: give --baseline FILE, or `baseline` in the settings")
    if args.verify:
        _ready_to_verify(args)
    from memlint.engine.run import check_paths

    content = _standard_input() if "-" in options.paths else None
    if args.show_files:
        from memlint.commands.show import show_files

        return show_files(options, content)
    result = check_paths(options, content)
    if args.write_baseline:
        return _write_baseline(options, result)
    if args.fix or args.diff:
        from memlint.engine.fixes import apply_fixes

        result = apply_fixes(options, result, unsafe=args.unsafe_fixes, diff=args.diff, content=content)
    from memlint.report.style import wants_color

    text = render(result, args.output_format, color=wants_color(args.color, sys.stdout))
    for output_format, path in outputs:
        from memlint.report.write import write_atomically

        write_atomically(path, render(result, output_format))
    if not (args.diff and args.output_format == "text"):
        sys.stdout.write(text)
    for crash in result.crashes:
        print(f"memlint: internal error: {crash}; please report it", file=sys.stderr)
    if result.crashes:
        return Exit.FAILED
    return Exit.FINDINGS if result.failed and not args.exit_zero else Exit.OK


def _standard_input() -> bytes:
    from memlint.document.limits import MAX_BYTES

    return sys.stdin.buffer.read(MAX_BYTES + 1)  # more than the reader takes is a finding, not memory


def options_from(args: Namespace, *, details: bool) -> CheckOptions:
    """Return the engine's options; raises UserError for a rule or target that does not exist."""
    import os

    from memlint.engine.options import CheckOptions
    from memlint.findings import Severity
    from memlint.rules.select import check_selectors

    select = _codes(args.select)
    ignore = _codes(args.ignore)
    check_selectors((*select, *ignore))
    if args.unsafe_fixes and not (args.fix or args.diff):
        raise UserError("--unsafe-fixes needs --fix (write) or --diff (show)")
    if args.jobs < 0:
        raise UserError("-j takes the number of processes, 0 for one on each CPU")
    paths = tuple(args.paths) or (".",)
    if "-" in paths and len(paths) > 1:
        raise UserError("`-` reads standard input and cannot be mixed with other paths")
    if "-" in paths and args.fix and not args.diff:
        raise UserError("--fix cannot write standard input; use --diff")
    if args.stdin_filename is not None and "-" not in paths:
        raise UserError("--stdin-filename names what `-` reads; add `-`, or leave it out")
    if args.write_baseline and (args.fix or args.diff):
        raise UserError("--write-baseline lists what is found; use it without --fix and --diff")
    return CheckOptions(
        paths=paths,
        target=args.target,
        select=select,
        ignore=ignore,
        fail_on=Severity[args.fail_on.upper()] if args.fail_on else None,
        force_exclude=args.force_exclude,
        isolated=args.isolated,
        offline=args.offline,
        use_cache=not args.no_cache,
        baseline=args.baseline,
        use_baseline=not args.write_baseline,
        stdin_filename=args.stdin_filename,
        details=details,
        workers=1 if args.verify else args.jobs or os.cpu_count() or 1,
        verify=args.verify,
    )


def _ready_to_verify(args: Namespace) -> None:
    from memlint.measure.verify.ready import require_device, require_extra

    if args.fix or args.diff:
        raise UserError("--verify runs the configs as they are; use it without --fix and --diff")
    require_extra("memlint check --verify")
    require_device("cuda", "memlint check --verify")


def _codes(given: list[str]) -> tuple[str, ...]:
    return tuple(code.strip() for text in given for code in text.split(",") if code.strip())


def _output(text: str) -> tuple[str, str]:
    """Split ``FORMAT:FILE``; a bare FILE takes its format from its ending."""
    name, colon, path = text.partition(":")
    if colon and name in FORMATS and path:
        return name, path
    if colon and name.isalpha() and len(name) > 1:  # one letter: a drive
        from difflib import get_close_matches

        close = get_close_matches(name.lower(), FORMATS, n=1)
        if name in FORMATS:
            raise UserError(f"--output {text} names no file; write {name}:FILE")
        tail = f"did you mean `{close[0]}`?" if close else f"choose from {', '.join(FORMATS)}"
        raise UserError(f"--output {text}: no report format is called `{name}`; {tail}")
    lowered = text.lower()
    for ending, output_format in ((".sarif", "sarif"), (".sarif.json", "sarif"), (".json", "json"), (".xml", "junit")):
        if lowered.endswith(ending):
            return output_format, text
    return "text", text


def _settings_baseline(options: CheckOptions) -> str | None:
    if options.isolated:
        return None
    from memlint.settings.load import settings_for

    return settings_for(".").baseline


def _write_baseline(options: CheckOptions, result: CheckResult) -> int:
    from memlint.engine.baseline import write_baseline

    path = options.baseline or _settings_baseline(options)
    assert path is not None
    if result.crashes:
        for crash in result.crashes:
            print(f"memlint: internal error: {crash}; the baseline was not written", file=sys.stderr)
        return Exit.FAILED
    count = write_baseline(path, result)
    print(f"Wrote {count} {'entry' if count == 1 else 'entries'} to {path}.", file=sys.stderr)
    return Exit.OK
