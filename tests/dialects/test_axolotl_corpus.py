"""axolotl over the shared corpus of real files, where it lies beside the checkout."""

from __future__ import annotations

import pytest
from dialect_reading import CORPUS, Files, corpus_documents, document

from memlint.dialects.axolotl import AXOLOTL
from memlint.dialects.promises import EQUIVALENT, apply_edits, lookup
from memlint.dialects.registry import recognise

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.exists(), reason="shared corpus is not beside the checkout"),
]

REMEDIES = (
    {"training.checkpointing.mode": "full"},
    {"training.optimizer": "paged-adamw-8bit"},
    {"training.micro_batch_size": 1, "training.gradient_accumulation_steps": 16},
    {"training.attention": "flash"},
    {"training.loss": "fused"},
    {"training.method": "qlora"},
    {"training.sequence_length": 1024},
    {"parallelism.strategy": "zero3"},
    {"parallelism.strategy": "fsdp", "parallelism.offload": "all"},
)


def test_every_file_is_axolotl_and_gives_a_job_or_a_reason():
    documents = list(corpus_documents("axolotl"))
    assert len(documents) == 100
    for doc in documents:
        assert recognise(doc).name == "axolotl", doc.path
        reading = AXOLOTL.read(doc, Files())
        assert reading.jobs or reading.skipped, doc.path
        for job in reading.jobs:
            assert job.model, doc.path
            assert job.origins.keys() >= {"model", "training.micro_batch_size", "training.precision.weights"}


def test_real_files_have_no_key_that_is_taken_for_a_misspelling():
    for doc in corpus_documents("axolotl"):
        assert [p for p in AXOLOTL.read(doc, Files()).problems if p.code == "MEM002"] == [], doc.path


@pytest.mark.parametrize("changes", REMEDIES, ids=lambda c: next(iter(c)) + "=" + str(next(iter(c.values()))))
def test_every_written_remedy_reads_back(changes):
    written = 0
    for doc in corpus_documents("axolotl"):
        reading = AXOLOTL.read(doc, Files())
        if not reading.jobs:
            continue
        edits = AXOLOTL.express(changes, doc, reading.jobs[0])
        if edits is None:
            continue
        written += 1
        edited = document("", doc.path)
        edited.data = apply_edits(doc.mapping, edits)
        again = AXOLOTL.read(edited, Files()).jobs[0]
        for field, value in changes.items():
            assert lookup(again, field) in (value, *EQUIVALENT.get(str(value), ())), (doc.path, field)
    assert written >= 80
