"""The text as a tree of nodes with offsets: what spans and edits are made from, the same for YAML, JSON and TOML."""

from __future__ import annotations

from typing import Any, Literal

from memlint.document.model import KeyPath, Span
from memlint.document.positions import Lines


class Pair:
    """A key and its value in a mapping."""

    __slots__ = ("key", "key_node", "value")

    def __init__(self, *, key: Any, key_node: Node, value: Node) -> None:
        """``key`` is the Python value of ``key_node``."""
        self.key = key
        self.key_node = key_node
        self.value = value


class Node:
    """One value as it stands in the text, from ``start`` up to, not including, ``end``.

    A plain class rather than a record, since a wide file makes tens of thousands of them.
    """

    __slots__ = (
        "anchor",
        "end",
        "flow",
        "items",
        "kind",
        "merges",
        "pairs",
        "start",
        "style",
        "tag",
        "target",
        "value",
    )

    def __init__(
        self,
        *,
        kind: Literal["scalar", "mapping", "sequence", "alias"],
        start: int,
        end: int,
        value: Any = None,
        style: str = "",
        flow: bool = False,
        tag: str | None = None,
        target: Node | None = None,
    ) -> None:
        """Make a node without anything inside."""
        self.kind = kind
        self.start = start
        self.end = end
        self.value = value
        """A scalar: its text in YAML, its Python value in JSON and where it is a key; unset for other TOML scalars."""
        self.style = style
        """YAML scalar: empty for a plain one, else ``'``, ``"``, ``|`` or ``>``. TOML mapping: how it was written:
        ``root``, ``table`` (a ``[header]``), ``element`` (``[[header]]``), ``inline``, ``dotted``, or ``implied``."""
        self.flow = flow
        """Written in brackets: ``{a: 1}``, ``[1, 2]``."""
        self.anchor: str | None = None
        self.tag = tag
        self.target = target
        """What a YAML alias stands for."""
        self.pairs: list[Pair] = []
        self.items: list[Node] = []
        self.merges: list[Node] = []
        """Mappings that YAML's ``<<`` keys merge in; a later one overrides an earlier."""

    def resolved(self) -> Node:
        """Return the node that an alias stands for, else the node itself."""
        return self.target if self.target is not None else self

    def own_pairs(self) -> dict[Any, Pair]:
        """Return the pairs written in this mapping itself; of duplicate keys the last, as every reader does."""
        return {pair.key: pair for pair in self.pairs}

    def all_pairs(self) -> dict[Any, Pair]:
        """Return the pairs of this mapping, those that YAML merges in from elsewhere first, as PyYAML orders them."""
        if not self.merges:
            return self.own_pairs()
        found: dict[Any, Pair] = {}
        for merged in self.merges:
            found.update(merged.all_pairs())
        found.update(self.own_pairs())
        return found


def spans_of(root: Node, lines: Lines) -> dict[KeyPath, tuple[Span | None, Span]]:
    """Return key path -> (span of the key, span of the value) for everything below ``root``, itself at the empty path.

    The caller has made sure that the tree, aliases expanded, is bounded and has no cycle.
    """
    spans: dict[KeyPath, tuple[Span | None, Span]] = {}
    pending: list[tuple[KeyPath, Node | None, Node]] = [((), None, root)]
    while pending:
        path, key_node, node = pending.pop()
        key_span = lines.span(key_node.start, key_node.end) if key_node is not None else None
        spans[path] = (key_span, lines.span(node.start, node.end))
        inner = node.resolved()
        if inner.kind == "mapping":
            pending.extend(((*path, key), pair.key_node, pair.value) for key, pair in inner.all_pairs().items())
        elif inner.kind == "sequence":
            pending.extend(((*path, index), None, item) for index, item in enumerate(inner.items))
    return spans
