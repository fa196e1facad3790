"""Take out the findings that the user has silenced: comments in the file, and per-file ignores of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

from memlint.findings import Finding, Severity
from memlint.rules.select import codes_of

if TYPE_CHECKING:
    from memlint.document.comments import Pragma
    from memlint.settings.model import Settings


class Ignores:
    """The ignore comments of one file; counts what each has silenced."""

    def __init__(self, pragmas: Iterable[Pragma]) -> None:
        """Keep the ignores among ``pragmas``."""
        self._pragmas = [pragma for pragma in pragmas if pragma.kind in ("ignore", "ignore-file")]
        self._used: set[tuple[int, str]] = set()

    def silences(self, finding: Finding, path: str) -> bool:
        """Whether a comment of the file at ``path`` silences ``finding``; findings in a companion file stay."""
        if finding.file is not None and finding.file != path:
            in_file = False
        else:
            in_file = True
        for number, pragma in enumerate(self._pragmas):
            for value in pragma.values:
                if finding.code not in codes_of(value):
                    continue
                everywhere = pragma.kind == "ignore-file"
                if everywhere or (in_file and finding.line == pragma.applies_to_line):
                    self._used.add((number, value))
                    return True
        return False

    def unused(self, ran: frozenset[str]) -> list[Finding]:
        """Return a finding for each ignore that silenced nothing, although its rule ran."""
        found = []
        for number, pragma in enumerate(self._pragmas):
            for value in pragma.values:
                codes = codes_of(value)
                if (number, value) in self._used:
                    continue
                if not codes:
                    text = f"`{pragma.kind}[{value}]` names no rule; `memlint rules` lists them"
                elif ran.issuperset(codes):
                    text = f"`{pragma.kind}[{value}]` silences nothing"
                else:
                    continue
                found.append(
                    Finding(
                        code="MEM007",
                        name="setting-without-effect",
                        severity=Severity.WARNING,
                        message=text,
                        line=pragma.line,
                        column=pragma.column,
                        end_line=pragma.line,
                        end_column=pragma.column + 1,
                    )
                )
        return found


def per_file_ignored(settings: Settings, relative: str) -> frozenset[str]:
    """Return the codes that ``per-file-ignores`` silences for a file, ``relative`` to the settings' folder."""
    if not settings.per_file_ignores:
        return frozenset()
    from memlint.settings.globs import matches

    return frozenset(
        code
        for pattern, selectors in settings.per_file_ignores.items()
        if matches(relative, pattern)
        for selector in selectors
        for code in codes_of(selector)
    )
