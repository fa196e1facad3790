"""What an edit must know of a YAML text as a whole: aliases, ends of block scalars, the indentation in use."""

from __future__ import annotations

from memlint.document.edit_flow import indent_of
from memlint.document.positions import Lines
from memlint.document.tree import Node


def ends_of_block_scalars(root: Node, text: str) -> dict[int, bool]:
    """Return where block scalars end, and whether a ``+`` makes the blank lines behind them part of the value."""
    found: dict[int, bool] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if node.style in ("|", ">"):
            found[node.end] = "+" in text[node.start : node.start + 3]
        pending.extend(pair.value for pair in node.pairs)
        pending.extend(node.items)
    return found


def alias_targets(root: Node) -> set[int]:
    """Return the ids of nodes that an alias or a merge key refers to."""
    found: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node.target is not None:
            found.add(id(node.target))
        found.update(id(merged) for merged in node.merges if merged.anchor is not None)
        pending.extend(part for pair in node.pairs for part in (pair.key_node, pair.value))
        pending.extend(node.items)
    return found


def indentation_step(root: Node, text: str, lines: Lines) -> str:
    """Return one step of the indentation that the document uses."""
    pending = [root]
    while pending:
        node = pending.pop(0)
        if node.kind == "mapping" and not node.flow and node.pairs:
            outer = node.pairs[0].key_node
            for pair in node.pairs:
                inner = pair.value
                if inner.kind == "mapping" and not inner.flow and inner.pairs:
                    first = inner.pairs[0].key_node
                    width = len(indent_of(text, lines, first.start)) - len(indent_of(text, lines, outer.start))
                    if 0 < width <= 8:
                        return " " * width
            pending.extend(pair.value for pair in node.pairs)
    return "  "
