"""JSON text to a tree of nodes with offsets, in plain Python: for positions, edits, and what only Hjson would accept.

DeepSpeed reads its files with ``hjson.load``, which takes comments, trailing commas, commas left out at a line end,
keys and strings without quotes or in single quotes. accelerate, transformers and every other reader take strict JSON.
So the reader accepts all of that and notes each place that strict JSON refuses; :mod:`json_reader` decides what it
means.
"""

from __future__ import annotations

import json
import re
from typing import Any

from memlint.document.limits import MAX_DEPTH, MAX_NUMBER_LENGTH, MAX_VALUES
from memlint.document.positions import BOM
from memlint.document.tree import Node, Pair

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?(?![^\s,\]}:#/])")
_WORD = re.compile(r"(?:true|false|null|NaN|-?Infinity)(?![^\s,\]}:#/])")
_BARE_KEY = re.compile(r"[^\s,:\[\]{}\"'#/][^\s,:\[\]{}]*")
_LINE_REST = re.compile(r"[^\r\n]*")
_STRING_STOP = {'"': re.compile(r'["\\\r\n]'), "'": re.compile(r"['\\\r\n]")}
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


class JsonMistake(Exception):
    """Not even Hjson: ``offset`` is where."""

    def __init__(self, message: str, offset: int, *, bound: bool = False) -> None:
        """Say what is wrong and where."""
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.bound = bound
        """Whether a bound of :mod:`limits` is passed, rather than the syntax wrong."""


