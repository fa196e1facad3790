"""axolotl: LoRA adapters and the quantisation that is really applied to the frozen base."""

from __future__ import annotations

from memlint.dialects.axolotl_base import VERSION, Run
from memlint.dialects.names import dtype_name
from memlint.dialects.values import as_bool, did_you_mean

_LOADER = "loaders/model.py"

_BUILT_IN = ("lora", "qlora", "llama-adapter")
"""utils/schemas/peft.py: validate_adapter; any other one must come from a plugin."""


def read_lora(run: Run) -> None:
    """Adapter size, targets, dtype and kernels."""
    cfg = run.cfg
    if run.adapter not in _BUILT_IN and not run.plugins:
        hint = did_you_mean(str(run.adapter), _BUILT_IN)
        run.reject("adapter", f"`adapter: {run.adapter}` is not built into axolotl and no plugin provides it{hint}")
    rank = cfg.integer("lora_r", minimum=1)
    if rank is not None:
        run.put("training.lora.rank", rank, "lora_r")
    else:
        if cfg.has("lora_model_dir"):
            assumed = "rank 16: the adapter in `lora_model_dir` decides it"
        else:
            run.reject("adapter", f"`adapter: {run.adapter}` needs `lora_r`")
            assumed = "rank 16: `lora_r` is not set"
        run.draft.set("training.lora.rank", 16, assumed=assumed)
    alpha = cfg.number("lora_alpha")
    if alpha is not None:
        run.put("training.lora.alpha", alpha, "lora_alpha")
    run.choose(
        "training.lora.dropout", "lora_dropout", cfg.number("lora_dropout", minimum=0), 0.0, "utils/schemas/peft.py"
    )
    _targets(run)
    if cfg.flag("peft_use_dora"):
        run.put("training.lora.dora", True, "peft_use_dora")
    saved = cfg.strings("lora_modules_to_save")
    if saved:
        run.put("training.lora.modules_to_save", saved, "lora_modules_to_save")
    elif run.draft.get("training.objective") in ("reward", "sequence-classification", "token-classification"):
        # loaders/adapter.py _get_peft_task_type; PEFT's classification models train their head in full.
        run.draft.set("training.lora.modules_to_save", ("classifier", "score"), default="PEFT 0.20: peft_model.py")
    for key in ("lora_rank_pattern", "peft_layer_replication", "peft_layers_to_transform"):
        if cfg.raw(key):
            run.assume(f"`{key}` is not modelled: every targeted layer gets rank `lora_r`")
    _adapter_dtype(run)
    _kernels(run)


def _targets(run: Run) -> None:
    cfg = run.cfg
    named = cfg.raw("lora_target_modules")
    parameters = cfg.strings("lora_target_parameters")
    if parameters:
        run.put("training.lora.target_parameters", parameters, "lora_target_parameters")
    if cfg.flag("lora_target_linear"):
        run.put("training.lora.targets", "all-linear", "lora_target_linear")
    elif isinstance(named, str) and named.strip():
        run.put("training.lora.targets", named.strip(), "lora_target_modules")
    elif named:
        targets = cfg.strings("lora_target_modules")
        if targets:
            run.put("training.lora.targets", targets, "lora_target_modules")
    elif parameters:
        run.put("training.lora.targets", (), "lora_target_parameters")
    elif cfg.has("lora_model_dir"):
        run.draft.set("training.lora.targets", "all-linear", assumed="all linear layers: the saved adapter decides")
    else:
        run.reject(
            "adapter",
            f"`adapter: {run.adapter}` needs `lora_target_linear: true` or `lora_target_modules`: "
            f"axolotl {VERSION} gives PEFT an empty list, which it refuses",
        )
        run.draft.set("training.lora.targets", "default", assumed="LoRA targets: PEFT's table for the model type")


def _adapter_dtype(run: Run) -> None:
    cfg, weights = run.cfg, run.draft.get("training.precision.weights")
    if cfg.flag("peft_autocast_adapter_dtype") is False and weights != "fp32":
        run.put("training.lora.dtype", weights, "peft_autocast_adapter_dtype")
    elif run.rl in ("dpo", "ipo", "kto") and (run.adapter == "qlora" or cfg.flag("load_in_8bit")):
        run.draft.set("training.lora.dtype", "bf16", default="TRL 1.9: trainer/dpo_trainer.py (quantised base)")
    else:
        run.draft.set("training.lora.dtype", "fp32", default="PEFT 0.20: autocast_adapter_dtype")


