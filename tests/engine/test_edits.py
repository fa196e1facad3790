"""Edits are tried on copies, and shown as the user would write them."""

from __future__ import annotations

import pytest

from memlint.document.load import load_documents
from memlint.engine.trials import edits_text, value_text, with_edit
from memlint.findings import KeyEdit


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (KeyEdit(path=("a",), value=2), {"a": 2, "b": {"c": [1, 2]}}),
        (KeyEdit(path=("b", "d"), value=True), {"a": 1, "b": {"c": [1, 2], "d": True}}),
        (KeyEdit(path=("b", "c", 1), value=5), {"a": 1, "b": {"c": [1, 5]}}),
        (KeyEdit(path=("b", "c", 2), value=5), {"a": 1, "b": {"c": [1, 2, 5]}}),
        (KeyEdit(path=("x", "y"), value=5), {"a": 1, "b": {"c": [1, 2]}, "x": {"y": 5}}),
        (KeyEdit(path=("a",), delete=True), {"b": {"c": [1, 2]}}),
        (KeyEdit(path=("b", "c", 0), delete=True), {"a": 1, "b": {"c": [2]}}),
        (KeyEdit(path=("absent",), delete=True), {"a": 1, "b": {"c": [1, 2]}}),
        (KeyEdit(path=("a", "z"), value=1), {"a": {"z": 1}, "b": {"c": [1, 2]}}),
    ],
)
def test_an_edit_changes_a_copy_only(edit, expected):
    data = {"a": 1, "b": {"c": [1, 2]}}
    assert with_edit(data, edit) == expected
    assert data == {"a": 1, "b": {"c": [1, 2]}}


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (True, "yaml", "true"),
        (None, "json", "null"),
        ("full", "yaml", "full"),
        ("full", "json", '"full"'),
        ({"use_reentrant": False}, "yaml", "{use_reentrant: false}"),
        ({"use_reentrant": False}, "json", '{"use_reentrant": false}'),
        (["a", 1], "yaml", "[a, 1]"),
        (2, "json", "2"),
        (2.5, "yaml", "2.5"),
    ],
)
def test_values_stand_as_in_a_file(value, kind, expected):
    assert value_text(value, kind) == expected


def test_edits_are_written_in_the_files_own_syntax():
    edits = (
        KeyEdit(path=("gradient_checkpointing",), value=True),
        KeyEdit(path=("zero_optimization", "stage"), value=3, file="ds.json"),
        KeyEdit(path=("old",), delete=True),
    )
    yaml = load_documents("a: 1\n", "a.yaml")[0]
    expected = '`gradient_checkpointing: true`, `"zero_optimization.stage": 3` in ds.json and no `old`'
    assert edits_text(edits, yaml) == expected
    assert edits_text(edits[:2], yaml) == (
        '`gradient_checkpointing: true` with `"zero_optimization.stage": 3` in ds.json'
    )
    json = load_documents("{}", "a.json")[0]
    assert edits_text(edits[:1], json) == '`"gradient_checkpointing": true`'


@pytest.mark.parametrize("kind", ["yaml", "json", "toml"])
def test_the_words_of_a_remedy_are_of_the_file_s_own_syntax(kind):
    """What a help line shows is copied into the file by hand."""
    value = {"weights": "bf16", "every": 2, "save": ["mm", "attention"], "nested": {"reentrant": False}}
    shown = value_text(value, kind)
    text = {"yaml": f"a: {shown}\n", "json": f'{{"a": {shown}}}\n', "toml": f"a = {shown}\n"}[kind]
    (document,) = load_documents(text, f"x.{kind}")
    assert document.data == {"a": value}
