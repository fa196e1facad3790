"""Problems that a reader noticed, as findings of the rule that owns their code."""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding
from memlint.rules.context import FileContext
from memlint.rules.meta import RuleMeta


def findings_of(meta: RuleMeta, context: FileContext) -> Iterator[Finding]:
    """Yield the problems of ``meta``'s code, in the order in which the reader found them."""
    for problem in context.problems:
        if problem.code != meta.code:
            continue
        elsewhere = problem.file is not None and problem.file != context.document.path
        place = {}
        if problem.on_key and not elsewhere:
            line, column, end_line, end_column = context.document.key_span(problem.key)
            place = {"line": line, "column": column, "end_line": end_line, "end_column": end_column}
        yield Finding(
            code=meta.code,
            name=meta.name,
            severity=meta.severity,
            message=problem.message,
            key=problem.key,
            file=problem.file if elsewhere else None,
            label=problem.label,
            **place,
        )
