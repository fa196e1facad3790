"""axolotl: objective, checkpointing, loss, optimizer and clipping."""

from __future__ import annotations

from typing import Any

from memlint.dialects.axolotl_base import CLIPPING, VERSION, Run
from memlint.dialects.eight_bit import read_embedding_states
from memlint.dialects.liger import beneath_autocast
from memlint.dialects.low_rank import read_low_rank
from memlint.dialects.names import HF_OPTIMIZERS, LAYERWISE_OPTIMIZERS
from memlint.dialects.values import Section, as_bool, did_you_mean, words

RL = ("dpo", "gdpo", "grpo", "ipo", "orpo", "kto", "simpo", "ebft")
"""RLType of axolotl 0.19 utils/schemas/enums.py."""

OPTIMIZERS: dict[str, str] = {
    "optimi_adamw": "adamw-optimi",
    "ao_adamw_4bit": "adamw-4bit",
    "ao_adamw_8bit": "adamw-8bit",
    "ao_adamw_fp8": "adamw-fp8",
    "adopt_adamw": "adopt",
    "adamc": "adamw",
    "came_pytorch": "came",
    "muon": "muon",
    "dion": "dion",
    "sinkgd": "sgd",
    "polora": "sgd-momentum",
    "flash_adamw": "flash-adamw",
    "flash_adam": "flash-adamw",
    "flash_sgd": "sgd",
    "flash_sgdw": "sgd",
    "flash_lion": "lion",
    "q_galore_adamw8bit": "q-galore-adamw-8bit",
}
"""CustomSupportedOptimizers of axolotl 0.19 (core/builders/base.py) -> native names. AdamC holds AdamW's two moments;
SinkGD normalises gradients without a state; PoLoRA keeps one momentum per LoRA factor."""

_LIGER_KERNELS = {
    "liger_rope": "rope",
    "liger_rms_norm": "rms_norm",
    "liger_layer_norm": "layer_norm",
    "liger_glu_activation": "swiglu",
    "liger_swiglu": "swiglu",
    "liger_cross_entropy": "cross_entropy",
}
_LIGER_LOSS = "liger_fused_linear_cross_entropy"
_NOT_FOLLOWED = tuple(
    sorted(
        words(
            """dense_mixer experts_implementation fused_attn_kernel large_head_attention lisa_step_interval
            model_quantization_config ple_cpu_offload qat relora_cpu_offload shrink_embeddings tiled_mlp
            use_grouped_moe_kernels use_kernels use_scattermoe use_sonicmoe"""
        )
    )
)
"""Keys that change what a step holds in ways that are not modelled; each is said."""
_LOSS_KEYS = ("cut_cross_entropy", "chunked_cross_entropy", "liger_cross_entropy", _LIGER_LOSS)


def read_objective(run: Run) -> None:
    """What the run optimises, and which reference model it holds."""
    cfg = run.cfg
    run.rl = cfg.text("rl", RL)
    if run.rl is not None:
        native = {"ipo": "dpo", "simpo": "cpo", "gdpo": "grpo", "ebft": "grpo"}.get(run.rl, run.rl)
        if run.rl == "simpo" and cfg.number("cpo_alpha") == 0:
            native = "dpo"  # TRL's CPO trainer without the cross entropy of the chosen rows
        run.put("training.objective", native, "rl")
        if run.rl == "ebft":
            run.assume("`rl: ebft` is computed as a GRPO step")
    elif cfg.flag("reward_model"):
        run.put("training.objective", "reward", "reward_model")
    elif cfg.flag("process_reward_model"):
        run.put("training.objective", "token-classification", "process_reward_model")
    elif "SequenceClassification" in str(cfg.raw("model_type") or cfg.raw("type_of_model") or ""):
        key = cfg.has("model_type", "type_of_model") or "model_type"
        run.put("training.objective", "sequence-classification", key)
    else:
        run.default("training.objective", "causal-lm", "core/builders/causal.py")


def read_reference(run: Run) -> None:
    """Reference model of preference training (train.py ``setup_reference_model`` and the TRL trainers of 1.9)."""
    cfg = run.cfg
    if run.rl is None:
        return
    trl = cfg.section("trl") or Section({}, run.problems)
    if run.rl in ("grpo", "gdpo", "ebft"):
        _read_generation(run, trl)
    if cfg.flag("rl_adapter_ref_model"):
        run.no_effect(
            "rl_adapter_ref_model",
            f"`rl_adapter_ref_model` has no effect in axolotl {VERSION}: the schema no longer has it",
        )
    beta = trl.number("beta")
    if beta is None:
        beta = cfg.number("rl_beta")
    if run.rl in ("orpo", "simpo") or (run.rl in ("grpo", "gdpo", "ebft") and not beta):
        where = "train.py: no reference model for this loss"
        run.default("training.reference_model", "none", where)
    elif run.adapter:
        precomputed = cfg.flag("precompute_ref_log_probs")
        if precomputed and run.rl in ("dpo", "ipo"):
            run.put("training.reference_model", "precomputed", "precompute_ref_log_probs")
        else:
            run.default("training.reference_model", "adapter", "train.py: the adapter is switched off")
    else:
        run.default("training.reference_model", "copy", "train.py: a second full copy of the model")
        if cfg.flag("precompute_ref_log_probs"):
            run.no_effect(
                "precompute_ref_log_probs",
                f"`precompute_ref_log_probs` frees no memory in full fine-tuning: axolotl {VERSION} loads the "
                "reference model all the same and TRL keeps it",
            )


