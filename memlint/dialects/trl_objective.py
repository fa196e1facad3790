"""What each TRL trainer does in a step: objective, sequence, loss, reference model, generation.

Source: TRL 1.16.0 ``trainer/{sft,dpo,kto,grpo,rloo,reward}_{config,trainer}.py``, ``trainer/utils.py``
(add_fused_lm_head: log-probabilities in tiles, no full logits, in SFT, DPO, KTO, GRPO and RLOO since 1.15).
"""

from __future__ import annotations

from memlint.dialects.hf_trainer_args import Arguments
from memlint.dialects.liger import beneath_autocast

_OBJECTIVES = {
    "sft": "causal-lm",
    "dpo": "dpo",
    "simpo": "dpo",
    "cpo": "cpo",
    "orpo": "orpo",
    "kto": "kto",
    "reward": "reward",
    "grpo": "grpo",
    "rloo": "grpo",
}


def apply_objective(arguments: Arguments, version: tuple[int, ...], trainer: str, key: str | None) -> None:
    """Set objective, sequence length, packing, loss, reference model and generation of ``trainer``."""
    draft = arguments.draft
    objective = _OBJECTIVES[trainer]
    if trainer == "cpo" and (
        arguments.section.number("cpo_alpha") == 0 or arguments.section.raw("loss_type") == "alphapo"
    ):
        objective = "dpo"  # without the cross entropy of the chosen rows (TRL 1.16 experimental/cpo)
    if key is not None:
        arguments.put("training.objective", objective, key)
    else:
        draft.set("training.objective", objective, default=f"TRL's {trainer.upper()} trainer")
    source = f"TRL 1.16: trainer/{_module(trainer)}_config.py"
    if trainer in ("grpo", "rloo"):
        _generation(arguments, source, version, 2 if trainer == "rloo" else 8)
    else:
        _length(arguments, source)
    if trainer == "sft":
        _packing(arguments, source)
    elif trainer in ("dpo", "kto", "reward", "orpo", "simpo", "cpo"):
        draft.set("training.padding", True, default=f"default of {source}")
    _loss(arguments, version, trainer)
    _reference(arguments, version, trainer, source)
    offload = arguments.section.flag("activation_offloading")
    if offload and trainer in ("sft", "dpo", "kto", "reward"):
        arguments.put("training.checkpointing.offload", True, "activation_offloading")


def _module(trainer: str) -> str:
    return trainer if trainer in ("sft", "dpo", "kto", "reward", "grpo", "rloo") else "dpo"


def _length(arguments: Arguments, source: str) -> None:
    section = arguments.section
    name = section.has("max_length", "max_seq_length")
    value = section.integer(name, minimum=1) if name is not None else None
    if name is not None and value is not None:
        arguments.put("training.sequence_length", value, name)
    elif "max_length" in section.data and name is None:
        arguments.draft.set(
            "training.sequence_length",
            2048,
            assumed="`max_length: null` does not truncate; 2048 tokens assumed for the longest sample",
        )
    else:
        arguments.default("training.sequence_length", 1024, source)


def _generation(arguments: Arguments, source: str, version: tuple[int, ...], generations: int) -> None:
    section, draft = arguments.section, arguments.draft
    newest = 512 if version >= (1, 10) else 256
    completion = arguments.choose(
        "training.completion_length",
        "max_completion_length",
        section.integer("max_completion_length", minimum=1),
        newest,
        source,
    )
    prompt = section.integer("max_prompt_length", minimum=1)
    if prompt is not None:
        arguments.put("training.sequence_length", prompt + completion, "max_prompt_length")
    else:
        draft.set(
            "training.sequence_length",
            512 + completion,
            assumed=f"prompts are not truncated; 512 tokens assumed beside {completion} of the completion",
        )
    draft.set("training.padding", True, default=f"default of {source}")
    count = section.integer("num_generations", minimum=1)
    arguments.choose("training.num_generations", "num_generations", count, generations, source)
    if section.flag("use_vllm"):
        _engine(arguments, source, version)


def _engine(arguments: Arguments, source: str, version: tuple[int, ...]) -> None:
    """The share of the GPU that vLLM takes: in training's own processes, on a server, or, where a file says
    ``vllm_device`` as before TRL 0.16, on the GPU after those that train, if there is one.
    """
    section = arguments.section
    mode = section.text("vllm_mode", ("colocate", "server"))
    if mode is None and section.has("vllm_device"):
        colocate = arguments.context.gpus == 1
        if not colocate:
            arguments.draft.assumptions.append(
                "`vllm_device` is of TRL before 0.16: vLLM runs on a GPU of its own, beside those that train"
            )
    else:
        colocate = (mode or ("colocate" if version >= (1, 0) else "server")) == "colocate"
    if colocate and not section.flag("vllm_enable_sleep_mode"):
        share = section.number("vllm_gpu_memory_utilization", minimum=0)
        arguments.choose("training.vllm_memory_share", "vllm_gpu_memory_utilization", share, 0.3, source)


