"""axolotl: model, data types, and which parameters train."""

from __future__ import annotations

from typing import Any

from memlint.dialects.axolotl_adapter import read_lora, read_quantization
from memlint.dialects.axolotl_base import VERSION, Run
from memlint.dialects.native_choices import FP8_RECIPES
from memlint.dialects.values import as_strings, is_auto

_DTYPE = "utils/config/__init__.py: resolve_dtype"
_LOADER = "loaders/model.py"

FP32_MODULES = ("[^.]*norm", "embed_tokens", "lm_head", "embed_in", "embed_out", "word_embeddings")
"""What ``_configure_embedding_dtypes`` casts to fp32: norms and the pair that get_linear_embedding_layers names for the
model type (loaders/utils.py). Routers (``.gate``) are cast too, a few KiB that no fragment could name safely."""

MULTIMODAL_MODULES = (
    "vision_tower",
    "vision_model",
    "vision_encoder",
    "embed_vision",
    "multi_modal_projector",
    "visual",
    "audio_tower",
    "audio_model",
    "embed_audio",
)
"""_MM_MODULE_PREFIXES of axolotl 0.19 utils/freeze.py."""

_SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "head_dim")


def read_model(run: Run) -> bool:
    """The model; False when the file names none, in which case there is no job."""
    cfg = run.cfg
    key = cfg.has("base_model_config", "base_model") if cfg.has("base_model") else None
    name = cfg.text(key) if key else None
    if not name:
        if key is None:
            run.problems.append(_missing_model(run))
        return False
    run.put("model", name, key or "base_model")
    overrides = cfg.raw("overrides_of_model_config", cfg.raw("model_config"))
    if isinstance(overrides, dict) and any(size in overrides for size in _SIZES):
        run.assume("sizes under `model_config` are not applied: the model is taken as published")
    added = as_strings(cfg.raw("tokens")) or ()
    if added:
        run.assume(f"{len(added)} added tokens may enlarge the embeddings; the published vocabulary is used")
    return True


def _missing_model(run: Run) -> Any:
    from memlint.dialects.base import Problem

    return Problem(code="MEM003", key=("base_model",), message="`base_model` must name a model", on_key=True)


def read_precision(run: Run) -> None:
    """Load dtype and autocast as ``resolve_dtype`` decides them, then the modules that stay in fp32."""
    cfg = run.cfg
    bf16, bf16_key = _bf16(run)
    fp16 = cfg.flag("fp16")
    if fp16 is None and bf16_key == "fp16":  # `auto` on a GPU without bf16
        fp16 = not cfg.flag("float16")
    pure_bf16, pure_fp16 = cfg.flag("bfloat16"), cfg.flag("float16")
    if fp16 and bf16_key is None:
        bf16 = False
    elif fp16 and is_auto(cfg.raw("bf16")):
        bf16, bf16_key = False, "fp16"
    elif fp16 and bf16:
        run.no_effect("fp16", "`fp16: true` has no effect: `bf16` wins")
        fp16 = False
    for name, lost in (("float16", pure_fp16 and (bf16 or pure_bf16)), ("float32", cfg.flag("float32"))):
        if lost and (bf16 or pure_bf16 or fp16):
            run.no_effect(name, f"`{name}: true` has no effect: the run loads and computes in half precision")
    key: str | None
    if bf16 or pure_bf16:
        dtype, key = "bf16", (bf16_key if bf16 else "bfloat16")
    elif fp16 or pure_fp16 or cfg.flag("load_in_8bit"):
        dtype = "fp16"
        key = next((name for name in ("fp16", "float16", "load_in_8bit") if cfg.flag(name)), cfg.has("bf16"))
    else:
        dtype, key = "fp32", cfg.has("float32", "bf16", "fp16") or ("bf16" if "bf16" in cfg.data else None)
    _set(run, "training.precision.weights", dtype, key)
    autocast = "bf16" if bf16 or pure_bf16 else "fp16" if fp16 else None
    _set(run, "training.precision.autocast", autocast, key)
    if autocast == "fp16":
        _set(run, "training.precision.grad_scaler", True, key)
    if cfg.flag("fp8"):
        run.put("training.precision.fp8", True, "fp8")
        recipe = cfg.section("fp8_config")
        chosen = None if recipe is None else recipe.text("recipe", FP8_RECIPES[:-1])
        if chosen is not None:
            run.put("training.precision.fp8_recipe", chosen, "fp8_config")
    _fp32_modules(run, dtype)


