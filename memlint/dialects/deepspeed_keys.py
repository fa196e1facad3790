"""Keys that DeepSpeed knows, so that a real key is never taken for a misspelling, and those that memlint reads.

Source: DeepSpeed 0.19.8, ``runtime/{config,constants}.py`` and ``runtime/zero/config.py``.
"""

from __future__ import annotations

from memlint.dialects.values import words

TOP_KEYS = words(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print optimizer scheduler
    fp16 bf16 amp torch_autocast data_types gradient_clipping zero_optimization zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer activation_checkpointing communication_data_type sequence_parallel_size
    seq_parallel_communication_data_type tensor_parallel pipeline compile wall_clock_breakdown flops_profiler
    comms_logger comms_config monitor_config tensorboard wandb csv_monitor comet prescale_gradients
    gradient_predivide_factor sparse_gradients sparse_attention dump_state disable_allgather memory_breakdown
    autotuning elasticity data_efficiency curriculum_learning progressive_layer_drop eigenvalue quantize_training
    compression_training checkpoint aio nebula hybrid_engine use_node_local_storage dataloader_drop_last
    load_universal_checkpoint graph_harvesting weight_quantization fp8_optimizer timers zenflow superoffload
    use_data_before_expert_parallelism expert_parallel auto_ep msamp zero_optimizer logging inference
    """
)
"""Top-level keys of DeepSpeed 0.19.8; none of them is ever reported as a misspelling."""

ZERO_KEYS = words(
    """stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce
    allgather_partitions allgather_bucket_size overlap_comm load_from_fp32_weights elastic_checkpoint
    offload_param offload_optimizer sub_group_size cpu_offload cpu_offload_param cpu_offload_use_pin_memory
    stage3_max_live_parameters stage3_max_reuse_distance stage3_prefetch_bucket_size
    stage3_param_persistence_threshold stage3_model_persistence_threshold
    stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
    stage3_use_all_reduce_for_fetch_params stage3_module_granularity_threshold stage3_allgather_sequential
    use_all_reduce_for_fetch_params ignore_unused_parameters legacy_stage1 round_robin_gradients
    zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients
    zeropp_loco_param mics_shard_size mics_hierarchical_params_gather memory_efficient_linear
    pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings prefetch_bucket_size
    param_persistence_threshold model_persistence_threshold max_live_parameters max_reuse_distance
    gather_16bit_weights_on_model_save fast_sharding_for_leaf_module leaf_module allgather_size
    compute_grad_norm zenflow"""
)
WANTED_TOP = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
    "activation_checkpointing",
)
WANTED_ZERO = (
    "stage",
    "offload_param",
    "offload_optimizer",
    "reduce_bucket_size",
    "allgather_bucket_size",
    "overlap_comm",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "sub_group_size",
    "contiguous_gradients",
)
"""Keys whose misspelling is reported: what they say changes memory."""
