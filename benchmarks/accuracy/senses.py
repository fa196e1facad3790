"""Trace models that hear or see without a language model, and write the lines of tests/estimate/traces_media.jsonl.

    python -m benchmarks.accuracy.senses [--types resnet,hubert] [--output FILE]

Each line of the file (or of those of the types) is traced anew. A trace has no data, so what the models read from it is
given to them: numbers of labels, places of masked spans. CTC runs with the tensors that LossCTC.cu makes. Layers are
never dropped (``layerdrop`` 0 in the configs), and stochastic depth is a list of numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from benchmarks.accuracy.media import Patches, fake, ids, masked, module_of, unchecked
from benchmarks.lines import read_lines, write_lines
from memlint.measure.trace.settings import LoraSettings, TraceSettings

build_module: Any = importlib.import_module("memlint.measure.trace.build")
run_module: Any = importlib.import_module("memlint.measure.trace.run")
PATH = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "estimate", "traces_media.jsonl")
OWNERS = {
    "ctc": "AutoModelForCTC",
    "audio": "AutoModelForAudioClassification",
    "image": "AutoModelForImageClassification",
    "pixels": "AutoModelForSemanticSegmentation",
    "written": "AutoModelForImageTextToText",
    "pairs": "AutoModel",
}
SIDE, MASKED = 224, 30
"""Side of an image; frames whose features are masked."""
CAST = ("vit", "deit", "ijepa", "dinov2", "siglip", "clip")
"""Types that cast fp32 pixels to the dtype of their weights."""
COMPOSED = ("trocr", "donut-swin")
"""Parts of a model that take no attention but their own."""


class Ctc(torch.autograd.Function):  # type: ignore[misc]  # torch leaves its base untyped
    """``F.ctc_loss``: a table of frames and twice the labels, once in each direction."""

    labels = 0

    @staticmethod
    def forward(ctx: Any, log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of log-probabilities [L, B, V]."""
        frames, rows, _ = log_probs.shape
        alpha = torch.empty(rows, frames, 2 * Ctc.labels + 1, device="cuda")
        losses = torch.empty(rows, device="cuda")
        ctx.save_for_backward(log_probs, targets, alpha, losses)
        return torch.empty((), device="cuda")

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """log_beta, and the gradient."""
        log_probs, _, alpha, _ = ctx.saved_tensors
        beta = torch.empty_like(alpha)
        result = torch.empty_like(log_probs)
        del beta
        return result, None


class Rate(float):
    """A number that gives itself, as a tensor of one does."""

    def item(self) -> float:
        """The number."""
        return float(self)


class Rates(list[float]):
    """``torch.linspace`` on the host: its values are read when the model is built."""

    def split(self, counts: list[int]) -> list[Rates]:
        """As ``Tensor.split``."""
        ends = [sum(counts[: index + 1]) for index in range(len(counts))]
        return [Rates(self[end - count : end]) for end, count in zip(ends, counts)]

    def tolist(self) -> list[float]:
        """The values."""
        return list(self)


def _rates(start: float, end: float, count: int, **options: Any) -> Rates:
    return Rates([Rate(start + (end - start) * index / max(1, count - 1)) for index in range(count)])


def _put(self: torch.Tensor, at: Any, value: Any) -> Any:
    if isinstance(at, torch.Tensor) and at.dtype == torch.bool and isinstance(value, torch.Tensor):
        at = ids(MASKED), ids(MASKED)
    return _SET(self, at, value)


_SET = torch.Tensor.__setitem__


def patches(point: dict[str, Any]) -> Patches:
    """What replaces the model's looks at data."""
    found: Patches = [(torch, "linspace", _rates)]
    if point["config"]["model_type"] == "siglip2":
        module = module_of("siglip2")
        found += [*unchecked(module), (module, "create_bidirectional_mask", masked(False))]
    if point["head"] == "ctc":
        Ctc.labels = point["target_seq"]
        found += [
            (fake(), "max", lambda tensor: 0),
            (torch.Tensor, "masked_select", lambda tensor, mask: ids(mask.numel())),
            (torch.Tensor, "__setitem__", _put),
            (
                torch.nn.functional,
                "ctc_loss",
                lambda log_probs, targets, *args, **options: Ctc.apply(log_probs, targets),
            ),
        ]
    return found


