"""Every rule fires where it should, is silent just below, can be ignored, and explains itself."""

from __future__ import annotations

import json
import re

import pytest
from fixture_tools import FIXTURES, cases, lint, same_but_for_figures
from update import EXAMPLE, example_of, expected_of, run_example

from memlint.findings import Severity
from memlint.rules.registry import RULES
from memlint.rules.select import active_codes, codes_of, named_codes, names_one

CASES = cases()

CODES = (
    "MEM001 unreadable-file error",
    "MEM002 unknown-key warning",
    "MEM003 bad-value error",
    "MEM004 unresolved-model warning",
    "MEM005 no-target info",
    "MEM006 approximate-architecture info",
    "MEM007 setting-without-effect warning",
    "MEM008 missing-file error",
    "MEM101 out-of-memory error",
    "MEM102 thin-headroom warning",
    "MEM103 host-out-of-memory error",
    "MEM104 spike-outside-the-step warning",
    "MEM201 full-precision warning",
    "MEM202 precision-unsupported error",
    "MEM203 frozen-weights-in-fp32 warning",
    "MEM301 checkpointing-off warning",
    "MEM302 quadratic-attention warning",
    "MEM303 full-logits warning",
    "MEM401 heavy-optimizer warning",
    "MEM501 replicated-states warning",
    "MEM502 offload-needed-or-wasted warning",
    "MEM503 incompatible-sharding error",
    "MEM504 large-buffers warning",
    "MEM601 micro-batch-too-large warning",
    "MEM602 sequence-beyond-model warning",
    "MEM603 batch-does-not-divide error",
    "MEM901 measured-differs error",
)
"""The contract's table: codes and names are never reused or renamed."""


@pytest.mark.parametrize(("code", "source"), CASES, ids=[f"{code}-{source.stem}" for code, source in CASES])
def test_fixture(code, source):
    actual, expected = lint(source, code), source.with_suffix(".txt").read_text()
    assert same_but_for_figures(actual, expected), actual


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_has_a_case_that_fires_and_one_that_is_silent(rule):
    texts = [source.with_suffix(".txt").read_text() for code, source in CASES if code == rule.code]
    assert any(texts), "no case fires"
    assert not all(texts), "no case is silent"
    for text in filter(None, texts):
        assert f"[{rule.code}] {rule.name}: " in text


@pytest.mark.parametrize(
    ("code", "source"),
    [(code, source) for code, source in CASES if source.suffix == ".yaml" and source.with_suffix(".txt").read_text()],
    ids=lambda value: getattr(value, "stem", value),
)
def test_every_rule_can_be_ignored(code, source, tmp_path):
    copy = tmp_path / source.name
    text = source.read_text()
    copy.write_text(f"# memlint: ignore-file[{code}] tested\n{text}")
    assert lint(copy, code) == ""


def test_expected_texts_belong_to_sources():
    sources = {source.with_suffix(".txt") for _, source in CASES}
    assert set(FIXTURES.glob("*/*.txt")) == sources


def test_the_registry_is_the_contract():
    assert tuple(f"{rule.code} {rule.name} {rule.severity.label}" for rule in RULES) == CODES
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_module_says_what_the_registry_says(rule):
    meta = rule.meta
    assert (meta.code, meta.name, meta.severity) == (rule.code, rule.name, rule.severity)
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", rule.name)
    assert rule.module == {"MEM203": "frozen_weights_in_fp32"}.get(rule.code, rule.name.replace("-", "_"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_docstring_explains_in_sections_and_its_example_runs(rule):
    text = rule.load().__doc__
    sections = re.findall(r"^## (.+)$", text, re.M)
    assert sections == ["What it does", "Why it matters", "Example", "How the number is made"]
    assert rule.summary.endswith(".")
    assert EXAMPLE.search(text)
    expected = expected_of(text)
    assert expected
    actual = run_example(example_of(text), rule.code)
    assert same_but_for_figures(actual, expected), actual


def test_selectors():
    assert codes_of("MEM301") == ("MEM301",)
    assert codes_of("checkpointing-off") == ("MEM301",)
    assert codes_of("mem3") == ("MEM301", "MEM302", "MEM303")
    assert len(codes_of("ALL")) == len(RULES)
    assert codes_of("") == codes_of("X") == codes_of("MEM8") == ()
    assert names_one("MEM301") == "MEM301"
    assert names_one("MEM40") is None
    assert active_codes((), ("MEM1",)) == frozenset(codes_of("ALL")) - {"MEM101", "MEM102", "MEM103", "MEM104"}
    assert active_codes(("MEM1",), ("MEM102",)) == {"MEM101", "MEM103", "MEM104"}
    assert named_codes(("MEM3", "heavy-optimizer")) == {"MEM401"}


def big(tmp_path, **training):
    job = {
        "memlint": 1,
        "model": "Qwen/Qwen3-0.6B",
        "training": {"micro_batch_size": 1, "sequence_length": 4096, "precision": "bf16", **training},
        "hardware": {"target": "A100-80GB"},
    }
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    return path


def test_suggestions_are_silent_where_they_do_not_matter_unless_named(tmp_path):
    from memlint.engine.options import CheckOptions
    from memlint.engine.run import check_paths

    path = big(tmp_path)

    def found(*select):
        options = CheckOptions(paths=(str(path),), select=select, isolated=True, offline=True)
        return [finding.code for report in check_paths(options).reports for finding in report.findings]

    assert found() == []
    assert found("MEM3") == []
    assert found("MEM301") == ["MEM301"]
    assert found("heavy-optimizer") == ["MEM401"]


def test_severities_are_ordered():
    assert Severity.INFO < Severity.WARNING < Severity.ERROR
