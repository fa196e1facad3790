"""Which releases of the training libraries a project pins: its requirements or lock file, nearest the config first.

Library versions change the answer (the load dtype in transformers 5, TRL's loss), so a job carries them. Only exact
pins count: ``==`` in requirements and pyproject, or a lock file's resolved version. Of packages that change the answer
by being there (estimate/kernels.py) a requirements file need only give the name or the repository.
"""

from __future__ import annotations

import os
import re
from typing import Mapping

from memlint.estimate.kernels import ALIASES, MAMBA, OPTIONAL

LIBRARIES = (
    "accelerate",
    "axolotl",
    "bitsandbytes",
    "causal-conv1d",
    "deepspeed",
    "fla-core",
    "flash-linear-attention",
    "liger-kernel",
    "llamafactory",
    "mamba-ssm",
    "peft",
    "torch",
    "transformers",
    "trl",
)
"""Libraries whose release changes a prediction, by their name on the package index."""

ANY = "any"
"""The version of an optional library that a requirements file names without pinning it."""

LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock")
PLAIN_FILES = ("environment.yml", "environment.yaml", "conda.yaml", "pyproject.toml", "setup.cfg")
_LOCK_LIMIT = 4 * 1024 * 1024
_PLAIN_LIMIT = 256 * 1024
"""Bytes of a lock file, and of one that people write: more is nothing that pins a project's libraries."""
_FOLDER_LIMIT = 5_000
"""Folders with more entries than this are data, not projects."""

_NAMES = "|".join(re.escape(name).replace("\\-", "[-_]") for name in LIBRARIES)
_OPTIONAL = "|".join(re.escape(name).replace("\\-", "[-_]") for name in (*OPTIONAL, *ALIASES))
_EXTRAS = r"(?:\[[^\]\n]{0,200}\])?"
_NAMED = re.compile(rf"^[ \t]*(?:-[ \t]+)?({_OPTIONAL}){_EXTRAS}[ \t]*(?:[<>=!~;@].*)?$", re.M | re.I)
_HOSTED = "causal-conv1d|flash-linear-attention|mamba|xielu"
_REPOSITORY = re.compile(rf"git\+\S{{1,300}}/({_HOSTED})(?:\.git)?(?:@\S{{0,300}})?[ \t]*$", re.M | re.I)
_PINNED = re.compile(rf"""(?:^|[\s"'\-,\[])({_NAMES}){_EXTRAS}[ \t]*={{1,3}}[ \t]*v?(\d[\w.]*)""", re.M | re.I)
_LOCKED = re.compile(rf'^name = "({_NAMES})"\s*\nversion = "(\d[\w.]*)', re.M | re.I)
_PIPFILE = re.compile(rf'"({_NAMES})": {{[^{{}}]*?"version": "==(\d[\w.]*)"', re.I)

_cache: dict[tuple[str, str], dict[str, str]] = {}


def pinned_versions(folder: str, boundary: str) -> Mapping[str, str]:
    """Pins that hold for a config in ``folder``, looked for upward until ``boundary`` (the repository's root).

    The nearest folder that pins a library decides; in one folder a lock file wins over requirements.
    """
    folder, boundary = os.path.abspath(folder), os.path.abspath(boundary)
    key = (folder, boundary)
    found = _cache.get(key)
    if found is None:
        found = dict(_in_folder(folder))
        parent = os.path.dirname(folder)
        if folder != boundary and parent != folder and (folder + os.sep).startswith(boundary + os.sep):
            found = {**pinned_versions(parent, boundary), **found}
        _cache[key] = found
    return found


def _in_folder(folder: str) -> dict[str, str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    if len(names) > _FOLDER_LIMIT:
        return {}
    requirements = sorted(name for name in names if name.startswith("requirements") and name.endswith(".txt"))
    present = set(names)
    order = [*(n for n in PLAIN_FILES if n in present), *requirements, *(n for n in LOCK_FILES if n in present)]
    found: dict[str, str] = {}
    for name in order:
        text = _read(os.path.join(folder, name), _LOCK_LIMIT if name in LOCK_FILES else _PLAIN_LIMIT)
        pattern = _PIPFILE if name == "Pipfile.lock" else _LOCKED if name in LOCK_FILES else _PINNED
        if name not in LOCK_FILES:
            text = re.sub(r"(?m)#.*$", "", text)
        if name in requirements:
            for library in _NAMED.findall(text):
                found[library.lower().replace("_", "-")] = ANY
            for repository in _REPOSITORY.findall(text):
                found[MAMBA if repository.lower() == "mamba" else repository.lower()] = ANY
        for library, version in pattern.findall(text):
            found[library.lower().replace("_", "-")] = version.rstrip(".")
    return found


def _read(path: str, limit: int) -> str:
    try:
        if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > limit:
            return ""
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def version_assumptions(used: Mapping[str, str], known: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences for releases that a job was read with although the project pins none."""
    free = [f"{name} {version}" for name, version in sorted(used.items()) if name not in known]
    if not free:
        return ()
    return (
        f"read as {', '.join(free)}: no requirements or lock file pins another release "
        f"(setting `versions` says which one runs)",
    )
