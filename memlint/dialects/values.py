"""Reading values as the frameworks read them, with a problem on the key where they could not.

Every Hugging Face dialect reads a mapping through :class:`Section`: absent and null are the same (an empty YAML value
means "unset" everywhere), numbers written as text are numbers (``2e-5`` is a string to PyYAML and argparse casts it),
``'true'`` is a flag, and ``auto`` is left to the caller. The tables of optimizer, attention and dtype names are in
:mod:`memlint.dialects.names`.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from memlint.dialects.base import Problem
from memlint.job import KeyPath

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})
"""Words of ``string_to_bool`` (transformers 5.24 hf_argparser.py) and of YAML 1.1."""

MAX_TEXT = 60
"""Characters of a user's value that a message repeats."""


def as_int(value: Any) -> int | None:
    """Return a whole number from ``4``, ``4.0``, ``"4"``, ``5e8`` or ``"1e9"``; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) < 30:
        text = value.strip().replace("_", "")
        try:
            return int(text)
        except ValueError:
            pass
        try:
            value = float(text)
        except ValueError:
            return None
    if isinstance(value, float) and abs(value) < 1e18 and value == int(value):
        return int(value)
    return None


def as_float(value: Any) -> float | None:
    """Return a finite number from ``0.5``, ``1``, ``"2e-5"``; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and len(value) < 40:
        try:
            value = float(value.strip().replace("_", ""))
        except ValueError:
            return None
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if -1e300 < number < 1e300 else None
    return None


def as_bool(value: Any) -> bool | None:
    """Return a flag from ``true``, ``'true'``, ``'no'``, ``1``; None for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    return None


def as_strings(value: Any) -> tuple[str, ...] | None:
    """Return names from a list of strings or from one comma-separated string; None for anything else."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, (list, tuple)) and all(isinstance(item, (str, int)) for item in value):
        return tuple(str(item) for item in value)
    return None


def as_mapping(value: Any) -> dict[str, Any] | None:
    """Return a mapping, also from JSON text (``--fsdp_config '{...}'``); None for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        import json

        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return None
        return parsed if isinstance(parsed, dict) else None
    return None


def is_auto(value: Any) -> bool:
    """Whether a value is the word ``auto``."""
    return isinstance(value, str) and value.strip().lower() == "auto"


def show(value: Any, limit: int = MAX_TEXT) -> str:
    """Return a value as the user would recognise it: cut to a bounded length, control characters escaped."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else type(value).__name__ if isinstance(value, (dict, list)) else str(value)
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode("ascii")


def bound_text(bound: float) -> str:
    """Return a bound as a person writes it: ``1,000,000``, not ``1e+06``."""
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


