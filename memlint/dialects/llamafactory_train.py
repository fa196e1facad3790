"""LLaMA-Factory v0: objective, batch, sequence, attention, checkpointing, loss, optimizer, evaluation and images."""

from __future__ import annotations

from memlint.dialects.eight_bit import read_embedding_states
from memlint.dialects.llamafactory_base import VERSION, Run
from memlint.dialects.low_rank import read_low_rank, read_targets
from memlint.dialects.names import HF_OPTIMIZERS, LAYERWISE_OPTIMIZERS
from memlint.dialects.values import as_bool, did_you_mean, show

STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto")
PREFERENCE = ("sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo")
ATTENTION = {"auto": "sdpa", "disabled": "eager", "sdpa": "sdpa", "fa2": "flash", "fa3": "flash"}
"""AttentionFunction of LLaMA-Factory 0.9.5 extras/constants.py; auto leaves the choice to transformers: sdpa."""

_HPARAMS = "hparams/finetuning_args.py"
_CHECKPOINTING = "model/model_utils/checkpointing.py"


def read_objective(run: Run) -> None:
    """Stage and reference model (``create_ref_model``)."""
    cfg = run.cfg
    loss = cfg.text("pref_loss", PREFERENCE) or "sigmoid"
    native = {"pt": "causal-lm", "sft": "causal-lm", "rm": "reward", "ppo": "ppo", "kto": "kto"}.get(run.stage, "dpo")
    if run.stage == "dpo" and loss == "orpo":
        native = "orpo"
    key = "pref_loss" if native == "orpo" else "stage"
    run.choose("training.objective", key, native if cfg.has(key) else None, native, _HPARAMS)
    wanted = run.stage in ("kto", "ppo") or (run.stage == "dpo" and loss not in ("orpo", "simpo"))
    if run.stage == "sft" and cfg.flag("use_asft_loss") and (cfg.has("ref_model") or run.method != "lora"):
        wanted = True
    if not wanted:
        run.default("training.reference_model", "none", _HPARAMS)
    elif cfg.has("ref_model"):
        run.put("training.reference_model", "copy", "ref_model")
        run.assume("the reference model is taken to be as large as the trained one")
        if cfg.has("ref_model_quantization_bit"):
            run.assume("`ref_model_quantization_bit` is not modelled: the reference model counts in half precision")
    elif run.method == "lora":
        run.default("training.reference_model", "adapter", "train/trainer_utils.py: create_ref_model")
    else:
        run.default("training.reference_model", "copy", "train/trainer_utils.py: create_ref_model")


def read_batch(run: Run) -> None:
    """Micro batch, accumulation and clipping: TrainingArguments."""
    cfg = run.cfg
    key = cfg.has("per_device_train_batch_size", "per_gpu_train_batch_size") or "per_device_train_batch_size"
    run.choose("training.micro_batch_size", key, cfg.integer(key, minimum=1), 8, None)
    steps = cfg.integer("gradient_accumulation_steps", minimum=1)
    run.choose("training.gradient_accumulation_steps", "gradient_accumulation_steps", steps, 1, None)
    clipping = cfg.number("max_grad_norm", minimum=0)
    if clipping is not None:
        run.put("training.max_grad_norm", clipping or None, "max_grad_norm")
    else:
        run.choose("training.max_grad_norm", "max_grad_norm", None, 1.0, None)


def read_attention(run: Run) -> None:
    """``flash_attn`` in LLaMA-Factory's own words."""
    cfg = run.cfg
    if cfg.flag("use_unsloth"):
        run.put("training.attention", "flash", "use_unsloth")
        return
    value = cfg.raw("flash_attn")
    if value is not None and not isinstance(value, str):
        run.reject(
            "flash_attn", f"`flash_attn: {show(value)}` is no kernel; choose `auto`, `disabled`, `sdpa`, `fa2` or `fa3`"
        )
        value = None
    if value == "flash_attention_2":
        run.reject("flash_attn", "`flash_attn: flash_attention_2` is called `fa2` here")
        run.put("training.attention", "flash", "flash_attn")
        return
    name = cfg.text("flash_attn", ATTENTION) if value is not None else None
    run.choose(
        "training.attention", "flash_attn", ATTENTION[name] if name else None, "sdpa", "hparams/model_args.py (auto)"
    )


