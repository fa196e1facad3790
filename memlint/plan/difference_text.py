"""A difference of two predictions as text for a terminal, and as Markdown for a review comment."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

from memlint.report.style import Style
from memlint.report.text import printable
from memlint.units import gib

WORDS = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimizer_states": "optimizer states",
    "activations": "activations",
    "logits": "logits and loss",
    "temporaries": "temporaries",
    "communication": "communication",
    "inputs": "inputs",
    "overheads": "context and fragmentation",
}
_VERDICTS = {"fits": ("good", "fits"), "tight": ("warning", "tight"), "oom": ("error", "out of memory")}
_SHOWN = 5 * 1024**2
"""Bytes below which a part would read 0.00 GiB."""
_MOST_SETTINGS = 12
Difference = Mapping[str, Any]


def text(name: str, found: Difference, style: Style) -> str:
    """Return one difference for a terminal."""
    return "\n".join(_text(name, found, style)) + "\n"


def _text(name: str, found: Difference, style: Style) -> Iterator[str]:
    before, after = found["before"], found["after"]
    if before is None or after is None:
        side, what = (after, "added") if before is None else (before, "removed")
        size = gib(side["device_bytes"])
        yield f"{style('bold', printable(name))}: {what}, predicted peak {size} GiB{_held(side, style)}"
        return
    yield f"{style('bold', printable(name))}: {_headline(found, style)}"
    yield f"  {'GiB per GPU':<26}{'before':>9}{'after':>9}{'change':>9}"
    for part, had, has in _rows(found):
        yield f"  {WORDS[part]:<26}{gib(had, 2):>9}{gib(has, 2):>9}{_signed(has - had):>9}"
    change = found["change"]["device_bytes"]
    old, new = gib(before["device_bytes"], 2), gib(after["device_bytes"], 2)
    yield style("bold", f"= {'predicted peak':<26}{old:>9}{new:>9}{_signed(change):>9}")
    if before["phase"] != after["phase"]:
        yield f"  the peak moves from {before['phase']} to {after['phase']}"
    for line in _settings(found):
        yield f"  {line}"


def markdown(entries: Sequence[tuple[str, Difference]], title: str) -> str:
    """Return differences as Markdown: a table of files, then the parts of each, folded."""
    lines = [f"### {title}", ""]
    if not entries:
        return "\n".join([*lines, "No prediction changes.", ""])
    lines += ["| config | before | after | change | verdict |", "|---|--:|--:|--:|---|"]
    for name, found in entries:
        before, after = found["before"], found["after"]
        old = gib(before["device_bytes"]) if before else "-"
        new = gib(after["device_bytes"]) if after else "-"
        change = _signed(found["change"]["device_bytes"], 1) if found["change"] else ("added" if after else "removed")
        lines.append(f"| {_cell(name)} | {old} | {new} | {change} | {_verdicts(before, after)} |")
    lines += ["", "Predicted peak in GiB per GPU."]
    for name, found in entries:
        if found["change"] is None:
            continue
        lines += ["", f"<details><summary>{_html(name)}</summary>", "", "| part | before | after | change |"]
        lines.append("|---|--:|--:|--:|")
        lines += [
            f"| {WORDS[part]} | {gib(old, 2)} | {gib(new, 2)} | {_signed(new - old)} |"
            for part, old, new in _rows(found)
        ]
        settings = [_cell(line) for line in _settings(found)]
        lines += ["", *(f"- {line}" for line in settings), "", "</details>"]
    return "\n".join([*lines, ""])


def _headline(found: Difference, style: Style) -> str:
    before, after = found["before"], found["after"]
    change = found["change"]["device_bytes"]
    size = f"{gib(before['device_bytes'])} -> {gib(after['device_bytes'])} GiB ({_signed(change, 1)})"
    if after["target"] is None and before["target"] is None:
        return f"predicted peak {size}"
    return f"predicted peak {size}{_held(after, style)}" + (
        f", was {_verdict(before['verdict'], style)}" if before["verdict"] != after["verdict"] else ""
    )


def _held(side: Mapping[str, Any], style: Style) -> str:
    target = side["target"]
    if target is None:
        return ""
    return f" of {gib(target['usable_bytes'])} GiB usable on {target['name']}: {_verdict(side['verdict'], style)}"


def _verdict(verdict: str, style: Style) -> str:
    kind, words = _VERDICTS.get(verdict, ("dim", verdict))
    return style(kind, words)


def _verdicts(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    plain = Style(False)
    words = [_verdict(side["verdict"], plain) for side in (before, after) if side is not None]
    return " -> ".join(dict.fromkeys(words))


def _rows(found: Difference) -> Iterator[tuple[str, int, int]]:
    old, new = found["before"]["parts"], found["after"]["parts"]
    for part in WORDS:
        if old.get(part, 0) >= _SHOWN or new.get(part, 0) >= _SHOWN:
            yield part, old.get(part, 0), new.get(part, 0)


def _settings(found: Difference) -> Iterator[str]:
    settings = found["settings"]
    for entry in settings[:_MOST_SETTINGS]:
        yield printable(f"{entry['field']}: {_value(entry['before'])} -> {_value(entry['after'])}")
    if len(settings) > _MOST_SETTINGS:
        yield f"and {len(settings) - _MOST_SETTINGS} more settings"


def _value(value: Any) -> str:
    from memlint.engine.trials import value_text

    words = value_text(value)
    return words if len(words) <= 60 else f"{words[:57]}..."


def _signed(size: int, digits: int = 2) -> str:
    words = f"{size / 1024**3:+.{digits}f}"
    return words if any(digit in "123456789" for digit in words) else f"{0:.{digits}f}"


def _cell(words: str) -> str:
    """Text from a config must not end a table's cell, start a link or ping somebody."""
    safe = _html(printable(words))
    for mark in ("\\", "|", "`", "*", "_", "[", "]", "#"):
        safe = safe.replace(mark, f"\\{mark}")
    return safe


def _html(words: str) -> str:
    """Text inside a tag, where Markdown is not read but a mention is still linked."""
    safe = printable(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return safe.replace("@", "@\u200b")
