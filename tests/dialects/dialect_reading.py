"""Read a dialect's file from text or a fixture, with companions given as a mapping."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from memlint.document.model import Document

ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"


class Files:
    """A read context whose companions are given by name."""

    search_root = "."

    def __init__(self, files=None, gpus=None, versions=None, target=None):
        self.target = target
        self.files = files or {}
        self.gpus = gpus
        self.versions = versions or {}

    def companion(self, path, *, beside):
        if path not in self.files:
            return None
        content = self.files[path]
        return Document(path=path, text=json.dumps(content), format="json", data=content)


def document(text, path="config.yaml"):
    return Document(path=path, text=text, format="yaml", data=yaml.safe_load(text))


def fixture(dialect, name):
    path = ROOT / "fixtures" / "dialects" / dialect / name
    return document(path.read_text(), str(path.relative_to(ROOT)))


def read(dialect, text, **context):
    return dialect.read(document(text), Files(**context))


def job(dialect, text, **context):
    reading = read(dialect, text, **context)
    assert len(reading.jobs) == 1, reading.skipped
    return reading.jobs[0]


def said(reading, code):
    """(key, message) of every problem with a code."""
    return [(".".join(map(str, p.key)), p.message) for p in reading.problems if p.code == code]


def corpus_documents(name):
    for path in sorted((CORPUS / name).rglob("*")):
        if path.suffix in (".yaml", ".yml"):
            text = path.read_text()
            yield document(text, str(path.relative_to(CORPUS)))


def stated_origins(reading_job):
    """Every origin says exactly one thing."""
    return {
        name: sum(value is not None for value in (origin.file, origin.default, origin.assumed))
        for name, origin in reading_job.origins.items()
    }