class Section:
    """One mapping of a config, read key by key; bad values become MEM003 problems and read as absent.

    ``prefix`` is the key path of the mapping inside its file, ``file`` the companion file it is in (None: the document
    that is being read). Problems of all sections of one reading are collected in one shared list.
    """

    __slots__ = ("data", "file", "prefix", "problems")

    def __init__(
        self, data: Mapping[str, Any], problems: list[Problem], *, prefix: KeyPath = (), file: str | None = None
    ) -> None:
        """Read ``data``; problems are appended to ``problems``."""
        self.data = data
        self.problems = problems
        self.prefix = prefix
        self.file = file

    def path(self, name: str) -> KeyPath:
        """Key path of ``name`` inside the file."""
        return (*self.prefix, name)

    def has(self, *names: str) -> str | None:
        """Return the first of ``names`` that is present and not null."""
        for name in names:
            if self.data.get(name) is not None:
                return name
        return None

    def raw(self, name: str, default: Any = None) -> Any:
        """Return the value as the file's loader gave it; ``default`` when absent or null."""
        value = self.data.get(name)
        return default if value is None else value

    def bad(self, name: str, expected: str) -> None:
        """Note MEM003: the value of ``name`` is not ``expected`` (``"a whole number"``)."""
        self.problem("MEM003", name, f"`{name}` must be {expected}, not `{show(self.data.get(name))}`")

    def problem(self, code: str, name: str, message: str, *, label: str | None = None, on_key: bool = False) -> None:
        """Note a problem at key ``name`` of this section."""
        self.problems.append(
            Problem(code=code, key=self.path(name), message=message, label=label, file=self.file, on_key=on_key)
        )

    def integer(self, name: str, *, minimum: int | None = None, maximum: int | None = None) -> int | None:
        """Return a whole number; None when absent, ``auto`` or bad (MEM003)."""
        value = self.raw(name)
        if value is None or is_auto(value):
            return None
        number = as_int(value)
        if number is None:
            self.bad(name, "a whole number")
            return None
        low = minimum is not None and number < minimum
        if low or (maximum is not None and number > maximum):
            self.bad(name, f"at {'least' if low else 'most'} {bound_text((minimum if low else maximum) or 0)}")
            return None
        return number

    def number(self, name: str, *, minimum: float | None = None) -> float | None:
        """Return a number; None when absent, ``auto`` or bad (MEM003)."""
        value = self.raw(name)
        if value is None or is_auto(value):
            return None
        number = as_float(value)
        if number is None:
            self.bad(name, "a number")
        elif minimum is not None and number < minimum:
            self.bad(name, f"at least {bound_text(minimum)}")
            number = None
        return number

    def flag(self, name: str) -> bool | None:
        """Return a flag; None when absent, ``auto`` or bad (MEM003)."""
        value = self.raw(name)
        if value is None or is_auto(value):
            return None
        flag = as_bool(value)
        if flag is None:
            self.bad(name, "true or false")
        return flag

    def text(self, name: str, choices: Iterable[str] | None = None) -> str | None:
        """Return a string, lower-cased and checked when ``choices`` are given; None when absent or bad (MEM003)."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self.bad(name, "a string")
            return None
        if choices is None:
            return value
        word = value.strip().lower()
        known = tuple(choices)
        if word in known:
            return word
        self.problem("MEM003", name, f"`{name}: {show(value)}` is not known" + did_you_mean(word, known))
        return None

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return a mapping (or JSON text of one); None when absent or bad (MEM003)."""
        value = self.raw(name)
        if value is None or value == "":
            return None
        found = as_mapping(value)
        if found is None:
            self.bad(name, "a mapping")
        return found

    def strings(self, name: str) -> tuple[str, ...] | None:
        """Return names from a list or a comma-separated string; None when absent or bad (MEM003)."""
        value = self.raw(name)
        if value is None:
            return None
        found = as_strings(value)
        if found is None:
            self.bad(name, "a list of names")
        return found

    def section(self, name: str) -> Section | None:
        """Return the mapping at ``name`` as a section of its own."""
        found = self.mapping(name)
        return None if found is None else Section(found, self.problems, prefix=self.path(name), file=self.file)


def nearest(word: str, names: Iterable[str], cutoff: float = 0.8) -> str | None:
    """Return the name most like ``word``, or None. difflib is imported only when some name is close at all."""
    letters = set(word)
    close = [n for n in names if abs(len(n) - len(word)) <= 4 and len(letters.symmetric_difference(n)) <= 5]
    if not close:
        return None
    from difflib import get_close_matches

    found = get_close_matches(word, close, n=1, cutoff=cutoff)
    return found[0] if found else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean `x`?"``, or the choices when they are few, or nothing."""
    known = list(names)
    match = nearest(word, known, cutoff=0.6)
    if match is not None:
        return f"; did you mean `{match}`?"
    if len(known) <= 8:
        return "; choose from " + ", ".join(f"`{n}`" for n in known)
    return ""


def major(version: str | None, default: int) -> int:
    """Return the first number of a version (``"4.57.6"`` -> 4), or ``default``."""
    if version:
        head = version.lstrip("vV=~><^ ").split(".")[0]
        if head.isdigit():
            return int(head)
    return default


def version_tuple(version: str | None) -> tuple[int, ...]:
    """Return ``(0, 18, 0)`` from ``"0.18.0.dev0"``; empty when there is none."""
    numbers: list[int] = []
    for part in (version or "").lstrip("vV=~><^ ").split("."):
        digits = part.partition("+")[0]
        if not digits.isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)


def words(text: str) -> frozenset[str]:
    """Return the blank-separated words of ``text``: how long lists of framework keys are written here."""
    return frozenset(text.split())


def as_sequence(value: Any) -> Sequence[Any]:
    """Return a list as it is, None as empty, anything else as a list of one."""
    if value is None:
        return ()
    return value if isinstance(value, (list, tuple)) else (value,)