def read_sequence(run: Run) -> None:
    """``cutoff_len``, packing, and whether rows carry a mask."""
    cfg = run.cfg
    run.choose(
        "training.sequence_length", "cutoff_len", cfg.integer("cutoff_len", minimum=1), 2048, "hparams/data_args.py"
    )
    neat, packing = cfg.flag("neat_packing"), cfg.flag("packing")
    if neat and run.stage != "sft":
        run.reject("neat_packing", f"`neat_packing` works with `stage: sft` only, not `{run.stage}`")
        neat = False
    if packing and run.stage not in ("sft", "pt"):
        run.no_effect("packing", f"`packing` has no effect with `stage: {run.stage}`")
        packing = False
    if neat:
        run.put("training.packing", True, "neat_packing")
    else:
        run.choose("training.packing", "packing", packing, run.stage == "pt", "hparams/parser.py")
    flat = bool(neat) and run.draft.get("training.attention") == "flash"
    if flat:
        run.put("training.varlen", True, "neat_packing")
        if run.draft.get("training.micro_batch_size") != 1:
            run.reject("neat_packing", "`neat_packing` with flash attention needs `per_device_train_batch_size: 1`")
    else:
        run.default("training.varlen", False, "data/collator.py")
    # Plain packed rows are full and carry a mask of ones; neat packing without flash builds a 4D mask; everything else
    # is padded to a multiple of 8.
    full = run.draft.get("training.packing") and not neat
    run.default("training.padding", not (flat or full), "data/collator.py")


def read_checkpointing(run: Run) -> None:
    """On unless ``disable_gradient_checkpointing``; the Trainer's own switch can only turn it on again."""
    cfg = run.cfg
    disabled, trainer = cfg.flag("disable_gradient_checkpointing"), cfg.flag("gradient_checkpointing")
    if cfg.flag("use_unsloth"):
        run.put("training.checkpointing.mode", "offload", "use_unsloth")
        run.put("training.checkpointing.offload", True, "use_unsloth")
        run.put("training.checkpointing.reentrant", True, "use_unsloth")
        return
    if disabled and not trainer:
        run.put("training.checkpointing.mode", "none", "disable_gradient_checkpointing")
        return
    if disabled:
        run.no_effect(
            "disable_gradient_checkpointing",
            "`disable_gradient_checkpointing` has no effect: `gradient_checkpointing: true` switches it on again",
        )
    elif trainer is False:
        run.no_effect(
            "gradient_checkpointing",
            "`gradient_checkpointing: false` has no effect here; use `disable_gradient_checkpointing: true`",
        )
    offloaded = cfg.flag("use_unsloth_gc") and not disabled
    if offloaded:
        run.put("training.checkpointing.mode", "offload", "use_unsloth_gc")
        run.put("training.checkpointing.offload", True, "use_unsloth_gc")
        # A function of its own with reentry, whatever `use_reentrant` says, also after the Trainer's call
        # (LLaMA-Factory 0.9.5 model/model_utils/checkpointing.py _gradient_checkpointing_enable).
        run.put("training.checkpointing.reentrant", True, "use_unsloth_gc")
        return
    if trainer:
        run.put("training.checkpointing.mode", "full", "gradient_checkpointing")
    elif disabled is not None:
        run.put("training.checkpointing.mode", "full", "disable_gradient_checkpointing")
    else:
        run.default("training.checkpointing.mode", "full", _CHECKPOINTING)
    _reentrant(run, trainer=bool(trainer), disabled=bool(disabled))


