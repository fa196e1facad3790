"""LLaMA-Factory with Megatron (``USE_MCA=1``): the same file with Megatron-LM's own keys.

mcore_adapter, which takes these keys, is not on the package index; names and data types are those of Megatron-LM
(megatron/training/arguments.py, core/optimizer).
"""

from __future__ import annotations

from memlint.dialects.llamafactory_base import Run

MARKS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "recompute_granularity",
    "use_distributed_optimizer",
)
_MEGATRON = "default of Megatron-LM: core/optimizer"


def is_megatron(run: Run) -> bool:
    """Whether the file carries Megatron keys."""
    return run.cfg.has(*MARKS) is not None


def read_megatron(run: Run) -> None:
    """Half-precision parameters with fp32 gradients and masters, Megatron's own recomputation, and its parallelism."""
    cfg, draft = run.cfg, run.draft
    half = draft.get("training.precision.autocast")
    key = "bf16" if half == "bf16" else "fp16"
    if half is not None:
        run.put("training.precision.weights", half, key)
        draft.set("training.precision.autocast", None, default=_MEGATRON)
        draft.set("training.precision.trainable_weights", None, default=_MEGATRON)
        draft.set("training.precision.gradients", "fp32", default=_MEGATRON)
        # core/distributed/param_and_grad_buffer.py: each is added to one fp32 buffer and reduced in that dtype.
        draft.set("parallelism.immediate_gradients", True, default=_MEGATRON)
        draft.set("parallelism.communication_dtype", "fp32", default=_MEGATRON)
        draft.set("training.precision.optimizer", "fp32", default=_MEGATRON)
        draft.set("training.precision.master_weights", True, default=_MEGATRON)
        draft.set("training.precision.grad_scaler", False, default=_MEGATRON)
    draft.set("training.attention", "flash", default="default of Megatron-LM: attention_backend auto")
    draft.set("training.loss", "standard", default="default of Megatron-LM: cross_entropy_loss_fusion")
    draft.set("training.liger", (), default=_MEGATRON)
    _recomputation(run)
    for name, field in (
        ("tensor_model_parallel_size", "parallelism.tensor"),
        ("pipeline_model_parallel_size", "parallelism.pipeline"),
        ("expert_model_parallel_size", "parallelism.expert"),
        ("context_parallel_size", "parallelism.context"),
    ):
        size = cfg.integer(name, minimum=1)
        if size is not None:
            run.put(field, size, name)
    sequence = cfg.flag("sequence_parallel")
    if sequence and draft.get("parallelism.tensor", 1) == 1:
        run.no_effect("sequence_parallel", "`sequence_parallel` has no effect with `tensor_model_parallel_size: 1`")
    elif sequence is not None:
        run.put("parallelism.sequence_parallel", sequence, "sequence_parallel")
    if cfg.flag("use_distributed_optimizer"):
        run.put("parallelism.strategy", "zero1", "use_distributed_optimizer")
    else:
        draft.set("parallelism.strategy", "ddp", default="default of Megatron-LM: training/arguments.py")
    if run.method != "full":
        run.assume("Megatron training of LLaMA-Factory supports full fine-tuning only")


def _recomputation(run: Run) -> None:
    mode = run.cfg.text("recompute_granularity", ("full", "selective", "none"))
    reentrant = "training.checkpointing.reentrant"
    if mode == "full":
        run.put("training.checkpointing.mode", "full", "recompute_granularity")
        run.draft.set(reentrant, True, default="default of Megatron-LM: core/tensor_parallel/random.py")
    elif mode == "selective":
        run.put("training.checkpointing.mode", "none", "recompute_granularity")
        run.assume(
            "`recompute_granularity: selective` computes the core attention again, of which a fused kernel keeps next "
            "to nothing: computed as no checkpointing"
        )
    else:
        default = "default of Megatron-LM: recompute_granularity"
        run.draft.set("training.checkpointing.mode", "none", default=default)
    run.draft.set("training.checkpointing.offload", False, default="default of Megatron-LM: core/transformer")
    if run.cfg.has("disable_gradient_checkpointing"):
        run.no_effect(
            "disable_gradient_checkpointing",
            "`disable_gradient_checkpointing` has no effect with Megatron; use `recompute_granularity`",
        )
