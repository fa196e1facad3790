"""Turn the key paths of findings and origins into lines and columns."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.document.model import Document
from memlint.findings import Finding
from memlint.job import Origin
from memlint.records import replace


def place_finding(finding: Finding, document: Document, companions: Mapping[str, Document]) -> Finding:
    """Return ``finding`` with line and column; without a key it stands at the start of the document."""
    if finding.line is not None:
        return finding
    source = document
    if finding.file is not None and finding.file != document.path:
        other = companions.get(finding.file)
        if other is None:
            return replace(finding, line=1, column=1, end_line=1, end_column=1)
        source = other
    if finding.key is None:
        line, column = _start(source)
        return replace(finding, line=line, column=column, end_line=line, end_column=column)
    line, column, end_line, end_column = source.value_span(finding.key)
    if end_line > line:
        # A whole mapping or list: its key says more than twenty lines of carets.
        line, column, end_line, end_column = source.key_span(finding.key)
        if end_line > line:
            end_line, end_column = line, column
    return replace(finding, line=line, column=column, end_line=end_line, end_column=end_column)


def _start(document: Document) -> tuple[int, int]:
    span = document.value_span(())
    return span.line, span.column


def origin_place(origin: Origin, document: Document, companions: Mapping[str, Document]) -> dict[str, Any]:
    """Return an origin as the contract's JSON: file, line, column; or default; or assumed."""
    if origin.default is not None:
        return {"default": origin.default}
    if origin.file is None:
        return {"assumed": origin.assumed or "not stated"}
    if origin.line is not None:
        return {"file": origin.file, "line": origin.line, "column": origin.column or 1}
    source = document if origin.file == document.path else companions.get(origin.file)
    if source is None:
        return {"file": origin.file, "line": 1, "column": 1}
    span = source.value_span(origin.key)
    return {"file": origin.file, "line": span.line, "column": span.column}
