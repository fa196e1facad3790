"""Each fixture says what its dialect makes of it: fields, origins, problems with their places."""

from pathlib import Path

import pytest
import yaml
from reading_support import Beside, field_of

from memlint.dialects.registry import recognise
from memlint.document.load import load_file

ROOT = Path(__file__).parents[2] / "fixtures" / "dialects"
CASES = [
    path
    for name in ("native", "hf-trainer", "trl", "deepspeed", "accelerate")
    for path in sorted((ROOT / name).iterdir())
    if path.is_file() and ".expected" not in path.name
]


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_fixture_reads_as_expected(path):
    expected = yaml.safe_load(path.with_name(f"{path.stem}.expected.yaml").read_text())
    document = load_file(str(path), name=path.name)[0]
    dialect = recognise(document)
    assert dialect is not None
    assert dialect.name == expected.get("dialect", path.parent.name)
    context = Beside(str(path.parent), versions=expected.get("versions"))
    reading = dialect.read(document, context)

    places = []
    for problem in reading.problems:
        source = context.opened[problem.file] if problem.file else document
        span = source.key_span(problem.key) if problem.on_key else source.value_span(problem.key)
        place = [problem.code, span.line, span.column, problem.message]
        places.append([*place, problem.file] if problem.file else place)
    assert sorted(places, key=lambda p: p[1:3]) == expected.get("problems", [])
    assert reading.skipped == expected.get("skipped")
    assert list(reading.companions) == expected.get("companions", [])
    assert bool(reading.jobs) == ("job" in expected)
    if not reading.jobs:
        return
    job = reading.jobs[0]
    if "model" in expected:
        assert job.model == expected["model"]
    assert {name: field_of(job, name) for name in expected["job"]} == expected["job"]
    for name, line in expected.get("lines", {}).items():
        origin = job.origin(name)
        assert document.value_span(origin.key).line == line, name
    for name, text in expected.get("defaults", {}).items():
        assert job.origins[name].default == text
    if "assumes" in expected:
        assert expected["assumes"] in job.assumptions


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_field_set_has_an_origin_in_the_file_or_in_a_source(path):
    document = load_file(str(path), name=path.name)[0]
    reading = recognise(document).read(document, Beside(str(path.parent)))
    for job in reading.jobs:
        for name, origin in job.origins.items():
            stated = [origin.file is not None, origin.default is not None, origin.assumed is not None]
            assert sum(stated) == 1, name
            field_of(job, name)
