"""Where ``schemas/hf-config.schema.json`` lies: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import os

NAME = "hf-config.schema.json"


def schema_path() -> str:
    """Return the path of the schema file. Raises FileNotFoundError when the installation is damaged."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in (os.path.join(package, "_schemas"), os.path.join(os.path.dirname(package), "schemas")):
        path = os.path.join(folder, NAME)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(NAME)


def schema_text() -> str:
    """Return the schema as JSON text."""
    with open(schema_path(), encoding="utf-8") as stream:
        return stream.read()
