"""Edits on key paths change what they name and leave every other byte alone, or refuse."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.document.edit import apply_edits
from memlint.document.load import load_documents
from memlint.errors import UserError
from memlint.findings import KeyEdit


def edit(text: str, *edits: KeyEdit, path: str = "train.yaml", index: int = 0, hjson: bool = False) -> str:
    return apply_edits(load_documents(text, path, hjson=hjson)[index], edits)


def put(*path: str | int, value: Any) -> KeyEdit:
    return KeyEdit(path=path, value=value)


def drop(*path: str | int) -> KeyEdit:
    return KeyEdit(path=path, delete=True)


def test_several_edits_at_once() -> None:
    before = "# head\r\na: 1  # one\r\nb:\r\n    c: 'x'\r\n    d: [1, 2]   # two\r\n\r\n# tail\r\n"
    after = edit(
        before,
        put("a", value=2),
        put("b", "c", value="y"),
        put("b", "e", value=False),
        put("new", "inner", value={"k": [1, "two words"]}),
        drop("b", "d"),
    )
    assert after == (
        "# head\r\na: 2  # one\r\nb:\r\n    c: 'y'\r\n    e: false\r\n"
        "new:\r\n    inner:\r\n        k: [1, two words]\r\n\r\n# tail\r\n"
    )


YAML = [
    ("a: 1", put("b", value=2), "a: 1\nb: 2"),
    ("a: 1\n", put("a", value=1), "a: 1\n"),
    ("# only\n", put("a", value=9), "# only\na: 9\n"),
    ("", put("a", "b", value=9), "a:\n  b: 9\n"),
    ("\ufeffa: 1\nb: 2\n", drop("a"), "\ufeffb: 2\n"),
    ("a: &x 1\nb: 2 # t\n", put("b", value="x: y"), "a: &x 1\nb: 'x: y' # t\n"),
    # Values that YAML 1.1 would misread are quoted, and floats stay floats.
    ("a: x\n", put("a", value="no"), "a: 'no'\n"),
    ("a: x\n", put("a", value="1:30"), "a: '1:30'\n"),
    ("a: x\n", put("a", value="two\nlines"), 'a: "two\\nlines"\n'),
    ("a: x\n", put("a", value=2e-5), "a: 2.0e-05\n"),
    ("a: x\n", put("a", value="2e-5"), "a: 2e-5\n"),
    ("a: x\n", put("a", value=float("inf")), "a: .inf\n"),
    ("a: x\n", put("a", value=None), "a: null\n"),
    ('a: "x"\n', put("a", value="y"), 'a: "y"\n'),
    ("a: True\n", put("a", value=False), "a: False\n"),
    # Empty values, comments behind them, and blocks.
    ("a:\nb: 1\n", put("a", value=3), "a: 3\nb: 1\n"),
    ("a:   # why\nb: 1\n", put("a", value=3), "a: 3   # why\nb: 1\n"),
    ("a: null # why\nb: 1\n", put("a", "c", value=3), "a: # why\n  c: 3\nb: 1\n"),
    ("a: # why\n  - x # 1\n  - y # 2\nb: 1\n", put("a", value="q"), "a: q # why\nb: 1\n"),
    ("a:\n  - x\n  - y\nb: 1\n", put("a", value=["z"]), "a:\n  - z\nb: 1\n"),
    ("a:\n    x: 1\nb: 1\n", put("a", value={"y": {"z": 2}}), "a:\n    y:\n        z: 2\nb: 1\n"),
    ("a:\n  # c\n  x: 1\nb: 1\n", drop("a", "x"), "a: {}\n  # c\nb: 1\n"),
    ("a: 3 # why\n", put("a", value={"x": 1}), "a: # why\n  x: 1\n"),
    ("a: |\n  one\n  two\nb: 1\n", put("a", value="x"), "a: x\nb: 1\n"),
    ("a: |+\n  one\n\n\nb: 1\n", put("c", value=2), "a: |+\n  one\n\n\nb: 1\nc: 2\n"),
    ("b: 1\na: |+\n  one\n\n\n# end\n", put("c", value=2), "b: 1\na: |+\n  one\n\n\nc: 2\n# end\n"),
    ("b: 1\na: |\n  one", put("c", value=2), "b: 1\nc: 2\na: |\n  one"),
    # Deleting takes the line and nothing else.
    ("# about a\na: 1 # one\n\nb: 2\n", drop("a"), "# about a\n\nb: 2\n"),
    ("a:\n  x: 1\n  y: 2\nb: 2\n", drop("a"), "b: 2\n"),
    ("a:\n  x: 1\nb: 2\n", drop("a", "x"), "a: {}\nb: 2\n"),
    ("a: 1\nb: 2", drop("b"), "a: 1\n"),
    # Lists.
    ("l:\n- a: 1\n  b: 2\n- c: 3\n", drop("l", 0, "a"), "l:\n- b: 2\n- c: 3\n"),
    ("l:\n- a: 1\n  b: 2\n- c: 3\n", drop("l", 0), "l:\n- c: 3\n"),
    ("l:\n- a: 1\n- c: 3\n", put("l", 0, "z", value=1), "l:\n- a: 1\n  z: 1\n- c: 3\n"),
    ("l:\n  - a # x\n", put("l", 1, value="b"), "l:\n  - a # x\n  - b\n"),
    ("l: [a, b]\n", drop("l", 1), "l: [a]\n"),
    ("l: [a, b]\n", put("l", 2, value="c, d"), "l: [a, b, 'c, d']\n"),
    # Brackets.
    ("{a: 1,\n b: 2}\n", put("c", value=3), "{a: 1,\n b: 2,\n c: 3}\n"),
    ("a: {}\n", put("a", "b", value=1), "a: {b: 1}\n"),
    ("a: {b: 1, c: 2, d: 3}\n", drop("a", "c"), "a: {b: 1, d: 3}\n"),
    ('{\n  "a": 1, # x\n  "b": 2,\n}\n', put("c", value="q"), '{\n  "a": 1, # x\n  "b": 2,\n  "c": "q",\n}\n'),
    ("{\n  a: 1,\n  b: 2 # two\n}\n", put("c", value=3), "{\n  a: 1,\n  b: 2, # two\n  c: 3\n}\n"),
    ("{\n  a: 1,\n  b: 2, # two\n}\n", put("c", value=3), "{\n  a: 1,\n  b: 2, # two\n  c: 3,\n}\n"),
    ("{\n  a: 1,\n  b: 2}\n", put("c", value=3), "{\n  a: 1,\n  b: 2,\n  c: 3}\n"),
    ("{\n  a: 1, # one\n  # two\n  b: 2, # b\n  c: 3\n}\n", drop("a"), "{\n  # two\n  b: 2, # b\n  c: 3\n}\n"),
    ("{\n  a: 1, # one\n  # two\n  b: 2 # b\n}\n", drop("b"), "{\n  a: 1 # one\n  # two\n}\n"),
    ("{\n  a: 1, # one\n  # two\n  b: 2, # b\n}\n", drop("b"), "{\n  a: 1, # one\n  # two\n}\n"),
    # Beside anchors and merges that are not concerned.
    ("d: &d\n  a: 1\nf:\n  <<: *d\n  g: 1\n", put("f", "g", value=2), "d: &d\n  a: 1\nf:\n  <<: *d\n  g: 2\n"),
    ("d: &d {a: 1}\nf: *d\ng: 1\n", drop("f"), "d: &d {a: 1}\ng: 1\n"),
]


@pytest.mark.parametrize(("before", "change", "after"), YAML)
def test_yaml(before: str, change: KeyEdit, after: str) -> None:
    assert edit(before, change) == after


def test_one_document_of_several() -> None:
    text = "a: 1\n---\na: 2\n"
    assert edit(text, put("a", value=9), index=1) == "a: 1\n---\na: 9\n"
    assert edit(text, put("b", value=9), index=0) == "a: 1\nb: 9\n---\na: 2\n"


JSON = [
    ('{"a": 1, "b": {"c": [1,2]}}', put("b", "d", value={"x": None}), '{"a": 1, "b": {"c": [1,2], "d": {"x": null}}}'),
    ('{"a": 1, "b": 2}', drop("a"), '{"b": 2}'),
    ('{"a":1}', drop("a"), "{}"),
    ('{"a":1}', put("b", value="é"), '{"a":1, "b":"é"}'),
    ("{}", put("a", value=True), '{"a": true}'),
    ('{\n\t"a": 1\n}\n', put("z", value={"b": 1}), '{\n\t"a": 1,\n\t"z": {\n\t\t"b": 1\n\t}\n}\n'),
    (
        '{\r\n  "a": {\r\n    "b": "auto"\r\n  },\r\n  "e": {}\r\n}\r\n',
        put("e", "f", value=1),
        '{\r\n  "a": {\r\n    "b": "auto"\r\n  },\r\n  "e": {\r\n    "f": 1\r\n  }\r\n}\r\n',
    ),
    ('{\n  "a": {\n    "b": "auto"\n  }\n}', put("a", "b", value=2), '{\n  "a": {\n    "b": 2\n  }\n}'),
    ('{\n  "a": 1,\n  "b": 2\n}', drop("b"), '{\n  "a": 1\n}'),
]


@pytest.mark.parametrize(("before", "change", "after"), JSON)
def test_json(before: str, change: KeyEdit, after: str) -> None:
    assert edit(before, change, path="ds.json") == after


def test_comments_of_hjson_stay() -> None:
    before = '{\n  "a": 1, // one\n  "b": 2, # two\n}'
    after = edit(before, put("a", value=3), put("c", value=4), path="ds.json", hjson=True)
    assert after == '{\n  "a": 3, // one\n  "b": 2, # two\n  "c": 4,\n}'


TOML = "# head\na = 1 # one\n\n[t]\nx = 's' # two\n\n[t.u]\ny.z = 2\n\n[[e]]\nk = 1\n[[e]]\nk = 2\n"


def test_toml() -> None:
    after = edit(
        TOML,
        put("a", value=2),
        put("b", value="v"),
        put("t", "x", value="w"),
        put("t", "n", value=[1, "x"]),
        put("t", "u", "y", "q", value=1.5),
        put("e", 0, "j", value={"i": True}),
        put("new", "table", "m", value=1),
        drop("e", 1, "k"),
        path="train.toml",
    )
    assert after == (
        '# head\na = 2 # one\nb = "v"\n\n[t]\nx = \'w\' # two\nn = [1, "x"]\n\n[t.u]\ny.z = 2\ny.q = 1.5\n\n'
        "[[e]]\nk = 1\nj = { i = true }\n[[e]]\n\n[new.table]\nm = 1\n"
    )


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ("[a.b]\nx=1\n", put("a", "k", value=1), "[a.b]\nx=1\n\n[a]\nk = 1\n"),
        ("[a]\nx=1\n", put("r", value=1), "r = 1\n\n[a]\nx=1\n"),
        ("a={b=1}", put("a", "c", value=2), "a={b=1, c = 2}"),
        ("[a]", put("a", "c", value=2), "[a]\nc = 2"),
        ("a = 1", put("b", value=2), "a = 1\nb = 2"),
        ("", put("b", value=2), "b = 2\n"),
        ("a = 1\r\nb = 2\r\n", drop("a"), "b = 2\r\n"),
    ],
)
def test_toml_places(before: str, change: KeyEdit, after: str) -> None:
    assert edit(before, change, path="train.toml") == after


@pytest.mark.parametrize(
    ("path", "text", "change", "words"),
    [
        ("a.yaml", "d: &d {a: 1}\nf:\n  <<: *d\n  g: 1\n", put("f", "a", value=2), "merge key"),
        ("a.yaml", "d: &d {a: 1}\nf:\n  <<: *d\n  g: 1\n", drop("f", "a"), "merge key"),
        ("a.yaml", "d: &d {a: 1}\ne: *d\n", put("e", "a", value=2), "alias"),
        ("a.yaml", "d: &d {a: 1}\ne: *d\n", put("e", value=2), "alias"),
        ("a.yaml", "d: &d {a: 1}\ne: *d\n", put("d", "a", value=2), "used elsewhere"),
        ("a.yaml", "d: &d 1\ne: *d\n", put("d", value=2), "anchor"),
        ("a.yaml", "d: &d 1\ne: *d\n", drop("d"), "anchor"),
        ("a.yaml", "a: 1\na: 2\n", put("a", value=3), "given twice"),
        ("a.yaml", "a: 1\n", drop("a"), "only key"),
        ("a.yaml", "a: 1\n", drop("b"), "there is no `b`"),
        ("a.yaml", "a: 1\n", put("a", "b", value=3), "neither a mapping nor a list"),
        ("a.yaml", "a: [1\n", put("a", value=3), "mended"),
        ("a.yaml", "a: !x 1\nb: 1\n", put("b", value=3), "mended"),
        ("a.yaml", "? a\n: 1\n", put("a", value=3), "`?` key"),
        ("a.yaml", "---\n---\na: 1\n", put("a", value=3), "not the only one"),
        ("a.yaml", "a: 1\n", KeyEdit(path=(), value=3), "cannot be changed"),
        ("a.yaml", "a: 1\n", put("b", value={1, 2}), "set"),
        ("a.json", '{"a": 1, "a": 2}', put("a", value=3), "given twice"),
        ("a.json", '{"a": 1,}', put("a", value=3), "mended"),
        ("a.toml", "a = 1\n", put("a", value=None), "no null"),
        ("a.toml", "[a]\nb = 1\n", drop("a"), "table"),
        ("a.toml", "[[a]]\nb = 1\n", put("a", 1, "b", value=2), "there is no"),
    ],
)
def test_what_is_not_safe_is_refused_in_one_sentence(path: str, text: str, change: KeyEdit, words: str) -> None:
    with pytest.raises(UserError) as caught:
        edit(text, change, path=path)
    message = str(caught.value)
    assert words in message
    assert message.startswith(path)
    assert "\n" not in message


def test_two_changes_of_one_key_are_refused_and_the_same_twice_is_one() -> None:
    with pytest.raises(UserError, match="two edits change `a`"):
        edit("a: {b: 1}\n", put("a", value=1), put("a", "b", value=2))
    assert edit("a: 1\n", put("a", value=2), put("a", value=2)) == "a: 2\n"
