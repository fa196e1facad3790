"""Real configs: the same values as the plain loaders, every position right, edits that touch nothing else."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, Iterator

import pytest
import yaml

from memlint.document.edit import apply_edits, same
from memlint.document.load import load_documents, load_file
from memlint.document.model import Document, KeyPath
from memlint.document.positions import Lines
from memlint.document.toml_reader import parse_toml
from memlint.errors import UserError
from memlint.findings import KeyEdit

CORPUS = Path(__file__).parents[2] / ".." / "shared" / "corpus"
FILES = sorted(
    path for path in CORPUS.rglob("*.*") if path.is_file() and path.suffix in (".yaml", ".yml", ".json", ".toml")
)

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not FILES, reason="the corpus of real configs is not beside this checkout"),
]

SLICES = range(8)
"""The files in eight parts, so that a failure names few and parallel runs share the work."""


EDITS = 4
"""Edits tried on each file."""


def documents_of(part: int) -> Iterator[Document]:
    for path in FILES[part :: len(SLICES)]:
        for document in load_file(str(path), name=str(path.relative_to(CORPUS))):
            if not any(problem.fatal for problem in document.problems):
                yield document


def paths_of(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths_of(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths_of(item, (*path, index))


def value_at(data: Any, path: KeyPath) -> Any:
    for step in path:
        data = data[step]
    return data


@pytest.mark.parametrize("part", SLICES)
def test_values_are_those_of_the_plain_loader(part: int) -> None:
    for path in FILES[part :: len(SLICES)]:
        text = path.read_bytes().decode()
        documents = load_documents(text, path.name)
        fatal = any(problem.fatal for document in documents for problem in document.problems)
        try:
            if path.suffix == ".json":
                expected = [json.loads(text)]
            elif path.suffix == ".toml":
                expected = [parse_toml(text)]
            else:
                expected = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))) or [None]
        except (yaml.YAMLError, ValueError):
            assert fatal, path
        else:
            assert not fatal, path
            assert repr([document.data for document in documents]) == repr(expected), path


@cache
def read_plain(text: str) -> Any:
    return yaml.safe_load(text)


@pytest.mark.parametrize("part", SLICES)
def test_every_value_is_where_its_span_says(part: int) -> None:
    for document in documents_of(part):
        spans = document.spans()
        assert set(spans) == set(paths_of(document.data)), document.path
        lines = document.text.split("\n")
        for path, (key, value) in spans.items():
            expected = value_at(document.data, path)
            if document.format != "toml" and key is not None and key.line == key.end_line:
                text = lines[key.line - 1][key.column - 1 : key.end_column - 1]
                assert read_plain(text) == path[-1], (document.path, path)
            if document.format != "toml" and not isinstance(expected, (dict, list)) and value.line == value.end_line:
                text = lines[value.line - 1][value.column - 1 : value.end_column - 1]
                read = read_plain(text) if document.format == "yaml" and text[:1] != "*" else None
                assert read is None or repr(read) == repr(expected), (document.path, path)


def changes(document: Document, random_source: random.Random) -> Iterator[KeyEdit]:
    data = document.mapping
    scalars = [key for key, value in data.items() if isinstance(key, str) and not isinstance(value, (dict, list))]
    new_values = [True, 4, 2.5e-5, "bf16", "two words: x", "2e-5", [1, "a"], {"a": {"b": 1}}]
    for key in random_source.sample(scalars, min(2, len(scalars))):
        yield KeyEdit(path=(key,), value=random_source.choice(new_values))
        yield KeyEdit(path=(key,), delete=True)
    yield KeyEdit(path=("memlint_probe",), value=7)
    yield KeyEdit(path=("memlint_probe", "inner"), value="two words")
    nested = [path for path in paths_of(data) if len(path) > 1]
    if nested:
        path = random_source.choice(nested)
        yield KeyEdit(path=path, value=random_source.choice(new_values))
        yield KeyEdit(path=path, delete=True)
        if isinstance(path[-1], str):
            yield KeyEdit(path=(*path[:-1], "memlint_probe"), value=False)


def expect(document: Document, change: KeyEdit) -> Any:
    data = load_documents(document.text, document.path)[document.index].data
    data = {} if data is None else data
    target = data
    for step in change.path[:-1]:
        if step == "memlint_probe":
            target[step] = {}
        target = target[step]
    if change.delete:
        del target[change.path[-1]]
    else:
        target[change.path[-1]] = change.value
    return data


@pytest.mark.parametrize("part", SLICES)
def test_edits_change_what_they_name_and_no_other_line(part: int) -> None:
    random_source = random.Random(part)
    done = refused = 0
    for document in documents_of(part):
        possible = list(changes(document, random_source))
        for change in random_source.sample(possible, min(EDITS, len(possible))):
            try:
                text = apply_edits(document, [change])
            except UserError:
                refused += 1
                continue
            done += 1
            after = load_documents(text, document.path)[document.index]
            assert same(after.data, expect(document, change)), (document.path, change)
            assert text.count("\r") >= document.text.count("\r") - 1
            emptied = document.format != "toml" and change.delete and not value_at(after.data, change.path[:-1])
            untouched(document, change.path[:-1] if emptied else change.path, text)
    assert done > 500
    assert refused < 0.05 * done


def untouched(document: Document, path: KeyPath, text: str) -> None:
    """Everything outside the lines of the changed value is there, byte by byte; where a key is added, everything is."""
    before = document.text
    head, tail = shared_head(before, text), shared_head(before[::-1], text[::-1])
    span = document.spans().get(path)
    if span is None:
        removed, added = before[head : len(before) - tail], text[head : len(text) - tail]
        assert removed.strip() in added, (document.path, path, removed)
        return
    starts = Lines(before).starts
    first = starts[(span[0] or span[1]).line - 1]
    last = starts[span[1].end_line] if span[1].end_line < len(starts) else len(before)
    # A last item in brackets takes the comma before it along; a first key behind a dash leaves its place to the next.
    assert head >= len(before[:first].rstrip(", \t\r\n")), (document.path, path)
    assert tail >= len(before[last:].lstrip(" \t\r\n")), (document.path, path)


def shared_head(left: str, right: str) -> int:
    """Return how many characters two texts begin with in common."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle - 1)
    return low


def test_reading_yaml_costs_no_more_than_the_bare_loader() -> None:
    loader = getattr(yaml, "CSafeLoader", None)
    if loader is None or sys.gettrace() is not None:
        pytest.skip("needs PyYAML's C loader, and no tracer")
    texts = [path.read_bytes().decode() for path in FILES if path.suffix in (".yaml", ".yml")][::6]

    def bare(text: str) -> None:
        try:
            list(yaml.load_all(text, Loader=loader))
        except yaml.YAMLError:
            return

    def seconds(read: Any) -> float:
        started = time.process_time()
        for text in texts:
            read(text)
        return time.process_time() - started

    ratio = min(seconds(lambda text: load_documents(text, "x.yaml")) / seconds(bare) for _ in range(4))
    assert ratio < float(os.environ.get("MEMLINT_LOAD_RATIO", "1.3"))