def _set(run: Run, name: str, value: Any, key: str | None) -> None:
    if key is not None:
        run.put(name, value, key)
    else:
        run.default(name, value, _DTYPE)


def _bf16(run: Run) -> tuple[bool, str | None]:
    """Whether ``bf16`` is on, and the key that says so: ``fp16`` where `auto` takes that for the GPU's sake."""
    cfg = run.cfg
    raw = cfg.raw("bf16")
    if isinstance(raw, str) and raw.strip().lower() == "full":
        run.reject("bf16", f"`bf16: full` is no longer accepted by axolotl {VERSION}; use `true`")
        return True, "bf16"
    if raw is None and "bf16" in cfg.data:
        run.assume("`bf16:` is empty, which axolotl takes as off, not as `auto`")
        return False, "bf16"
    if raw is None or is_auto(raw):
        target = getattr(run.context, "target", None)
        if target is not None and target.bf16 is False:
            return False, "fp16"
        if not cfg.flag("fp16"):
            run.assume("`bf16: auto` is taken as bf16: the GPU is Ampere or newer")
        return True, "bf16" if raw is not None else None
    return cfg.flag("bf16") is True, "bf16"


def _fp32_modules(run: Run, dtype: str) -> None:
    """Embeddings, head and norms are cast to fp32, and back to the load dtype only on the conditions below."""
    cfg = run.cfg
    where = f"{_LOADER}: _configure_embedding_dtypes"
    if dtype == "fp32" or run.fsdp_version:
        norms = run.fsdp_version == 2 and cfg.flag("fp32_norms") and dtype != "fp32"
        if norms:
            run.put("training.precision.fp32_modules", ("[^.]*norm",), "fp32_norms")
        else:
            run.default("training.precision.fp32_modules", (), where)
        return
    cut = run.plugin("CutCrossEntropyPlugin") and cfg.flag("cut_cross_entropy") is not False
    cast_back = bool(run.adapter) or run.attention not in (None, "eager", "sdpa") or cut
    run.default("training.precision.fp32_modules", () if cast_back else FP32_MODULES, where)


def read_method(run: Run) -> None:
    """Full fine-tuning, an adapter, or unfrozen patterns; with the quantisation that axolotl really applies."""
    cfg = run.cfg
    quantised = [key for key in ("load_in_8bit", "load_in_4bit") if cfg.flag(key)]
    if run.adapter is None:
        for key in quantised:
            run.reject(key, f"`{key}: true` needs an `adapter`: axolotl does not train quantised weights in full")
        _read_full(run)
        return
    method = {"lora": "lora", "qlora": "qlora", "llama-adapter": "prompt"}.get(run.adapter, "lora")
    if run.adapter not in ("lora", "qlora"):
        run.assume(f"`adapter: {run.adapter}` is computed as {method}")
    run.put("training.method", method, "adapter")
    if method in ("lora", "qlora"):
        read_lora(run)
    read_quantization(run, quantised)
    _read_freeze(run)


def _read_full(run: Run) -> None:
    patterns = run.cfg.strings("unfrozen_parameters")
    if patterns:
        # A pattern may end in a row range, `$[:32000]`, which masks gradients but frees nothing (utils/freeze.py).
        names = tuple(pattern.split("[:")[0] if pattern.endswith("]") else pattern for pattern in patterns)
        run.put("training.method", "freeze", "unfrozen_parameters")
        run.put("training.trainable_patterns", names, "unfrozen_parameters")
    else:
        run.default("training.method", "full", "utils/schemas/peft.py: no adapter")
        if run.plugin("SpectrumPlugin"):
            run.assume("Spectrum freezes parameters by a table of its own; computed as full fine-tuning")
    _read_freeze(run)


def _read_freeze(run: Run) -> None:
    if run.cfg.flag("freeze_mm_modules"):
        run.put("training.freeze", MULTIMODAL_MODULES, "freeze_mm_modules")
