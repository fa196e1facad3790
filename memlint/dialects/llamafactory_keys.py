"""Keys that LLaMA-Factory knows besides TrainingArguments, so that a real key is never taken for a misspelling.

Source: LLaMA-Factory 0.9.5 hparams/*.py and v1/config/*.py, Megatron-LM's names as mcore_adapter takes them, and a few
keys of older releases and of KTransformers.
"""

from __future__ import annotations

from memlint.dialects.hf_trainer_keys import TRAINING_ARGS
from memlint.dialects.values import words

OWN = words(
    """
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split accumulate_allreduce_grads_in_fp32
    adapter_folder adapter_name_or_path add_special_tokens add_tokens additional_configs additional_target
    apollo_layerwise apollo_proj apollo_proj_type apollo_rank apollo_scale apollo_scale_front apollo_scale_type
    apollo_target apollo_update_interval apply_rope_fusion asft_alpha assistant_tag audio_sampling_rate
    badam_mask_mode badam_mode badam_start_block badam_switch_interval badam_switch_mode badam_update_ratio
    badam_verbose batch_size batching_strategy batching_workers bias_activation_fusion block_diag_attn buffer_size
    cache_dir calculate_per_token_loss compute_accuracy compute_dtype content_tag context_parallel_size cp_size
    create_new_adapter crop_to_patches cross_entropy_loss_fusion cutoff_len data_shared_file_system dataset
    dataset_dir dataset_format default_system delay_grad_reduce delay_param_gather device_map
    disable_gradient_checkpointing disable_shuffling disable_version_checking dist_config
    distribute_saved_activations do_sample double_quantization download_mode dpo_label_smoothing eaft_alpha
    early_stopping_steps enable_activation_checkpointing enable_liger_kernel enable_thinking enable_torch_profiler
    ep_size eval_dataset eval_num_beams eval_on_each_dataset expert_model_parallel_size
    expert_tensor_parallel_size export_device export_dir export_hub_model_id export_legacy_format
    export_quantization_bit export_quantization_dataset export_quantization_maxlen export_quantization_nsamples
    export_size finetuning_type flash_attn flash_attn_type formatting fp8 fp8_backend
    fp8_enable_fsdp_float8_all_gather fp8_param freeze_extra_modules freeze_language_model
    freeze_multi_modal_projector freeze_trainable_layers freeze_trainable_modules freeze_vision_tower
    fsdp_min_num_params function_tag galore_layerwise galore_proj_type galore_rank galore_scale galore_target
    galore_update_interval global_batch_size hf_hub_token hyper_parallel_args ignore_pad_token_for_loss
    image_do_pan_and_scan image_max_pixels image_min_pixels image_resolution include_effective_tokens_per_second
    infer_backend infer_dtype init_config init_special_tokens interleave_probs kernel_config kt_config
    kt_cpu_activation kt_expert_checkpoint_path kt_lora_expert_intermediate_size kt_lora_expert_num
    kt_non_expert_weight_path kt_optimize_rule kt_use_lora_experts kt_weight_path kto_chosen_weight
    kto_rejected_weight lang ld_alpha length_penalty lora_alpha lora_bf16_mode lora_dropout lora_rank lora_target
    loraplus_lr_embedding loraplus_lr_ratio low_cpu_mem_usage lr_scheduler_config mask_history master_addr
    master_port max_length max_new_tokens max_samples media_dir messages micro_batch_size mix_strategy
    mixture_of_depths model model_class model_max_length model_name_or_path model_revision module_dropout
    moe_aux_loss_coef moe_aux_loss_coeff moe_grouped_gemm moe_router_dtype moe_router_load_balancing_type
    moe_shared_expert_overlap moe_token_dispatcher_type ms_hub_token n_shot neat_packing new_special_tokens_config
    num_beams num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage observation_tag offload_folder
    oft_block_size oft_rank oft_target om_hub_token optim_config overlap_grad_reduce overlap_p2p_comm
    overlap_param_gather overwrite_cache packing peft_config pipeline_model_parallel_size pissa_convert pissa_init
    pissa_iter plot_loss ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards pref_bco_weight
    pref_beta pref_ftx pref_loss preprocessing_batch_size preprocessing_num_workers preserve_thinking
    print_param_status profile_modules profiler_active_steps profiler_output_dir profiler_profile_memory
    profiler_record_shapes profiler_repeat profiler_wait_steps profiler_warmup_steps profiler_with_stack pure_bf16
    quant_config quantization_bit quantization_device_map quantization_method quantization_type ray_init_kwargs
    ray_num_workers recompute_granularity recompute_method recompute_modules recompute_num_layers ref_model
    ref_model_adapters ref_model_quantization_bit repetition_penalty resize_vocab reward_model
    reward_model_adapters reward_model_quantization_bit reward_model_type role_tag rope_scaling rope_theta
    sample_backend save_ckpt_as_hf save_dir save_epochs sequence_parallel sglang_config sglang_lora_backend
    sglang_maxlen sglang_mem_fraction sglang_tp_size shift_attn simpo_gamma skip_special_tokens
    split_special_tokens stage streaming swanlab_api_key swanlab_lark_secret swanlab_lark_webhook_url
    swanlab_logdir swanlab_mode swanlab_project swanlab_run_name swanlab_workspace system_tag task task_dir
    temperature template tensor_model_parallel_size tokenized_path tool_format top_k top_p train_dataset
    train_from_scratch train_on_prompt transformer_impl trust_remote_code upcast_layernorm upcast_lmhead_output
    use_adam_mini use_adapter use_apollo use_asft_loss use_audio_in_video use_badam use_cpu_initialization
    use_dft_loss use_distributed_optimizer use_dora use_eaft_loss use_fast_tokenizer use_galore use_hyper_parallel
    use_kt use_kv_cache use_llama_pro use_mca use_muon use_reentrant_gc use_rslora use_swanlab use_unsloth
    use_unsloth_gc use_v1_kernels user_tag val_size variable_seq_lengths video_fps video_max_pixels video_maxlen
    video_min_pixels video_resolution virtual_pipeline_model_parallel_size visual_inputs vllm_config
    vllm_enforce_eager vllm_gpu_util vllm_max_lora_rank vllm_maxlen
    """
)
KNOWN = OWN | TRAINING_ARGS