def _kernels(run: Run) -> None:
    """Fused LoRA kernels: on unless something speaks against them (``check_auto_enable_lora_kernels``)."""
    cfg = run.cfg
    keys = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
    given = cfg.has(*keys)
    if given is not None:
        wanted = [key for key in keys[:3] if cfg.flag(key)]
        for obstacle, why in (
            ("load_in_8bit" if run.adapter == "lora" and cfg.flag("load_in_8bit") else None, "8-bit LoRA"),
            ("trust_remote_code" if cfg.flag("trust_remote_code") else None, "`trust_remote_code`"),
        ):
            if wanted and obstacle:
                run.reject(wanted[0], f"`{wanted[0]}` is not compatible with {why}")
                wanted = []
        run.put("training.lora.kernels", bool(wanted), given)
        return
    single = run.context.gpus == 1
    automatic = not (
        run.rl
        or (run.adapter == "lora" and cfg.flag("load_in_8bit"))
        or cfg.flag("trust_remote_code")
        or cfg.flag("nvfp4_merge_aware")
        or (run.fsdp_version == 1 and not single)
    )
    run.default("training.lora.kernels", automatic, "utils/schemas/config.py: check_auto_enable_lora_kernels")


def read_quantization(run: Run, quantised: list[str]) -> None:
    """What of ``load_in_4bit``, ``load_in_8bit`` and ``gptq`` takes effect (``_set_quantization_config``).

    ``gptq`` quantises nothing: it loads a checkpoint whose own config says that it is stored so, and warns otherwise.
    """
    cfg = run.cfg
    if cfg.flag("gptq"):
        run.assume("`gptq: true` quantises nothing by itself: the base is as its own config.json says it is stored")
    if run.adapter == "qlora":
        _read_qlora(run)
    elif run.adapter == "lora" and cfg.flag("load_in_8bit"):
        run.put("training.quantization.bits", 8, "load_in_8bit")
        run.put("training.quantization.type", "int8", "load_in_8bit")
        run.put("training.quantization.double_quant", False, "load_in_8bit")
        _preparation(run)
    elif run.adapter == "lora" and cfg.flag("load_in_4bit"):
        run.no_effect(
            "load_in_4bit",
            f"`load_in_4bit` quantises nothing with `adapter: lora` (axolotl {VERSION} does so for `qlora` only), "
            "and the frozen base is cast to fp32",
        )
        if not (run.fsdp_version or run.deepspeed):
            run.put("training.precision.weights", "fp32", "load_in_4bit")
    if run.draft.get("training.quantization.type") in ("nf4", "fp4", "int8"):
        _experts(run)
    if quantised and run.adapter == "llama-adapter":
        run.no_effect(quantised[0], f"`{quantised[0]}` has no effect with `adapter: {run.adapter}`")


def _experts(run: Run) -> None:
    """Experts are quantised only where asked for, or where each is made of linear modules."""
    if run.cfg.flag("llama4_linearized_experts"):
        run.put("training.quantization.experts", "linear", "llama4_linearized_experts")
    elif run.cfg.flag("quantize_moe_experts"):
        run.put("training.quantization.experts", "fused", "quantize_moe_experts")


def _read_qlora(run: Run) -> None:
    cfg = run.cfg
    if cfg.flag("load_in_8bit"):
        run.reject("load_in_8bit", "`adapter: qlora` cannot be loaded in 8 bit")
    if cfg.flag("load_in_4bit") is not True:
        run.reject(cfg.has("load_in_4bit") or "adapter", "`adapter: qlora` needs `load_in_4bit: true`")
    key = cfg.has("load_in_4bit") or "adapter"
    run.put("training.quantization.bits", 4, key)
    kwargs = cfg.mapping("bnb_config_kwargs") or {}
    prefix = cfg.path("bnb_config_kwargs")
    where = f"{_LOADER}: _set_quantization_config"
    kind = kwargs.get("bnb_4bit_quant_type")
    if kind in ("nf4", "fp4"):
        run.put("training.quantization.type", kind, (*prefix, "bnb_4bit_quant_type"))
    else:
        run.default("training.quantization.type", "nf4", where)
    double = as_bool(kwargs.get("bnb_4bit_use_double_quant"))
    if double is not None:
        run.put("training.quantization.double_quant", double, (*prefix, "bnb_4bit_use_double_quant"))
    else:
        run.default("training.quantization.double_quant", True, where)
    storage = dtype_name(kwargs.get("bnb_4bit_quant_storage"))
    if storage is not None:
        run.put("training.quantization.storage", storage, (*prefix, "bnb_4bit_quant_storage"))
    else:
        run.default("training.quantization.storage", "bf16", where)
    _preparation(run)


def _preparation(run: Run) -> None:
    # prepare_model_for_kbit_training runs, but embeddings, head and norms are cast back to the load dtype afterwards;
    # only biases of linear layers stay in fp32.
    run.default("training.quantization.kbit_preparation", False, f"{_LOADER}: _configure_embedding_dtypes casts back")
