"""Values are those of the framework's own loader, problems have a place, and nothing is raised."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from memlint.document.limits import MAX_BYTES
from memlint.document.load import format_of, load_documents, load_file, read_bytes
from memlint.document.model import Document, Span, SyntaxProblem


def only(text: str | bytes, path: str = "train.yaml", *, hjson: bool = False) -> Document:
    documents = load_documents(text, path, hjson=hjson)
    assert len(documents) == 1
    return documents[0]


def problem(document: Document) -> tuple[int, int, bool, str]:
    assert len(document.problems) == 1, document.problems
    found = document.problems[0]
    return found.span.line, found.span.column, found.fatal, found.message


YAML_VALUES = """\
rate: 2e-5
rate2: 2.0e-5
rate3: 2.e-5
no_answer: no
on_answer: On
octal: 017
hex: 0x1F
sexagesimal: 1:30
underscore: 1_000
nothing:
tilde: ~
day: 2024-02-29
infinite: .inf
quoted: "5"
block: |
  one
  two
base: &base {a: 1, b: 2}
derived:
  b: 3
  <<: *base
list: [1, 'x', null]
set: !!set {x, y}
"""


class TestYamlValues:
    def test_equal_those_of_safe_load(self) -> None:
        document = only(YAML_VALUES)
        assert repr(document.data) == repr(yaml.safe_load(YAML_VALUES))
        assert document.problems == ()

    def test_are_not_mended(self) -> None:
        data = only(YAML_VALUES).data
        assert data["rate"] == "2e-5"
        assert data["no_answer"] is False
        assert data["octal"] == 15
        assert data["day"] == datetime.date(2024, 2, 29)
        assert data["derived"] == {"a": 1, "b": 3}

    @pytest.mark.parametrize(
        "text",
        [
            "a: {<<: [{key: 1}, {key: 2}]}",
            "x: &x {k: 1}\ny: &y {<<: *x, k: 2}\nz: {<<: *y}",
            "x: &x {k: 1}\ny: {<<: *x, <<: {k: 3, l: 4}}",
            "? 1\n: a\n? null\n: b\n? 2024-01-01\n: c",
            "=: 1",
            "a: !!omap [x: 1, y: 2]",
            "a: !!binary aGVsbG8=",
            "- !!float 1\n- !!str 1\n- !!int '7'\n- ! 3",
            "%YAML 1.1\n---\na: 1\n...\n",
            "# nothing but a comment\n",
            "",
            "'text'",
            "- !\n- ! ''\n- ! 3\n- ! '3'\n",
        ],
    )
    def test_of_rare_syntax_equal_those_of_safe_load(self, text: str) -> None:
        assert repr(only(text).data) == repr(yaml.safe_load(text))

    def test_every_document_of_a_file_is_read(self) -> None:
        documents = load_documents("a: 1\n---\nb: 2\n---\n", "x.yaml")
        assert [(document.index, document.data) for document in documents] == [(0, {"a": 1}), (1, {"b": 2}), (2, None)]
        assert documents[1].value_span(("b",)) == Span(3, 4, 3, 5)


class TestYamlProblems:
    def test_duplicate_key_is_reported_and_the_last_wins(self) -> None:
        document = only("a: 1\nb: 2\na: 3\n")
        assert document.data == {"a": 3, "b": 2}
        assert problem(document) == (3, 1, False, "`a` is given twice, first on line 1; the last one wins")

    def test_duplicate_in_a_nested_mapping_and_beside_a_merge(self) -> None:
        document = only("base: &b {x: 0, y: 0}\nc:\n  <<: *b\n  x: 1\n  x: 2\n")
        assert document.data["c"] == {"x": 2, "y": 0}
        assert problem(document)[:3] == (5, 3, False)

    def test_overriding_a_merged_key_is_no_duplicate(self) -> None:
        assert only("base: &b {x: 0}\nc:\n  <<: *b\n  x: 1\n").problems == ()

    @pytest.mark.parametrize(
        ("text", "line", "column", "words"),
        [
            ("a: b\n\tc: d\n", 2, 1, "tab"),
            ("a: 1\t# comment\n", 1, 5, "tab"),
            ("a:\t1\n", 1, 3, "tab"),
            ("a: [1, 2\nb: 3\n", 2, 2, "','"),
            ("a: 'x\n", 1, 4, "quoted scalar"),
            ("a: *nowhere\n", 1, 4, "undefined alias"),
            ("a: &x [*x]\n", 1, 4, "alias to itself"),
            ("a: &x {<<: *x}\n", 1, 4, "alias to itself"),
            ("a: {{ name }}\n", 1, 5, "must be quoted"),
            ("? [1]\n: 2\n", 1, 3, "cannot be a key"),
            ("é: !!python/object/apply:os.system ['true']\n", 1, 4, "not executed"),
            ("a: !include other.yaml\n", 1, 4, "`!include`"),
            ("a: !!int many\n", 1, 4, "cannot be read as int"),
            ("a: !!bool maybe\n", 1, 4, "cannot be read as bool"),
            ("a: 2024-13-01\n", 1, 4, "month must be in 1..12"),
            ("a: \0\n", 1, 4, "U+0000"),
            ("a: x\n\x07", 2, 1, "U+0007"),
            ("a: \ud800\n", 1, 4, "surrogate"),
            ("a: x\ufeff\n", 1, 5, "byte order mark in the middle"),
            ("b: {<<: 5}\n", 1, 4, "merging"),
            ("b: <<\n", 1, 4, "quote it"),
            ("b:\n  - [1\n", 2, 5, "flow sequence"),
        ],
    )
    def test_have_a_place(self, text: str, line: int, column: int, words: str) -> None:
        found = problem(only(text))
        assert found[:3] == (line, column, True)
        assert words in found[3]

    def test_tabs_inside_quotes_block_scalars_and_comments_are_fine(self) -> None:
        text = "a: 'x\ty' # c\td\nb: |\n  x\ty\n# e\tf\n"
        assert only(text).problems == ()
        assert only(text).data == yaml.safe_load(text)

    def test_what_stands_before_the_mistake_is_still_given(self) -> None:
        document = only("base_model: x\ntrainer: 1\nbroken: [\n")
        assert document.data == {"base_model": "x", "trainer": 1}
        assert document.problems[0].fatal

    def test_earlier_documents_survive_a_broken_one(self) -> None:
        first, second = load_documents("a: 1\n---\nb: [\n", "x.yaml")
        assert (first.data, first.problems) == ({"a": 1}, ())
        assert second.problems[0].fatal


class TestJson:
    def test_values_equal_those_of_the_standard_library(self) -> None:
        document = only('{"a": [1, 2.5e3, true, null, "\\u00e9\\ud83d\\ude00"], "n": NaN}', "ds.json")
        assert document.data["a"] == [1, 2500.0, True, None, "é😀"]
        assert document.data["n"] != document.data["n"]
        assert document.problems == ()

    def test_duplicate_key(self) -> None:
        document = only('{\n  "a": {"b": 1, "b": 2}\n}', "ds.json")
        assert document.data == {"a": {"b": 2}}
        assert problem(document) == (2, 17, False, "`b` is given twice, first on line 2; the last one wins")

    @pytest.mark.parametrize(
        ("text", "place", "words", "data"),
        [
            ('{"a": 1,}', (1, 8), "comma behind the last", {"a": 1}),
            ('{\n  "a": 1 // one\n}', (2, 10), "comment", {"a": 1}),
            ('{"a": 1, # one\n"b": 2}', (1, 10), "comment", {"a": 1, "b": 2}),
            ('{"a": /* x */ 1}', (1, 7), "comment", {"a": 1}),
            ("{a: 1}", (1, 2), "without quotes", {"a": 1}),
            ("{'a': 'b\"c'}", (1, 2), "single quotes", {"a": 'b"c'}),
            ('{"a": 1\n"b": two words\n}', (2, 1), "comma left out", {"a": 1, "b": "two words"}),
        ],
    )
    def test_what_only_hjson_accepts(self, text: str, place: tuple[int, int], words: str, data: object) -> None:
        strict, loose = only(text, "ds.json"), only(text, "ds.json", hjson=True)
        assert strict.data == loose.data == data
        assert problem(strict)[:3] == (*place, True)
        assert problem(loose)[:3] == (*place, False)
        assert words in problem(strict)[3]

    @pytest.mark.parametrize(
        ("text", "place", "words"),
        [
            ("", (1, 1), "empty"),
            ('{"a": 1', (1, 7), "delimiter"),
            ('{"a" 1}', (1, 6), "delimiter"),
            ('{"a": 1} x', (1, 10), "extra data"),
            ('{"a": "\\ud800"}', (1, 7), "surrogate"),
            ('{"a": "\x01"}', (1, 8), "control character"),
            ('{"a": ' + "9" * 5000 + "}", (1, 7), "5,000 characters"),
            ('\ufeff{"a": 1}', (1, 1), "byte order mark"),
        ],
    )
    def test_problems_have_a_place(self, text: str, place: tuple[int, int], words: str) -> None:
        found = problem(only(text, "ds.json"))
        assert found[:3] == (*place, True)
        assert words in found[3]


class TestToml:
    def test_values_and_places(self) -> None:
        document = only('a = 1 # one\n[t]\n"k.x" = [1, {y = "z"}]\n[[e]]\nd = 1979-05-27 07:32:00\n', "train.toml")
        assert document.data["t"] == {"k.x": [1, {"y": "z"}]}
        assert document.problems == ()
        assert document.value_span(("t", "k.x", 1, "y")) == Span(3, 18, 3, 21)
        assert document.value_span(("e", 0, "d")) == Span(5, 5, 5, 24)
        assert document.key_span(("t",)) == Span(2, 2, 2, 3)

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("a = 1\na = 2\n", (2, 6)),
            ("a = \n", (1, 5)),
            ("a = 'x", (1, 6)),
            ("\ufeffa = 1", (1, 1)),
            ("a = " + "9" * 5000, (1, 5)),
            ("a = 0x" + "f" * 5000, (1, 7)),
        ],
    )
    def test_problems_have_a_place(self, text: str, place: tuple[int, int]) -> None:
        assert problem(only(text, "train.toml"))[:3] == (*place, True)


class TestEncodings:
    def test_byte_order_mark_has_no_column(self) -> None:
        document = only(b"\xef\xbb\xbfa: 1\n")
        assert document.data == {"a": 1}
        assert document.value_span(("a",)) == Span(1, 4, 1, 5)

    def test_carriage_returns(self) -> None:
        document = only(b"a: 1\r\nb:\r\n  c: 2\r\n")
        assert document.newline == "\r\n"
        assert document.value_span(("b", "c")) == Span(3, 6, 3, 7)

    def test_columns_count_characters(self) -> None:
        assert only("{é: 😀, b: 2}".encode()).value_span(("b",)) == Span(1, 11, 1, 12)

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
    @pytest.mark.parametrize("path", ["a.yaml", "a.json", "a.toml"])
    def test_other_unicode_encodings_are_named(self, encoding: str, path: str) -> None:
        text = {"a.yaml": "a: 1\n", "a.json": '{"a": 1}', "a.toml": "a = 1\n"}[path]
        document = only(text.encode(encoding), path)
        assert encoding.upper() in document.problems[0].message
        assert document.problems[0].fatal

    def test_other_bytes_are_placed(self) -> None:
        found = problem(only("a: 1\nb: é".encode("latin-1")))
        assert found == (2, 4, True, "byte 0xe9 is not UTF-8; save the file as UTF-8")


class TestFiles:
    def test_missing_folder_and_pipe_are_problems(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.yaml")
        (tmp_path / "folder.yaml").mkdir()
        for name in ("missing.yaml", "pipe.yaml", "folder.yaml", "a\0b.yaml"):
            (document,) = load_file(f"{tmp_path}/{name}", name=name)
            assert document.path == name
            assert document.problems[0].fatal

    def test_size_is_bounded(self, tmp_path: Path) -> None:
        path = tmp_path / "large.yaml"
        path.write_bytes(b"#" * (MAX_BYTES + 1))
        assert isinstance(read_bytes(str(path)), SyntaxProblem)
        path.write_bytes(b"#" * MAX_BYTES)
        assert isinstance(read_bytes(str(path)), bytes)
        assert only(b"#" * (MAX_BYTES + 1)).problems[0].fatal

    def test_format_by_name_then_by_content(self) -> None:
        assert format_of("a.YML") == "yaml"
        assert format_of("a.hjson") == "json"
        assert format_of("pyproject.toml") == "toml"
        assert format_of("<stdin>", '\n {"a": 1}') == "json"
        assert format_of("<stdin>", "a: 1") == "yaml"


class TestSpans:
    TEXT = "a: &x\n  k: 1\nb: *x\nc:\n  <<: *x\n  z: |\n    one\n\nd:\ne: [1, {f: 'g'}]\n"

    def test_of_values_and_keys(self) -> None:
        document = only(self.TEXT)
        assert document.value_span(("a", "k")) == Span(2, 6, 2, 7)
        assert document.key_span(("a", "k")) == Span(2, 3, 2, 4)
        assert document.value_span(("e", 1, "f")) == Span(10, 12, 10, 15)
        assert document.value_span(("c", "z")) == Span(6, 6, 7, 8)
        assert document.value_span(("d",)) == Span(9, 3, 9, 3)

    def test_alias_is_where_it_is_written_and_its_content_at_the_anchor(self) -> None:
        document = only(self.TEXT)
        assert document.value_span(("b",)) == Span(3, 4, 3, 6)
        assert document.value_span(("b", "k")) == Span(2, 6, 2, 7)
        assert document.value_span(("c", "k")) == Span(2, 6, 2, 7)

    def test_of_something_missing_is_that_of_what_holds_it(self) -> None:
        document = only(self.TEXT)
        assert document.key_span(("a", "missing", 3)) == document.key_span(("a",))

    def test_end_of_a_block_is_the_end_of_its_last_value(self) -> None:
        assert only("a:\n  b: 1  # c\n\n\nd: 2\n").value_span(("a",)) == Span(2, 3, 2, 7)

    def test_a_broken_document_has_places_too(self) -> None:
        assert only("a: [\n").value_span(("a",)) == Span(1, 1, 1, 1)


def test_without_the_c_reader_values_problems_and_places_are_the_same() -> None:
    code = (
        "import sys, yaml; del yaml.CSafeLoader\n"
        "from memlint.document.load import load_documents\n"
        "from memlint.document.yaml_loader import HAS_C_READER\n"
        "assert not HAS_C_READER\n"
        "for text in eval(sys.stdin.read()):\n"
        "    for document in load_documents(text, 'a.yaml'):\n"
        "        places = sorted(document.spans().items(), key=repr)\n"
        "        fatal = [(problem.span[:2], problem.fatal) for problem in document.problems]\n"
        "        print(repr(document.data), places, fatal)\n"
        "print(load_documents('a: 1\\n' * 30_000, 'a.yaml')[0].problems[0].message)\n"
    )
    texts = [
        YAML_VALUES.replace("set: !!set {x, y}\n", ""),
        TestSpans.TEXT,
        "a: 1\na: 2\n",
        "a: &a [*a]\n",
        "é: !x 1\r\nb:\r\n- c: |\r\n    d\r\n",
        "\ufeffa: 1\n---\nb: 2\n",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code], input=repr(texts), capture_output=True, text=True, check=True, encoding="utf-8"
    )
    lines = done.stdout.splitlines()
    expected = []
    for text in texts:
        for document in load_documents(text, "a.yaml"):
            places = sorted(document.spans().items(), key=repr)
            fatal = [(problem.span[:2], problem.fatal) for problem in document.problems]
            expected.append(f"{document.data!r} {places} {fatal}")
    assert lines[:-1] == expected
    assert "without its C reader" in lines[-1]
