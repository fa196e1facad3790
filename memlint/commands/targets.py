"""List the GPUs, partitions and cloud instances that a target can name.

Usable memory is what CUDA (HIP) reports, the smallest figure known; `up to` is the largest among drivers and systems.
With a text, only the targets whose name contains it are shown, each with its source.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from memlint.exits import Exit
from memlint.units import GIB

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from memlint.hardware.catalog import Gpu


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint targets`."""
    parser.add_argument("text", nargs="?", default="", help="show the targets whose name contains this, with sources")
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="a table, or JSON")


def run(args: Namespace) -> int:
    """Print every target, or those that match a text; exit 2 with the nearest names when none does."""
    chosen = rows()
    if args.text:
        chosen = matching(chosen, args.text)
    if args.output_format == "json":
        sys.stdout.write(json.dumps(chosen, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(render_sources(chosen) if args.text else render_text(chosen))
    return Exit.OK


def rows() -> list[dict[str, Any]]:
    """Return every known target: GPUs, each followed by its MIG partitions, then cloud instances. Sizes in bytes."""
    from memlint.hardware.catalog import gpu_named, gpus, instances, partitions

    listed: list[dict[str, Any]] = []
    for gpu in gpus():
        listed.append(_row("gpu", gpu.name, gpu, 1, list(gpu.aliases), gpu.source))
        for part in partitions(gpu):
            row = _row("partition", f"{gpu.name}:{part.profile}", gpu, 1, [], part.source)
            listed.append(row | {"usable_bytes": part.usable_bytes, "usable_high_bytes": part.usable_bytes})
    for instance in instances():
        gpu = gpu_named(instance.gpu)
        listed.append(_row("instance", instance.name, gpu, instance.gpus, [], instance.source))
    return listed


def _row(kind: str, name: str, gpu: Gpu, count: int, aliases: list[str], source: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "gpu": gpu.name,
        "gpus": count,
        "usable_bytes": gpu.usable_bytes,
        "usable_high_bytes": gpu.usable_high_bytes,
        "marketing_gb": gpu.marketing_gb,
        "compute_capability": list(gpu.compute_capability) if gpu.compute_capability else None,
        "bf16": gpu.bf16,
        "fp8": gpu.fp8,
        "aliases": aliases,
        "source": source,
    }


def matching(listed: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the rows whose name or alias contains ``text``, case and separators free.

    Raises UserError when there is none.
    """
    from memlint.hardware.names import key

    wanted = key(text)
    found = [row for row in listed if wanted and any(wanted in key(name) for name in (row["name"], *row["aliases"]))]
    if not found:
        from memlint.hardware.parse import parse_target

        target = parse_target(text)  # a full target (8xA100-80GB), or the sentence with the nearest names
        base, _, _ = target.name.partition(":")
        found = [row for row in listed if row["name"] in (target.name, base)]
        if not found:  # a bare size
            return [row for row in listed if row["kind"] == "gpu" and row["usable_bytes"] >= target.usable_bytes]
    return found


def render_text(listed: list[dict[str, Any]]) -> str:
    """Return the table of :func:`rows`, at most 80 columns wide."""
    lines = ["GPU                     usable  up to  box   cc    bf16  fp8  MIG partitions", ""]
    gpus = [row for row in listed if row["kind"] == "gpu"]
    for row in gpus:
        profiles = [
            _profile(part["name"]) for part in listed if part["kind"] == "partition" and part["gpu"] == row["gpu"]
        ]
        lines.append(_gpu_line(row, profiles).rstrip())
    lines += ["", "usable and up to in GiB as CUDA reports it, box in GB; cc: compute capability", ""]
    lines += _instance_lines([row for row in listed if row["kind"] == "instance"])
    lines += [
        "",
        "Write a target as [NODESx][COUNTx]GPU[:PARTITION], such as 8xA100-80GB,",
        "2x8xH100-80GB or A100-80GB:3g.40gb; as a cloud instance (p4d.24xlarge); or as a",
        "bare size (24GiB). Case and separators are free.",
        "`memlint targets TEXT` shows the matching ones with their sources.",
    ]
    return "\n".join(lines) + "\n"


def _profile(name: str) -> str:
    return name.partition(":")[2].partition(".")[0]


def _gpu_line(row: dict[str, Any], profiles: list[str]) -> str:
    low, high = row["usable_bytes"] / GIB, row["usable_high_bytes"] / GIB
    capability = ".".join(str(part) for part in row["compute_capability"] or ("-",))
    yes = {True: "yes", False: "no", None: "-"}
    partitions = " ".join(dict.fromkeys(profiles))
    return (
        f"{row['name']:<22}  {low:6.2f} {high:6.2f}  {row['marketing_gb']:3}  {capability:>4}  "
        f"{yes[row['bf16']]:>6}  {yes[row['fp8']]:>3}  {partitions}"
    )


def _instance_lines(listed: list[dict[str, Any]]) -> list[str]:
    """Return instances grouped by what they hold, wrapped at 80 columns."""
    from textwrap import wrap

    groups: dict[str, list[str]] = {}
    for row in sorted(listed, key=lambda row: (-row["usable_bytes"], row["gpu"], row["gpus"])):
        groups.setdefault(f"{row['gpus']}x{row['gpu']}", []).append(row["name"])
    lines = []
    for machine, names in groups.items():
        lines += wrap(" ".join(names), 80, initial_indent=f"{machine:<18}  ", subsequent_indent=" " * 20)
    return lines


def render_sources(listed: list[dict[str, Any]]) -> str:
    """Return each row with its memory and where the figures were read, wrapped at 80 columns."""
    from textwrap import wrap

    lines: list[str] = []
    for row in listed:
        machine = f" = {row['gpus']}x{row['gpu']}" if row["kind"] == "instance" else ""
        low, high = row["usable_bytes"] / GIB, row["usable_high_bytes"] / GIB
        memory = f"{low:.2f} GiB" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f} GiB"
        each = " each" if row["gpus"] > 1 else ""
        lines.append(f"{row['name']}{machine}: {memory} usable{each}")
        if row["aliases"]:
            lines += wrap("also " + ", ".join(row["aliases"]), 80, initial_indent="  ", subsequent_indent="  ")
        lines += wrap("source: " + row["source"], 80, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"
