"""What a traceback tells: the phase of the step and the kind of tensor, from the innermost frame that is known."""

from __future__ import annotations

import re

from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """One kind of place in the code."""

    phase: str
    """loading, setup, forward, loss, backward, clip, optimizer, evaluation, saving, generation."""
    tensor: str
    pattern: str
    """Regular expression over ``file:function: source``."""


HINTS: tuple[Hint, ...] = (
    Hint(
        phase="optimizer",
        tensor="temporaries of the optimizer step: the foreach list of square roots, one value per trainable parameter",
        pattern=r"optim/\w+\.py:.*(?:exp_avg_sq_sqrt|_foreach_sqrt|_foreach_add|_foreach_div|denom\b)",
    ),
    Hint(
        phase="optimizer",
        tensor="optimizer states, made in the first step",
        pattern=r"(?:optim\w*/.*zeros_like|torch\.zeros_like\(p|init_state|get_state_buffer|_init_group)",
    ),
    Hint(
        phase="optimizer",
        tensor="what the optimizer makes in its step",
        pattern=r"optim\w*\.py:step|optimizer\.step|optim\.step",
    ),
    Hint(phase="clip", tensor="temporaries of gradient clipping", pattern=r"clip_grad"),
    Hint(
        phase="setup",
        tensor="fp32 master weights and states of the ZeRO optimizer",
        pattern=r"zero.*:(?:initialize_optimizer_states|_create_fp32_partitions|__init__).*|single_partition_of_fp32|"
        r"fp32_groups_flat|initialize_optimizer_states",
    ),
    Hint(
        phase="optimizer",
        tensor="fp32 copy of this rank's gradients in the ZeRO step",
        pattern=r"single_grad_partition|_prepare_fp32_grad|stage_1_and_2\.py:step|stage3\.py:step|stage3\.py:_optimizer_step",
    ),
    Hint(
        phase="forward",
        tensor="parameters gathered for one layer",
        pattern=r"partition_parameters|partitioned_param_coordinator|all_gather|_unshard|flat_param|fully_shard",
    ),
    Hint(
        phase="backward",
        tensor="a bucket of gradients",
        pattern=r"reduce_scatter|reduce_bucket|ipg_bucket|reduce_ready|reduce_independent|_reduce_grads|Reducer",
    ),
    Hint(
        phase="saving",
        tensor="the full state dict, gathered for saving",
        pattern=r"save_model|save_checkpoint|_save\b|save_pretrained|full_state_dict|state_dict_type|get_state_dict",
    ),
    Hint(
        phase="generation",
        tensor="the key-value cache and logits of generation",
        pattern=r"generation/utils|:generate\b|vllm|sglang",
    ),
    Hint(
        phase="evaluation",
        tensor="logits of the evaluation set, gathered on the GPU",
        pattern=r"evaluation_loop|prediction_step|nested_concat|pad_across_processes|:evaluate\b",
    ),
    Hint(
        phase="loading",
        tensor="weights while the model is loaded",
        pattern=r"from_pretrained|load_pretrained|load_model\b|load_state_dict|_load_state|module\.py:_apply|"
        r":to\b: |:convert\b|\.to\(device|\.cuda\(\)|set_module_tensor|load_checkpoint|init_empty",
    ),
    Hint(
        phase="setup",
        tensor="fp32 copies of embeddings, head and norms made by k-bit preparation",
        pattern=r"prepare_model_for_kbit_training",
    ),
    Hint(
        phase="loss",
        tensor="logits: tokens x vocabulary",
        pattern=r"loss_utils|cross_entropy|CrossEntropy|log_softmax|logits\.float|logits = .*float|nll_loss|"
        r"lm_head|shift_logits|compute_log_probs|selective_log|logprobs|get_batch_logps|entropy_from_logits",
    ),
    Hint(
        phase="forward",
        tensor="the attention matrix: heads x tokens x tokens",
        pattern=r"attn_weights|attention_scores|attention_probs|softmax|baddbmm|scores = torch\.matmul|"
        r"matmul\(q|scaled_dot_product|attn_mask|causal_mask",
    ),
    Hint(
        phase="forward",
        tensor="a dequantised weight",
        pattern=r"dequantize|bitsandbytes/autograd|MatMul4Bit|MatMul8bit",
    ),
    Hint(
        phase="forward",
        tensor="an activation of the MLP",
        pattern=r"\bmlp\b|act_fn|gate_proj|up_proj|down_proj|silu|gelu|swiglu|dense_h_to_4h|MLP",
    ),
    Hint(
        phase="forward",
        tensor="a LoRA branch's activation",
        pattern=r"lora_[AB]|tuners/lora|lora_dropout",
    ),
    Hint(
        phase="forward",
        tensor="an fp32 copy inside a normalisation layer",
        pattern=r"norm.*:forward|hidden_states\.to\(torch\.float32\)|variance|RMSNorm|layer_norm",
    ),
    Hint(phase="forward", tensor="rotated queries or keys", pattern=r"rotary|rotate_half|apply_rope"),
    Hint(
        phase="backward",
        tensor="an activation recomputed in backward",
        pattern=r"utils/checkpoint\.py|recompute_fn|CheckpointFunction",
    ),
    Hint(
        phase="backward",
        tensor="a gradient",
        pattern=r"autograd/__init__\.py|loss\.backward|accelerator.*backward|run_backward|engine.*backward|\.backward\(",
    ),
)
"""First match wins for one frame; frames are read from the innermost outwards."""

_COMPILED = tuple((hint, re.compile(hint.pattern)) for hint in HINTS)


def hint_of(frames: tuple[str, ...]) -> Hint | None:
    """What the innermost known frame says; the phase is backward when an outer frame is."""
    for frame in reversed(frames):
        for hint, pattern in _COMPILED:
            if pattern.search(frame):
                return _in_phase(hint, frames)
    return None


def _in_phase(hint: Hint, frames: tuple[str, ...]) -> Hint:
    if hint.phase not in ("forward", "loss"):
        return hint
    outer = "\n".join(frames)
    for phase, pattern in (
        ("evaluation", r"evaluation_loop|prediction_step|:evaluate\b"),
        ("backward", r"run_backward|autograd/__init__\.py|loss\.backward"),
        ("loading", r"from_pretrained"),
    ):
        if re.search(pattern, outer):
            return Hint(phase=phase, tensor=hint.tensor, pattern=hint.pattern)
    return hint
