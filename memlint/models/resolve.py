"""From what a config names to the model's shape: inline, path, settings, project, cache, catalog, hub."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping

from memlint.errors import UserError
from memlint.models.architecture import Architecture
from memlint.models.files import UnreadableConfig, config_in, inside, read_config_file
from memlint.models.ids import file_name, is_model_id, looks_like_path
from memlint.models.validate import ConfigProblem
from memlint.records import dataclass

PROJECT_FOLDER = os.path.join(".memlint", "models")
"""Where ``memlint models add`` saves configs, beside the settings or at the repository root."""

_FETCHED: dict[str, dict[str, Any] | UserError] = {}
"""Answers of the hub in this process, so that many files of one model ask once."""
_SILENT: list[str] = []
"""The model that the hub was asked for when it did not answer in time: no other one waits for it as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The shape of a model, or why there is none."""

    architecture: Architecture | None = None
    reason: str | None = None
    """One sentence for the user when ``architecture`` is None."""
    problems: tuple[ConfigProblem, ...] = ()
    """What is wrong in the config that was found (MEM003); its key paths are those of that config."""
    file: str | None = None
    """The config file that was read; None for an inline config, the catalog and the hub."""


def resolve_model(
    ref: str | Mapping[str, Any],
    *,
    base_dir: str,
    settings_models: Mapping[str, str],
    search_root: str,
    offline: bool,
    trusted: bool = False,
    use_cache: bool = True,
) -> Resolved:
    """Return the architecture that ``ref`` means (a Hugging Face ID, a path, or an inline config).

    ``base_dir`` is the folder of the file that names it, ``search_root`` the framework's working directory and the
    repository: a path in a config is not followed out of it unless ``trusted`` (named by the user). ``use_cache``: take
    what this machine's Hugging Face cache holds. Never raises on content.
    """
    if isinstance(ref, Mapping):
        return _read(ref, None, "inline", None)
    text = ref.strip()
    if not text:
        return Resolved(reason="the file names no model")
    local = _local(text, base_dir, search_root, trusted)
    if local is not None:
        return local
    if text in settings_models:
        return _from_file(settings_models[text], text, "settings", named=f"`models` setting of `{text}`")
    if looks_like_path(text) or not is_model_id(text):
        return Resolved(reason=_no_such_path(text))
    saved = _saved(text, base_dir, search_root)
    if saved is not None:
        return _from_file(saved, text, "project")
    from memlint.models.cache import cached_config

    cached = cached_config(text) if use_cache else None
    if cached is not None:
        found = _from_file(cached, text, "cache")
        if found.architecture is not None:
            return found
    from memlint.models.catalog import find

    row = find(text)
    if row is not None:
        return _read(row.config, text, "catalog", None)
    return _from_hub(text, offline)


def _read(config: Mapping[str, Any], model_id: str | None, source: str, file: str | None) -> Resolved:
    from memlint.models.config import read_config

    read = read_config(config, id=model_id, source=source)
    if isinstance(read, Architecture):
        return Resolved(architecture=read, file=file)
    where = f"`{file}`" if file is not None else "the config" if model_id is None else f"the config of `{model_id}`"
    bad = tuple(problem for problem in read if problem.code == "MEM003")
    return Resolved(reason=f"{where}: {read[0].message}", problems=bad, file=file)


def _from_file(path: str, model_id: str | None, source: str, *, named: str | None = None) -> Resolved:
    file = config_in(path)
    if file is None:
        return Resolved(reason=f"{named or f'`{path}`'}: there is no config.json at `{path}`")
    try:
        config = read_config_file(file)
    except FileNotFoundError:
        return Resolved(reason=f"`{file}` does not exist", file=file)
    except UnreadableConfig as error:
        return Resolved(reason=f"`{file}` {error}", file=file)
    return _read(config, model_id or path, source, file)


def _local(text: str, base_dir: str, search_root: str, trusted: bool) -> Resolved | None:
    """A folder or file of that name, as transformers looks for one before it asks the hub; None when there is none."""
    if "\0" in text or len(text) > 4096:
        return Resolved(reason="the name of the model is not a path or an ID")
    expanded = os.path.expanduser(text) if text.startswith("~") else text
    for folder in dict.fromkeys((search_root, base_dir)):
        path = os.path.join(folder, expanded)
        if not trusted and not (inside(path, search_root) or inside(path, base_dir)):
            continue
        if config_in(path) is not None:
            if (
                not trusted
                and not inside(str(config_in(path)), search_root)
                and not inside(str(config_in(path)), base_dir)
            ):
                continue
            return _from_file(path, text, "path")
    if looks_like_path(text) and not trusted and os.path.isabs(expanded) and not inside(expanded, search_root):
        return Resolved(
            reason=f"`{text}` lies outside the repository and is not read: give its config in the `models` setting"
        )
    return None


def _no_such_path(text: str) -> str:
    shown = text if len(text) <= 100 else text[:97] + "..."
    if "${" in text or "{{" in text or re.fullmatch(r"<[^<>]+>", text):
        return (
            f"`{shown}` is a placeholder that is filled in before the run: name the model here, or give its config in"
            " the `models` setting"
        )
    return f"`{shown}` is a path, and there is no config.json: give the model's config in the `models` setting"


def _saved(model_id: str, base_dir: str, search_root: str) -> str | None:
    """Look for a config saved by ``memlint models add``, from ``base_dir`` up to the repository's root.

    A link that leads out of the repository is none: it may come with a pull request.
    """
    name = os.path.join(PROJECT_FOLDER, file_name(model_id))
    folders = (*upward(base_dir), os.path.abspath(search_root))
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and any(inside(path, one) for one in folders):
            return path
    return None


def upward(folder: str) -> list[str]:
    """Return ``folder`` and the folders around it up to the repository's root; only ``folder`` outside a repository."""
    current = os.path.abspath(folder)
    passed = [current]
    while not os.path.exists(os.path.join(current, ".git")):
        parent = os.path.dirname(current)
        if parent == current:
            return passed[:1]
        passed.append(parent)
        current = parent
    return passed


def _from_hub(model_id: str, offline: bool) -> Resolved:
    from memlint.models.hub import NoAnswer, fetch_config, offline_by_environment

    if offline or offline_by_environment():
        return Resolved(reason=_unknown(model_id))
    answer = _FETCHED.get(model_id)
    if answer is None and _SILENT:
        return Resolved(
            reason=f"{_unknown(model_id)}; the hub did not answer for `{_SILENT[0]}` and is not asked again"
        )
    if answer is None:
        try:
            answer = fetch_config(model_id)
        except UserError as error:
            answer = error
            if isinstance(error, NoAnswer):
                _SILENT.append(model_id)
        _FETCHED[model_id] = answer
    if isinstance(answer, UserError):
        return Resolved(reason=_with_suggestion(str(answer), model_id))
    return _read(answer, model_id, "hub", None)


def _unknown(model_id: str) -> str:
    return _with_suggestion(
        f"the shape of `{model_id}` is not known offline: run `memlint models add {model_id}` once with a network",
        model_id,
    )


def _with_suggestion(sentence: str, model_id: str) -> str:
    from memlint.models.catalog import near

    similar = near(model_id)
    return f"{sentence} (did you mean `{similar}`?)" if similar is not None and similar != model_id else sentence