def _read_generation(run: Run, trl: Section) -> None:
    generations = trl.integer("num_generations", minimum=1)
    where = trl.path("num_generations")
    if generations is not None:
        run.put("training.num_generations", generations, where)
    else:
        run.draft.set("training.num_generations", 8, default="default of TRL 1.9: trainer/grpo_config.py")
    length = trl.integer("max_completion_length", minimum=1)
    if length is not None:
        run.put("training.completion_length", length, trl.path("max_completion_length"))
    else:
        run.draft.set(
            "training.completion_length",
            run.draft.get("training.sequence_length"),
            assumed="`trl.max_completion_length` is not set: completions as long as `sequence_len`",
        )
    mode = trl.text("vllm_mode", ("server", "colocate"))
    if trl.flag("use_vllm") and mode == "colocate":
        vllm = run.cfg.section("vllm")
        share = vllm.number("gpu_memory_utilization", minimum=0) if vllm is not None else None
        if share is not None and vllm is not None:
            run.put("training.vllm_memory_share", share, vllm.path("gpu_memory_utilization"))
        else:
            run.default("training.vllm_memory_share", 0.9, "utils/schemas/vllm.py")


def read_checkpointing(run: Run) -> None:
    """Activation checkpointing, its reentrant rule, and what is offloaded to the host."""
    cfg = run.cfg
    raw = cfg.raw("gradient_checkpointing")
    offload = _offload_mode(run, raw)
    on = True if raw in ("offload", "offload_disk") else cfg.flag("gradient_checkpointing") is True
    if offload and not on:
        key = cfg.has("activation_offloading") or "gradient_checkpointing"
        run.reject(key, "`activation_offloading` needs `gradient_checkpointing: true`")
        offload = None
    if not on:
        run.choose(
            "training.checkpointing.mode",
            "gradient_checkpointing",
            "none" if raw is not None else None,
            "none",
            "utils/schemas/config.py",
        )
        return
    _reentrant(run, offload)
    selective = cfg.raw("selective_checkpointing")
    if selective:
        run.put("training.checkpointing.mode", "selective", "selective_checkpointing")
        saved = selective.get("save") if isinstance(selective, dict) else None
        names = tuple(str(name) for name in saved) if isinstance(saved, list) else ("attention",)
        run.put("training.checkpointing.save", names, "selective_checkpointing")
        return
    if offload is None:
        run.put("training.checkpointing.mode", "full", "gradient_checkpointing")
        return
    key = cfg.has("activation_offloading") or "gradient_checkpointing"
    run.put("training.checkpointing.mode", "offload", key)
    run.put("training.checkpointing.offload", True, key)
    if run.adapter and offload != "hidden_states":
        run.assume(
            "with an adapter `activation_offloading` moves every saved tensor to the host and recomputes nothing "
            f"(axolotl {VERSION}: loaders/model.py); computed as offloaded checkpoints"
        )


def _offload_mode(run: Run, checkpointing: Any) -> str | None:
    cfg = run.cfg
    value = cfg.raw("activation_offloading")
    if isinstance(value, str) and value in ("legacy", "disk", "hidden_states"):
        return value
    if cfg.flag("activation_offloading"):
        return "true"
    return "true" if checkpointing in ("offload", "offload_disk") else None


def _reentrant(run: Run, offload: str | None) -> None:
    cfg = run.cfg
    kwargs = cfg.mapping("gradient_checkpointing_kwargs")
    given = as_bool(kwargs.get("use_reentrant")) if kwargs else None
    if given is not None:
        if given and cfg.has("unfrozen_parameters"):
            run.reject("gradient_checkpointing_kwargs", "`use_reentrant` must be false with `unfrozen_parameters`")
        path = (*cfg.path("gradient_checkpointing_kwargs"), "use_reentrant")
        run.put("training.checkpointing.reentrant", given, path)
        return
    plain = run.rl is None and not cfg.has("unfrozen_parameters") and kwargs is None
    reentrant = plain and offload != "hidden_states" and not cfg.raw("selective_checkpointing")
    run.default("training.checkpointing.reentrant", reentrant, "utils/config/__init__.py: normalize_config")


