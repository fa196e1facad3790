"""One prediction as text: what it is made of, when, against which GPU, and what was taken for granted."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from memlint.report.style import Style
from memlint.report.text import printable
from memlint.units import gib

_WORDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer states",
    "activations": "activations",
    "logits": "logits and loss",
    "temporaries": "temporaries",
    "communication": "communication",
    "inputs": "inputs",
}
_VERDICTS = {
    "fits": ("good", "fits"),
    "tight": ("warning", "tight: may run out of memory"),
    "oom": ("error", "out of memory"),
}
_WITHOUT_RANK = ("full", "freeze", "ia3", "road", "fourierft", "c3a", "ln-tuning", "prefix", "prompt", "p-tuning")
_SHOWN = 5 * 1024**2
"""Bytes below which a part would read 0.00 GiB."""
_COLUMN = 9
"""Width of a figure in GiB with two digits."""


def estimate_text(data: Mapping[str, Any], style: Style, first_order: Mapping[str, Any] | None = None) -> str:
    """Return the contract's `estimate` object ``data`` as text; ``first_order`` is shown beside where given."""
    return "\n".join(_lines(data, style, first_order)) + "\n"


def _lines(data: Mapping[str, Any], style: Style, first_order: Mapping[str, Any] | None) -> Iterator[str]:
    peak, model = data["peak"], data["model"]
    name = printable(str(model["id"] or data["file"]))
    yield (
        style("bold", name)
        + f": {printable(str(model['model_type'] or model['family']))}, {_count(model['parameters'])} parameters, "
        + (
            "all trained"
            if model["trainable_parameters"] == model["parameters"]
            else f"{_count(model['trainable_parameters'])} trained"
        )
    )
    yield "  " + printable(job_text(data["job"]))
    yield ""
    yield f"At the peak, in {_phase(peak['phase'])} (GiB per GPU, {data['method']}):"
    for key, words in _WORDS.items():
        size = peak["components"].get(key, 0)
        if size >= _SHOWN:
            yield _row(words, size)
    yield _row("allocated", peak["allocated_bytes"], rule=True)
    for part in data.get("overheads", ()):
        if part["expected_bytes"] >= _SHOWN:
            yield _row(part["name"].replace("_", " "), part["expected_bytes"])
    interval = f"   {gib(peak['low_bytes'], 2)} to {gib(peak['high_bytes'], 2)}"
    yield style("bold", _row("predicted peak", peak["device_bytes"], rule=True) + interval)
    target = data["target"]
    if target is not None:
        gpus = f", one of {target['gpus']}" if target["gpus"] > 1 else ""
        kind, words = _VERDICTS.get(data["verdict"], ("dim", data["verdict"]))
        yield _row(f"usable on {target['name']}{gpus}", target["usable_bytes"]) + f"   {style(kind, words)}"
    else:
        yield "  no GPU declared: add --target, e.g. --target A100-80GB"
    if data["timeline"]:
        yield ""
        phases = ", ".join(f"{p['phase']} {gib(p['peak_bytes'], 2)}" for p in data["timeline"])
        yield f"Allocated by phase: {phases}."
    evaluation = data.get("evaluation")
    if evaluation is not None:
        yield (
            f"An evaluation of {evaluation['micro_batch_size']} rows takes {gib(evaluation['device_bytes'], 2)} GiB"
            f" ({gib(evaluation['low_bytes'], 2)} to {gib(evaluation['high_bytes'], 2)})."
        )
    if data["host"]["bytes"]:
        available = data["host"].get("available_bytes")
        of = f" of {gib(available, 2)} on each node" if available is not None else ""
        yield f"Host memory: {gib(data['host']['bytes'], 2)} GiB{of}."
    if first_order is not None:
        yield f"Textbook formulas give {gib(first_order['peak']['device_bytes'], 2)} GiB (--method first-order)."
    if data["assumptions"]:
        yield ""
        yield "Taken for granted:"
        for sentence in data["assumptions"]:
            yield f"  - {printable(sentence)}"


def job_text(job: Mapping[str, Any]) -> str:
    """Return the settings that decide the peak, in one line."""
    training, parallelism = job.get("training", {}), job.get("parallelism", {})
    method = training.get("method", "full")
    lora = training.get("lora") or {}
    parts = [f"{training.get('objective', 'causal-lm')}, {method}"]
    if lora and method in ("oft", "boft"):
        parts[0] += f" (blocks of {lora.get('block_size')})" if lora.get("block_size") else ""
    elif lora and method not in _WITHOUT_RANK:
        parts[0] += f" (rank {lora.get('rank')})"
    if training.get("reference_model") == "copy":
        parts[0] += " beside a reference model"
    parts.append(f"micro batch {training.get('micro_batch_size')} x {training.get('sequence_length')} tokens")
    steps = training.get("gradient_accumulation_steps", 1)
    if steps and steps > 1:
        parts.append(f"accumulated over {steps}")
    if training.get("images"):
        parts.append(f"images {training['images']}")
    parts.append(_precision(training.get("precision"), training.get("quantization")))
    parts.append(str(training.get("optimizer")))
    checkpointing = training.get("activation_checkpointing", "none")
    if isinstance(checkpointing, dict):
        checkpointing = checkpointing.get("mode", "full")
    parts.append("no checkpointing" if checkpointing == "none" else f"checkpointing {checkpointing}")
    parts.append(f"{training.get('attention')} attention")
    parts.append(f"{training.get('loss')} loss")
    strategy = parallelism.get("strategy", "none")
    if strategy != "none":
        parts.append(str(strategy))
    offload = parallelism.get("offload", "none")
    if offload != "none":
        parts.append("parameters and states offloaded" if offload == "all" else f"{offload} offloaded")
    return ", ".join(parts)


def _precision(value: Any, quantization: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    stored = quantization.get("type") if isinstance(quantization, dict) else None
    autocast = value.get("autocast")
    float8 = ", float8 products" if value.get("fp8") else ""
    weights, trained = value.get("weights"), value.get("trainable_weights")
    apart = f" (trained ones {trained})" if trained and trained != weights else ""
    base = f"{stored} base, other weights {weights}" if stored else f"{weights} weights"
    return f"{base}{apart}" + (f", {autocast} autocast" if autocast else "") + float8


def _row(words: str, size: int, *, rule: bool = False) -> str:
    mark = "=" if rule else " "
    return f"{mark} {words:<36}{gib(size, 2):>{_COLUMN}}"


def _phase(phase: str) -> str:
    words = {"loss": "the loss", "clip": "gradient clipping", "optimizer": "the optimizer step"}
    return words.get(phase, f"the {phase}")


def _count(number: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)