def _reentrant(run: Run, *, trainer: bool, disabled: bool) -> None:
    cfg = run.cfg
    kwargs = cfg.mapping("gradient_checkpointing_kwargs") if trainer else None
    given = as_bool(kwargs.get("use_reentrant")) if kwargs else None
    if given is not None:
        run.put("training.checkpointing.reentrant", given, ("gradient_checkpointing_kwargs", "use_reentrant"))
    elif trainer:
        # The Trainer calls gradient_checkpointing_enable again, without arguments: LLaMA-Factory's own method then
        # takes reentrant, transformers' (when LLaMA-Factory's was never installed) does not.
        run.default("training.checkpointing.reentrant", not disabled, _CHECKPOINTING)
    elif run.fsdp_version == 2:
        run.default("training.checkpointing.reentrant", False, f"{_CHECKPOINTING}: FSDP2")
    else:
        own = cfg.flag("use_reentrant_gc")
        run.choose("training.checkpointing.reentrant", "use_reentrant_gc", own, True, "hparams/model_args.py")


OWN_LOSSES = {"use_dft_loss": "dft", "use_eaft_loss": "eaft", "use_asft_loss": "asft"}
"""Switches of losses that the SFT trainer takes from the logits itself (train/sft/trainer.py), in its order."""


def read_loss(run: Run) -> None:
    """Liger, whose fused loss serves pre-training and SFT only, and SFT's losses of its own."""
    cfg = run.cfg
    own_loss = next((name for name in OWN_LOSSES if cfg.flag(name)), None)
    if own_loss is not None and run.stage != "sft":
        run.no_effect(own_loss, f"`{own_loss}` has no effect with `stage: {run.stage}`")
        own_loss = None
    if own_loss == "use_asft_loss" and run.draft.get("training.reference_model") != "copy":
        # trainer_utils.py create_ref_model makes none for LoRA, and compute_loss calls it all the same.
        run.reject(own_loss, "`use_asft_loss` with `finetuning_type: lora` needs `ref_model`: the run fails without")
    key = cfg.has("enable_liger_kernel") if cfg.flag("enable_liger_kernel") else None
    if cfg.flag("use_liger_kernel"):
        key = key or "use_liger_kernel"
    if cfg.flag("use_unsloth") and run.stage in ("pt", "sft"):
        run.put("training.loss", "fused", "use_unsloth")
        return
    if key is not None:
        run.put("training.liger", ("rope", "rms_norm", "swiglu"), key)
    if own_loss is not None:
        run.put("training.loss", OWN_LOSSES[own_loss], own_loss)
    elif key is None:
        run.default("training.loss", "standard", "hparams/model_args.py: enable_liger_kernel")
    elif run.stage in ("pt", "sft"):
        run.put("training.loss", "fused", key)
    else:
        run.default("training.loss", "standard", "model/model_utils/liger_kernel.py: this stage needs the logits")


def read_optimizer(run: Run) -> None:
    """LLaMA-Factory's own optimizers come before ``optim`` (``create_custom_optimizer``)."""
    cfg = run.cfg
    name = cfg.text("optim")
    if name is not None and name not in HF_OPTIMIZERS:
        run.reject("optim", f"`optim: {show(name)}` is not known" + did_you_mean(name, HF_OPTIMIZERS))
        name = None
    for key, native in (
        ("use_galore", "galore-adamw"),
        ("use_apollo", "apollo"),
        ("use_badam", "adamw"),
        ("use_adam_mini", "sgd-momentum"),
        ("use_muon", "muon"),
    ):
        if not cfg.flag(key):
            continue
        if key == "use_galore" and name is not None:
            native = {"adafactor": "galore-adafactor"}.get(name, "galore-adamw-8bit" if "8bit" in name else native)
        run.put("training.optimizer", native, key)
        if key in ("use_galore", "use_apollo"):
            rank = cfg.number(f"{key[4:]}_rank", minimum=1)
            run.choose("training.optimizer_rank", f"{key[4:]}_rank", int(rank) if rank else None, 16, None)
            if cfg.raw(f"{key[4:]}_target") not in (None, "all", ["all"]):
                read_targets(f"{key[4:]}_target", cfg.raw, run.put)
        if cfg.flag(f"{key[4:]}_layerwise"):
            run.put("training.optimizer_in_backward", True, f"{key[4:]}_layerwise")
        if key == "use_adam_mini":
            run.assume("Adam-mini keeps one moment per parameter; computed as SGD with momentum")
        if key == "use_badam":
            run.assume("BAdam trains one block at a time; computed with states for all parameters")
        if run.method == "lora" and key in ("use_galore", "use_apollo", "use_badam"):
            run.reject(key, f"`{key}` cannot be used with LoRA; set `finetuning_type: full`")
        if cfg.raw("deepspeed") and key in ("use_galore", "use_apollo"):
            run.reject(key, f"`{key}` is incompatible with DeepSpeed; remove one")
        return
    native_name = HF_OPTIMIZERS[name] if name is not None else None
    run.choose("training.optimizer", "optim", native_name, "adamw-fused", None)
    read_embedding_states(run.draft, name, run.context.versions.get("transformers"))
    read_low_rank(native_name, cfg.raw, run.put)
    if name in LAYERWISE_OPTIMIZERS:
        run.put("training.optimizer_in_backward", True, "optim")
    if cfg.flag("torch_compile"):
        run.put("training.compile", True, "torch_compile")


