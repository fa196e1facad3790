"""Bytes of a config file to documents. Whatever is wrong with them is a problem with its place, never an exception."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import Any, Callable

from memlint.document.limits import MAX_BYTES
from memlint.document.model import Document, KeyPath, Span, SyntaxProblem
from memlint.document.positions import BOM, Lines, problem_at

_FORMATS = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".jsonc": "json",
    ".hjson": "json",
    ".toml": "toml",
}
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
"""Byte order marks; UTF-32 first, since its little-endian mark begins with that of UTF-16."""

_START = Span(1, 1, 1, 1)

Spans = dict[KeyPath, tuple[Span | None, Span]]


def read_bytes(path: str, *, limit: int = MAX_BYTES) -> bytes | SyntaxProblem:
    """Return the content of a regular file of at most ``limit`` bytes, or the problem that stands in the way.

    Never waits on a pipe or device, and never reads more than the bound, whatever the file's size is said to be.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return SyntaxProblem(message="not a regular file", span=_START)
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return SyntaxProblem(message=f"cannot be read: {reason[:1].lower()}{reason[1:]}", span=_START)
    return content if len(content) <= limit else _too_large(limit)


def load_file(path: str, *, name: str | None = None, format: str | None = None, hjson: bool = False) -> list[Document]:
    """Read and parse the file at ``path``, shown as ``name`` in messages; see :func:`load_documents`."""
    content = read_bytes(path)
    name = path if name is None else name
    if isinstance(content, SyntaxProblem):
        return [Document(path=name, text="", format=format or format_of(name), data=None, problems=(content,))]
    return load_documents(content, name, format=format, hjson=hjson)


def format_of(path: str, text: str = "") -> str:
    """Return yaml, json or toml by the name of a file, or by its first character where the name says nothing."""
    by_name = _FORMATS.get(os.path.splitext(path)[1].lower())
    if by_name is not None:
        return by_name
    return "json" if text.lstrip(BOM + " \t\r\n").startswith("{") else "yaml"


def load_documents(source: str | bytes, path: str, *, format: str | None = None, hjson: bool = False) -> list[Document]:
    """Parse a config and return its documents, at least one; several only from YAML with ``---``.

    ``format`` (yaml, json, toml) is taken from the name of the file unless given. ``hjson`` says that the framework
    which owns a JSON file reads Hjson (DeepSpeed), so that comments and trailing commas are doubtful, not fatal.

    A document with a fatal problem cannot be trusted, but holds what could be read all the same, so that the caller can
    tell whether it is a training config that is broken or a file that is none of memlint's business.
    """
    if len(source) > MAX_BYTES:
        shown = format or format_of(path)
        return [Document(path=path, text="", format=shown, data=None, problems=(_too_large(MAX_BYTES),))]
    text, problems = _decode(source) if isinstance(source, bytes) else (source, [])
    kind = format or format_of(path, text)
    if isinstance(source, str) and not source.isascii():
        try:
            source.encode()
        except UnicodeEncodeError as error:
            problem = problem_at(text, "half of a surrogate pair, which is no character", error.start)
            return [Document(path=path, text=text, format=kind, data=None, problems=(problem,))]
    results: list[tuple[Any, list[SyntaxProblem]]]
    if kind == "json":
        from memlint.document.json_reader import read_json

        results = [read_json(text, hjson=hjson)]
    elif kind == "toml":
        from memlint.document.toml_reader import read_toml

        results = [read_toml(text)]
    else:
        from memlint.document.yaml_reader import read_yaml

        results = read_yaml(text)
    newline = newline_of(text)
    return [
        Document(
            path=path,
            text=text,
            format=kind,
            data=data,
            problems=(*problems, *found),
            index=index,
            newline=newline,
            # No value: nothing to place, and an alias bomb or a cycle must not be walked.
            _locate=partial(_locate, kind, text, index) if data is not None else None,
        )
        for index, (data, found) in enumerate(results)
    ]


def newline_of(text: str) -> str:
    r"""Return the line end of the first line: ``\n``, ``\r\n`` or ``\r``; ``\n`` for a text of one line."""
    at = text.find("\n")
    if at > 0 and text[at - 1] == "\r":
        return "\r\n"
    return "\r" if at < 0 and "\r" in text else "\n"


def _too_large(limit: int) -> SyntaxProblem:
    message = f"larger than {limit >> 20} MiB, which no training config is; memlint does not read it"
    return SyntaxProblem(message=message, span=_START)


def _decode(raw: bytes) -> tuple[str, list[SyntaxProblem]]:
    """Return the text of a file, and what is wrong with its encoding: every framework opens its config as UTF-8."""
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            message = f"the file is encoded in {encoding.upper()}, which the frameworks do not read; save it as UTF-8"
            return raw.decode(encoding, "replace"), [SyntaxProblem(message=message, span=_START)]
    try:
        return raw.decode("utf-8"), []
    except UnicodeDecodeError as error:
        text = raw.decode("utf-8", "replace")
        start = len(raw[: error.start].decode("utf-8"))
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        return text, [problem_at(text, message, start)]


def _locate(kind: str, text: str, index: int) -> Spans:
    from memlint.document.tree import spans_of

    lines = Lines(text)
    root = tree_of(kind, text, index)
    if root is None:
        return {(): (None, lines.span(0, 0))}
    return spans_of(root, lines)


def tree_of(kind: str, text: str, index: int = 0) -> Any:
    """Return the :class:`~memlint.document.tree.Node` tree of a document, or None where the text has none."""
    read: Callable[[], Any]
    mistakes: tuple[type[Exception], ...]
    if kind == "json":
        from memlint.document.json_tree import JsonMistake, JsonTreeReader

        read, mistakes = JsonTreeReader(text).read, (JsonMistake,)
    elif kind == "toml":
        from memlint.document.toml_tree import TomlMistake, TomlTreeReader

        read, mistakes = TomlTreeReader(text).read, (TomlMistake, ValueError)
    else:
        import yaml

        from memlint.document.yaml_tree import TreeReader

        read, mistakes = TreeReader(text, index).read, (yaml.YAMLError, UnicodeError, KeyError)
    try:
        return read()
    except mistakes:
        return None
