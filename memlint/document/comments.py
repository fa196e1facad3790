"""Comments that speak to memlint: ``# memlint: ignore[MEM301] reason``, assignments such as ``target=``."""

from __future__ import annotations

import re
from itertools import islice
from typing import Callable, Literal

from memlint.document.limits import MAX_TAG_DIRECTIVES, MAX_YAML_NODES
from memlint.document.model import SyntaxProblem
from memlint.document.positions import Lines, excerpt
from memlint.records import dataclass
from memlint.units import parse_bytes

PragmaKind = Literal["ignore", "ignore-file", "target", "dialect", "gpus", "measured"]

IGNORES = ("ignore", "ignore-file")
ASSIGNMENTS = ("target", "dialect", "gpus", "measured")

_KNOWN = (
    "it knows `ignore[MEM301] reason`, `ignore-file[MEM301] reason`, `target=...`, `dialect=...`, `gpus=...`"
    " and `measured=...`"
)
_MARK = "memlint:"
_COMMENT = re.compile(r"#[ \t]*memlint:[ \t]*")
_MAX_LENGTH = 2000
"""Characters of one comment that are looked at."""
_NAME = re.compile(r"[A-Za-z][A-Za-z_-]*")
_ASSIGNMENT = re.compile(r"([A-Za-z][A-Za-z_-]*)[ \t]*=[ \t]*")
_NEXT_ASSIGNMENT = re.compile(r"(?:[ \t]+|[ \t]*[,;][ \t]*)(?=(?:target|dialect|gpus|measured)[ \t]*=)|[ \t]+#")
_BRACKETS = re.compile(r"[ \t]*\[([^\]]*)\][ \t]*(.*)")
_LINE_REST = re.compile(r"[^\r\n]*")
_RULE = re.compile(r"MEM\d{3}|[a-z]+(?:-[a-z0-9]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pragma:
    """One instruction of one comment."""

    kind: PragmaKind
    values: tuple[str, ...]
    """Rule codes or names of an ignore, as written; the one value of an assignment."""
    reason: str = ""
    """Text behind the brackets of an ignore."""
    line: int
    column: int
    """Place of the comment's ``#``."""
    applies_to_line: int | None
    """Line that an ignore silences: its own, or, alone on it, the next with more than a comment. None: the file."""


def find_pragmas(text: str, format: str) -> tuple[tuple[Pragma, ...], tuple[SyntaxProblem, ...]]:
    """Return the pragmas of a YAML or TOML text in its order, and what is wrong with those that cannot be understood.

    Only real comments count: the words inside a string or a block scalar are text. JSON has no comments, hence none.
    Costs one substring search where the text does not hold ``memlint:``.
    """
    if _MARK not in text or format == "json":
        return (), ()
    found = list(islice(_COMMENT.finditer(text), 1000))
    if not found:
        return (), ()
    is_comment = _comments_of(text, format)
    lines = Lines(text)
    pragmas: list[Pragma] = []
    problems: list[SyntaxProblem] = []
    silenced = _Silenced(text, lines)
    for match, following in zip(found, [*found[1:], None]):
        if not is_comment(match.start()):
            continue
        stop = min(match.end() + _MAX_LENGTH, following.start() if following else len(text))
        body = text[match.end() : stop].splitlines()[0].rstrip() if match.end() < stop else ""
        try:
            pragmas.extend(_parse(body, match, lines, silenced))
        except ValueError as error:
            end = match.end() + len(body) if body else match.start() + len(match.group().rstrip())
            problems.append(SyntaxProblem(message=str(error), span=lines.span(match.start(), end), fatal=False))
    return tuple(pragmas), tuple(problems)


def _parse(body: str, match: re.Match[str], lines: Lines, silenced: _Silenced) -> list[Pragma]:
    line, column = lines.position(match.start())
    name = _NAME.match(body)
    word = name.group() if name else ""
    if word in IGNORES:
        codes, reason = _ignored(body[len(word) :], word)
        target = silenced.line(match.start()) if word == "ignore" else None
        kind: PragmaKind = "ignore" if word == "ignore" else "ignore-file"
        return [Pragma(kind=kind, values=codes, reason=reason, line=line, column=column, applies_to_line=target)]
    pragmas = []
    while body:
        assignment = _ASSIGNMENT.match(body)
        if assignment is None:
            raise ValueError(_unknown(word, body))
        if assignment.group(1) not in ASSIGNMENTS:
            raise ValueError(_unknown(assignment.group(1), body))
        rest = body[assignment.end() :]
        stop = _NEXT_ASSIGNMENT.search(rest)
        value = (rest[: stop.start()] if stop else rest).strip().rstrip(",;").rstrip().strip("\"'")
        body = rest[stop.end() :] if stop and not stop.group().endswith("#") else ""
        pragmas.append(_assigned(assignment.group(1), value, line, column))
    if not pragmas:
        raise ValueError(f"`# memlint:` says nothing; {_KNOWN}")
    return pragmas


def _assigned(name: str, value: str, line: int, column: int) -> Pragma:
    if not value:
        raise ValueError(f"`{name}=` has no value")
    if name == "gpus" and not (value.isdecimal() and 0 < int(value[:7]) < 1_000_000):
        raise ValueError(f"`gpus={excerpt(value)}` is no number of GPUs; write for example `gpus=8`")
    if name == "measured" and parse_bytes(value) is None:
        raise ValueError(f"`measured={excerpt(value)}` is no size; write a measured peak: `measured=23.6GiB`")
    kinds: dict[str, PragmaKind] = {"target": "target", "dialect": "dialect", "gpus": "gpus", "measured": "measured"}
    return Pragma(kind=kinds[name], values=(value,), line=line, column=column, applies_to_line=None)


def _ignored(rest: str, word: str) -> tuple[tuple[str, ...], str]:
    brackets = _BRACKETS.match(rest)
    if brackets is None:
        raise ValueError(f"`{word}` names no rule; write `{word}[MEM301] reason`")
    codes = tuple(code.strip() for code in brackets.group(1).split(",") if code.strip())
    if not codes:
        raise ValueError(f"`{word}[]` names no rule; write `{word}[MEM301] reason`")
    for code in codes:
        if _RULE.fullmatch(code):
            continue
        shown = excerpt(code)
        if "*" in code or code.lower() in ("all", "any") or re.fullmatch(r"MEM(?:\d{0,2}[xX?]*)", code):
            message = f"`{word}[{shown}]` is a wildcard, which is not accepted"
            raise ValueError(f"{message}; name each rule, as in `{word}[MEM301]`")
        hint = f"; did you mean `{code.upper()}`?" if _RULE.fullmatch(code.upper()) else ""
        raise ValueError(f"`{shown}` is no rule code or name{hint}")
    return codes, brackets.group(2).strip()


def _unknown(word: str, body: str) -> str:
    import difflib

    near = difflib.get_close_matches(word.lower(), [*IGNORES, *ASSIGNMENTS], n=1)
    forms = {"ignore": "ignore[MEM301]", "ignore-file": "ignore-file[MEM301]"}
    shown = excerpt(word or body)
    if near:
        example = forms.get(near[0], f"{near[0]}=...")
        return f"`{shown}` is nothing that memlint knows in a comment; did you mean `{example}`?"
    return f"`{shown}` is nothing that memlint knows in a comment; {_KNOWN}"


class _Silenced:
    """Finds the line that an ignore applies to; comments are asked for in the order of the text."""

    def __init__(self, text: str, lines: Lines) -> None:
        self.text = text
        self.lines = lines
        self.passed = range(0)
        """Lines without content that were passed over last, so that many comments in a row are read once."""

    def line(self, hash_sign: int) -> int:
        text, lines = self.text, self.lines
        line, _ = lines.position(hash_sign)
        before = text[lines.line_start(hash_sign) : hash_sign].lstrip("\ufeff")
        if before.strip() and not before.lstrip().startswith("#"):
            return line
        start = self.passed.stop if line + 1 in self.passed else line + 1
        for number in range(start, len(lines.starts) + 1):
            content = text[lines.starts[number - 1] : lines.next_line(lines.starts[number - 1])].strip()
            if content and not content.startswith("#"):
                self.passed = range(line, number)
                return number
        self.passed = range(line, len(lines.starts) + 1)
        return line


def _comments_of(text: str, format: str) -> Callable[[int], bool]:
    """Return a test for whether the ``#`` at an offset is part of a comment."""
    if format == "toml":
        return _toml_comments(text)
    from bisect import bisect_right

    import yaml

    from memlint.document.positions import BOM
    from memlint.document.yaml_loader import BoundedLoader

    base = 1 if text.startswith(BOM) else 0
    starts: list[int] = []
    ends: list[int] = []
    loader = None
    try:
        loader = BoundedLoader(text[base:])
        for _ in range(2 * MAX_YAML_NODES if text.count("%TAG") <= MAX_TAG_DIRECTIVES else 0):
            event = loader.get_event()
            if event is None:
                break
            style = getattr(event, "style", None)
            if isinstance(event, yaml.ScalarEvent) and event.start_mark and event.end_mark:
                start, end = event.start_mark.index + base, event.end_mark.index + base
                if style in ("|", ">"):  # the header line may end in a comment
                    header = _LINE_REST.match(text, start)
                    start = header.end() if header else start
                    end = start + len(text[start:end].rstrip())
                starts.append(start)
                ends.append(end)
    except (yaml.YAMLError, UnicodeError):
        pass  # behind a mistake every `#` that could start a comment counts
    finally:
        if loader is not None:
            loader.dispose()

    def is_comment(offset: int) -> bool:
        at = bisect_right(starts, offset) - 1
        return at < 0 or offset >= ends[at]

    return is_comment


def _toml_comments(text: str) -> Callable[[int], bool]:
    from bisect import bisect_right

    from memlint.document.toml_tree import TomlMistake, TomlTreeReader

    reader = TomlTreeReader(text)
    try:
        reader.read()
        end = len(text)
    except (TomlMistake, ValueError):
        end = reader.at  # behind a mistake every `#` counts
    starts = reader.comments

    def is_comment(offset: int) -> bool:
        if offset >= end:
            return True
        at = bisect_right(starts, offset) - 1
        return at >= 0 and "\n" not in text[starts[at] : offset]

    return is_comment