def read_evaluation(run: Run) -> None:
    """Rows of one evaluation forward, when the run evaluates at all."""
    cfg = run.cfg
    strategy = cfg.raw("eval_strategy", cfg.raw("evaluation_strategy"))
    active = strategy not in (None, False, "no") or cfg.flag("do_eval")
    data = cfg.has("eval_dataset") or (cfg.number("val_size", minimum=0) or 0) > 0
    if not (active and data):
        run.default("training.eval_micro_batch_size", None, "hparams/data_args.py: no evaluation data or no strategy")
        return
    key = cfg.has("per_device_eval_batch_size", "per_gpu_eval_batch_size") or "per_device_eval_batch_size"
    run.choose("training.eval_micro_batch_size", key, cfg.integer(key, minimum=1), 8, None)


SEEING = (
    *("dots_ocr", "ernie_vl", "gemma3", "gemma3n", "gemma4", "gemma4n", "glm4v", "glm4_5v", "glm_ocr"),
    *("granite3_vision", "intern_vl", "intern_s1", "keye_vl", "kimi_vl", "lfm2_vl", "llama4", "llava"),
    *("llava_next", "llava_next_llama3", "llava_next_mistral", "llava_next_qwen", "llava_next_yi", "llava_next_video"),
    *("llava_next_video_mistral", "llava_next_video_yi", "mimo_vl", "minicpm_v", "minicpm_v_4_6", "minicpm_o"),
    *("mistral_small", "ministral3", "paligemma", "paligemma_chat", "pixtral", "qwen2_omni", "qwen3_omni"),
    *("qwen3_omni_nothink", "qwen2_vl", "qwen3_vl", "qwen3_vl_nothink", "qwen3_5", "qwen3_5_nothink", "qwen3_6"),
    *("video_llava", "yi_vl", "youtu_vl"),
)
"""Templates whose mm_plugin has an image token (LLaMA-Factory 0.9.5 data/template.py); not mllama, whose reentrant
checkpoints with images are an error of their own.
"""


def read_images(run: Run) -> None:
    """Pixels of one image; how many there are is not in the file."""
    cfg = run.cfg
    template = cfg.raw("template")
    if cfg.has("image_max_pixels", "image_min_pixels", "video_max_pixels", "freeze_vision_tower", "media_dir"):
        assumed = "one image per sequence: the number of images is not in the config"
    elif template in SEEING and run.stage != "pt":
        assumed = (
            f"one image per sequence, as the template `{template}` takes them: LLaMA-Factory {VERSION} puts one into a"
            " batch without any as well (data/collator.py)"
        )
    else:
        return
    run.draft.set("training.images", 1, assumed=assumed)
    pixels = cfg.integer("image_max_pixels", minimum=1)
    run.choose("training.image_pixels", "image_max_pixels", pixels, 768 * 768, "hparams/model_args.py")


def other_settings(run: Run) -> None:
    """Say what is not modelled."""
    for key in ("mixture_of_depths", "shift_attn", "use_hyper_parallel"):
        if run.cfg.raw(key):
            run.assume(f"`{key}` of LLaMA-Factory {VERSION} is not modelled: the figure is that of the run without it")
