"""Read a fixture as the engine does: documents, recognition, companions beside the file."""

import os

from memlint.dialects.base import Reading
from memlint.dialects.registry import recognise
from memlint.document.load import load_documents, load_file
from memlint.document.model import Document


class Beside:
    """Companions are looked for beside the document only."""

    def __init__(self, folder=".", gpus=None, versions=None):
        self.search_root = folder
        self.gpus = gpus
        self.versions = versions or {}
        self.opened = {}

    def companion(self, path: str, *, beside: Document) -> Document | None:
        full = os.path.join(self.search_root, path)
        if not os.path.isfile(full):
            return None
        self.opened[path] = load_file(full, name=path)[0]
        return self.opened[path]


def document_of(text: str, path: str = "config.yaml") -> Document:
    return load_documents(text, path)[0]


def read_text(text: str, path: str = "config.yaml", **context) -> Reading:
    document = document_of(text, path)
    dialect = recognise(document)
    assert dialect is not None, f"not recognised: {path}"
    return dialect.read(document, Beside(**context))


def field_of(job, name: str):
    value = job
    for part in name.split("."):
        value = getattr(value, part) if value is not None else None
    return list(value) if isinstance(value, tuple) else value
