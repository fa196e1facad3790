"""Compare models by size: parameters, static memory, and activations with and without checkpointing.

Each figure stands in two forms: by the first-order textbook formulas, and simulated. Without a MODEL the handbook's
table of GPT-2 and LLaMA sizes is shown, with its nominal parameter counts in the first-order columns. MODEL is a
Hugging Face ID, a path of a config.json, or a model folder.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from memlint.errors import UserError
from memlint.exits import Exit
from memlint.units import GIB

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from memlint.estimate.first_order import Dimensions
    from memlint.estimate.result import Estimate
    from memlint.job import TrainingJob
    from memlint.models.architecture import Architecture


class Entry(NamedTuple):
    """One line of the table."""

    name: str
    architecture: Architecture | None
    """None where only the dimensions are known."""
    dimensions: Dimensions
    parameters: int
    """The count that the first-order columns use: nominal in the handbook's table, else counted."""


HANDBOOK: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("GPT-2 117M", 117_000_000, {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}),
    ("GPT-2 774M", 774_000_000, {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20}),
    (
        "LLaMA-7B",
        7_000_000_000,
        {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"intermediate_size": 11008, "vocab_size": 32000},
    ),
    (
        "LLaMA-13B",
        13_000_000_000,
        {"model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40}
        | {"intermediate_size": 13824, "vocab_size": 32000},
    ),
    (
        "LLaMA-70B",
        70_000_000_000,
        {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64}
        | {"intermediate_size": 28672, "vocab_size": 32000, "num_key_value_heads": 8},
    ),
)
"""Name, nominal parameters, and the HF config of the same dimensions (config.json of gpt2, gpt2-large, Llama-2-7b, -13b
and -70b) for the simulated columns."""


def configure(parser: ArgumentParser) -> None:
    """Add the options of `memlint scale`."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="model IDs, config.json files or model folders")
    parser.add_argument("--micro-batch-size", type=int, default=4, metavar="N", help="sequences in one step (4)")
    parser.add_argument("--sequence-length", type=int, default=2048, metavar="N", help="tokens of a sequence (2048)")
    parser.add_argument("--offline", action="store_true", help="never ask the Hugging Face hub")
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="a table, or JSON")


def run(args: Namespace) -> int:
    """Print the table; exit 2 when a model is unknown."""
    from memlint.dialects.native_fields import TRAINING
    from memlint.dialects.native_gate import accepts_value

    for name in ("micro_batch_size", "sequence_length"):
        field = TRAINING[name]
        if not accepts_value(field, getattr(args, name)):
            option = "--" + name.replace("_", "-")
            raise UserError(f"`{option}` must be a whole number from 1 to {field.maximum:,.0f}")
    entries = [_named(name, offline=args.offline) for name in args.models] if args.models else handbook()
    table = rows(entries, args.micro_batch_size, args.sequence_length)
    settings = {"micro_batch_size": args.micro_batch_size, "sequence_length": args.sequence_length}
    if args.output_format == "json":
        sys.stdout.write(json.dumps({"version": 1, "settings": settings, "models": table}, indent=2) + "\n")
    else:
        sys.stdout.write(render_text(table, **settings))
    return Exit.OK


def handbook() -> list[Entry]:
    """Return the handbook's models: nominal counts for the formulas, real shapes for the simulation."""
    from memlint.estimate.first_order import dimensions_of
    from memlint.models.architecture import Architecture
    from memlint.models.config import read_config

    entries = []
    for name, nominal, config in HANDBOOK:
        architecture = read_config(config, id=name)
        if not isinstance(architecture, Architecture):
            raise AssertionError(f"{name}: {architecture}")
        entries.append(Entry(name, architecture, dimensions_of(architecture), nominal))
    return entries


def _named(name: str, *, offline: bool) -> Entry:
    """Return the entry of a model the user names; UserError when it cannot be resolved."""
    from memlint.estimate.first_order import dimensions_of, parameter_count
    from memlint.models.resolve import resolve_model
    from memlint.settings.load import settings_for

    settings = settings_for(".")
    root = settings.search_root or settings.root or "."
    found = resolve_model(
        name,
        base_dir=".",
        settings_models=settings.models,
        search_root=root,
        offline=offline or settings.offline,
        trusted=True,
    )
    if found.architecture is None:
        raise UserError(found.reason or f"`{name}` has no known shape")
    architecture = found.architecture
    return Entry(name, architecture, dimensions_of(architecture), parameter_count(architecture)[0])


def rows(entries: list[Entry], micro_batch_size: int, sequence_length: int) -> list[dict[str, Any]]:
    """Return one row a model: parameters; static, activations and checkpointed activations in both forms, in bytes.

    ``simulated`` is None where there is no model of the architecture; ``note`` says why, or why it is only approximate.
    """
    return [_row(entry, micro_batch_size, sequence_length) for entry in entries]


