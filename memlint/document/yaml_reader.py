"""YAML text to plain values: what ``yaml.safe_load`` gives, with what is wrong as problems instead of exceptions.

Imported only when a YAML file is read, since importing PyYAML takes longer than reading a config. The nodes come from
PyYAML's composer (libyaml where the wheel has it). The values are built here rather than by PyYAML's constructor,
which drops duplicate keys in silence and stops at the first bad value; whatever is not plain (numbers, dates, merge
keys, sets) is still left to its methods, so that the values stay those of the installed release.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from memlint.document.limits import (
    MAX_DOCUMENTS,
    MAX_NUMBER_LENGTH,
    MAX_PLAIN_YAML_BYTES,
    MAX_PROBLEMS,
    MAX_TAG_DIRECTIVES,
)
from memlint.document.model import SyntaxProblem
from memlint.document.positions import BOM, Lines, excerpt, problem_at
from memlint.document.yaml_loader import (
    BOOL,
    HAS_C_READER,
    INT,
    MAP,
    MERGE,
    NULL,
    PREFIX,
    SEQ,
    STR,
    VALUE,
    BoundedLoader,
    BoundExceeded,
    check_aliases,
)
from memlint.document.yaml_strict import refused_place


class _Builder:
    """Builds the values of one document; bad places become problems and the best value that can be given there."""

    def __init__(self, loader: BoundedLoader, text: str, base: int) -> None:
        self.loader = loader
        self.text = text
        self.base = base
        self.problems: list[SyntaxProblem] = []
        self.built: dict[int, Any] = {}
        self.lines: Lines | None = None

    def report(self, message: str, node: Node, *, fatal: bool = True) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            start = node.start_mark.index + self.base
            end = node.end_mark.index + self.base if isinstance(node, ScalarNode) else start + 1
            if self.lines is None:
                self.lines = Lines(self.text)
            self.problems.append(SyntaxProblem(message=message, span=self.lines.span(start, end), fatal=fatal))

    def build(self, node: Node) -> Any:
        tag = node.tag
        if node.__class__ is ScalarNode:
            return node.value if tag == STR else self.scalar(node)
        key = id(node)
        if key in self.built:
            return self.built[key]
        value: Any
        if tag == MAP and node.__class__ is MappingNode:
            value = self.mapping(node)
        elif tag == SEQ and node.__class__ is SequenceNode:
            value = [self.build(item) for item in node.value]
        else:
            value = self.tagged(node)
        self.built[key] = value
        return value

    def scalar(self, node: ScalarNode) -> Any:
        tag, value = node.tag, node.value
        if tag == INT and value.isdecimal() and value[0] != "0" and len(value) < MAX_NUMBER_LENGTH:
            return int(value)
        if tag == NULL:
            return None
        if tag == BOOL and value.lower() in SafeConstructor.bool_values:
            return SafeConstructor.bool_values[value.lower()]
        if len(value) > MAX_NUMBER_LENGTH and tag != PREFIX + "binary":
            limit = f"the longest that is read has {MAX_NUMBER_LENGTH:,}"
            self.report(f"a number of {len(value):,} characters; {limit}", node)
            return value
        return self.tagged(node)

    def tagged(self, node: Node) -> Any:
        """Leave a value to PyYAML's own constructor; what that refuses is reported and given as if it had no tag."""
        if node.tag in SafeConstructor.yaml_constructors:
            try:
                return self.loader.construct_object(node, deep=True)
            except Exception as error:  # besides its own, PyYAML lets ValueError, KeyError, AttributeError through
                self.report(_refusal(node, error), node)
        elif node.tag in (MERGE, VALUE):
            self.report(f"`{node.value}` is not plain text in YAML 1.1; quote it", node)
        else:
            name = excerpt(node.tag.replace(PREFIX, "!!"))
            self.report(f"the tag `{name}` is not plain YAML: it is not executed, and a safe loader refuses it", node)
        if node.__class__ is MappingNode:
            return self.mapping(node)
        if node.__class__ is SequenceNode:
            return [self.build(item) for item in node.value]
        return node.value

    def mapping(self, node: MappingNode) -> dict[Any, Any]:
        pairs: list[tuple[Node, Node]] = node.value
        if any(key_node.tag == MERGE for key_node, _ in pairs):
            try:
                self.loader.flatten_mapping(node)
            except yaml.constructor.ConstructorError as error:
                self.report(_sentence(error), node)
            pairs = [pair for pair in node.value if pair[0].tag != MERGE]
        result: dict[Any, Any] = {}
        for key_node, value_node in pairs:
            if key_node.__class__ is ScalarNode:
                key = key_node.value if key_node.tag in (STR, VALUE) else self.scalar(key_node)
            else:
                key = self.build(key_node)
            try:
                result[key] = self.build(value_node)
            except TypeError:
                hint = "; a template such as `{{ name }}` must be quoted" if key_node.__class__ is MappingNode else ""
                self.report(f"a list or mapping cannot be a key{hint}", key_node)
        own = self.loader.own_pairs.get(id(node), pairs)
        if own is not pairs or len(result) != len(pairs):
            self.duplicates(own)
        return result

    def duplicates(self, pairs: list[tuple[Node, Node]]) -> None:
        first: dict[Any, Node] = {}
        for key_node, _ in pairs:
            if key_node.__class__ is not ScalarNode or key_node.tag == MERGE:
                continue
            key = key_node.value if key_node.tag in (STR, VALUE) else self.built_key(key_node)
            if key in first:
                line = first[key].start_mark.line + 1
                message = f"`{excerpt(str(key))}` is given twice, first on line {line}; the last one wins"
                self.report(message, key_node, fatal=False)
            else:
                first[key] = key_node

    def built_key(self, node: ScalarNode) -> Any:
        known = len(self.problems)
        key = self.scalar(node)
        del self.problems[known:]  # already reported when the mapping was built
        return key


