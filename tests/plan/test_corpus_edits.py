"""Over real configs: each remedy that a dialect can write, applied on its own to the text of the file.

The file still parses, only the intended keys differ, it is recognised as the same dialect, and checking it again gives
the promised figure. By default a sample; MEMLINT_ALL_PLANS=1 takes every file.
"""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import pytest
from planning import CORPUS, EVERYTHING, beside, corpus_files

from memlint.dialects.registry import recognise
from memlint.document.edit import apply_edits, same
from memlint.document.load import load_documents
from memlint.engine.predict import predict
from memlint.engine.source import open_source
from memlint.errors import UserError
from memlint.plan.options_scale import adapters, packed, sequence
from memlint.plan.question import from_source
from memlint.plan.space import Setting, all_remedies
from memlint.settings.load import forget_settings

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason="the shared corpus is not beside the checkout"),
]

TARGET = "2xA100-80GB"
FILES = corpus_files(4) if CORPUS.is_dir() else []
SAMPLE = FILES if EVERYTHING else FILES[:40]


def expected(data, edits):
    """The values after ``edits``, made the plainest way."""
    result = copy.deepcopy(data)
    for edit in edits:
        node = result
        for step in edit.path[:-1]:
            if isinstance(node, dict) and node.get(step) is None:
                node[step] = {}
            node = node[step]
        if edit.delete:
            del node[edit.path[-1]]
        else:
            node[edit.path[-1]] = copy.deepcopy(edit.value)
    return result


def edited(path, index, edits):
    """The file's bytes after ``edits``; only the intended keys differ."""
    document = load_documents(path.read_bytes(), str(path), hjson=True)[index]
    text = apply_edits(document, edits)
    after = load_documents(text, str(path), hjson=True)[index]
    assert same(after.data, expected(document.data, edits)), (path, edits)
    return text.encode()


def restore(kept):
    for path, before in kept.items():
        path.write_bytes(before)


def test_each_remedy_on_its_own(tmp_path):
    forget_settings()
    applied, refused = Counter(), []
    for original in SAMPLE:
        path = beside(original, tmp_path)
        try:
            source = open_source(str(path), target=TARGET, offline=True, isolated=True)
        except UserError:
            continue
        estimate, _ = predict(source.job, source.target)
        if estimate is None:
            continue
        asked = from_source(source, estimate, hypothetical=False)
        setting = Setting(
            job=source.job,
            target=source.target,
            gpus=asked.gpus,
            gpus_of_node=2,
            parameters=estimate.parameters,
            evaluation=True,
            wide=True,
            faster=True,
        )
        shorter = sequence(max(1, source.job.training.sequence_length // 2))
        for remedy in (*all_remedies(setting), *adapters(source.job), *packed(source.job), shorter):
            trial = asked.try_changes(remedy.changes)
            if trial is None or not trial.edits:
                continue
            kept = {}
            try:
                for file in dict.fromkeys(edit.file for edit in trial.edits):
                    where = path if file is None else Path(source.check.opened()[file].path)
                    edits = [edit for edit in trial.edits if edit.file == file]
                    kept[where] = where.read_bytes()
                    where.write_bytes(edited(where, source.document.index if file is None else 0, edits))
            except UserError as reason:
                refused.append((path.name, remedy.name, str(reason)))
                restore(kept)
                continue
            again = open_source(str(path), target=TARGET, offline=True, isolated=True, index=source.index)
            assert recognise(again.document) is source.dialect, (path, remedy.name)
            assert predict(again.job, again.target)[0].device_bytes == trial.estimate.device_bytes, (path, remedy.name)
            restore(kept)
            applied[remedy.dimension] += 1
    wanted = {"optimizer", "batch", "checkpointing", "loss", "sharding", "method", "evaluation", "sequence"}
    assert wanted <= set(applied)
    assert sum(applied.values()) > (1000 if EVERYTHING else 120)
    # What the editor refuses (anchors, merge keys, keys given twice) it says so, and leaves the file as it was.
    assert len(refused) <= 0.02 * sum(applied.values()), refused
