"""The text as a tree of nodes with offsets: what spans and edits are made from, the same for YAML, JSON and TOML."""

from __future__ import annotations

from typing import Any, Literal

from memlint.document.model import KeyPath, Span
from memlint.document.positions import Lines
from memlint.records import dataclass, field


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One value as it stands in the text, from ``start`` up to, not including, ``end``."""

    kind: Literal["scalar", "mapping", "sequence", "alias"]
    start: int
    end: int
    value: Any = None
    """A scalar: its text in YAML, its Python value in JSON and wherever it is a key; unset for other TOML scalars."""
    style: str = ""
    """YAML scalar: empty for a plain one, else ``'``, ``"``, ``|`` or ``>``. TOML mapping: how it was written:
    ``root``, ``table`` (a ``[header]``), ``element`` (``[[header]]``), ``inline``, ``dotted``, or ``implied``."""
    flow: bool = False
    """Written in brackets: ``{a: 1}``, ``[1, 2]``."""
    anchor: str | None = None
    tag: str | None = None
    target: Node | None = None
    """What a YAML alias stands for."""
    pairs: list[Pair] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    merges: list[Node] = field(default_factory=list)
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


@dataclass(slots=True, kw_only=True, eq=False)
class Pair:
    """A key and its value in a mapping."""

    key: Any
    key_node: Node
    value: Node


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