class JsonTreeReader:
    """Reads one JSON text; ``notes`` holds (what, start, end) of each thing that strict JSON refuses."""

    def __init__(self, text: str, *, limit: int = MAX_VALUES) -> None:
        """Start at the beginning of ``text``, to read at most ``limit`` values."""
        self.limit = limit
        self.text = text
        self.at = 1 if text.startswith(BOM) else 0
        self.depth = 0
        self.count = 0
        self.notes: list[tuple[str, int, int]] = []
        self.root: Node | None = None
        """The outermost list or mapping with what has been read of it, also when a mistake ended the reading."""

    def read(self) -> Node:
        """Return the root; raises JsonMistake."""
        self._skip()
        root = self._value()
        self._skip()
        if self.at < len(self.text):
            raise JsonMistake("text behind the end of the JSON value", self.at)
        return root

    def _note(self, what: str, start: int, end: int) -> None:
        if len(self.notes) < 20:
            self.notes.append((what, start, end))

    def _skip(self) -> bool:
        """Move over white space and comments; return whether a line ended in between."""
        text, begin = self.text, self.at
        while True:
            self.at = _SPACE.match(text, self.at).end()  # type: ignore[union-attr]  # the pattern matches everywhere
            if text.startswith(("//", "#"), self.at):
                start = self.at
                self.at = _LINE_REST.match(text, start).end()  # type: ignore[union-attr]  # as above
            elif text.startswith("/*", self.at):
                start = self.at
                end = text.find("*/", start + 2)
                if end < 0:
                    raise JsonMistake("a comment that never ends", start)
                self.at = end + 2
            else:
                return "\n" in text[begin : self.at]
            self._note("a comment", start, self.at)

    def _value(self) -> Node:
        self.count += 1
        if self.count > self.limit:
            message = f"more than {self.limit:,} values; memlint does not read such a file"
            raise JsonMistake(message, self.at, bound=True)
        character = self.text[self.at : self.at + 1]
        if character in ("{", "["):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                message = f"nested more than {MAX_DEPTH} levels deep; memlint does not read such a file"
                raise JsonMistake(message, self.at, bound=True)
            node = self._mapping() if character == "{" else self._sequence()
            self.depth -= 1
            return node
        if character in ('"', "'"):
            return self._string()
        return self._plain()

    def _plain(self) -> Node:
        start = self.at
        if found := _WORD.match(self.text, start):
            self.at = found.end()
            return Node(kind="scalar", start=start, end=self.at, value=_WORDS[found.group()])
        if found := _NUMBER.match(self.text, start):
            self.at = found.end()
            digits = found.group()
            if found.group(1) or found.group(2):
                return Node(kind="scalar", start=start, end=self.at, value=float(digits))
            if len(digits) > MAX_NUMBER_LENGTH:
                message = f"a number of {len(digits):,} characters; the longest that is read has {MAX_NUMBER_LENGTH:,}"
                raise JsonMistake(message, start)
            return Node(kind="scalar", start=start, end=self.at, value=int(digits))
        if start >= len(self.text):
            raise JsonMistake("the text ends where a value is expected", start)
        if self.text[start] in ",:]}":
            raise JsonMistake(f"`{self.text[start]}` where a value is expected", start)
        line = _LINE_REST.match(self.text, start).group().rstrip()  # type: ignore[union-attr]  # matches everywhere
        self.at = start + len(line)
        self._note("a string without quotes", start, self.at)
        return Node(kind="scalar", start=start, end=self.at, value=line)

    def _string(self) -> Node:
        start, quote = self.at, self.text[self.at]
        stop = _STRING_STOP[quote]
        at = start + 1
        while True:
            found = stop.search(self.text, at)
            if found is None or found.group() in "\r\n":
                raise JsonMistake("a string that is not closed on its line", start)
            if found.group() == quote:
                break
            at = found.end() + 1
        self.at = found.end()
        token = self.text[start : self.at]
        if quote == "'":
            self._note("a string in single quotes", start, self.at)
            token = '"' + token[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        try:
            value = json.loads(token, strict=False)
        except ValueError:
            raise JsonMistake("an escape in a string that JSON does not know", start) from None
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise JsonMistake("an escape that is half of a surrogate pair, which is no character", start)
        return Node(kind="scalar", start=start, end=self.at, value=value, style=quote)

    def _sequence(self) -> Node:
        node = Node(kind="sequence", start=self.at, end=self.at, flow=True)
        self.root = self.root or node
        self.at += 1
        while not self._closes("]", bool(node.items)):
            node.items.append(self._value())
        node.end = self.at
        return node

    def _mapping(self) -> Node:
        node = Node(kind="mapping", start=self.at, end=self.at, flow=True)
        self.root = self.root or node
        self.at += 1
        while not self._closes("}", bool(node.pairs)):
            key_node = self._key()
            self._skip()
            if not self.text.startswith(":", self.at):
                raise JsonMistake("`:` is missing behind a key", self.at)
            self.at += 1
            self._skip()
            node.pairs.append(Pair(key=key_node.value, key_node=key_node, value=self._value()))
        node.end = self.at
        return node

    def _key(self) -> Node:
        if self.text.startswith(('"', "'"), self.at):
            return self._string()
        found = _BARE_KEY.match(self.text, self.at)
        if found is None:
            raise JsonMistake("a key is expected here", self.at)
        self._note("a key without quotes", self.at, found.end())
        self.at = found.end()
        return Node(kind="scalar", start=found.start(), end=self.at, value=found.group())

    def _closes(self, bracket: str, after_item: bool) -> bool:
        """Move behind the comma to the next item, or behind the closing bracket; return whether it was the bracket."""
        new_line = self._skip()
        comma = -1
        if after_item and self.text.startswith(",", self.at):
            comma = self.at
            self.at += 1
            self._skip()
        if self.text.startswith(bracket, self.at):
            if comma >= 0:
                self._note("a comma behind the last item", comma, comma + 1)
            self.at += 1
            return True
        if self.at >= len(self.text):
            raise JsonMistake(f"the text ends before the closing `{bracket}`", self.at)
        if after_item and comma < 0:
            if not new_line:
                raise JsonMistake(f"`,` or `{bracket}` is missing", self.at)
            self._note("a comma left out at the line end", self.at, self.at + 1)
        return False


def data_of(node: Node) -> Any:
    """Return the plain values of a tree."""
    if node.kind == "mapping":
        return {pair.key: data_of(pair.value) for pair in node.pairs}
    if node.kind == "sequence":
        return [data_of(item) for item in node.items]
    return node.value


def duplicate_pairs(root: Node) -> list[tuple[Pair, Pair]]:
    """Return (first, later) of every key that a mapping below ``root`` holds twice, in the order of the text."""
    found: list[tuple[Pair, Pair]] = []
    pending = [root]
    while pending:
        node = pending.pop()
        first: dict[Any, Pair] = {}
        for pair in node.pairs:
            if pair.key in first:
                found.append((first[pair.key], pair))
            else:
                first[pair.key] = pair
            pending.append(pair.value)
        pending.extend(node.items)
    return sorted(found, key=lambda pairs: pairs[1].key_node.start)