def _row(entry: Entry, micro_batch_size: int, sequence_length: int) -> dict[str, Any]:
    from memlint.estimate.errors import Unsupported
    from memlint.estimate.first_order import first_order

    plain, light = (
        first_order(
            entry.dimensions,
            batch_size=micro_batch_size,
            sequence_length=sequence_length,
            parameters=entry.parameters,
            checkpointing=checkpointing,
        )
        for checkpointing in (False, True)
    )
    row: dict[str, Any] = {
        "model": entry.name,
        "parameters": entry.parameters,
        "first_order": {
            "static_bytes": plain.static_bytes,
            "activation_bytes": plain.activation_bytes,
            "checkpointed_activation_bytes": light.activation_bytes,
        },
        "simulated": None,
        "note": None,
    }
    if entry.architecture is not None:
        try:
            row["simulated"] = _simulated(entry.architecture, micro_batch_size, sequence_length)
            row["note"] = entry.architecture.approximate
        except Unsupported as error:
            row["note"] = str(error)
    return row


def _simulated(architecture: Architecture, micro_batch_size: int, sequence_length: int) -> dict[str, int]:
    from memlint.estimate.simulate import simulate
    from memlint.job import Precision, Training, TrainingJob, replace_fields

    job: TrainingJob = TrainingJob(
        model=architecture.id or "",
        architecture=architecture,
        training=Training(
            micro_batch_size=micro_batch_size,
            sequence_length=sequence_length,
            # the handbook's 14 bytes per parameter: half-precision weights, fp32 gradients, two fp32 moments
            precision=Precision(weights="bf16", autocast=None, gradients="fp32", optimizer="fp32"),
        ),
    )
    plain = simulate(job)
    light = simulate(replace_fields(job, {"training.checkpointing.mode": "full"}))
    return {
        "parameters": plain.parameters,
        "static_bytes": plain.static["parameters"] + plain.static["gradients"] + plain.static["optimizer_states"],
        "activation_bytes": _activations(plain),
        "checkpointed_activation_bytes": _activations(light),
    }


def _activations(estimate: Estimate) -> int:
    """Return the most that forward, loss and backward hold beside parameters, gradients and optimizer states."""
    kept = ("parameters", "gradients", "optimizer_states")
    return max(
        sum(size for name, size in phase.components.items() if name not in kept)
        for phase in estimate.timeline
        if phase.phase in ("forward", "loss", "backward")
    )


def render_text(table: list[dict[str, Any]], micro_batch_size: int, sequence_length: int) -> str:
    """Return the rows as a table of at most 80 columns, sizes in GiB."""
    from textwrap import wrap

    width = min(23, max([len("model"), *(len(row["model"]) for row in table)]))
    groups = ("static", "activations", "checkpointed")
    lines = [
        (f"{'':<{width}}  {'para-':>7}" + "".join(f"  {group:^14}" for group in groups)).rstrip(),
        f"{'model':<{width}}  {'meters':>7}" + "   first   simul" * 3,
    ]
    for row in table:
        first, simulated = row["first_order"], row["simulated"] or {}
        cells = "".join(
            f"  {_gib(first[name])}  {_gib(simulated.get(name))}"
            for name in ("static_bytes", "activation_bytes", "checkpointed_activation_bytes")
        )
        lines.append(f"{_short(row['model'], width):<{width}}  {_count(row['parameters']):>7}{cells}")
    for row in table:
        if row["note"]:
            note = row["note"] if row["simulated"] else f"not simulated: {row['note']}"
            lines += wrap(f"{_short(row['model'], 40)}: {note}", 80, subsequent_indent="  ")
    lines += [
        "",
        f"GiB at micro batch {micro_batch_size}, {sequence_length} tokens.",
        "static: half-precision weights, fp32 gradients and two fp32 Adam moments, 14",
        "bytes per parameter. first: B*T*(34d + 5hT) a layer, one layer's worth when",
        "checkpointed. simul: one step of the model's own shape with sdpa attention: all",
        "that forward and backward hold beside the static part, logits included.",
    ]
    return "\n".join(lines) + "\n"


def _gib(size: int | None) -> str:
    return f"{'-':>6}" if size is None else f"{size / GIB:6.1f}"


def _count(parameters: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if parameters >= size:
            return f"{parameters / size:.1f} {unit}"
    return str(parameters)


def _short(name: str, width: int) -> str:
    """Shorten an ID to ``width``, keeping its end, which tells sizes apart."""
    return name if len(name) <= width else "..." + name[3 - width :]