def inputs(point: dict[str, Any], config: Any, weights: torch.dtype) -> dict[str, Any]:
    """What the model is called with."""
    rows, kind = point["batch"], point["config"]["model_type"]
    labels = ids(rows, point["target_seq"]) if point["head"] == "ctc" else ids(rows)
    if point["head"] == "written":
        labels = ids(rows, point["target_seq"])
        size, kind = getattr(config.encoder, "image_size", SIDE), config.encoder.model_type
        size = size if isinstance(size, (list, tuple)) else (size, size)
        dtype = torch.float32 if kind.startswith(CAST) else weights
        return {"pixel_values": torch.empty(rows, 3, *size, device="cuda", dtype=dtype), "labels": labels}
    if kind == "siglip2":
        given = {
            "pixel_values": torch.empty(rows, 256, 3 * 16**2, device="cuda"),
            "pixel_attention_mask": torch.empty(rows, 256, dtype=torch.int32, device="cuda"),
            "spatial_shapes": ids(rows, 2),
        }
        pairs = point["head"] == "pairs"
        return (
            {**given, "input_ids": ids(rows, point["seq"]), "return_loss": True}
            if pairs
            else {**given, "labels": labels}
        )
    if point["head"] == "pixels":
        labels = ids(rows, SIDE, SIDE)
    if point["head"] in ("image", "pixels"):
        dtype = torch.float32 if kind.startswith(CAST) else weights
        return {"pixel_values": torch.empty(rows, 3, SIDE, SIDE, device="cuda", dtype=dtype), "labels": labels}
    if kind == "whisper":
        shape = (rows, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": torch.empty(shape, device="cuda", dtype=weights), "labels": labels}
    if kind == "audio-spectrogram-transformer":
        shape = (rows, config.max_length, config.num_mel_bins)
        return {"input_values": torch.empty(shape, device="cuda", dtype=weights), "labels": labels}
    samples = 320 * (point["seq"] - 1) + 400
    given = {"input_values": torch.empty(rows, samples, device="cuda", dtype=weights), "labels": labels}
    if point.get("padding"):
        given["attention_mask"] = torch.empty(rows, samples, dtype=torch.int32, device="cuda")
    return given


def _prepared(point: dict[str, Any]) -> Any:
    make = run_module.make_model

    def made(*args: Any, **options: Any) -> Any:
        if point["head"] == "written":
            # As a model has it that is asked for no attention: TrOCR and Donut know their own alone.
            sides = {side: point["config"][side]["model_type"] for side in ("encoder", "decoder")}
            own = {side: "eager" if kind in COMPOSED else options["attention"] for side, kind in sides.items()}
            options["attention"] = {"": "eager", **own}
        model = make(*args, **options)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        base = getattr(model, model.base_model_prefix, model)
        spans = getattr(base, "masked_spec_embed", None)
        if spans is not None:
            base.masked_spec_embed = torch.nn.Parameter(torch.empty(spans.shape, device="cuda", dtype=spans.dtype))
        if "feature_extractor" in point.get("freeze", ()):
            base.feature_extractor._requires_grad = False
        return model

    return made


def traced(point: dict[str, Any]) -> dict[str, Any]:
    """The line of a run, traced anew."""
    dtype, _, autocast = point["precision"].partition("-")
    weights = "fp32" if autocast else dtype
    settings = TraceSettings(
        head="causal" if point["head"] == "ctc" else "seqcls",
        batch=point["batch"],
        seq=point["seq"],
        padding=bool(point.get("padding")),
        weights=weights,
        autocast=dtype if autocast else None,
        checkpointing=point["checkpointing"],
        attention=point["attention"],
        optimizer=point["optimizer"],
        freeze=tuple(point.get("freeze", ())),
        lora=LoraSettings(**point["lora"]) if "lora" in point else None,
    )
    torch_dtype = build_module.DTYPES[weights]
    with contextlib.ExitStack() as stack:

        def given(config: Any, settings: TraceSettings, device: str = "cuda") -> dict[str, Any]:
            return inputs(point, config, torch_dtype)

        for owner, name, value in patches(point):
            stack.enter_context(mock.patch.object(owner, name, value))
        heads = dict.fromkeys(build_module.HEADS, OWNERS[point["head"]])
        stack.enter_context(mock.patch.dict(build_module.HEADS, heads))
        stack.enter_context(mock.patch.object(run_module, "make_model", _prepared(point)))
        stack.enter_context(mock.patch.object(run_module, "make_inputs", given))
        result = run_module.trace(point["config"], settings, every_layer=True)
    peaks = {name: result.phase_peaks[name] for name in point["phase_peaks"] if name in result.phase_peaks}
    end = result.fwd_end_bytes - result.static_before_fwd_bytes
    return {**point, "phase_peaks": peaks, "forward_end_bytes": end, "parameters": result.parameters}


def lines(types: list[str] | None) -> Iterator[dict[str, Any]]:
    """Every line of the file, traced anew where its type is asked for."""
    for point in read_lines(PATH):
        wanted = not types or point["config"]["model_type"] in types
        yield traced(point) if wanted else point


def main() -> int:
    """Write the lines."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--types", type=lambda text: text.split(","))
    parser.add_argument("--output", default="-")
    options = parser.parse_args()
    kinds = {point["config"]["model_type"] for point in read_lines(PATH)}
    unknown = [name for name in options.types or () if name not in kinds]
    if unknown:
        parser.error(f"no line is of the type {', '.join(unknown)}: {', '.join(sorted(kinds))}")
    warnings.simplefilter("ignore")
    made = list(lines(options.types))
    if options.output == "-":
        print("\n".join(json.dumps(point, sort_keys=True) for point in made))
    else:
        write_lines(options.output, made, sort_keys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
