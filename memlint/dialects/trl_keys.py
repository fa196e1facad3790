"""Names of TRL's arguments beyond the HF Trainer's, and which trainer a file is for.

Source: TRL 1.16.0 ``trainer/{sft,dpo,grpo,kto,reward,rloo,model}_config.py``, ``scripts/utils.py``; older names from
0.12 to 1.15 and from alignment-handbook, open-r1 and SimPO recipes.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.hf_trainer_keys import TRAINING_ARGS
from memlint.dialects.values import words

MODEL_KEYS = words(
    """model_name_or_path model_revision model_code_revision dtype torch_dtype attn_implementation use_peft lora_r
    lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type
    use_rslora use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage
    trust_remote_code tokenizer_name_or_path base_model_revision use_unsloth"""
)
TRAINER_KEYS = words(
    """model_init_kwargs router_aux_loss_coef chat_template_path dataset_text_field dataset_kwargs
    dataset_num_proc eos_token max_length max_seq_length truncation_mode shuffle_dataset packing packing_strategy
    padding_free pad_to_multiple_of eval_packing completion_only_loss assistant_only_loss loss_type
    activation_offloading pad_token disable_dropout precompute_ref_log_probs precompute_ref_batch_size
    loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef label_smoothing beta use_weighting
    discopop_tau sync_ref_model ref_model_mixup_alpha ref_model_sync_steps max_prompt_length max_completion_length
    num_generations num_generations_eval generation_batch_size steps_per_generation temperature top_p top_k min_p
    generation_kwargs chat_template_kwargs repetition_penalty cache_implementation use_vllm vllm_mode
    vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host vllm_server_port
    vllm_server_timeout vllm_group_port vllm_device vllm_gpu_memory_utilization vllm_max_model_length
    vllm_max_model_len vllm_tensor_parallel_size vllm_dtype num_iterations epsilon delta epsilon_high
    importance_sampling_level reward_weights scale_rewards mask_truncated_completions top_entropy_quantile
    log_completions num_completions_to_print ds3_gather_for_generation cast_lm_head_to_fp32 desirable_weight
    undesirable_weight center_rewards_coefficient rpo_alpha reference_free model_adapter_name ref_adapter_name
    force_use_ref_model generate_during_eval use_logits_to_keep simpo_gamma gamma_beta_ratio cpo_alpha use_liger
    use_liger_loss num_mini_batches total_episodes reward_model_path sft_model_path response_length whiten_rewards
    kl_coef normalize_advantages reward_clip_range rloo_k num_ppo_epochs local_rollout_forward_batch_size
    num_sample_generations stop_token stop_token_id missing_eos_penalty kl_estimator cliprange vf_coef
    cliprange_value gamma lam"""
)
SCRIPT_KEYS = words(
    """dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming ignore_bias_buffers
    datasets dataset_mixer dataset_mixture dataset_splits dataset_configs streaming test_split_size reward_funcs
    reward_model_name_or_path reward_func_kwargs env accelerate_config num_processes config"""
)
RECIPE_KEYS = words(
    """chat_template preprocessing_num_workers system_prompt benchmarks callbacks dataset_prompt_column
    text_column trainer_type dataset_id_or_path auto_insert_empty_system_msg overwrite_hub_revision wandb_entity
    wandb_project wandb_run_group num_train_samples decontaminate"""
)
KNOWN = TRAINING_ARGS | MODEL_KEYS | TRAINER_KEYS | SCRIPT_KEYS | RECIPE_KEYS

STRONG = words(
    """use_peft max_length max_seq_length dataset_mixer dataset_mixture beta num_generations reward_funcs
    loss_type max_prompt_length max_completion_length attn_implementation torch_dtype dtype packing
    packing_strategy simpo_gamma gamma_beta_ratio precompute_ref_log_probs dataset_text_field completion_only_loss
    assistant_only_loss activation_offloading center_rewards_coefficient use_vllm load_in_4bit
    reward_model_path sft_model_path num_ppo_epochs local_rollout_forward_batch_size"""
)
"""Keys that, beside a model and TrainingArguments, mark a TRL recipe."""

MEMORY_KEYS = (
    "max_length",
    "packing",
    "use_peft",
    "lora_r",
    "lora_target_modules",
    "lora_modules_to_save",
    "load_in_4bit",
    "load_in_8bit",
    "attn_implementation",
    "activation_offloading",
    "precompute_ref_log_probs",
    "max_completion_length",
    "response_length",
    "local_rollout_forward_batch_size",
    "num_mini_batches",
    "vllm_gpu_memory_utilization",
)

_DPO_LOSSES = words(
    """sigmoid hinge ipo exo_pair nca_pair robust bco_pair sppo_hard aot aot_pair aot_unpaired discopop apo_zero
    apo_down sigmoid_norm"""
)
_GRPO_LOSSES = words("grpo dapo dr_grpo bnpo cispo sapo luspo vespo")
_PPO = ("num_ppo_epochs", "local_rollout_forward_batch_size", "reward_model_path", "sft_model_path")
_KTO_LOSSES = words("kto apo_zero_unpaired")


def infer_trainer(data: Mapping[str, Any], path: str) -> tuple[str, str | None]:
    """Return the trainer (sft, dpo, simpo, orpo, cpo, grpo, rloo, kto, reward, ppo) and the key that shows it.

    The key is None where only the path of the file tells, or nothing does (sft).
    """
    loss = data.get("loss_type")
    loss = loss[0] if isinstance(loss, list) and loss else loss
    hint = _from_path(path)
    for key in ("num_generations", "reward_funcs"):
        if key in data:
            return "rloo" if hint == "rloo" else "grpo", key
    for key in ("simpo_gamma", "gamma_beta_ratio"):
        if key in data:
            return "simpo", key
    if "cpo_alpha" in data or loss == "simpo":
        return "cpo", "cpo_alpha" if "cpo_alpha" in data else "loss_type"
    if "center_rewards_coefficient" in data:
        return "reward", "center_rewards_coefficient"
    for key in _PPO:
        if key in data:
            return "ppo", key
    if "desirable_weight" in data or "undesirable_weight" in data or loss in _KTO_LOSSES:
        return "kto", "loss_type" if loss in _KTO_LOSSES else "desirable_weight"
    if hint is not None and hint != "sft":
        return hint, None
    if loss in _GRPO_LOSSES:
        return "grpo", "loss_type"
    if loss in _DPO_LOSSES or "precompute_ref_log_probs" in data:
        return "dpo", "loss_type" if loss in _DPO_LOSSES else "precompute_ref_log_probs"
    if "max_completion_length" in data or "use_vllm" in data:
        return "grpo", "max_completion_length" if "max_completion_length" in data else "use_vllm"
    if "beta" in data:
        return "dpo", "beta"
    if "max_prompt_length" in data and hint is None:
        return "dpo", "max_prompt_length"
    return "sft", None


def _from_path(path: str) -> str | None:
    import re

    found = re.findall(r"(?<![a-z])(sft|dpo|simpo|orpo|cpo|grpo|rloo|kto|reward|ppo|rm|ipo)(?![a-z])", path.lower())
    if not found:
        return None
    word = str(found[-1])
    return {"rm": "reward", "ipo": "dpo"}.get(word, word)
