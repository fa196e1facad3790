"""The simulation of vision-language models against traces of their real code, with images in the batch.

    python -m benchmarks.accuracy.images [--types qwen2_vl,llava] [--setups bf16,lora]

A trace has no data, so what the models read from data is given to them: grids, the order of windows, positions, numbers
of tiles, and that as many image tokens stand in the sequence as the tower makes. ``masked_scatter`` and the additions
by mask of Qwen3-VL run with the gradients that PyTorch's derivatives.yaml states. The configs are those of
tests/estimate/vision_configs.py.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any
from unittest import mock

import torch

from benchmarks.accuracy import media
from benchmarks.accuracy.media import LENGTH, ROWS, idefics_features, ids, module_of, unchecked
from memlint.estimate.simulate import run_step
from memlint.measure.trace.settings import CAPABILITY, LoraSettings, TraceSettings
from tests.estimate.test_vision_family import SETUPS, job
from tests.estimate.vision_configs import CONFIGS

build_module: Any = importlib.import_module("memlint.measure.trace.build")
run_module: Any = importlib.import_module("memlint.measure.trace.run")

TRACED: dict[str, dict[str, Any]] = {
    "bf16": {},
    "autocast": {"weights": "fp32", "autocast": "bf16"},
    "checkpointing": {"checkpointing": "nonreentrant"},
    "lora": {"lora": LoraSettings()},
    "eager": {"weights": "fp32", "attention": "eager"},
    "reentrant": {"checkpointing": "reentrant"},
}


TOKENS = {"mllama": "image_token_index", "qwen2_audio": "audio_token_index", "voxtral": "audio_token_id"}
"""Fields that name the token of an image or of sound, where it is not image_token_id."""
PADDED_TYPES = ("gemma4",)
"""Types whose images are padded, so that masks are made; the trace takes the text as padded too."""


class Numbers:
    """A small integer tensor whose values a trace may look at: grids and cumulative lengths."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, tuple):
            # grid[sequences, axis]: a number a token.
            return ids(len(at[0]))
        return Numbers(self.values[at]) if isinstance(at, slice) else self.values[at]

    def __sub__(self, other: Numbers) -> Numbers:
        return Numbers([a - b for a, b in zip(self.values, other.values)])

    def __floordiv__(self, number: int) -> Numbers:
        return Numbers([_divided(value, number) for value in self.values])

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def prod(self, dim: int) -> Numbers:
        """Product of each row."""
        return Numbers([math.prod(value) for value in self.values])

    def cumsum(self, dim: int) -> torch.Tensor:
        """Sums as a tensor, whose values nobody looks at."""
        return ids(len(self.values))

    def tolist(self) -> list[Any]:
        """The values."""
        return list(self.values)


