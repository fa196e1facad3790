"""Whatever a file holds, reading it ends soon, in bounded memory, in problems; nothing is raised."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import hostile_texts as hostile
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memlint.document.comments import find_pragmas
from memlint.document.edit import apply_edits
from memlint.document.load import load_documents
from memlint.document.model import Document
from memlint.errors import UserError
from memlint.findings import KeyEdit

COUNTS = 60
"""How many counts to a million one file may take of processor time: machines differ and change, ratios hardly do."""


def a_count() -> float:
    """Processor time in seconds of counting to a million, as slow as this machine is now."""
    started = time.process_time()
    for _ in range(1_000_000):
        pass
    return time.process_time() - started


NASTIES = [
    *(("hostile.yaml", name, text) for name, text in hostile.YAML_NASTIES.items()),
    *(("hostile.json", name, text) for name, text in hostile.JSON_NASTIES.items()),
    *(("hostile.toml", name, text) for name, text in hostile.TOML_NASTIES.items()),
]


@pytest.fixture(autouse=True)
def only_its_own_garbage() -> Iterator[None]:
    """Keep the collector from going through the rest of the suite's objects, torch's included, at each file's cost."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def look_at(documents: list[Document]) -> None:
    """Do everything that may be done with a file: values, positions, comments, printing."""
    assert documents
    for document in documents:
        spans = document.spans()
        assert len(spans) <= 70_000
        lines = document.text.count("\n") + document.text.count("\r") + 1
        for problem in document.problems:
            assert 1 <= problem.span.line <= problem.span.end_line <= lines
            assert problem.span.column >= 1
            assert len(problem.message) < 250
            assert "\n" not in problem.message
            problem.message.encode()
        json.dumps(document.data, default=str, skipkeys=True).encode()
        find_pragmas(document.text, document.format)


@pytest.mark.parametrize(("path", "name", "text"), NASTIES, ids=[f"{path[8:]}: {name}" for path, name, _ in NASTIES])
def test_a_hostile_file_ends_soon(path: str, name: str, text: str) -> None:
    started = time.process_time()
    documents = load_documents(text, path)
    took = time.process_time() - started
    assert took < COUNTS * a_count()
    assert len(documents) <= 201
    look_at(documents)


@pytest.mark.parametrize("path", ["hostile.yaml", "hostile.json", "hostile.toml"])
def test_memory_is_bounded(path: str) -> None:
    """All hostile files of a format in one process stay below 500 MB, interpreter included.

    VmHWM starts anew with exec; ru_maxrss keeps what the forking process, torch and all, once had (getrusage(2)).
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    code = (
        "from memlint.document.load import load_documents\n"
        "import hostile_texts as hostile\n"
        f"texts = hostile.{path[8:].upper()}_NASTIES.values()\n"
        "for text in texts:\n"
        f"    for document in load_documents(text, {path!r}):\n"
        "        document.spans()\n"
        "status = open('/proc/self/status').read()\n"
        "print(int(status.split('VmHWM:')[1].split()[0]) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) < 500


def fragments(pieces: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(pieces), min_size=1, max_size=16).map("".join)


FUZZ = settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@FUZZ
@given(st.one_of(fragments(hostile.YAML_FRAGMENTS), fragments(hostile.YAML_FRAGMENTS).map("a: ".__add__), st.text()))
def test_any_yaml(text: str) -> None:
    look_at(load_documents(text, "fuzz.yaml"))


@FUZZ
@given(st.one_of(fragments(hostile.JSON_FRAGMENTS), fragments(hostile.JSON_FRAGMENTS).map('{"a": '.__add__), st.text()))
def test_any_json(text: str) -> None:
    look_at(load_documents(text, "fuzz.json"))


@FUZZ
@given(st.one_of(fragments(hostile.TOML_FRAGMENTS), fragments(hostile.TOML_FRAGMENTS).map("a = ".__add__), st.text()))
def test_any_toml(text: str) -> None:
    look_at(load_documents(text, "fuzz.toml"))


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["fuzz.yaml", "fuzz.json", "fuzz.toml", "fuzz"]))
def test_any_bytes(raw: bytes, path: str) -> None:
    look_at(load_documents(raw, path))


@FUZZ
@given(st.one_of(fragments(hostile.YAML_FRAGMENTS), fragments(hostile.YAML_FRAGMENTS).map("a: ".__add__)))
def test_yaml_without_fatal_problems_has_the_values_of_safe_load(text: str) -> None:
    documents = load_documents(text, "fuzz.yaml")
    if any(problem.fatal for document in documents for problem in document.problems):
        return
    try:
        expected = list(yaml.safe_load_all(text)) or [None]
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError):
        return  # libyaml is a little more lenient; what it accepts is judged by test_document_load.py
    assert repr([document.data for document in documents]) == repr(expected)


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


@FUZZ
@given(JSON_VALUES, st.sampled_from([None, 2]))
def test_json_values_are_those_of_the_standard_library(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    (document,) = load_documents(text, "fuzz.json")
    assert repr(document.data) == repr(json.loads(text)) or any(problem.fatal for problem in document.problems)


@FUZZ
@given(JSON_VALUES, st.sampled_from([None, 2]))
def test_every_json_value_is_where_its_span_says(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    (document,) = load_documents(text, "fuzz.json")
    if any(problem.fatal for problem in document.problems) or document.data is None:
        return
    lines = text.split("\n")
    for path, (_, span) in document.spans().items():
        part = lines[span.line - 1 : span.end_line]
        part[-1] = part[-1][: span.end_column - 1]
        part[0] = part[0][span.column - 1 :]
        expected = document.data
        for step in path:
            expected = expected[step]
        assert repr(json.loads("\n".join(part))) == repr(expected)


STEPS = st.one_of(st.sampled_from(["a", "b", "c", "x", ""]), st.integers(0, 3))
EDITS = st.builds(
    KeyEdit,
    path=st.lists(STEPS, max_size=4).map(tuple),
    value=st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=8), st.just({"k": [1, {}]}), st.just([])),
    delete=st.booleans(),
)


@FUZZ
@given(
    st.one_of(
        st.tuples(st.just("fuzz.yaml"), fragments(hostile.YAML_FRAGMENTS).map("a: ".__add__)),
        st.tuples(st.just("fuzz.yaml"), fragments([*hostile.YAML_FRAGMENTS[:20], "a: 1\n", "b:\n  c: 2\n", "- x\n"])),
        st.tuples(st.just("fuzz.json"), fragments(hostile.JSON_FRAGMENTS).map('{"a": '.__add__)),
        st.tuples(st.just("fuzz.toml"), fragments(hostile.TOML_FRAGMENTS[-14:])),
    ),
    EDITS,
)
def test_an_edit_of_any_text_succeeds_or_is_refused(source: tuple[str, str], change: KeyEdit) -> None:
    path, text = source
    for document in load_documents(text, path, hjson=True):
        try:
            changed = apply_edits(document, [change])
        except UserError:
            continue
        assert not any(
            problem.fatal
            for after in load_documents(changed, path, hjson=True)[document.index : document.index + 1]
            for problem in after.problems
        )
