"""Read a config.json from disk: bounded, never through a device, never outside the allowed folder."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

MAX_BYTES = 4 * 1024 * 1024
"""Largest config.json read; the largest published ones (long id2label tables) are about 1 MB."""


class UnreadableConfig(Exception):
    """A config that cannot be read; the message is one clause: ``is not JSON (line 3, column 5)``."""


def parse_config(content: bytes) -> dict[str, Any]:
    """Return the mapping in ``content``. Raises UnreadableConfig."""
    if len(content) > MAX_BYTES:
        raise UnreadableConfig(f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        data = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UnreadableConfig("is not UTF-8 text") from None
    except RecursionError:
        raise UnreadableConfig("is nested too deeply") from None
    except ValueError as error:
        place = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UnreadableConfig(f"is not JSON{place}") from None
    if not isinstance(data, dict):
        raise UnreadableConfig("is not a JSON mapping")
    return data


def read_config_file(path: str) -> dict[str, Any]:
    """Return the mapping in a regular file of bounded size. Raises UnreadableConfig, FileNotFoundError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableConfig("is not a regular file")
            return parse_config(stream.read(MAX_BYTES + 1))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UnreadableConfig(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None


def config_in(path: str) -> str | None:
    """Return the config file that ``path`` means: itself when a file, its config.json when a folder; else None.

    A folder of a PEFT adapter has adapter_config.json only, and is no model.
    """
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    return path if os.path.isfile(path) else None


def inside(path: str, folder: str) -> bool:
    """Whether ``path``, links followed, lies in ``folder``."""
    try:
        return os.path.commonpath([os.path.realpath(path), os.path.realpath(folder)]) == os.path.realpath(folder)
    except ValueError:
        return False
