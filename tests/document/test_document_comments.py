"""Pragmas are read from comments only, and one that cannot be understood is reported."""

from __future__ import annotations

import time

import pytest

from memlint.document.comments import Pragma, find_pragmas


def kinds(text: str, format: str = "yaml") -> list[tuple[str, tuple[str, ...], int, int | None]]:
    pragmas, problems = find_pragmas(text, format)
    assert problems == ()
    return [(pragma.kind, pragma.values, pragma.line, pragma.applies_to_line) for pragma in pragmas]


def test_every_kind() -> None:
    text = (
        "# memlint: target=8xA100-80GB\n"
        "# memlint: dialect=axolotl gpus=8\n"
        "# memlint: ignore-file[MEM301] we know\n"
        "a: 1  # memlint: ignore[MEM301, out-of-memory] measured, fits\n"
    )
    pragmas, problems = find_pragmas(text, "yaml")
    assert problems == ()
    assert [(pragma.kind, pragma.values, pragma.reason) for pragma in pragmas] == [
        ("target", ("8xA100-80GB",), ""),
        ("dialect", ("axolotl",), ""),
        ("gpus", ("8",), ""),
        ("ignore-file", ("MEM301",), "we know"),
        ("ignore", ("MEM301", "out-of-memory"), "measured, fits"),
    ]
    assert pragmas[4] == Pragma(
        kind="ignore",
        values=("MEM301", "out-of-memory"),
        reason="measured, fits",
        line=4,
        column=7,
        applies_to_line=4,
    )


def test_an_ignore_alone_on_its_line_applies_to_the_next_with_content() -> None:
    assert kinds("# memlint: ignore[MEM301]\n\n# other\n  # memlint: ignore[MEM302]\nb: 2\n") == [
        ("ignore", ("MEM301",), 1, 5),
        ("ignore", ("MEM302",), 4, 5),
    ]


def test_ignores_in_a_row_apply_to_the_same_line() -> None:
    text = "# memlint: ignore[MEM301]\n\n# memlint: ignore[MEM302]\n# note\na: 1\n# memlint: ignore[MEM303]\n\nb: 2\n"
    assert [pragma.applies_to_line for pragma in find_pragmas(text, "yaml")[0]] == [5, 5, 8]
    behind = "a: 1\n# memlint: ignore[MEM301]\n# memlint: ignore[MEM302]\n\n"
    assert [pragma.applies_to_line for pragma in find_pragmas(behind, "yaml")[0]] == [2, 3]


def test_a_target_may_have_spaces_and_a_note_behind_it() -> None:
    assert kinds("# memlint: target=8x A100 80GB, gpus=8  # the cluster\n") == [
        ("target", ("8x A100 80GB",), 1, None),
        ("gpus", ("8",), 1, None),
    ]


def test_another_comment_before_it() -> None:
    assert kinds("a: 1 # noqa # memlint: ignore[MEM301]\n") == [("ignore", ("MEM301",), 1, 1)]


def test_text_in_strings_is_no_comment() -> None:
    text = (
        "a: '# memlint: gpus=1' # memlint: gpus=2\n"
        'b: "x\n  # memlint: gpus=3"\n'
        "c: |  # memlint: gpus=4\n  # memlint: gpus=5\n"
        "d: x#memlint: gpus=6\n"
    ).replace("x#memlint: gpus=6", "x#memlint:gpus=6")
    assert [values for _, values, _, _ in kinds(text)] == [("2",), ("4",)]


def test_text_in_toml_strings_is_no_comment() -> None:
    text = (
        "a = '# memlint: gpus=1' # memlint: gpus=2\n"
        'b = """\n# memlint: gpus=3\n"""\n'
        "c = [ # memlint: gpus=4\n1]\n"
        "# x # memlint: gpus=5\n"
    )
    assert [values for _, values, _, _ in kinds(text, "toml")] == [("2",), ("4",), ("5",)]


def test_json_has_no_comments() -> None:
    assert find_pragmas('{"a": 1} # memlint: gpus=8', "json") == ((), ())


def test_the_key_of_a_native_job_file_is_no_pragma() -> None:
    assert find_pragmas("memlint: 1\nmodel: x\n", "yaml") == ((), ())


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("ignore", "names no rule"),
        ("ignore MEM301", "names no rule"),
        ("ignore[]", "names no rule"),
        ("ignore[*]", "wildcard"),
        ("ignore[all]", "wildcard"),
        ("ignore[MEM3xx]", "wildcard"),
        ("ignore[MEM3]", "wildcard"),
        ("ignore[mem301]", "did you mean `MEM301`"),
        ("ignor[MEM301]", "did you mean `ignore[MEM301]`"),
        ("taget=A100", "did you mean `target=...`"),
        ("gpus=many", "no number of GPUs"),
        ("gpus=0", "no number of GPUs"),
        ("target=", "no value"),
        ("", "says nothing"),
        ("is a linter", "nothing that memlint knows"),
    ],
)
def test_what_cannot_be_understood_is_reported_on_its_place(comment: str, words: str) -> None:
    pragmas, problems = find_pragmas(f"a: 1\nb: 2  # memlint: {comment}\n", "yaml")
    assert pragmas == ()
    assert len(problems) == 1
    assert (problems[0].span.line, problems[0].span.column, problems[0].fatal) == (2, 7, False)
    assert words in problems[0].message


@pytest.mark.parametrize("format", ["yaml", "toml"])
def test_a_broken_file_still_has_pragmas(format: str) -> None:
    assert kinds("# memlint: gpus=2\na: = [\n# memlint: gpus=8\n", format)[0][1] == ("2",)


@pytest.mark.parametrize("format", ["yaml", "toml"])
def test_hostile_comments_end_soon(format: str) -> None:
    started = time.process_time()
    find_pragmas("# memlint: ignore[" * 100_000, format)
    find_pragmas("# memlint: gpus=8\n" * 100_000, format)
    find_pragmas("%TAG !a! b\n" * 100_000 + "# memlint: gpus=8\n", format)
    find_pragmas("- '" * 500_000 + "# memlint: gpus=8\n", format)
    find_pragmas("# memlint: ignore[MEM301]\n" * 900 + "#\n" * 300_000, format)
    assert time.process_time() - started < 4


def test_a_measured_peak_is_a_size() -> None:
    assert kinds("# memlint: measured=23.6 GiB, target=A100\n") == [
        ("measured", ("23.6 GiB",), 1, None),
        ("target", ("A100",), 1, None),
    ]
    _, problems = find_pragmas("# memlint: measured=much\n", "yaml")
    assert "no size" in problems[0].message
