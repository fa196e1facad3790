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
        span = context.document.key_span(problem.key) if problem.on_key and not elsewhere else None
        yield Finding(
            code=meta.code,
            name=meta.name,
            severity=meta.severity,
            message=problem.message,
            key=problem.key,
            file=problem.file if elsewhere else None,
            label=problem.label,
            line=span.line if span else problem.line,
            column=span.column if span else problem.column,
            end_line=span.end_line if span else problem.line,
            end_column=span.end_column if span else None,
        )
