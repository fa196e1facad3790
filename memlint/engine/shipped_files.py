"""DeepSpeed files that an edit names and that are not there: written from what the framework ships under that name."""

from __future__ import annotations

import os
from typing import Any, Iterable

from memlint.engine.companions import repository_root
from memlint.engine.discover import show_path
from memlint.findings import KeyEdit
from memlint.settings.load import settings_for

_KEYS = ("deepspeed", "deepspeed_config", "config_file")
"""Where axolotl, LLaMA-Factory (v1: ``dist_config.config_file``) and the Trainer name a DeepSpeed file."""

_FILLED_IN = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}
"""What the Hugging Face integration fills in (transformers 5.24 integrations/deepspeed.py)."""


def missing_files(path: str, edits: Iterable[KeyEdit], dialect: str | None, *, isolated: bool) -> list[KeyEdit]:
    """Return edits that make the shipped files which ``edits`` of the config at ``path`` name and nobody has."""
    from memlint.dialects.deepspeed_shipped import shipped_config

    made: list[KeyEdit] = []
    for edit in edits:
        named = _named(edit)
        if named is None or edit.file is not None or os.path.isabs(named):
            continue
        folder = os.path.dirname(os.path.abspath(path))
        root = _search_root(folder, isolated)
        places = [os.path.normpath(os.path.join(base, named)) for base in (root, folder)]
        if any(os.path.exists(place) for place in places) or not _below(places[0], root):
            continue
        shipped = shipped_config(named, dialect or "")
        if shipped is not None:
            content: dict[str, Any] = {**shipped[0], **_FILLED_IN}
            file = show_path(places[0])
            made += [KeyEdit(path=(key,), value=value, file=file) for key, value in content.items()]
    return made


def _named(edit: KeyEdit) -> str | None:
    value = edit.value
    if isinstance(value, dict) and edit.path == ("dist_config",):
        value = value.get("config_file")
    elif not edit.path or edit.path[-1] not in _KEYS:
        return None
    return value if isinstance(value, str) and value.endswith(".json") else None


def _search_root(folder: str, isolated: bool) -> str:
    settings = None if isolated else settings_for(folder)
    own = settings.search_root if settings is not None else None
    return own or repository_root(folder) or (settings.root if settings is not None else None) or os.getcwd()


def _below(path: str, root: str) -> bool:
    return os.path.abspath(path).startswith(os.path.abspath(root).rstrip(os.sep) + os.sep)