def _divided(value: Any, number: int) -> Any:
    return tuple(part // number for part in value) if isinstance(value, tuple) else value // number


class Scatter(torch.autograd.Function):  # type: ignore[misc]  # torch leaves its base untyped
    """``masked_scatter``, whose own backward asks how many places the mask has."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """x with the source's rows where the mask says so."""
        ctx.save_for_backward(mask)
        ctx.source = source.shape
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """grad.masked_fill(mask, 0) and grad.masked_select(mask)."""
        (mask,) = ctx.saved_tensors
        into = grads[0].masked_fill(mask, 0) if ctx.needs_input_grad[0] else None
        return into, None, grads[0].new_empty(ctx.source) if ctx.needs_input_grad[2] else None


def _scatter(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    return Scatter.apply(self, mask, source)


_AS_TENSOR = torch.as_tensor


def _as_tensor(value: Any, **options: Any) -> Any:
    return value if isinstance(value, Numbers) else _AS_TENSOR(value, **options)


def _deepstack(self: Any, hidden: torch.Tensor, mask: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    hidden = hidden.clone()
    row, column = ids(len(features)), ids(len(features))
    local = hidden[row, column, :] + features
    hidden[row, column, :] = local
    return hidden


def _given(kind: str, setup: str) -> tuple[dict[str, Any], list[tuple[Any, str, Any]]]:
    """Inputs beside ids and labels, and what replaces the model's looks at data."""
    if kind in media.GIVEN:
        return media.GIVEN[kind]()
    name = CONFIGS[kind]["model_type"].removesuffix("_thinker")
    module = module_of(name)
    patches = unchecked(module)
    shape = job(kind).training
    if kind.startswith(("qwen", "glm")):
        return _qwen(kind, module, patches)
    tower = CONFIGS[kind]["vision_config"]
    side = tower.get("image_size", 0)
    side = side[0] if isinstance(side, list) else side
    pixels = torch.empty(ROWS, 3, side, side, device="cuda")
    inputs: dict[str, Any] = {"pixel_values": pixels}
    if kind.startswith(("llava_next", "llava_onevision")):
        across = math.isqrt(shape.image_pixels or 0) // side
        tiles = across**2 + 1
        images = pixels.new_empty(ROWS, tiles, 3, side, side)
        inputs = {"pixel_values": images, "image_sizes": [(1, 1)] * ROWS}
        patches += [
            (module, "image_size_to_num_patches", lambda **options: tiles),
            (module, "get_anyres_image_grid_shape", lambda *args: (across, across)),
            (module, "unpad_image", lambda image, size: image),
        ]
    elif kind in ("mistral3", "lighton_ocr", "llava_pixtral"):
        inputs["image_sizes"] = Numbers([(side, side)] * ROWS)
        patches.append((torch, "as_tensor", _as_tensor))
    elif kind == "llama4":
        weights = torch.float32 if setup == "autocast" else torch.bfloat16
        inputs = {"pixel_values": pixels.to(weights)}
        # transformers 5.24 reads a field of the inner model's outputs that they do not have.
        patches.append((module.MoeCausalLMOutputWithPast, "image_outputs", None))
    elif kind in ("idefics3", "smolvlm"):
        inputs = {"pixel_values": pixels.view(ROWS, 1, 3, side, side)}
        owner = module.Idefics3Model if kind == "idefics3" else module.SmolVLMModel
        patches.append((owner, "get_image_features", idefics_features(False)))
    elif kind in ("gemma3", "paligemma"):
        inputs["token_type_ids"] = ids(ROWS, LENGTH)
    elif kind == "mllama":
        tiles = tower["max_num_tiles"]
        inputs = {
            "pixel_values": pixels.new_empty(ROWS, 1, tiles, 3, side, side),
            "aspect_ratio_ids": ids(ROWS, 1),
            "aspect_ratio_mask": ids(ROWS, 1, tiles),
            "cross_attention_mask": ids(ROWS, LENGTH, 1, tiles),
        }
    return inputs, patches


def _qwen(kind: str, module: Any, patches: list[tuple[Any, str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    side, patch = 20, 16 if kind.startswith("qwen3") else 14
    count = ROWS * side**2
    starts = Numbers([image * side**2 for image in range(ROWS + 1)])
    across = [min(4, side // 2 - at) for at in range(0, side // 2, 4)]
    windows = Numbers([0, *accumulate([4 * high * wide for high in across for wide in across] * ROWS)])
    replaced: dict[str, Callable[..., Any]] = {
        "get_vision_position_ids": lambda *args, **options: ids(count, 2),
        "get_vision_attention_seqlens": lambda *args, **options: (starts, None),
        "get_vision_window_index": lambda *args, **options: (ids(count // 4), windows),
        "get_max_seqlen": lambda *args, **options: None,
        "get_vision_interpolation_indices_and_weights": lambda *args, **options: (
            ids(count, 4),
            torch.empty(count, 4, device="cuda"),
        ),
    }
    patches += [(module, name, value) for name, value in replaced.items() if hasattr(module, name)]
    texts = {
        "qwen3_vl": "Qwen3VLTextModel",
        "qwen3_vl_moe": "Qwen3VLMoeTextModel",
        "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerTextModel",
    }
    if kind in texts:
        text = getattr(module, texts[kind])
        patches.append((text, "_deepstack_process", _deepstack))
    pixels = torch.empty(count, 3 * 2 * patch**2, device="cuda")
    grid = Numbers([(1, side, side)] * ROWS)
    return {"pixel_values": pixels, "image_grid_thw": grid, "position_ids": ids(3, ROWS, LENGTH)}, patches


def traced(kind: str, setup: str) -> Any:
    """The account of the second step of the real code."""
    label = run_module.label

    def only_tensors(recorder: Any, tensors: Any, name: str) -> None:
        label(recorder, [t for t in tensors if isinstance(t, torch.Tensor)], name)

    with contextlib.ExitStack() as stack:

        def inputs(config: Any, settings: TraceSettings, device: str = "cuda") -> dict[str, Any]:
            given, patches = _given(kind, setup)
            for owner, name, value in patches:
                stack.enter_context(mock.patch.object(owner, name, value, create=name == "image_outputs"))
            return {"input_ids": ids(ROWS, LENGTH), "labels": ids(ROWS, LENGTH), **given}

        head = "AutoModelForMultimodalLM" if kind in media.AUDIO else "AutoModelForImageTextToText"
        stack.enter_context(mock.patch.dict(build_module.HEADS, {"causal": head}))
        if kind in media.COMPOSED:
            stack.enter_context(mock.patch.object(run_module, "make_model", media.eager_outside(run_module.make_model)))
        if kind in media.AUDIO:
            stack.enter_context(mock.patch.object(run_module, "make_model", media.trained(run_module.make_model)))
        stack.enter_context(mock.patch.object(run_module, "make_inputs", inputs))
        stack.enter_context(mock.patch.object(run_module, "label", only_tensors))
        stack.enter_context(mock.patch.object(torch.Tensor, "masked_scatter", _scatter))
        config = {**CONFIGS[kind], TOKENS.get(kind, "image_token_id"): 5}
        padding = kind in PADDED_TYPES
        settings = TraceSettings(batch=ROWS, seq=LENGTH, optimizer="sgd", padding=padding, **TRACED[setup])
        return run_module.trace(config, settings, every_layer=True)


def main() -> int:
    """Print a line a point and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--types", type=lambda text: text.split(","), default=list(CONFIGS))
    parser.add_argument("--setups", type=lambda text: text.split(","), default=list(SETUPS))
    options = parser.parse_args()
    unknown = [name for name in options.types if name not in CONFIGS] + [n for n in options.setups if n not in SETUPS]
    if unknown:
        parser.error(f"no type or setup is called {', '.join(unknown)}: see tests/estimate/vision_configs.py")
    warnings.simplefilter("ignore")
    errors = []
    for kind in options.types:
        for setup in options.setups:
            peak = traced(kind, setup).peak_bytes
            changes = {**SETUPS[setup], "training.padding": kind in PADDED_TYPES}
            step = run_step(job(kind, changes), CAPABILITY)
            simulated = max(phase.peak_bytes for phase in step.timeline)
            errors.append(abs(simulated / peak - 1))
            print(f"{kind:14} {setup:14} traced {peak:11} simulated {simulated / peak - 1:+.3%}", flush=True)
    print(f"{len(errors)} points: median error {statistics.median(errors):.4%}, worst {max(errors):.3%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