def check_generations(arguments: Arguments) -> None:
    """Report generations that do not divide the completions of a step, where the number of GPUs is known.

    trl 1.9 trainer/grpo_config.py: `generation_batch_size` must be divisible by `num_generations`.
    """
    section, draft = arguments.section, arguments.draft
    count, micro = draft.get("training.num_generations"), draft.get("training.micro_batch_size")
    stated = draft.get("parallelism.gpus")
    served = section.flag("use_vllm") and section.raw("vllm_mode") != "colocate"
    # A target of one GPU may only say which kind it is, and a server takes GPUs of its own from those of the target.
    of_target = arguments.context.gpus if not served and (arguments.context.gpus or 1) > 1 else None
    gpus = stated or of_target
    if draft.get("training.objective") != "grpo" or not (count and micro and gpus):
        return
    if draft.get("parallelism.tensor", 1) > 1 or draft.get("parallelism.context", 1) > 1:
        return
    steps = section.integer("steps_per_generation", minimum=1) or draft.get("training.gradient_accumulation_steps", 1)
    stated_batch = section.integer("generation_batch_size", minimum=1)
    completions = stated_batch or micro * steps * gpus
    factors = "" if stated_batch else f" ({micro} x {steps} on {gpus} GPU{'s' if gpus > 1 else ''})"
    if completions % count:
        key = section.has("num_generations", "per_device_train_batch_size") or "num_generations"
        section.problem(
            "MEM603",
            key,
            f"`num_generations: {count}` does not divide the {completions} completions of a step{factors}",
            label="the trainer refuses to start",
        )


def _packing(arguments: Arguments, source: str) -> None:
    section = arguments.section
    packing = section.flag("packing")
    if packing:
        arguments.put("training.packing", True, "packing")
        strategy = section.text("packing_strategy", ("bfd", "bfd_split", "bfd-requeue", "wrapped", "ffd"))
        # bfd batches are padding-free: one flat row with cumulative lengths (sft_trainer.py).
        key = "packing_strategy" if strategy is not None else "packing"
        arguments.put("training.varlen", strategy != "wrapped", key)
    elif section.flag("padding_free"):
        arguments.put("training.varlen", True, "padding_free")
    else:
        arguments.default("training.packing", False, source)
        arguments.default("training.padding", True, source)


def _loss(arguments: Arguments, version: tuple[int, ...], trainer: str) -> None:
    draft, section = arguments.draft, arguments.section
    if draft.get("training.loss") == "fused" or trainer == "reward":
        return
    if trainer in ("simpo", "cpo", "orpo"):
        arguments.default("training.loss", "standard", f"TRL 1.16: experimental/{trainer}/{trainer}_trainer.py")
        return
    if trainer in _LIGER and version < (1, 15) and _liger_loss(arguments, version):
        return
    if version >= (1, 15):
        smoothing = section.number("label_smoothing_factor") if trainer == "sft" else None
        if smoothing:
            arguments.put("training.loss", "standard", "label_smoothing_factor")
        else:
            arguments.default("training.loss", "chunked", "TRL 1.16: trainer/utils.py add_fused_lm_head")
        return
    stated = section.raw("loss_type")
    if trainer == "sft" and stated == "chunked_nll":
        arguments.put("training.loss", "chunked", "loss_type")
    elif trainer == "sft" and version >= (1, 6) and stated is None:
        arguments.default("training.loss", "chunked", "TRL 1.6 to 1.14: trainer/sft_config.py")
    else:
        arguments.default("training.loss", "standard", f"TRL before 1.15: trainer/{_module(trainer)}_trainer.py")


_NEWER_SWITCH = (0, 28)
_LIGER = ("dpo", "kto", "grpo")
"""Trainers with a loss of Liger's until TRL 1.12, and TRL's own chunked one in its place in 1.13 and 1.14."""


def _liger_loss(arguments: Arguments, version: tuple[int, ...]) -> bool:
    """Whether Liger's switch decides the loss: ``use_liger_loss`` to 0.27, ``use_liger_kernel`` since.

    trl 0.24 trainer/dpo_config.py; trl 1.9 and 1.14 trainer/dpo_trainer.py.
    """
    section = arguments.section
    key = section.has("use_liger_loss") if version < _NEWER_SWITCH else section.has("use_liger_kernel", "use_liger")
    if key is None or not section.flag(key):
        return False
    arguments.put("training.loss", "fused" if version < (1, 13) else "chunked", key)
    if version < (1, 13):
        beneath_autocast(arguments.draft)
    return True


def _reference(arguments: Arguments, version: tuple[int, ...], trainer: str, source: str) -> None:
    draft, section = arguments.draft, arguments.section
    adapters = draft.get("training.method") in ("lora", "qlora")
    if trainer in ("dpo", "kto"):
        if section.flag("precompute_ref_log_probs"):
            arguments.put("training.reference_model", "precomputed", "precompute_ref_log_probs")
            return
        if section.flag("reference_free"):
            arguments.put("training.reference_model", "none", "reference_free")
            return
        kind = "adapter" if adapters and not section.flag("force_use_ref_model") else "copy"
        arguments.default("training.reference_model", kind, f"TRL 1.16: trainer/{trainer}_trainer.py")
    elif trainer in ("grpo", "rloo"):
        beta = section.number("beta")
        default = 0.05 if trainer == "rloo" else 0.0 if version >= (0, 19) else 0.04
        value = default if beta is None else beta
        kind = "none" if value == 0 else "adapter" if adapters else "copy"
        if beta is not None:
            arguments.put("training.reference_model", kind, "beta")
        else:
            arguments.default("training.reference_model", kind, source)
