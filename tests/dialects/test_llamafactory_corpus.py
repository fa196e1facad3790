"""LLaMA-Factory over the shared corpus of real files, where it lies beside the checkout."""

from __future__ import annotations

import pytest
from dialect_reading import CORPUS, Files, corpus_documents, document

from memlint.dialects.llamafactory import LLAMAFACTORY
from memlint.dialects.promises import apply_edits, lookup
from memlint.dialects.registry import recognise

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.exists(), reason="shared corpus is not beside the checkout"),
]

REMEDIES = (
    ({"training.checkpointing.mode": "none"}, 55),
    ({"training.optimizer": "adamw-8bit"}, 45),
    ({"training.micro_batch_size": 1, "training.gradient_accumulation_steps": 16}, 55),
    ({"training.attention": "flash"}, 50),
    ({"training.loss": "fused"}, 35),
    ({"training.method": "qlora"}, 55),
    ({"training.sequence_length": 1024}, 55),
    ({"parallelism.strategy": "zero3"}, 45),
    ({"parallelism.strategy": "fsdp", "parallelism.offload": "all"}, 50),
)
"""A remedy, and how many of the 60 training files it can at least be written in."""


def test_every_file_is_llamafactory_and_gives_a_job_or_a_reason():
    documents = list(corpus_documents("llamafactory"))
    assert len(documents) == 63
    skipped = []
    for doc in documents:
        assert recognise(doc).name == "llamafactory", doc.path
        reading = LLAMAFACTORY.read(doc, Files())
        assert reading.jobs or reading.skipped, doc.path
        skipped += [doc.path] if reading.skipped else []
        for job in reading.jobs:
            assert job.model, doc.path
            assert job.origins.keys() >= {"model", "training.micro_batch_size", "training.precision.weights"}
    assert len(skipped) == 3


def test_real_files_have_no_key_that_is_taken_for_a_misspelling():
    for doc in corpus_documents("llamafactory"):
        assert [p for p in LLAMAFACTORY.read(doc, Files()).problems if p.code == "MEM002"] == [], doc.path


@pytest.mark.parametrize(("changes", "least"), REMEDIES, ids=str)
def test_every_written_remedy_reads_back(changes, least):
    written = 0
    for doc in corpus_documents("llamafactory"):
        reading = LLAMAFACTORY.read(doc, Files())
        if not reading.jobs:
            continue
        if all(lookup(reading.jobs[0], field) == value for field, value in changes.items()):
            written += 1
            continue
        edits = LLAMAFACTORY.express(changes, doc, reading.jobs[0])
        if edits is None:
            continue
        written += 1
        edited = document("", doc.path)
        edited.data = apply_edits(doc.mapping, edits)
        again = LLAMAFACTORY.read(edited, Files()).jobs[0]
        for field, value in changes.items():
            assert lookup(again, field) == value, (doc.path, field)
    assert written >= least
