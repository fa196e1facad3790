"""From the paths on the command line to the files to read."""

from __future__ import annotations

import os

from memlint.errors import UserError
from memlint.records import dataclass
from memlint.settings.globs import matches_any
from memlint.settings.load import settings_for
from memlint.settings.model import DEFAULT_INCLUDE, Settings

_NEVER = frozenset(
    {"node_modules", "__pycache__", "venv", "env", "site-packages", "build", "dist", "wandb", "mlruns", "outputs"}
)
"""Folders that hold other people's or generated files; name one on the command line to check it all the same."""

_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class Found:
    """One file to read."""

    path: str
    """As shown to the user: relative to the working directory where possible, slash-separated."""
    explicit: bool
    """Named on the command line, not found in a folder."""
    skipped: str | None = None
    """Why it is not read at all."""


def show_path(path: str) -> str:
    """Return ``path`` relative to the working directory where it lies below it, with forward slashes."""
    path = os.path.normpath(path)
    if os.path.isabs(path):
        relative = os.path.relpath(path)
        if not relative.startswith(".."):
            path = relative
    return path.replace(os.sep, "/")


def relative_to(root: str, path: str) -> str:
    """Return ``path`` against the folder ``root`` (empty: the working directory), with forward slashes."""
    return os.path.relpath(os.path.abspath(path), root or os.getcwd()).replace(os.sep, "/")


def discover(paths: tuple[str, ...], *, isolated: bool, force_exclude: bool) -> list[Found]:
    """Return the files of ``paths`` in order of path, each once. Raises UserError for a path that does not exist."""
    found: dict[str, Found] = {}
    for path in paths:
        if os.path.isdir(path):
            root = os.path.realpath(path)
            for item in _walk(path, root, isolated):
                found.setdefault(item.path, item)
        elif os.path.exists(path):
            shown = show_path(path)
            excluded = force_exclude and not isolated and _excluded(path, settings_for(os.path.dirname(path) or "."))
            found[shown] = Found(shown, True, "excluded by the settings" if excluded else None)
        else:
            raise UserError(f"{path}: no such file or folder")
    return [found[path] for path in sorted(found)]


def _excluded(path: str, settings: Settings) -> bool:
    return bool(settings.exclude) and matches_any(relative_to(settings.root, path), settings.exclude)


def _walk(folder: str, root: str, isolated: bool) -> list[Found]:
    """Depth first, without following links to folders; a linked file must lie below ``root``."""
    from memlint.engine.gitignore import rules_above, rules_in  # a file that is named needs none

    found: list[Found] = []
    top = os.path.abspath(folder)
    above = rules_above(top)
    pending = [(folder, top, above)]
    while pending:
        current, full, ignored = pending.pop()
        settings = Settings() if isolated else settings_for(current)
        try:
            entries = list(os.scandir(current))
        except OSError:
            continue
        names = {entry.name for entry in entries}
        if "pyvenv.cfg" in names and current != folder:
            continue
        if ".git" in names and current != folder:
            ignored = rules_above(full)  # a repository inside: the outer rules end here
        if ignored is not None and ".gitignore" in names:
            ignored = rules_in(full, ignored)
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                if name[0] == "." or name in _NEVER or _excluded(entry.path, settings):
                    continue
                inner = f"{full}{os.sep}{name}"
                if ignored is None or not ignored(inner, name, True):
                    pending.append((entry.path, inner, ignored))
                continue
            if not name.endswith(_SUFFIXES) or not _included(entry.path, name, settings):
                continue
            shown = show_path(entry.path)
            if ignored is not None and ignored(f"{full}{os.sep}{name}", name, False):
                found.append(Found(shown, False, "ignored by git"))
                continue
            if _excluded(entry.path, settings):
                found.append(Found(shown, False, "excluded by the settings"))
            elif not entry.is_file():
                continue
            elif entry.is_symlink() and not _below(root, entry.path):
                found.append(Found(shown, False, "a link to a file outside the folder"))
            else:
                found.append(Found(shown, False))
    return found


def _included(path: str, name: str, settings: Settings) -> bool:
    if settings.include is DEFAULT_INCLUDE:
        return not name.endswith(".toml") or name in ("memlint.toml", "pyproject.toml")
    return matches_any(relative_to(settings.root, path), settings.include)


def _below(root: str, path: str) -> bool:
    real = os.path.realpath(path)
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)
