"""Check many files, in one process or several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.engine import targets
from memlint.engine.checker import check_file
from memlint.engine.crash import crash_text
from memlint.engine.discover import Found, discover, show_path
from memlint.engine.options import CheckOptions
from memlint.engine.result import CheckResult, FileReport, summarise

if TYPE_CHECKING:
    from memlint.hardware.target import Target

_WORTH_A_POOL = 16
"""Below this many files, starting processes takes longer than checking."""


def check_paths(options: CheckOptions, content: bytes | None = None) -> CheckResult:
    """Check everything the options name; ``content`` is standard input where the path is ``-``.

    Raises UserError for usage and settings; a bug inside one file is kept in its report.
    """
    target = targets.parse(options.target, source="--target") if options.target is not None else None
    if content is not None:
        found = [Found(show_path(options.stdin_filename or "<stdin>"), True)]
    else:
        found = discover(options.paths, isolated=options.isolated, force_exclude=options.force_exclude)
    if options.workers > 1 and len(found) >= _WORTH_A_POOL:
        reports = _in_processes(found, options, target)
    else:
        reports = [report for item in found for report in check_one(item, options, target, content)]
    return CheckResult(reports=reports, summary=summarise(reports))


def check_one(
    found: Found, options: CheckOptions, target: Target | None, content: bytes | None = None
) -> list[FileReport]:
    """Check one file; an unexpected exception becomes a report that exits 2."""
    from memlint.errors import UserError

    try:
        return check_file(found, options, target, content)
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        return [FileReport(path=found.path, crash=f"{found.path}: {crash_text(error)}")]


def _in_processes(found: list[Found], options: CheckOptions, target: Target | None) -> list[FileReport]:
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial

    with ProcessPoolExecutor(min(options.workers, len(found))) as pool:
        chunk = max(1, len(found) // (options.workers * 4))
        checked = pool.map(partial(check_one, options=options, target=target), found, chunksize=chunk)
        return [report for reports in checked for report in reports]
