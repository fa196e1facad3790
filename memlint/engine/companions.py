"""Opens the files that a config points to, inside the repository only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping

from memlint.document.model import Document
from memlint.engine.discover import show_path

if TYPE_CHECKING:
    from memlint.hardware.target import Target

_SIZE_LIMIT = 1024 * 1024
"""A DeepSpeed or accelerate file is a few kB; above 1 MiB it is something else."""


def repository_root(folder: str) -> str | None:
    """Return the nearest folder upward that holds ``.git``, or None."""
    folder = os.path.abspath(folder)
    while True:
        if os.path.exists(os.path.join(folder, ".git")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


class Companions:
    """The :class:`~memlint.dialects.base.ReadContext` of one file.

    A path from a config is opened only where its real place lies below ``boundary``: a config may come from a pull
    request, and an excerpt of a file outside the repository would leak it.
    """

    def __init__(
        self,
        *,
        search_root: str,
        boundary: str,
        gpus: int | None,
        versions: Mapping[str, str] | None = None,
        training: Mapping[str, Any] | None = None,
        target: Target | None = None,
        overlays: Mapping[str, Document] | None = None,
    ) -> None:
        """``overlays`` stand in for files, by shown path: a companion with an edit tried on it."""
        self.search_root = search_root
        self.boundary = os.path.realpath(boundary)
        self.gpus = gpus
        self.versions: Mapping[str, str] = versions or {}
        self.training = training
        """Training section of the settings, for a bare HF config.json."""
        self.target = target
        """The declared machine, where a framework looks at its GPU (``bf16: auto``)."""
        self.opened: dict[str, Document] = {}
        """Shown path -> document, for positions and excerpts."""
        self._overlays = overlays or {}

    def companion(self, path: str, *, beside: Document) -> Document | None:
        """Open a file that ``beside`` names: relative to ``search_root`` first, then to the document's own folder."""
        if not path or "\0" in path:
            return None
        folder = os.path.dirname(os.path.abspath(beside.path))
        for base in (self.search_root, folder):
            full = os.path.normpath(os.path.join(base, path))
            shown = show_path(full)
            if shown in self._overlays:
                return self._overlays[shown]
            if shown in self.opened:
                return self.opened[shown]
            if self._inside(full) and os.path.isfile(full):
                document = self._open(full, shown)
                if document is not None:
                    self.opened[shown] = document
                return document
        return None

    def show(self, path: str) -> str | None:
        """Open a file that was read as part of the job, so that findings point into it; None where it is outside."""
        full = os.path.abspath(path)
        shown = show_path(full)
        if shown not in self.opened and self._inside(full):
            document = self._open(full, shown)
            if document is not None:
                self.opened[shown] = document
        return shown if shown in self.opened else None

    def _inside(self, full: str) -> bool:
        real = os.path.realpath(full)
        return real == self.boundary or real.startswith(self.boundary.rstrip(os.sep) + os.sep)

    def _open(self, full: str, shown: str) -> Document | None:
        from memlint.document.load import load_documents

        try:
            with open(full, "rb") as handle:
                content = handle.read(_SIZE_LIMIT + 1)
        except OSError:
            return None
        if len(content) > _SIZE_LIMIT:
            return None
        documents = load_documents(content, shown, hjson=True)  # DeepSpeed reads its JSON as Hjson
        return documents[0] if documents else None
