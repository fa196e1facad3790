"""Find the settings of a folder and read them."""

from __future__ import annotations

import os
import sys
from typing import Any

from memlint.errors import UserError
from memlint.settings.model import Settings

_MARK = b"memlint"
_SIZE_LIMIT = 1024 * 1024
"""A settings file above 1 MiB is not read: the largest real pyproject.toml files are below 100 kB."""

_BY_FOLDER: dict[str, Settings] = {}


def settings_for(folder: str) -> Settings:
    """Return the settings that govern ``folder``: the nearest ``memlint.toml``, or ``pyproject.toml`` with our table.

    Raises UserError where that file is broken or has an unknown key.
    """
    folder = os.path.abspath(folder)
    found = _BY_FOLDER.get(folder)
    if found is None:
        found = _settings_in(folder)
        if found is None:
            parent = os.path.dirname(folder)
            found = settings_for(parent) if parent != folder else Settings()
        _BY_FOLDER[folder] = found
    return found


def forget_settings() -> None:
    """Drop what was read so far (a long-running process, tests)."""
    _BY_FOLDER.clear()


def _settings_in(folder: str) -> Settings | None:
    for name in ("memlint.toml", "pyproject.toml"):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):  # nor a pipe or a terminal, which a link can be: nothing may wait for one
            continue
        try:
            with open(path, "rb") as handle:
                content = handle.read(_SIZE_LIMIT + 1)
        except OSError:
            continue
        # tomllib costs 8 ms to import: most projects have a pyproject.toml that never mentions us.
        if name == "pyproject.toml" and _MARK not in content:
            continue
        if len(content) > _SIZE_LIMIT:
            cure = "move [tool.memlint] to memlint.toml" if name == "pyproject.toml" else "no list of settings is"
            raise UserError(f"{_shown(path)}: settings file is larger than 1 MiB; {cure}")
        table = _table(path, content, ("tool", "memlint") if name == "pyproject.toml" else ())
        if table is None:
            continue
        from memlint.settings.validate import build_settings

        prefix = ("tool", "memlint") if name == "pyproject.toml" else ()
        return build_settings(table, path=path, content=content, prefix=prefix)
    return None


def _table(path: str, content: bytes, prefix: tuple[str, ...]) -> dict[str, Any] | None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        # A BOM is not TOML, but Windows editors write one.
        data: Any = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{_shown(path)}: not valid TOML: {error or 'nested too deeply'}") from None
    for key in prefix:
        data = data.get(key)
        if data is None:
            return None
        if not isinstance(data, dict):
            raise UserError(f"{_shown(path)}: [{'.'.join(prefix)}] must be a table")
    return data if isinstance(data, dict) else None


def _shown(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative.replace(os.sep, "/")
