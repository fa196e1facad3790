"""Which rules run: codes (``MEM301``), beginnings of codes (``MEM3``) and names (``checkpointing-off``)."""

from __future__ import annotations

from typing import Iterable

from memlint.errors import UserError
from memlint.rules.registry import RULES

_NAMES = {entry.name: entry.code for entry in RULES}
_CODES = tuple(entry.code for entry in RULES)


def codes_of(selector: str) -> tuple[str, ...]:
    """Return the codes that ``selector`` stands for; empty where it names nothing."""
    wanted = selector.strip()
    if wanted.lower() in _NAMES:
        return (_NAMES[wanted.lower()],)
    wanted = wanted.upper()
    if wanted == "ALL":
        return _CODES
    if not wanted.startswith("MEM"):
        return ()
    return tuple(code for code in _CODES if code.startswith(wanted))


def names_one(selector: str) -> str | None:
    """Return the code where ``selector`` names exactly one rule in full, else None."""
    codes = codes_of(selector)
    wanted = selector.strip()
    return codes[0] if len(codes) == 1 and (wanted.upper() == codes[0] or wanted.lower() in _NAMES) else None


def check_selectors(selectors: Iterable[str]) -> None:
    """Raise UserError for a selector that names no rule, with the nearest name."""
    for selector in selectors:
        if not codes_of(selector):
            from difflib import get_close_matches

            known = [*_CODES, *_NAMES]
            close = get_close_matches(selector, known, n=1) or get_close_matches(selector.upper(), known, n=1)
            tail = f"; did you mean `{close[0]}`?" if close else "; `memlint rules` lists them"
            raise UserError(f"no rule is called `{selector}`{tail}")


def active_codes(select: Iterable[str], ignore: Iterable[str]) -> frozenset[str]:
    """Return the codes that run: all, or those selected, less those ignored."""
    chosen = [code for selector in select for code in codes_of(selector)] or list(_CODES)
    dropped = {code for selector in ignore for code in codes_of(selector)}
    return frozenset(chosen) - dropped


def named_codes(select: Iterable[str]) -> frozenset[str]:
    """Return the codes that the user named in full: their suggestions are shown even where they hardly matter."""
    return frozenset(code for selector in select if (code := names_one(selector)))
