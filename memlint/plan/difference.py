"""What a change of a config does to its peak: two predictions side by side, component by component.

Both sides are the contract's `estimate` objects, so that whatever produces one can be compared.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from memlint.estimate.result import COMPONENTS

Side = Mapping[str, Any]

_IGNORED = ("origins", "memlint", "versions")
"""Parts of a job that are no setting of its own."""


def difference(before: Side | None, after: Side | None) -> dict[str, Any]:
    """Return the difference as plain data, sizes in bytes per GPU; None on a side: the job is not there."""
    return {
        "before": _side(before),
        "after": _side(after),
        "change": _change(before, after),
        "settings": list(_settings(before, after)),
    }


def parts(side: Side) -> dict[str, int]:
    """Return the device peak by part: the components, and everything beside the allocated peak as one."""
    peak = side["peak"]
    found = {name: int(peak["components"].get(name, 0)) for name in COMPONENTS}
    found["overheads"] = int(peak["device_bytes"]) - sum(found.values())
    return found


def _side(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    peak = side["peak"]
    return {
        "file": side["file"],
        "model": side["model"]["id"],
        "verdict": side["verdict"],
        "target": side["target"],
        "device_bytes": peak["device_bytes"],
        "low_bytes": peak["low_bytes"],
        "high_bytes": peak["high_bytes"],
        "phase": peak["phase"],
        "parts": parts(side),
    }


def _change(before: Side | None, after: Side | None) -> dict[str, Any] | None:
    if before is None or after is None:
        return None
    old, new = parts(before), parts(after)
    return {
        "device_bytes": after["peak"]["device_bytes"] - before["peak"]["device_bytes"],
        "parts": {name: new[name] - old[name] for name in new},
    }


def _settings(before: Side | None, after: Side | None) -> Iterator[dict[str, Any]]:
    if before is None or after is None:
        return
    old, new = dict(_flat(before["job"])), dict(_flat(after["job"]))
    for name in [*new, *(name for name in old if name not in new)]:
        if old.get(name) != new.get(name):
            yield {"field": name, "before": old.get(name), "after": new.get(name)}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if not prefix and name in _IGNORED:
            continue
        path = f"{prefix}{name}"
        if isinstance(item, Mapping) and item:
            yield from _flat(item, f"{path}.")
        else:
            yield path, item
