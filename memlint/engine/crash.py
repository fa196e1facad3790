"""Our own bugs, as one line with the place in the code."""

from __future__ import annotations

import os


class RuleCrash(Exception):
    """A rule or the prediction raised: a bug of ours, reported, never swallowed."""


def crash_text(error: BaseException) -> str:
    """Return ``KeyError: 'auto' (memlint/estimate/env.py:41)``; the innermost place inside memlint."""
    place = ""
    trace = error.__traceback__
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(package):
            name = os.path.relpath(file, os.path.dirname(package)).replace(os.sep, "/")
            place = f" ({name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"
