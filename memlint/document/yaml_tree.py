"""YAML text to a tree of nodes with offsets, for positions and edits: a second reading, only when one is asked for."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from yaml.nodes import ScalarNode

from memlint.document.limits import MAX_NUMBER_LENGTH
from memlint.document.positions import BOM
from memlint.document.tree import Node, Pair
from memlint.document.yaml_loader import MERGE, STR, VALUE, BoundedLoader


class TreeReader:
    """Reads the events of one document of a YAML text that :mod:`yaml_reader` has found readable and bounded."""

    def __init__(self, text: str, index: int = 0) -> None:
        """Prepare to read document ``index`` of ``text``."""
        self.text = text
        self.index = index
        self.base = 1 if text.startswith(BOM) else 0
        self.anchors: dict[str, Node] = {}

    def read(self) -> Node:
        """Return the root of document ``index``; raises yaml.YAMLError on text that is not YAML."""
        loader = BoundedLoader(self.text[self.base :])
        try:
            seen = -1
            while True:
                event = loader.get_event()
                if isinstance(event, DocumentStartEvent):
                    seen += 1
                    if seen == self.index:
                        return self._node(loader, loader.get_event(), flow=False)
                elif event is None or isinstance(event, StreamEndEvent):
                    return Node(kind="scalar", start=len(self.text), end=len(self.text))
        finally:
            loader.dispose()

    def _node(self, loader: BoundedLoader, event: Any, *, flow: bool) -> Node:
        start, end = event.start_mark.index + self.base, event.end_mark.index + self.base
        if isinstance(event, AliasEvent):
            return Node(kind="alias", start=start, end=end, flow=flow, target=self.anchors[str(event.anchor)])
        node: Node
        if isinstance(event, ScalarEvent):
            node = self._scalar(event, start, end, flow)
        elif isinstance(event, SequenceStartEvent):
            node = Node(kind="sequence", start=start, end=end, flow=bool(event.flow_style), tag=event.tag)
        else:
            node = Node(kind="mapping", start=start, end=end, flow=bool(event.flow_style), tag=event.tag)
        if isinstance(event, NodeEvent) and event.anchor is not None:
            node.anchor = event.anchor
            self.anchors[event.anchor] = node
        if isinstance(event, SequenceStartEvent):
            self._sequence(loader, node)
        elif isinstance(event, MappingStartEvent):
            self._mapping(loader, node)
        return node

    def _scalar(self, event: Any, start: int, end: int, flow: bool) -> Node:
        style = event.style or ""
        if style in ("|", ">"):  # libyaml's end mark is behind the blank lines that follow
            end = start + len(self.text[start:end].rstrip())
        return Node(kind="scalar", start=start, end=end, style=style, flow=flow, tag=event.tag, value=event.value)

    def _sequence(self, loader: BoundedLoader, node: Node) -> None:
        while not isinstance(event := loader.get_event(), SequenceEndEvent):
            node.items.append(self._node(loader, event, flow=node.flow))
        self._close(node, event, node.items[-1] if node.items else None)

    def _mapping(self, loader: BoundedLoader, node: Node) -> None:
        last: Node | None = None
        while not isinstance(event := loader.get_event(), MappingEndEvent):
            key_node = self._node(loader, event, flow=node.flow)
            last = self._node(loader, loader.get_event(), flow=node.flow)
            inner = key_node.resolved()
            if inner.kind != "scalar":
                continue
            tag = inner.tag
            if tag is None or tag == "!":
                tag = loader.resolve(ScalarNode, inner.value, (inner.style == "" and tag is None, True))
            if tag == MERGE:
                node.merges.extend(self._merged(last))
            else:
                key = inner.value if tag == STR else self._key(loader, inner.value, tag)
                node.pairs.append(Pair(key=key, key_node=key_node, value=last))
        self._close(node, event, last)

    def _key(self, loader: BoundedLoader, text: str, tag: str) -> Any:
        """Return the value of a scalar that is a key; one that is no valid number or date stands as its text."""
        if tag == VALUE or tag not in SafeConstructor.yaml_constructors or len(text) > MAX_NUMBER_LENGTH:
            return text
        try:
            return loader.construct_object(ScalarNode(tag, text), deep=True)
        except Exception:  # a bad value: reported when the document was loaded
            return text

    def _merged(self, value: Node) -> list[Node]:
        """Return the mappings that a ``<<`` key merges in, in the order in which a later one overrides an earlier."""
        source = value.resolved()
        found = [item.resolved() for item in source.items] if source.kind == "sequence" else [source]
        return found[::-1] if len(found) > 1 and _first_merge_wins() else found

    def _close(self, node: Node, event: Any, last: Node | None) -> None:
        """Set the end: of a block collection that of its last value, since its own end mark is at the next token."""
        end = event.end_mark.index + self.base
        if node.flow:
            node.end = end
        else:
            node.end = max(last.end if last is not None else node.start, node.start)


def _first_merge_wins() -> bool:
    """Whether the installed PyYAML lets the first of several merged mappings win; 6.0.4 changed that."""
    return bool(yaml.safe_load("{<<: [{key: 1}, {key: 2}]}") == {"key": 1})
