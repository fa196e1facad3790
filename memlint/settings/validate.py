"""Turn the TOML table into :class:`Settings`, with one sentence for each mistake: file, line, what to write."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, NoReturn

from memlint.errors import UserError
from memlint.findings import Severity
from memlint.settings.model import Override, Settings

KEYS = (
    "target",
    "overrides",
    "select",
    "ignore",
    "per-file-ignores",
    "include",
    "exclude",
    "fail-on",
    "margin",
    "models",
    "jobs",
    "training",
    "versions",
    "host-memory",
    "search-root",
    "offline",
    "baseline",
)
"""Every key of the settings, in the order of the documentation."""

OVERRIDE_KEYS = ("files", "target", "margin", "fail-on", "ignore", "training")


class _Reader:
    """Reads one table; knows how to say where a key stands."""

    def __init__(self, path: str, content: bytes, where: str) -> None:
        self.path = path
        self.text = content.decode("utf-8", "replace")
        self.where = where
        self.root = os.path.dirname(os.path.abspath(path))

    def fail(self, key: str, message: str) -> NoReturn:
        relative = os.path.relpath(self.path)
        shown = self.path if relative.startswith("..") else relative.replace(os.sep, "/")
        raise UserError(f"{shown}:{self.line(key)}: {message}")

    def line(self, key: str) -> int:
        """Line of the first ``key =`` or ``[...key]`` inside our table; the table's own line where it is not found."""
        start = 0
        if self.where:
            header = re.search(r"^\s*\[+\s*tool\s*\.\s*memlint\b", self.text, re.M)
            start = header.start() if header else 0
        escaped = re.escape(key)
        found = re.compile(
            rf"^[ \t]*(?:[\"']?{escaped}[\"']?[ \t]*[=.]|\[+[^\]\n]*(?<![\w-])[\"']?{escaped}[\"']?[ \t]*[\].])", re.M
        ).search(self.text, start)
        return self.text.count("\n", 0, found.start() if found else start) + 1

    def unknown(self, key: str, known: tuple[str, ...], table: str) -> NoReturn:
        from difflib import get_close_matches

        close = get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.6)
        tail = f"; did you mean `{close[0]}`?" if close else f"; known keys: {', '.join(known)}"
        self.fail(key, f"unknown key `{key}` in {table}{tail}")

    def string(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            self.fail(key, f"`{key}` must be a non-empty string")
        return value

    def strings(self, key: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, f"`{key}` must be a list of strings")
        return tuple(value)

    def codes(self, key: str, value: Any) -> tuple[str, ...]:
        from memlint.rules.select import check_selectors

        selectors = self.strings(key, value)
        try:
            check_selectors(selectors)
        except UserError as error:
            self.fail(key, f"`{key}`: {error}")
        return selectors

    def margin(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            self.fail(key, f"`{key}` is the share of usable memory kept free: a number from 0 up to, not including, 1")
        return float(value)

    def size(self, key: str, value: Any) -> int:
        from memlint.units import parse_bytes

        found = parse_bytes(value) if isinstance(value, str) else None
        if not found:
            self.fail(key, f"`{key}` is a size of memory, such as `256GiB`")
        return found

    def severity(self, key: str, value: Any) -> Severity:
        if not isinstance(value, str) or value.upper() not in Severity.__members__:
            self.fail(key, f"`{key}` must be one of error, warning, info")
        return Severity[value.upper()]

    def boolean(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            self.fail(key, f"`{key}` must be true or false")
        return value

    def path_under_root(self, key: str, value: Any) -> str:
        return os.path.normpath(os.path.join(self.root, self.string(key, value)))

    def table(self, key: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(key, f"`{key}` must be a table")
        return value


def build_settings(table: dict[str, Any], *, path: str, content: bytes, prefix: tuple[str, ...]) -> Settings:
    """Return the settings in ``table``. Raises UserError with file, line and nearest name for a mistake."""
    reader = _Reader(path, content, ".".join(prefix))
    shown = f"[{reader.where}]" if reader.where else "memlint.toml"
    for key in table:
        if key not in KEYS:
            reader.unknown(key, KEYS, shown)
    readers: dict[str, Callable[[str, Any], Any]] = {
        "target": reader.string,
        "select": reader.codes,
        "ignore": reader.codes,
        "include": reader.strings,
        "exclude": reader.strings,
        "fail-on": reader.severity,
        "margin": reader.margin,
        "host-memory": reader.size,
        "search-root": reader.path_under_root,
        "offline": reader.boolean,
        "baseline": reader.path_under_root,
        "training": reader.table,
    }
    values: dict[str, Any] = {
        key.replace("-", "_"): read(key, table[key]) for key, read in readers.items() if key in table
    }
    if "models" in table:
        models = reader.table("models", table["models"])
        values["models"] = {name: reader.path_under_root(name, value) for name, value in models.items()}
    if "versions" in table:
        versions = reader.table("versions", table["versions"])
        values["versions"] = {name.lower(): reader.string(name, value) for name, value in versions.items()}
    if "per-file-ignores" in table:
        ignores = reader.table("per-file-ignores", table["per-file-ignores"])
        values["per_file_ignores"] = {pattern: reader.codes(pattern, codes) for pattern, codes in ignores.items()}
    if "overrides" in table:
        values["overrides"] = tuple(_override(reader, item) for item in _list(reader, "overrides", table))
    if "jobs" in table:
        values["jobs"] = tuple(_list(reader, "jobs", table))
    return Settings(source=path, root=reader.root, **values)


def _list(reader: _Reader, key: str, table: dict[str, Any]) -> list[dict[str, Any]]:
    items = table[key]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        reader.fail(key, f"`{key}` must be an array of tables: [[{reader.where + '.' if reader.where else ''}{key}]]")
    return items


def _override(reader: _Reader, item: dict[str, Any]) -> Override:
    for key in item:
        if key not in OVERRIDE_KEYS:
            reader.unknown(key, OVERRIDE_KEYS, "overrides")
    if "files" not in item:
        reader.fail("overrides", "every entry of `overrides` needs `files`, a list of patterns")
    return Override(
        files=reader.strings("files", item["files"]),
        target=reader.string("target", item["target"]) if "target" in item else None,
        margin=reader.margin("margin", item["margin"]) if "margin" in item else None,
        fail_on=reader.severity("fail-on", item["fail-on"]) if "fail-on" in item else None,
        ignore=reader.codes("ignore", item["ignore"]) if "ignore" in item else (),
        training=reader.table("training", item["training"]) if "training" in item else None,
    )
