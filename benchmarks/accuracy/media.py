"""Inputs of types traced with images or sound beside :mod:`benchmarks.accuracy.images`, and what their code reads from
data.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

Patches = list[tuple[Any, str, Any]]
Given = tuple[dict[str, Any], Patches]
ROWS, LENGTH = 2, 512
FRAMES = 400
"""Mel frames of the small audio configs: twice max_source_positions."""
AUDIO = ("qwen2_audio", "voxtral")
"""Types whose frozen tables of positions train after from_pretrained (see memlint/estimate/families/whisper.py)."""


COMPOSED = ("got_ocr2",)
"""Types that take sdpa for their language model alone, and refuse it for the whole."""


def ids(*shape: int) -> torch.Tensor:
    """Numbers whose values nobody looks at."""
    return torch.empty(shape, dtype=torch.long, device="cuda")


def module_of(kind: str) -> Any:
    """The modeling file of a type."""
    return importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")


def unchecked(module: Any) -> Patches:
    """A modeling file without its comparisons of token counts."""
    checked = hasattr(module, "torch_compilable_check")
    return [(module, "torch_compilable_check", lambda *args, **options: None)] if checked else []


def masked(padded: bool) -> Callable[..., Any]:
    """``create_bidirectional_mask`` told whether anything is padded."""
    masking: Any = importlib.import_module("transformers.masking_utils")
    real = masking.create_bidirectional_mask

    def made(*args: Any, **options: Any) -> Any:
        with mock.patch.object(torch.Tensor, "all", return_value=not padded):
            return real(*args, **options)

    return made


def chosen(counts: Callable[[torch.Tensor, torch.Tensor], tuple[int, int]]) -> tuple[Any, str, Any]:
    """``x[mask]`` with a mask that leaves ``counts(x, mask)``: so many places, each of so many numbers."""
    whole = torch.Tensor.__getitem__

    def choose(self: torch.Tensor, at: Any) -> Any:
        if not isinstance(at, torch.Tensor) or at.dtype != torch.bool:
            return whole(self, at)
        places, numbers = counts(self, at)
        return whole(self, tuple(ids(places) for _ in range(numbers)))

    return torch.Tensor, "__getitem__", choose


def fake() -> Any:
    """The class of fake tensors."""
    return importlib.import_module("torch._subclasses.fake_tensor").FakeTensor


def lfm2_vl() -> Given:
    """One image of 512 x 512, which fills its patches."""
    tokens = (512 // 32) ** 2
    patches = [
        *unchecked(module_of("lfm2_vl")),
        *unchecked(module_of("siglip2")),
        chosen(lambda x, mask: (ROWS * tokens, 1)),
        (fake(), "tolist", lambda tensor: [tokens] * ROWS),
        (module_of("siglip2"), "create_bidirectional_mask", masked(False)),
    ]
    pixels = torch.empty(ROWS, 1024, 3 * 16**2, device="cuda")
    mask = torch.empty(ROWS, 1024, dtype=torch.int32, device="cuda")
    return {"pixel_values": pixels, "spatial_shapes": ids(ROWS, 2), "pixel_attention_mask": mask}, patches


def _clips() -> torch.Tensor:
    return torch.empty(ROWS, 128, FRAMES, device="cuda")


def voxtral() -> Given:
    """One clip of audio a row, four states to a token."""
    module = module_of("voxtral")
    tokens = ROWS * FRAMES // 2 // 4
    return {"input_features": _clips()}, [
        *unchecked(module),
        chosen(lambda x, mask: (tokens * x.shape[-1], 3)),
    ]


def qwen2_audio() -> Given:
    """One clip of audio a row, with audio tokens already in the sequence (not its older processing)."""
    module = module_of("qwen2_audio")
    tokens = ROWS * FRAMES // 4

    def counts(x: torch.Tensor, mask: torch.Tensor) -> tuple[int, int]:
        return (ROWS * (LENGTH - 1) if mask.shape[1] == LENGTH - 1 else tokens), 2

    patches: Patches = [
        *unchecked(module),
        (module, "create_bidirectional_mask", masked(True)),
        (module, "is_torchdynamo_compiling", lambda: True),
        chosen(counts),
        (fake(), "item", lambda tensor: tokens),
    ]
    mask = torch.empty(ROWS, FRAMES, dtype=torch.int32, device="cuda")
    given = {"input_features": _clips(), "feature_attention_mask": mask, "attention_mask": ids(ROWS, LENGTH)}
    return given, patches


def gemma3n() -> Given:
    """One image a row; the trace needs timm beside the dev environment."""
    return {"pixel_values": torch.empty(ROWS, 3, 768, 768, device="cuda")}, unchecked(module_of("gemma3n"))


GEMMA4_PATCHES, GEMMA4_TOKENS = 2520, 256
"""Patches that every image is padded to; soft tokens of a square one (image_processing_gemma4.py)."""


def gemma4() -> Given:
    """One square image a row, padded."""
    whole, module = torch.Tensor.__getitem__, module_of("gemma4")
    count = ROWS * GEMMA4_TOKENS

    def choose(self: torch.Tensor, at: Any) -> Any:
        if not isinstance(at, torch.Tensor) or at.dtype != torch.bool:
            return whole(self, at)
        if at.shape == self.shape:
            return self.new_empty(count * self.shape[-1])
        return whole(self, (ids(count), ids(count)))

    patches: Patches = [
        *unchecked(module),
        (torch.Tensor, "__getitem__", choose),
        (fake(), "tolist", lambda tensor: [GEMMA4_TOKENS] * ROWS),
        (torch.nn.functional, "one_hot", lambda places, count: ids(*places.shape, count)),
    ]
    pixels = torch.empty(ROWS, GEMMA4_PATCHES, 3 * 16**2, device="cuda")
    return {"pixel_values": pixels, "image_position_ids": ids(ROWS, GEMMA4_PATCHES, 2)}, patches


def gemma4_unified() -> Given:
    """One square image a row: 256 of its 280 merged patches are its own."""
    module = module_of("gemma4_unified")
    tokens = ROWS * 256

    def counts(x: torch.Tensor, mask: torch.Tensor) -> tuple[int, int]:
        return (tokens * x.shape[-1], 3) if mask.shape == x.shape else (tokens, 2)

    given = {
        "pixel_values": torch.empty(ROWS, 280, 3 * 48**2, device="cuda"),
        "image_position_ids": ids(ROWS, 280, 2),
        "mm_token_type_ids": ids(ROWS, LENGTH),
    }
    return given, [*unchecked(module), chosen(counts), (fake(), "tolist", lambda tensor: [256] * ROWS)]


def ovis2() -> Given:
    """One image a row; the words around it are put at one place each."""
    whole = torch.Tensor.__setitem__

    def put(self: torch.Tensor, at: Any, value: Any) -> Any:
        masked = isinstance(at, torch.Tensor) and at.dtype == torch.bool
        return whole(self, (ids(ROWS), ids(ROWS)) if masked else at, value)

    patches: Patches = [
        *unchecked(module_of("ovis2")),
        (torch.Tensor, "__setitem__", put),
        (torch.Tensor, "any", lambda tensor: True),
    ]
    return {"pixel_values": torch.empty(ROWS, 3, 224, 224, device="cuda")}, patches


def idefics_features(masked_connector: bool) -> Callable[..., Any]:
    """``get_image_features`` of an Idefics model whose images fill the batch; whether its connector takes their mask."""

    def features(self: Any, pixels: torch.Tensor, mask: Any = None, **options: Any) -> Any:
        batch, images, *rest = pixels.shape
        count, side = batch * images, rest[-1] // 14
        pixels = pixels.to(dtype=self.dtype).view(count, *rest)
        empty = (pixels == 0.0).sum(dim=(-1, -2, -3))
        del empty
        pixels = pixels[ids(count)].contiguous()
        patches = torch.ones((count, side, side), dtype=torch.bool, device="cuda")
        outputs = self.vision_model(pixel_values=pixels, patch_attention_mask=patches, **options)
        given = {"attention_mask": patches.view(count, -1)} if masked_connector else {}
        tokens = self.connector(outputs.last_hidden_state, **given)
        outputs.pooler_output = [part.reshape(-1, part.shape[-1]) for part in tokens.split([images] * batch)]
        return outputs

    return features


def idefics2() -> Given:
    """One image of 420 x 420 a row, which fills the batch."""
    module = module_of("idefics2")
    patches: Patches = [
        *unchecked(module),
        (module.Idefics2Model, "get_image_features", idefics_features(True)),
        (module, "create_bidirectional_mask", masked(False)),
    ]
    return {"pixel_values": torch.empty(ROWS, 1, 3, 420, 420, device="cuda")}, patches


GIVEN: dict[str, Callable[[], Given]] = {
    "ovis2": ovis2,
    "idefics2": idefics2,
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gemma4_unified": gemma4_unified,
    "lfm2_vl": lfm2_vl,
    "qwen2_audio": qwen2_audio,
    "voxtral": voxtral,
}
"""Name in tests/estimate/vision_configs.py -> its inputs."""


def trained(make_model: Callable[..., Any]) -> Callable[..., Any]:
    """``make_model`` with every parameter trained."""

    def made(*args: Any, **options: Any) -> Any:
        model = make_model(*args, **options)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return model

    return made


def eager_outside(make_model: Callable[..., Any]) -> Callable[..., Any]:
    """``make_model`` with the asked attention for the language model alone, as a model has it that is asked for none."""

    def made(*args: Any, attention: str, **options: Any) -> Any:
        inside: Any = {"": "eager", "vision_config": "eager", "text_config": attention}
        return make_model(*args, attention=inside, **options)

    return made
