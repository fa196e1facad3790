"""axolotl: batch, sequence, packing, attention, evaluation and images."""

from __future__ import annotations

from memlint.dialects.axolotl_base import VERSION, Run
from memlint.dialects.names import attention_name
from memlint.dialects.values import as_bool, as_sequence, did_you_mean, is_auto

_SCHEMA = "utils/schemas/config.py"
_TRAINING = "utils/schemas/training.py"

LEGACY_ATTENTION = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
"""LEGACY_ATTN_FLAG_TO_IMPL of axolotl 0.19 utils/schemas/enums.py, in its order of priority."""

_CANONICAL = (
    "eager",
    "sdpa",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
    "flash_attention_torch",
    "flex_attention",
    "xformers",
    "sage",
    "fp8",
)
_SHORT = {"flash": "flash_attention_2", "flex": "flex_attention", "sdp": "sdpa"}
_OWN = {"xformers": "flash", "sage": "flash", "fp8": "flash", "flash_attention_torch": "flash"}
"""Kernels of axolotl's own that, like flash attention, never write the score matrix."""

PACKING_ATTENTION = frozenset(_CANONICAL) - {"eager", "sdpa", "fp8"}
"""ATTN_IMPLS_SUPPORTING_PACKING: packed rows become one flat row with sequence starts."""


