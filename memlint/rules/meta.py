"""What a rule is called and how bad it is."""

from __future__ import annotations

from memlint.findings import Severity
from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMeta:
    """Identity of a rule: code and name are unique and never reused."""

    code: str
    name: str
    """Kebab case, says the matter in words."""
    severity: Severity
    since: str
    """First release that had it."""
