"""The Hugging Face cache on disk, read directly: no network, no huggingface_hub.

Layout (huggingface_hub, docs "Understand caching"): ``models--org--name/refs/<revision>`` holds a commit,
``models--org--name/snapshots/<commit>/config.json`` is a link to a blob.
"""

from __future__ import annotations

import os
from typing import Mapping

_COMMIT_LENGTH = 200


def cache_folder(environment: Mapping[str, str]) -> str:
    """Return the hub cache folder (huggingface_hub constants.py: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME)."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return os.path.expanduser(environment[name])
    home = environment.get("HF_HOME")
    if not home:
        home = os.path.join(environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")


def cached_config(model_id: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the path of the cached config.json of a model: revision ``main``, else the only snapshot there is.

    None when the cache lacks it, a link is broken, or several snapshots leave it open which one is meant.
    """
    environment = os.environ if environment is None else environment
    folder = os.path.join(cache_folder(environment), "models--" + model_id.replace("/", "--"))
    snapshots = os.path.join(folder, "snapshots")
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as stream:
            commit = stream.read(_COMMIT_LENGTH).strip()
    except (OSError, ValueError):
        commit = ""
    if not commit or not commit.isalnum():
        try:
            found = [name for name in os.listdir(snapshots) if not name.startswith(".")]
        except OSError:
            return None
        if len(found) != 1:
            return None
        commit = found[0]
    path = os.path.join(snapshots, commit, "config.json")
    return path if os.path.isfile(path) else None
