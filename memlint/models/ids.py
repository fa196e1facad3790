"""Hugging Face model IDs: what one looks like, and its name as a file."""

from __future__ import annotations

import re

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9._-]{1,96})?\Z")
"""huggingface_hub 1.0 utils/_validators.py: at most 96 characters a part, no ``--`` or ``..``."""


def is_model_id(text: str) -> bool:
    """Whether ``text`` can be the ID of a repository on the hub (``org/name``, or ``name`` for the oldest models)."""
    return _ID.match(text) is not None and ".." not in text and "--" not in text and not text.endswith((".git", "."))


def looks_like_path(text: str) -> bool:
    """Whether ``text`` is written as a path, so that it cannot be meant as an ID."""
    return text.startswith(("/", "./", "../", "~", ".\\", "\\")) or text.endswith((".json", "/")) or "\\" in text


def file_name(model_id: str) -> str:
    """Return the file in which a saved config lies: ``org__name.json`` (an ID has no ``__`` around its slash)."""
    return model_id.replace("/", "__") + ".json"
