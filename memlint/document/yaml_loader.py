"""PyYAML's safe loader with bounds: what composes the nodes, for values as well as for positions."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from memlint.document.limits import MAX_DEPTH, MAX_YAML_NODES

PREFIX = "tag:yaml.org,2002:"
STR, INT, MAP, SEQ = PREFIX + "str", PREFIX + "int", PREFIX + "map", PREFIX + "seq"
BOOL, NULL, MERGE, VALUE = PREFIX + "bool", PREFIX + "null", PREFIX + "merge", PREFIX + "value"

HAS_C_READER: bool = getattr(yaml, "CSafeLoader", None) is not None
_BASE: Any = yaml.CSafeLoader if HAS_C_READER else yaml.SafeLoader

_resolved: dict[str, str] = {}
"""Tags of short plain scalars already resolved: configs repeat their words, and the regular expressions cost most."""


class BoundExceeded(Exception):
    """The text holds more than the bounds allow; ``offset`` is where that was noticed."""

    def __init__(self, message: str, offset: int) -> None:
        """Say what is too much and where."""
        super().__init__(message)
        self.message = message
        self.offset = offset


class BoundedLoader(_BASE):  # type: ignore[misc]  # the base class depends on how PyYAML was built
    """PyYAML's safe loader; counts nodes and depth while it composes, and remembers mappings as they were written."""

    def __init__(self, text: str) -> None:
        """Prepare to read ``text``; raises yaml.YAMLError and UnicodeEncodeError on characters that YAML refuses."""
        super().__init__(text)
        self.nodes_read = 0
        self.depth = 0
        self.own_pairs: dict[int, list[tuple[Node, Node]]] = {}
        """Pairs of mappings with merge keys, by id of the node, before the merge was carried out."""

    def descend_resolver(self, current_node: Node | None, current_index: object) -> None:
        """Count one more node; the composer calls this before each."""
        self.nodes_read += 1
        self.depth += 1
        if self.depth > MAX_DEPTH or self.nodes_read > MAX_YAML_NODES:
            offset = current_node.start_mark.index if current_node is not None else 0
            raise BoundExceeded(too_deep() if self.depth > MAX_DEPTH else too_many(), offset)

    def ascend_resolver(self) -> None:
        """Leave a node."""
        self.depth -= 1

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        """Return the tag of an untagged node as ``Resolver.resolve`` does."""
        if kind is not ScalarNode:
            return MAP if kind is MappingNode else SEQ
        if not implicit[0]:
            return STR if value or implicit[1] else NULL  # a lone `!`: libyaml makes it a text, safe_load null
        tag = _resolved.get(value)
        if tag is None:
            tag = str(super().resolve(kind, value, implicit))
            if len(value) <= 32 and len(_resolved) < 8192:
                _resolved[value] = tag
        return tag

    def flatten_mapping(self, node: MappingNode) -> None:
        """Carry out merge keys in place, as PyYAML does, but keep what the mapping itself says."""
        self.own_pairs.setdefault(id(node), list(node.value))
        super().flatten_mapping(node)


def too_deep() -> str:
    """Return the message for nesting beyond the bound."""
    return f"nested more than {MAX_DEPTH} levels deep; memlint does not read such a file"


def too_many() -> str:
    """Return the message for more values than the bound."""
    return f"more than {MAX_YAML_NODES:,} keys and values, aliases expanded; memlint does not read such a file"


def check_aliases(node: Node, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return values and levels of ``node`` with every alias expanded; raise where that passes a bound or never ends.

    An alias stands behind its anchor, so in document order its target is measured already, or still open: a cycle. The
    recursion is as deep as the text is nested, which the composer has bounded.
    """
    if isinstance(node, ScalarNode):
        return 1, 1
    key = id(node)
    known = sizes.get(key)
    if known is not None:
        if known[0] == 0:
            message = "this anchor contains an alias to itself, which has no end"
            raise BoundExceeded(message, node.start_mark.index)
        return known
    sizes[key] = (0, 0)
    size, levels = 1, 1
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            part_size, part_levels = check_aliases(part, sizes)
            size += part_size
            levels = max(levels, part_levels + 1)
            if size > MAX_YAML_NODES or levels > MAX_DEPTH:
                message = too_many() if size > MAX_YAML_NODES else too_deep()
                raise BoundExceeded(message, part.start_mark.index)
    sizes[key] = (size, levels)
    return size, levels
