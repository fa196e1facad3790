"""Comments that speak to memlint, and what is said about them: on their own line, and only where it is so."""

from __future__ import annotations

import json

import pytest

from memlint.settings.load import forget_settings


def found(memlint, *argv):
    _, out, _ = memlint("check", "--output-format", "json", *argv)
    return [
        (finding["code"], finding["line"], finding["column"], finding["message"])
        for file in json.loads(out)["files"]
        for finding in file["findings"]
    ]


def test_a_target_that_does_not_exist_is_reported_on_its_comment(project, memlint):
    text = (project / "small.yaml").read_text()
    (project / "small.yaml").write_text(text + "# first\n  # memlint: target=8xFOO\n")
    line = len(text.splitlines()) + 2
    assert [entry[:3] for entry in found(memlint, "small.yaml")] == [("MEM005", 2, 8), ("MEM003", line, 3)]


@pytest.mark.parametrize(
    ("named", "hint"),
    [("llama-factory", "did you mean `llamafactory`?"), ("torch", "choose from `native`, `accelerate`")],
)
def test_a_dialect_that_does_not_exist_is_reported_on_its_comment(project, memlint, named, hint):
    """It was passed over in silence, and the file read as something else, or not at all."""
    config = f"# a\n# memlint: dialect={named}\n" + (project / "small.yaml").read_text()
    (project / "small.yaml").write_text(config)
    (project / "other.yaml").write_text(f"base_model: x  # memlint: dialect={named}\n")
    for file, place in (("small.yaml", (2, 1)), ("other.yaml", (1, 16))):
        code, line, column, message = found(memlint, "--target", "80GiB", file)[0]
        assert (code, line, column) == ("MEM003", *place)
        assert message.startswith(f"no dialect is called `{named}`; {hint}")


def test_a_comment_of_a_file_with_several_documents_is_reported_once(project, memlint):
    text = (project / "small.yaml").read_text()
    (project / "small.yaml").write_text(f"# memlint: target=8xFOO\n{text}---\n{text}")
    assert [entry[0] for entry in found(memlint, "small.yaml")].count("MEM003") == 1


@pytest.mark.parametrize("code", ["MEM103", "MEM104", "MEM201", "MEM502", "MEM504", "MEM602"])
def test_an_ignore_is_unused_only_where_its_rule_could_have_spoken(project, memlint, code):
    """The same file is checked with and without a target, with and without the model's shape."""
    ignored = f"# memlint: ignore-file[{code}] known\n"
    (project / "small.yaml").write_text(ignored + (project / "small.yaml").read_text())
    assert [entry[0] for entry in found(memlint, "small.yaml")] == ["MEM005"]
    assert [entry[0] for entry in found(memlint, "--target", "80GiB", "small.yaml")] == ["MEM007"]
    (project / "small.yaml").write_text(ignored + "memlint: 1\nmodel: nobody/unknown\n")
    assert [entry[0] for entry in found(memlint, "--offline", "--target", "80GiB", "small.yaml")] == ["MEM004"]


def test_an_excerpt_is_the_line_that_the_finding_names(project, memlint):
    """U+2028 ends a line for Python's splitlines, not for YAML's readers or editors; a byte order mark has no width."""
    (project / "big.yaml").write_text(
        "\ufeff" + (project / "big.yaml").read_text() + 'versions: {x: "a\u2028b"}\ngpus: 8\n'
    )
    (project / "bom.yaml").write_text("\ufeffmemlint: 2\nmodel: x\n")
    _, out, _ = memlint("check", "big.yaml", "--select", "MEM002")
    assert "   7 | gpus: 8\n     | ^^^^" in out
    _, out, _ = memlint("check", "bom.yaml", "--select", "MEM003")
    assert "   1 | memlint: 2\n     |          ^" in out


def test_explain_says_that_a_finding_is_silenced_and_looks_behind_the_baseline(project, memlint):
    assert memlint("check", "--target", "24GiB", "--write-baseline", "--baseline", "known.json", "big.yaml")[0] == 0
    (project / "memlint.toml").write_text('baseline = "known.json"\n')
    forget_settings()
    explain = ("explain", "MEM101", "--file", "big.yaml", "--target", "24GiB")
    assert "error[MEM101]" in memlint(*explain)[1]
    (project / "big.yaml").write_text("# memlint: ignore-file[MEM101] known\n" + (project / "big.yaml").read_text())
    out = memlint(*explain)[1]
    assert "MEM101 is silenced here by a comment" in out
    assert "nothing to say" not in out
