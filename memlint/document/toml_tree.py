"""TOML text to a tree of nodes with offsets, for positions and edits; the text has passed tomllib already.

Tables may be written in pieces all over the file (``[a]`` ... ``[a.b]``), so a mapping here is where a table was first
named: the whole ``[header]``, or the key. ``Node.style`` says how each was written.
"""

from __future__ import annotations

import re

from memlint.document.limits import MAX_DEPTH, MAX_VALUES
from memlint.document.positions import BOM
from memlint.document.tree import Node, Pair

_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"[^"\\\r\n]*(?:\\.[^"\\\r\n]*)*"'
    r"|'[^'\r\n]*'",
    re.DOTALL,
)
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d(?: (?=\d\d:))?[^\s,\]}#]*")
_WORD = re.compile(r"[^\s,\]}#]+")


class TomlMistake(Exception):
    """A place that this reader cannot follow, or a bound that is passed; ``offset`` is where."""

    def __init__(self, message: str, offset: int) -> None:
        """Say what is wrong and where."""
        super().__init__(message)
        self.message = message
        self.offset = offset


class TomlTreeReader:
    """Reads one TOML text; ``comments`` holds the offset of each comment's ``#``."""

    def __init__(self, text: str) -> None:
        """Start at the beginning of ``text``."""
        self.text = text
        self.at = 1 if text.startswith(BOM) else 0
        self.depth = 0
        self.count = 0
        self.comments: list[int] = []
        self.known: dict[tuple[int, str], Pair] = {}
        """Pairs by id of their mapping and key."""

    def read(self) -> Node:
        """Return the root; raises TomlMistake."""
        root = Node(kind="mapping", start=self.at, end=len(self.text), style="root")
        table = root
        while True:
            self._gap()
            if self.at >= len(self.text):
                return root
            if self.text[self.at] == "[":
                table = self._header(root)
            else:
                self._pair(table)
            self._line_end()

    def _line_end(self) -> None:
        self._space()
        if self.at < len(self.text) and self.text[self.at] not in "\r\n#":
            raise TomlMistake("a line end is expected here", self.at)

    def _space(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # the pattern matches everywhere

    def _gap(self) -> None:
        """Move over white space, line ends and comments."""
        begin = self.at
        self.at = _GAP.match(self.text, begin).end()  # type: ignore[union-attr]  # as above
        while (hash_sign := self.text.find("#", begin, self.at)) >= 0:
            self.comments.append(hash_sign)
            line_end = self.text.find("\n", hash_sign, self.at)
            begin = line_end if line_end >= 0 else self.at

    def _expect(self, mark: str) -> None:
        if not self.text.startswith(mark, self.at):
            raise TomlMistake(f"`{mark}` is expected here", self.at)
        self.at += len(mark)

    def _key(self) -> list[Node]:
        """Return the parts of a dotted key."""
        parts: list[Node] = []
        while True:
            self._space()
            start = self.at
            pattern = _STRING if self.text.startswith(('"', "'"), start) else _BARE
            found = pattern.match(self.text, start)
            if found is None:
                raise TomlMistake("a key is expected here", start)
            self.at = found.end()
            if len(parts) == MAX_DEPTH:
                raise TomlMistake(f"a key of more than {MAX_DEPTH} parts", parts[0].start)
            parts.append(Node(kind="scalar", start=start, end=self.at, value=_key_text(found.group())))
            self._space()
            if not self.text.startswith(".", self.at):
                return parts
            self.at += 1

    def _add(self, table: Node, key_node: Node, value: Node) -> Pair:
        pair = Pair(key=key_node.value, key_node=key_node, value=value)
        table.pairs.append(pair)
        self.known[id(table), key_node.value] = pair
        return pair

    def _descend(self, table: Node, parts: list[Node], style: str, start: int, end: int) -> Node:
        """Return the table that ``parts`` name below ``table``, made where it is new."""
        for part in parts:
            pair = self.known.get((id(table), part.value))
            if pair is None:
                self._counted()
                made = Node(kind="mapping", start=start, end=end, style=style)
                pair = self._add(table, part, made)
            table = pair.value
            if table.kind == "sequence" and table.items:
                table = table.items[-1]
        return table

    def _header(self, root: Node) -> Node:
        start = self.at
        double = self.text.startswith("[[", start)
        self.at += 2 if double else 1
        parts = self._key()
        self._expect("]]" if double else "]")
        table = self._descend(root, parts[:-1], "implied", start, self.at)
        pair = self.known.get((id(table), parts[-1].value))
        self._counted()
        if double:
            if pair is None:
                array = Node(kind="sequence", start=start, end=self.at, style="tables")
                pair = self._add(table, parts[-1], array)
            made = Node(kind="mapping", start=start, end=self.at, style="element")
            pair.value.items.append(made)
            return made
        if pair is None:
            made = Node(kind="mapping", start=start, end=self.at, style="table")
            self._add(table, parts[-1], made)
            return made
        if pair.value.style == "implied":  # [a.b] came before [a]
            pair.key_node = parts[-1]
            pair.value.start, pair.value.end, pair.value.style = start, self.at, "table"
        return pair.value

    def _pair(self, table: Node) -> None:
        start = self.at
        parts = self._key()
        self._expect("=")
        self._space()
        table = self._descend(table, parts[:-1], "dotted", start, self.at)
        self._add(table, parts[-1], self._value())

    def _counted(self) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise TomlMistake(f"more than {MAX_VALUES:,} values; memlint does not read such a file", self.at)

    def _value(self) -> Node:
        self._counted()
        start = self.at
        character = self.text[start : start + 1]
        if character in ("[", "{"):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise TomlMistake(f"nested more than {MAX_DEPTH} levels deep; memlint does not read such a file", start)
            node = self._array() if character == "[" else self._inline_table()
            self.depth -= 1
            return node
        pattern = _STRING if character in ('"', "'") else _DATE_TIME
        found = pattern.match(self.text, start) or _WORD.match(self.text, start)
        if found is None:
            raise TomlMistake("a value is expected here", start)
        self.at = found.end()
        return Node(kind="scalar", start=start, end=self.at, style=character if character in "\"'" else "")

    def _array(self) -> Node:
        node = Node(kind="sequence", start=self.at, end=self.at, flow=True)
        self.at += 1
        while True:
            self._gap()
            if self.text.startswith("]", self.at):
                break
            node.items.append(self._value())
            self._gap()
            if not self.text.startswith("]", self.at):
                self._expect(",")
        self.at += 1
        node.end = self.at
        return node

    def _inline_table(self) -> Node:
        node = Node(kind="mapping", start=self.at, end=self.at, flow=True, style="inline")
        self.at += 1
        while True:
            self._gap()  # one line only in TOML 1.0; TOML 1.1 allows line ends and a last comma
            if self.text.startswith("}", self.at):
                break
            self._pair(node)
            self._gap()
            if not self.text.startswith("}", self.at):
                self._expect(",")
        self.at += 1
        node.end = self.at
        return node


def _key_text(token: str) -> str:
    if token.startswith("'"):
        return token[1:-1]
    if not token.startswith('"'):
        return token
    if "\\" not in token:
        return token[1:-1]
    from memlint.document.toml_reader import parse_toml

    return str(parse_toml(f"key = {token}")["key"])