def read_loss(run: Run) -> None:
    """Loss and Liger kernels, which need their plugin to do anything."""
    cfg = run.cfg
    liger, cut = run.plugin("LigerPlugin"), run.plugin("CutCrossEntropyPlugin")
    asked = [key for key in _LOSS_KEYS if cfg.flag(key)]
    if len(asked) > 1:
        run.reject(asked[1], f"`{asked[1]}` and `{asked[0]}` exclude each other: keep one")
    kernels: list[str] = []
    for key, kernel in _LIGER_KERNELS.items():
        if not cfg.flag(key):
            continue
        if liger:
            kernels.append(kernel)
        else:
            _needs_plugin(run, key, "axolotl.integrations.liger.LigerPlugin")
    if kernels:
        run.put("training.liger", tuple(dict.fromkeys(kernels)), "plugins")
    if cfg.flag(_LIGER_LOSS) and not liger:
        _needs_plugin(run, _LIGER_LOSS, "axolotl.integrations.liger.LigerPlugin")
    if cfg.flag("cut_cross_entropy") and not cut:
        _needs_plugin(run, "cut_cross_entropy", "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin")
    _choose_loss(run, liger=liger, cut=cut)


def _needs_plugin(run: Run, key: str, plugin: str) -> None:
    run.no_effect(key, f"`{key}` has no effect without `{plugin}` in `plugins`")


def _choose_loss(run: Run, *, liger: bool, cut: bool) -> None:
    cfg = run.cfg
    fused_key, kind = (_LIGER_LOSS if liger and cfg.flag(_LIGER_LOSS) else None), "fused"
    if fused_key is None and cut and cfg.flag("cut_cross_entropy") is not False:
        fused_key, kind = cfg.has("cut_cross_entropy") or "plugins", "cut-cross-entropy"
    if run.rl is not None:
        own = "dpo_use_liger_kernel" if run.rl in ("dpo", "ipo") and cfg.flag("dpo_use_liger_kernel") else None
        trl = cfg.section("trl")
        if own is not None:
            run.put("training.loss", "fused", own)
            beneath_autocast(run.draft)
        elif run.rl in ("grpo", "gdpo") and trl is not None and trl.flag("use_liger_loss"):
            run.put("training.loss", "fused", trl.path("use_liger_loss"))
            beneath_autocast(run.draft)
        else:
            if fused_key is not None:
                run.no_effect(
                    fused_key,
                    f"the fused loss has no effect with `rl: {run.rl}`, whose loss is computed from the logits",
                )
            run.default("training.loss", "standard", "core/builders/rl.py")
        return
    if fused_key is not None:
        run.put("training.loss", kind, fused_key)
        return
    if cfg.flag("chunked_cross_entropy"):
        # The logits exist whole; only their fp32 copy is made piece by piece (monkeypatch/loss/chunked.py).
        run.put("training.loss", "standard", "chunked_cross_entropy")
        run.assume("`chunked_cross_entropy` compiles its pieces, which may keep less: computed as a whole loss")
        return
    run.default("training.loss", "standard", "no loss plugin listed")


def read_optimizer(run: Run) -> None:
    """Optimizer by its Hugging Face or axolotl name, and gradient clipping."""
    cfg = run.cfg
    name = cfg.text("optimizer")
    table = {**HF_OPTIMIZERS, **OPTIMIZERS}
    if name is not None and name not in table:
        run.reject("optimizer", f"`optimizer: {name[:60]}` is not known" + did_you_mean(name, table))
        name = None
    run.choose(
        "training.optimizer",
        "optimizer",
        table[name] if name is not None else None,
        "adamw-fused",
        "utils/schemas/training.py (adamw_torch_fused)",
    )
    read_embedding_states(run.draft, name, run.context.versions.get("transformers"))
    read_low_rank(table.get(name or ""), cfg.raw, run.put)
    if name in LAYERWISE_OPTIMIZERS:
        run.put("training.optimizer_in_backward", True, "optimizer")
    clipping = cfg.number("max_grad_norm", minimum=0)
    if clipping is not None:
        run.put("training.max_grad_norm", clipping or None, "max_grad_norm")
    else:
        run.draft.set("training.max_grad_norm", 1.0, default=CLIPPING)
    compiling = cfg.raw("torch_compile")
    if compiling == "auto" or cfg.flag("torch_compile"):
        run.put("training.compile", True, "torch_compile")
    for key in _NOT_FOLLOWED:
        if cfg.raw(key):
            run.assume(f"`{key}` is not modelled: the figure is that of the run without it")