def _refusal(node: Node, error: Exception) -> str:
    if isinstance(error, yaml.YAMLError):
        return _sentence(error)
    name = node.tag.replace(PREFIX, "")
    shown = f"`{excerpt(node.value)}`" if isinstance(node, ScalarNode) else "this"
    reason = excerpt(str(error), 80) if isinstance(error, ValueError) else "PyYAML stops here"
    return f"{shown} cannot be read as {name}: {reason}"


def _sentence(error: yaml.YAMLError) -> str:
    """Return PyYAML's complaint as one line without its places, which the problem's span gives."""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not valid YAML"
    context = getattr(error, "context", None)
    return excerpt(f"{problem}, {context}" if context else str(problem), 160)


def read_yaml(text: str) -> list[tuple[Any, list[SyntaxProblem]]]:
    """Return values and problems of every document in the text; at least one document, an empty one as None.

    A document that cannot be read at all ends the list, with what stands before the mistake as its value where that is
    readable, so that the caller can still tell what kind of file it is.
    """
    base = 1 if text.startswith(BOM) else 0
    if not HAS_C_READER and len(text) > MAX_PLAIN_YAML_BYTES:
        message = f"larger than {MAX_PLAIN_YAML_BYTES >> 10} KiB, and PyYAML was installed without its C reader"
        return [(None, [problem_at(text, message, 0)])]
    if text.count("%TAG") > MAX_TAG_DIRECTIVES:
        message = f"more than {MAX_TAG_DIRECTIVES} %TAG directives; memlint does not read such a file"
        return [(None, [problem_at(text, message, text.find("%TAG"))])]
    documents: list[tuple[Any, list[SyntaxProblem]]] = []
    try:
        loader = BoundedLoader(text[base:])
    except (yaml.YAMLError, UnicodeError) as error:
        return [(None, [_as_problem(text, error, base)])]
    roots: list[Node] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if len(documents) == MAX_DOCUMENTS:
                raise BoundExceeded(f"more than {MAX_DOCUMENTS} documents in one file", node.start_mark.index)
            if "*" in text:
                check_aliases(node, {})
            builder = _Builder(loader, text, base)
            documents.append((builder.build(node), builder.problems))
            roots.append(node)
    except (yaml.YAMLError, UnicodeError, BoundExceeded) as error:
        problem = _as_problem(text, error, base)
        known = len(documents)
        partial = None if isinstance(error, BoundExceeded) else _before_mistake(text, problem, known)
        return [*documents, (partial, [problem])]
    finally:
        loader.dispose()
    refused = refused_place(text, roots, base)
    if refused is not None:
        message, offset = refused
        holder = sum(root.start_mark.index + base <= offset for root in roots) - 1
        documents = documents or [(None, [])]
        documents[max(holder, 0)][1].append(problem_at(text, message, offset))
    return documents or [(None, [])]


def _as_problem(text: str, error: Exception, base: int) -> SyntaxProblem:
    if isinstance(error, BoundExceeded):
        return problem_at(text, error.message, error.offset + base)
    if isinstance(error, UnicodeEncodeError):
        return problem_at(text, "half of a surrogate pair, which is no character", error.start + base)
    if isinstance(error, yaml.reader.ReaderError):
        # Its position counts bytes with libyaml and characters without; search the character instead.
        found = yaml.reader.Reader.NON_PRINTABLE.search(text)
        code = f"U+{ord(found.group()):04X} " if found else ""
        return problem_at(text, f"the control character {code}is not allowed in YAML", found.start() if found else 0)
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if context is not None and (mark is None or mark.index + base >= len(text.rstrip())):
        mark = context  # not where the text ends, but where what never ends begins
    message = _sentence(error) if isinstance(error, yaml.YAMLError) else "not valid YAML"
    offset = min(mark.index + base, max(len(text) - 1, 0)) if mark is not None else 0
    if "\t" in text[offset : offset + 1] or "\\t" in message or "tab" in message:
        message += "; YAML indents with spaces only"
    return problem_at(text, message, offset)


def _before_mistake(text: str, problem: SyntaxProblem, index: int) -> Any:
    """Return the value of the top-level keys that end before the mistake, or None."""
    starts = Lines(text).starts
    for line_start in reversed(starts[1 : problem.span.line]):
        if text[line_start : line_start + 1] not in ("", *" \t-#\r\n}]"):
            loader = BoundedLoader(text[:line_start].lstrip(BOM))
            try:
                for _ in range(index):
                    if loader.check_node():
                        loader.get_node()
                node = loader.get_node() if loader.check_node() else None
                if node is None or loader.check_node():
                    return None
                check_aliases(node, {})
                return _Builder(loader, text, 0).build(node)
            except (yaml.YAMLError, UnicodeError, BoundExceeded):
                return None
            finally:
                loader.dispose()
    return None
