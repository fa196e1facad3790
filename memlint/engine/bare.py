"""Jobs that no dialect owns: a bare Hugging Face config.json, a model ID, and the `jobs` of the settings.

Each becomes a native document whose positions are those of the file it stands in.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.document.model import Document, KeyPath, Span

_SIZES = ("hidden_size", "n_embd", "d_model", "dim", "num_hidden_layers", "n_layer", "text_config")

HF_CONFIG = "hf-config"
"""Name shown as the dialect of a bare config.json."""


def is_model_config(document: Document) -> bool:
    """Whether the document is a Hugging Face ``config.json``: ``model_type`` beside the sizes of a model.

    ``adapter_config.json``, tokenizer and processor files have no ``model_type`` or no size.
    """
    data = document.mapping
    if document.format != "json" or not isinstance(data.get("model_type"), str):
        return False
    return "architectures" in data or any(name in data for name in _SIZES)


def model_job(document: Document, training: Mapping[str, Any]) -> Document:
    """Return a native document for the config in ``document``, trained as ``training`` (native form) says."""
    return _native({"model": document.data, "training": dict(training)}, document, inside=("model",), at=())


def settings_jobs(document: Document, jobs: tuple[Mapping[str, Any], ...], prefix: KeyPath) -> list[Document]:
    """Return a native document for each job of a settings file; ``prefix`` is ``("tool", "memlint")`` or empty."""
    return [_native(job, document, inside=(), at=(*prefix, "jobs", index)) for index, job in enumerate(jobs)]


def _native(data: Mapping[str, Any], source: Document, *, inside: KeyPath, at: KeyPath) -> Document:
    """A native document; key ``at + rest`` of ``source`` is key ``inside + rest`` of the result."""

    def locate() -> dict[KeyPath, tuple[Span | None, Span]]:
        spans = source.spans()
        found = {inside + path[len(at) :]: place for path, place in spans.items() if path[: len(at)] == at}
        found.setdefault((), spans.get(at) or spans.get((), (None, Span(1, 1, 1, 1))))
        return found

    return Document(
        path=source.path,
        text=source.text,
        format=source.format,
        data={"memlint": 1, **data},
        index=source.index,
        newline=source.newline,
        _locate=locate,
    )
