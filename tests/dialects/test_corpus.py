"""Real files: nothing crashes, nearly all are recognised as what they are, none of another program is claimed."""

import os
from collections import Counter
from pathlib import Path

import pytest
from reading_support import Beside

from memlint.dialects.registry import DIALECTS, may_be_config, recognise
from memlint.document.load import load_documents

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
OURS = {dialect.name for dialect in DIALECTS} - {"native"}

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason="the shared corpus is not beside the checkout"),
]


@pytest.fixture(scope="module")
def readings():
    found = []
    for folder, _, files in os.walk(CORPUS):
        for name in sorted(files):
            if not name.endswith((".yaml", ".yml", ".json")):
                continue
            path = os.path.join(folder, name)
            kind = os.path.relpath(path, CORPUS).split(os.sep)[0]
            content = Path(path).read_bytes()
            dialect = reading = None
            if may_be_config(content.decode("utf-8", "replace")):
                document = load_documents(content, path)[0]
                dialect = recognise(document)
                if dialect is not None:
                    reading = dialect.read(document, Beside(folder))
            found.append((kind, path, dialect.name if dialect else None, reading))
    return found


def test_at_least_95_percent_of_each_kind_are_recognised(readings):
    total, right = Counter(), Counter()
    for kind, _, name, _ in readings:
        if kind in OURS:
            total[kind] += 1
            right[kind] += name == kind
    assert set(total) == OURS
    for kind in total:
        assert right[kind] >= 0.95 * total[kind], (kind, right[kind], total[kind])


def test_no_file_of_another_program_is_claimed(readings):
    assert [(path, name) for kind, path, name, _ in readings if kind not in OURS and name is not None] == []


def test_a_recognised_file_gives_a_job_a_problem_or_a_reason(readings):
    for _, path, name, reading in readings:
        if name is not None:
            assert reading.jobs or reading.problems or reading.skipped, path
            for problem in reading.problems:
                assert problem.code in ("MEM002", "MEM003", "MEM007", "MEM008"), path
                assert "\n" not in problem.message
