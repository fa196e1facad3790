"""Listings of a trace: what forward saves, and every allocation and free in order."""

from __future__ import annotations

import re

from memlint.measure.trace.result import TraceResult, component_of


def saved_table(result: TraceResult) -> str:
    """What forward keeps for backward, grouped by module (``*`` for layer numbers), operator, shape and dtype."""
    groups: dict[tuple[str, str, tuple[int, ...], str], list[int]] = {}
    for storage in result.saved:
        key = (re.sub(r"\.\d+(?=\.|$)", ".*", storage.module), storage.op, storage.shape, storage.dtype)
        groups.setdefault(key, []).append(storage.bytes)
    lines = [f"{'bytes':>16} {'count':>5}  module | op | shape | dtype"]
    for (module, op, shape, dtype), sizes in groups.items():
        lines.append(f"{sum(sizes):>16,} {len(sizes):>5}  {module} | {op} | {list(shape)} | {dtype}")
    return "\n".join(lines)


def write_events(result: TraceResult, path: str) -> None:
    """Write the last step's allocations and frees as tab-separated lines, in order."""
    recorder = result.recorder
    last = max(mark.step for mark in recorder.marks)
    begin = next(mark for mark in recorder.marks if mark.step == last)
    start = recorder.marks[recorder.marks.index(begin) - 1].end_event
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("event\tphase\tsign\tbytes\tlive\tnumber\tcomponent\tmade_by\tshape\tdtype\tmodule\tduring\n")
        for number, event in enumerate(recorder.events[start:], start):
            s = event.storage
            component = component_of(s, result.forward_end_event, result.vocabulary)
            stream.write(
                f"{number}\t{event.phase}\t{'+' if event.sign > 0 else '-'}\t{s.bytes}\t{event.live}\t{s.number}\t"
                f"{component}\t{s.op}\t{list(s.shape)}\t{s.dtype}\t{s.module}\t{event.op}\n"
            )
