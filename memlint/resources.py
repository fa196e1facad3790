"""Find files that ship beside the code: the JSON Schemas."""

from __future__ import annotations

import os

from memlint.errors import UserError

_HERE = os.path.dirname(os.path.abspath(__file__))
_FOLDERS = (os.path.join(_HERE, "_schemas"), os.path.join(os.path.dirname(_HERE), "schemas"))
"""Inside a wheel (pyproject.toml, force-include), and in a checkout or editable install."""


def schema_path(name: str) -> str:
    """Return the path of ``schemas/NAME.schema.json``. Raises UserError with the nearest name where there is none."""
    known = schema_names()
    if name not in known:
        from difflib import get_close_matches

        close = get_close_matches(name, known, n=1)
        tail = f"; did you mean `{close[0]}`?" if close else f"; known: {', '.join(known)}"
        raise UserError(f"no schema is called `{name}`{tail}")
    for folder in _FOLDERS:
        path = os.path.join(folder, *f"{name}.schema.json".split("/"))
        if os.path.isfile(path):
            return path
    raise AssertionError(name)


def schema_text(name: str) -> str:
    """Return the text of a schema."""
    with open(schema_path(name), encoding="utf-8") as handle:
        return handle.read()


def schema_names() -> list[str]:
    """Return the names of all schemas, in order: ``job``, ``settings``, ``dialects/axolotl``, ..."""
    ending = ".schema.json"
    for folder in _FOLDERS:
        names = [
            os.path.relpath(os.path.join(parent, file), folder).replace(os.sep, "/").removesuffix(ending)
            for parent, _, files in os.walk(folder)
            for file in files
            if file.endswith(ending)
        ]
        if names:
            return sorted(names)
    return []