def read_batch(run: Run) -> None:
    """Micro batch and accumulation; ``batch_size`` matters only where accumulation is written as null."""
    cfg = run.cfg
    micro = run.choose(
        "training.micro_batch_size",
        "micro_batch_size",
        cfg.integer("micro_batch_size", minimum=1),
        1,
        _TRAINING,
    )
    steps = cfg.integer("gradient_accumulation_steps", minimum=1)
    total = cfg.integer("batch_size", minimum=1)
    if total is not None and steps is not None:
        run.reject("batch_size", "set only one of `batch_size` and `gradient_accumulation_steps`")
    elif total is not None and "gradient_accumulation_steps" in cfg.data:
        run.put("training.gradient_accumulation_steps", max(1, total // micro), "batch_size")
        return
    elif total is not None:
        run.no_effect(
            "batch_size",
            f"`batch_size` has no effect: `gradient_accumulation_steps` defaults to 1 in axolotl {VERSION}; set it",
        )
    run.choose("training.gradient_accumulation_steps", "gradient_accumulation_steps", steps, 1, _TRAINING)
    if cfg.flag("auto_find_batch_size"):
        run.assume(
            "`auto_find_batch_size` may halve the micro batch after an out-of-memory error; the stated one is used"
        )


def read_attention(run: Run) -> None:
    """The attention kernel, from ``attn_implementation`` or one of the older flags."""
    cfg = run.cfg
    legacy = [flag for flag in LEGACY_ATTENTION if cfg.flag(flag)]
    named = cfg.text("attn_implementation")
    if named is not None and named in _SHORT:
        run.reject("attn_implementation", f"`attn_implementation: {named}` is not accepted; use `{_SHORT[named]}`")
        named = _SHORT[named]
    elif named is not None and named not in _CANONICAL and "/" not in named:
        run.reject(
            "attn_implementation",
            f"`attn_implementation: {named}` is not known" + did_you_mean(named, _CANONICAL),
        )
        named = None
    if named is not None:
        if legacy:
            run.reject(legacy[0], f"`{legacy[0]}` cannot be combined with `attn_implementation`; remove it")
        run.attention = named
        run.put("training.attention", _native(named), "attn_implementation")
    elif legacy:
        run.attention = LEGACY_ATTENTION[legacy[0]]
        run.put("training.attention", _native(run.attention), legacy[0])
    elif cfg.flag("gemma4_hybrid_attn_impl"):
        run.attention = "flash_attention_2"
        run.put("training.attention", "flash", "gemma4_hybrid_attn_impl")
    else:
        run.default("training.attention", "sdpa", "none given, transformers 5.16 picks sdpa where the model has it")


def _native(name: str) -> str:
    return _OWN.get(name) or attention_name(name) or "sdpa"


def read_sequence(run: Run) -> None:
    """Sequence length, and whether rows are packed, flat, or padded with a mask."""
    cfg = run.cfg
    run.choose("training.sequence_length", "sequence_len", cfg.integer("sequence_len", minimum=1), 512, _SCHEMA)
    run.packing = cfg.flag("sample_packing") is True
    if run.packing and run.rl:
        run.reject("sample_packing", f"`sample_packing: true` does not work with `rl: {run.rl}`")
        run.packing = False
    run.choose("training.packing", "sample_packing", run.packing or None, False, _SCHEMA)
    flat = (run.attention or "").split(":")[0].split("@")[0] in PACKING_ATTENTION or "/" in (run.attention or "")
    _read_layout(run, flat)


def _read_layout(run: Run, flat: bool) -> None:
    cfg = run.cfg
    micro = run.draft.get("training.micro_batch_size")
    if run.packing:
        real_batches = cfg.flag("multipack_real_batches")
        varlen = flat and not real_batches
        if run.attention == "sdpa" and cfg.flag("sdpa_varlen") is not False:
            # Packed rows go through torch's varlen_attn from torch 2.10 on (loaders/patch_manager.py).
            varlen = True
        run.default("training.varlen", varlen, "utils/trainer.py, loaders/patch_manager.py")
        masked = not (flat or varlen)
        run.default("training.padding", masked, "core/builders/causal.py drops the mask where packing isolates samples")
        return
    flattening = cfg.raw("batch_flattening")
    if flattening is not None:
        wanted = is_auto(flattening) or as_bool(flattening) is True
        if wanted and not flat and not is_auto(flattening):
            run.reject(
                "batch_flattening", "`batch_flattening` needs an attention kernel for flat rows: flash_attention_2"
            )
        if wanted and flat and micro > 1:
            run.put("training.varlen", True, "batch_flattening")
            run.default("training.padding", False, "flat rows carry no padding")
            return
        if wanted and micro == 1:
            run.no_effect("batch_flattening", "`batch_flattening` has no effect with a micro batch of 1")
    run.default("training.varlen", False, _SCHEMA)
    if micro == 1 and cfg.flag("pad_to_sequence_len") is False and not run.rl:
        run.put("training.padding", False, "pad_to_sequence_len")
    else:
        run.default("training.padding", True, "core/builders/causal.py pads rows to a multiple of 64")


def read_evaluation(run: Run) -> None:
    """Rows of one evaluation forward, when the run evaluates at all."""
    cfg = run.cfg
    share = cfg.number("val_set_size", minimum=0)
    data = "val_set_size" if share else cfg.has("test_datasets")
    when = cfg.has("eval_steps", "evals_per_epoch")
    strategy = cfg.raw("eval_strategy", cfg.raw("evaluation_strategy"))
    if when is None and strategy not in (None, "no", False):
        when = "eval_strategy"
    rows = cfg.integer("eval_batch_size", minimum=1)
    if data is None or when is None or strategy in ("no", False):
        run.default(
            "training.eval_micro_batch_size", None, "core/builders/base.py: no evaluation without data and steps"
        )
        return
    if rows is not None:
        run.put("training.eval_micro_batch_size", rows, "eval_batch_size")
    else:
        run.default(
            "training.eval_micro_batch_size",
            run.draft.get("training.micro_batch_size"),
            "utils/config/__init__.py: eval_batch_size = micro_batch_size",
        )


def read_images(run: Run) -> None:
    """Images of a vision-language run: the file says how they are resized, never how many there are."""
    cfg = run.cfg
    if not cfg.has("processor_type", "image_size"):
        return
    run.draft.set("training.images", 1, assumed="one image per sequence: the number of images is not in the config")
    size = cfg.raw("image_size")
    if size is None:
        return
    edges = [edge for edge in as_sequence(size) if isinstance(edge, int) and edge > 0]
    if len(edges) == 1:
        run.put("training.image_pixels", edges[0] ** 2, "image_size")
    elif len(edges) == 2:
        run.put("training.image_pixels", edges[0] * edges[1], "image_size")
    else:
        cfg.bad("image_size", "a number or two numbers of pixels")
