"""axolotl 0.19: what a file means for memory, field by field, with the place each value comes from."""

from __future__ import annotations

import pytest
from dialect_reading import Files, document, fixture, job, read, said, stated_origins

from memlint.dialects.axolotl import AXOLOTL
from memlint.dialects.axolotl_model import FP32_MODULES, MULTIMODAL_MODULES
from memlint.hardware.parse import parse_target

BASE = """
base_model: meta-llama/Llama-3.2-1B
datasets: [{path: data.jsonl, type: alpaca}]
"""


def training(text="", **context):
    return job(AXOLOTL, BASE + text, **context).training


def problems(text, code):
    return said(read(AXOLOTL, BASE + text), code)


class TestRecognition:
    def test_base_model_beside_datasets_with_types_is_axolotl(self):
        assert AXOLOTL.recognise(document(BASE))

    def test_key_order_does_not_matter(self):
        assert AXOLOTL.recognise(document("sequence_len: 512\nmicro_batch_size: 1\nadapter: lora\nbase_model: gpt2\n"))

    @pytest.mark.parametrize(
        "text",
        [
            "base_model: m\nmerge_method: slerp\nslices: []\n",
            "base_model: m\nmodel_type: llm\ninput_features: []\noutput_features: []\nmicro_batch_size: 1\n",
            "base_model: m\nper_device_train_batch_size: 1\nmicro_batch_size: 1\nsequence_len: 1\nadapter: lora\n",
            "base_model: m\nlearning_rate: 1e-4\nnum_epochs: 3\n",
        ],
    )
    def test_other_programs_with_a_base_model_are_left_alone(self, text):
        assert not AXOLOTL.recognise(document(text))

    def test_a_file_without_a_model_is_skipped_with_the_reason(self):
        reading = AXOLOTL.read(document("base_model:\nmicro_batch_size: 1\n"), Files())
        assert reading.jobs == ()
        assert "no model" in reading.skipped

    def test_remote_training_is_skipped(self):
        reading = read(AXOLOTL, BASE + "plugins: [axolotl.integrations.hatchery.HatcheryPlugin]")
        assert reading.jobs == ()
        assert "remote" in reading.skipped


class TestOrigins:
    def test_a_stated_value_points_at_its_key_and_a_default_names_version_and_file(self):
        read_job = job(AXOLOTL, BASE + "micro_batch_size: 4")
        assert read_job.origin("training.micro_batch_size").key == ("micro_batch_size",)
        assert read_job.origin("training.sequence_length").default == (
            "default of axolotl 0.19.0: utils/schemas/config.py"
        )

    @pytest.mark.parametrize("name", ["full", "qlora", "fsdp2", "zero3", "dpo", "grpo", "mistakes"])
    def test_every_origin_says_exactly_one_thing(self, name):
        reading = AXOLOTL.read(fixture("axolotl", f"{name}.yaml"), Files())
        assert set(stated_origins(reading.jobs[0]).values()) == {1}

    def test_a_number_written_as_text_is_a_number(self):
        assert training('sequence_len: "4096"').sequence_length == 4096


class TestPrecision:
    def test_full_fine_tuning_is_pure_bf16_but_embeddings_head_and_norms_stay_fp32(self):
        precision = training("bf16: true").precision
        assert (precision.weights, precision.autocast) == ("bf16", "bf16")
        assert precision.fp32_modules == FP32_MODULES

    @pytest.mark.parametrize(
        "text",
        [
            "attn_implementation: flash_attention_2",
            "flash_attention: true",
            "adapter: lora\nlora_r: 8\nlora_target_linear: true",
            "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]",
        ],
    )
    def test_flash_attention_an_adapter_or_cut_cross_entropy_cast_them_back(self, text):
        assert training(text).precision.fp32_modules == ()

    @pytest.mark.parametrize("kernel", ["sdpa", "eager"])
    def test_sdpa_and_eager_do_not(self, kernel):
        assert training(f"attn_implementation: {kernel}").precision.fp32_modules == FP32_MODULES

    def test_bf16_is_auto_when_absent_and_that_is_said(self):
        read_job = job(AXOLOTL, BASE)
        assert read_job.training.precision.weights == "bf16"
        assert any("Ampere" in sentence for sentence in read_job.assumptions)

    @pytest.mark.parametrize("text", ["", "bf16: auto"])
    def test_auto_is_fp16_on_a_gpu_without_bf16(self, text):
        """utils/config/__init__.py resolve_dtype."""
        old = parse_target("T4")
        precision = training(text, target=old).precision
        assert (precision.weights, precision.autocast, precision.grad_scaler) == ("fp16", "fp16", True)
        assert not any("Ampere" in sentence for sentence in job(AXOLOTL, BASE + text, target=old).assumptions)
        assert training(text + "\nfp16: false", target=old).precision.weights == "fp32"
        assert training(text, target=parse_target("A100-80GB")).precision.weights == "bf16"

    def test_an_empty_bf16_is_off(self):
        """The schema's default stands where the key is absent; a null is a value, and false."""
        read_job = job(AXOLOTL, BASE + "bf16:\nfp16:\n")
        precision = read_job.training.precision
        assert (precision.weights, precision.autocast) == ("fp32", None)
        assert read_job.origin("training.precision.weights").key == ("bf16",)
        assert any("`bf16:` is empty" in sentence for sentence in read_job.assumptions)
        assert training("bf16:\nfp16: true").precision.weights == "fp16"

    def test_fp16_wins_over_auto_and_scales_gradients(self):
        precision = training("fp16: true\nbf16: auto").precision
        assert (precision.weights, precision.autocast, precision.grad_scaler) == ("fp16", "fp16", True)

    def test_bf16_wins_over_fp16_and_says_so(self):
        text = "bf16: true\nfp16: true"
        assert training(text).precision.weights == "bf16"
        assert problems(text, "MEM007")[0][0] == "fp16"

    @pytest.mark.parametrize(("section", "recipe"), [("", None), ("\nfp8_config:\n  recipe: rowwise", "rowwise")])
    def test_float8_names_its_recipe(self, section, recipe):
        precision = training(f"bf16: true\nfp8: true{section}").precision
        assert (precision.fp8, precision.fp8_recipe, precision.autocast) == (True, recipe, "bf16")

    def test_an_unknown_float8_recipe_is_a_mistake(self):
        assert problems("fp8: true\nfp8_config:\n  recipe: columnwise", "MEM003")[0][0] == "fp8_config.recipe"

    def test_without_any_half_precision_everything_is_fp32(self):
        precision = training("bf16: false\nfp16: false").precision
        assert (precision.weights, precision.autocast, precision.fp32_modules) == ("fp32", None, ())

    def test_fsdp_holds_trainable_shards_in_fp32(self):
        precision = AXOLOTL.read(fixture("axolotl", "fsdp2.yaml"), Files()).jobs[0].training.precision
        assert (precision.weights, precision.trainable_weights) == ("bf16", "fp32")

    def test_deepspeed_keeps_fp32_masters_beside_bf16_parameters(self):
        precision = AXOLOTL.read(fixture("axolotl", "zero3.yaml"), Files()).jobs[0].training.precision
        assert (precision.weights, precision.master_weights, precision.optimizer) == ("bf16", True, "fp32")
        assert precision.fp32_modules == ()


class TestAdapters:
    def test_qlora_is_nf4_with_double_quantisation(self):
        found = AXOLOTL.read(fixture("axolotl", "qlora.yaml"), Files()).jobs[0].training
        assert found.method == "qlora"
        assert (found.quantization.bits, found.quantization.type, found.quantization.double_quant) == (4, "nf4", True)
        assert (found.lora.rank, found.lora.targets, found.lora.dtype) == (32, "all-linear", "fp32")
        assert found.quantization.storage == "bf16"

    def test_bnb_config_kwargs_override(self):
        text = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\n"
        found = training(text + "bnb_config_kwargs: {bnb_4bit_quant_type: fp4, bnb_4bit_use_double_quant: false}")
        assert (found.quantization.type, found.quantization.double_quant) == ("fp4", False)

    def test_lora_with_load_in_4bit_quantises_nothing_and_casts_the_base_to_fp32(self):
        text = "adapter: lora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true"
        found = training(text)
        assert found.quantization is None
        assert found.precision.weights == "fp32"
        assert [key for key, _ in problems(text, "MEM007")] == ["load_in_4bit"]

    def test_lora_with_load_in_8bit_is_an_int8_base(self):
        found = training("adapter: lora\nload_in_8bit: true\nlora_r: 8\nlora_target_linear: true")
        assert (found.method, found.quantization.bits, found.quantization.type) == ("lora", 8, "int8")
        assert not found.lora.kernels

    def test_fsdp1_holds_adapters_in_fp32_whatever_the_trainer_made_of_them(self):
        qlora = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\nrl: dpo\n"
        assert training(qlora).lora.dtype == "bf16"
        assert training(qlora + "fsdp: [full_shard, auto_wrap]\nfsdp_config: {}").lora.dtype == "fp32"

    def test_gptq_says_how_a_checkpoint_is_stored_and_quantises_nothing(self):
        lora = "adapter: lora\ngptq: true\nlora_r: 8\nlora_target_linear: true\n"
        found = job(AXOLOTL, BASE + lora)
        assert found.training.quantization is None
        assert any("`gptq: true`" in sentence for sentence in found.assumptions)
        assert training(lora + "load_in_8bit: true").quantization.type == "int8"

    @pytest.mark.parametrize("key", ["load_in_8bit", "load_in_4bit"])
    def test_quantisation_without_an_adapter_is_refused(self, key):
        assert [found for found, _ in problems(f"{key}: true", "MEM003")] == [key]

    def test_qlora_needs_load_in_4bit(self):
        text = "adapter: qlora\nlora_r: 8\nlora_target_linear: true"
        assert "load_in_4bit: true" in problems(text, "MEM003")[0][1]

    def test_an_adapter_without_targets_is_refused_as_peft_does(self):
        assert "lora_target_linear" in problems("adapter: lora\nlora_r: 8", "MEM003")[0][1]

    def test_an_adapter_without_a_rank_is_refused(self):
        assert "`lora_r`" in problems("adapter: lora\nlora_target_linear: true", "MEM003")[0][1]

    @pytest.mark.parametrize(
        ("key", "experts"),
        [("", "loaded"), ("quantize_moe_experts", "fused"), ("llama4_linearized_experts", "linear")],
    )
    def test_experts_are_quantised_where_asked_for(self, key, experts):
        text = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_modules: [q_proj]\n"
        assert training(text + (f"{key}: true\n" if key else "")).quantization.experts == experts

    def test_an_adapter_that_nothing_provides_is_refused(self):
        text = "adapter: lorra\nlora_r: 8\nlora_target_linear: true\n"
        assert "did you mean `lora`?" in problems(text, "MEM003")[0][1]
        assert not problems(text + "plugins: [acme.LorraPlugin]\n", "MEM003")

    def test_listed_targets_and_saved_modules(self):
        found = training("adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj]\nlora_modules_to_save: [lm_head]")
        assert (found.lora.targets, found.lora.modules_to_save) == (("q_proj",), ("lm_head",))

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", True),
            ("lora_mlp_kernel: false", False),
            ("trust_remote_code: true", False),
            ("fsdp_version: 2\nfsdp_config: {offload_params: false}", True),
            ("fsdp_version: 1\nfsdp_config: {offload_params: false}", False),
            ("rl: dpo", False),
        ],
    )
    def test_fused_lora_kernels_are_on_unless_something_speaks_against_them(self, text, expected):
        found = training("adapter: lora\nlora_r: 8\nlora_target_linear: true\n" + text)
        assert found.lora.kernels is expected

    def test_preference_training_on_a_quantised_base_casts_adapters_to_bf16(self):
        text = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\nrl: dpo"
        assert training(text).lora.dtype == "bf16"

    def test_unfrozen_parameters_freeze_the_rest_and_row_ranges_do_not_count(self):
        found = training("unfrozen_parameters: ['^lm_head.weight$', 'embed_tokens.weight$[:32000]']")
        assert found.method == "freeze"
        assert found.trainable_patterns == ("^lm_head.weight$", "embed_tokens.weight$")

    def test_towers_are_trained_unless_frozen(self):
        assert training().freeze == ()
        assert training("freeze_mm_modules: true").freeze == MULTIMODAL_MODULES


class TestRows:
    def test_defaults_are_one_row_of_512_tokens(self):
        found = training()
        assert (found.micro_batch_size, found.gradient_accumulation_steps, found.sequence_length) == (1, 1, 512)

    def test_packing_with_flash_attention_is_one_flat_row_without_a_mask(self):
        found = training("sample_packing: true\nflash_attention: true")
        assert (found.packing, found.varlen, found.padding) == (True, True, False)

    def test_packing_without_a_kernel_keeps_the_mask(self):
        found = training("sample_packing: true")
        assert (found.packing, found.varlen, found.padding) == (True, False, True)

    def test_packed_sdpa_goes_through_varlen_attention_unless_switched_off(self):
        assert training("sample_packing: true\nattn_implementation: sdpa").varlen
        assert not training("sample_packing: true\nattn_implementation: sdpa\nsdpa_varlen: false").varlen

    def test_unpacked_rows_are_padded_to_a_multiple_of_64(self):
        assert training().padding
        assert not training("pad_to_sequence_len: false").padding

    def test_packing_does_not_work_with_rl(self):
        assert [key for key, _ in problems("rl: dpo\nsample_packing: true", "MEM003")] == ["sample_packing"]

    def test_batch_size_alone_changes_nothing(self):
        text = "batch_size: 32\nmicro_batch_size: 4"
        assert training(text).gradient_accumulation_steps == 1
        assert [key for key, _ in problems(text, "MEM007")] == ["batch_size"]

    def test_batch_size_counts_where_accumulation_is_null(self):
        text = "batch_size: 32\nmicro_batch_size: 4\ngradient_accumulation_steps:"
        assert training(text).gradient_accumulation_steps == 8

    def test_evaluation_takes_the_training_batch_unless_told(self):
        evaluated = "val_set_size: 0.1\nevals_per_epoch: 2\nmicro_batch_size: 4\n"
        assert training(evaluated).eval_micro_batch_size == 4
        assert training(evaluated + "eval_batch_size: 8").eval_micro_batch_size == 8
        assert training("evals_per_epoch: 2").eval_micro_batch_size is None
        assert training("val_set_size: 0.1").eval_micro_batch_size is None

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", "sdpa"),
            ("flash_attention: true", "flash"),
            ("attn_implementation: kernels-community/flash-attn3", "flash"),
            ("flex_attention: true", "flex"),
            ("xformers_attention: true\nflash_attention: true", "flash"),
            ("eager_attention: true", "eager"),
        ],
    )
    def test_attention_kernels(self, text, expected):
        assert training(text).attention == expected

    def test_a_short_kernel_name_is_refused_with_the_right_one(self):
        assert "flash_attention_2" in problems("attn_implementation: flash", "MEM003")[0][1]


class TestStep:
    @pytest.mark.parametrize(
        ("text", "reentrant"),
        [
            ("", True),
            ("gradient_checkpointing_kwargs: {use_reentrant: false}", False),
            ("unfrozen_parameters: [lm_head]", False),
            ("rl: dpo", False),
            ("activation_offloading: hidden_states", False),
        ],
    )
    def test_checkpointing_is_reentrant_unless_a_rule_says_otherwise(self, text, reentrant):
        found = training("gradient_checkpointing: true\n" + text).checkpointing
        assert found.mode in ("full", "offload")
        assert found.reentrant is reentrant

    def test_checkpointing_is_off_by_default(self):
        assert training().checkpointing.mode == "none"

    @pytest.mark.parametrize(
        "text", ["gradient_checkpointing: offload", "gradient_checkpointing: true\nactivation_offloading: true"]
    )
    def test_offloaded_checkpoints(self, text):
        found = training(text).checkpointing
        assert (found.mode, found.offload) == ("offload", True)

    def test_offloading_needs_checkpointing(self):
        assert [key for key, _ in problems("activation_offloading: true", "MEM003")] == ["activation_offloading"]

    def test_selective_checkpointing_keeps_attention(self):
        found = training("gradient_checkpointing: true\nselective_checkpointing: true").checkpointing
        assert (found.mode, found.save) == ("selective", ("attention",))

    def test_the_cut_cross_entropy_plugin_is_on_once_listed(self):
        plugin = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
        assert training(plugin).loss == "cut-cross-entropy"
        assert training(plugin + "cut_cross_entropy: false").loss == "standard"

    def test_liger_takes_only_the_flags_that_are_set(self):
        plugin = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
        assert training(plugin).loss == "standard"
        found = training(plugin + "liger_fused_linear_cross_entropy: true\nliger_rms_norm: true\nliger_swiglu: true")
        assert (found.loss, found.liger) == ("fused", ("rms_norm", "swiglu"))

    @pytest.mark.parametrize("key", ["liger_rms_norm", "liger_fused_linear_cross_entropy", "cut_cross_entropy"])
    def test_flags_without_their_plugin_have_no_effect(self, key):
        assert training(f"{key}: true").loss == "standard"
        assert [found for found, _ in problems(f"{key}: true", "MEM007")] == [key]

    def test_the_fused_loss_has_no_effect_on_preference_training(self):
        text = "rl: dpo\nplugins: [axolotl.integrations.liger.LigerPlugin]\nliger_fused_linear_cross_entropy: true"
        assert training(text).loss == "standard"
        assert [key for key, _ in problems(text, "MEM007")] == ["liger_fused_linear_cross_entropy"]
        assert training("rl: dpo\ndpo_use_liger_kernel: true").loss == "fused"

    def test_two_fused_losses_exclude_each_other(self):
        text = "cut_cross_entropy: true\nchunked_cross_entropy: true"
        assert any("exclude" in message for _, message in problems(text, "MEM003"))

    @pytest.mark.parametrize(
        ("name", "native"),
        [("adamw_torch", "adamw"), ("adamw_bnb_8bit", "adamw-8bit"), ("came_pytorch", "came"), ("muon", "muon")],
    )
    def test_optimizers_by_hugging_face_and_own_names(self, name, native):
        assert training(f"optimizer: {name}").optimizer == native

    @pytest.mark.parametrize(
        ("text", "rank", "targets"),
        [
            ("optim_args: {rank: 64}\noptim_target_modules: [self_attn, mlp]", 64, ("self_attn", "mlp")),
            ("optim_args: rank=64,scale=0.25\noptim_target_modules: all_linear", 64, ("all-linear",)),
            ("optim_target_modules: ['.*.attn.*', '.*\\.mlp\\..*']", None, ("attn", "mlp")),
            ("optim_args: {rank: true}", None, ()),
            ("optim_args: {rank: -4}\noptim_target_modules: 7", None, ()),
        ],
    )
    def test_what_galore_projects(self, text, rank, targets):
        found = training(f"optimizer: galore_adamw\n{text}")
        assert (found.optimizer_rank, found.optimizer_targets) == (rank, targets)

    def test_the_default_optimizer_is_fused(self):
        assert training().optimizer == "adamw-fused"

    def test_a_misspelt_optimizer_is_refused_with_the_nearest(self):
        assert "did you mean `adamw_torch_fused`" in problems("optimizer: adamw_torch_fussed", "MEM003")[0][1]

    def test_layerwise_optimizers_step_inside_backward(self):
        assert training("optimizer: lomo").optimizer_in_backward

    def test_gradients_are_clipped_to_one_unless_switched_off(self):
        assert training().max_grad_norm == 1.0
        assert training("max_grad_norm: 0").max_grad_norm is None


class TestPreference:
    def test_full_dpo_holds_a_second_copy(self):
        found = AXOLOTL.read(fixture("axolotl", "dpo.yaml"), Files()).jobs[0].training
        assert (found.objective, found.reference_model) == ("dpo", "copy")

    def test_precomputing_frees_nothing_in_full_dpo(self):
        text = "rl: dpo\nprecompute_ref_log_probs: true"
        assert training(text).reference_model == "copy"
        assert [key for key, _ in problems(text, "MEM007")] == ["precompute_ref_log_probs"]

    @pytest.mark.parametrize(
        ("rl", "reference"), [("dpo", "adapter"), ("kto", "adapter"), ("orpo", "none"), ("simpo", "none")]
    )
    def test_adapters_serve_as_reference(self, rl, reference):
        found = training(f"rl: {rl}\nadapter: lora\nlora_r: 8\nlora_target_linear: true")
        assert found.reference_model == reference

    def test_simpo_adds_the_chosen_rows_loss_unless_its_weight_is_zero(self):
        assert training("rl: simpo").objective == "cpo"
        assert training("rl: simpo\ncpo_alpha: 0.0").objective == "dpo"

    def test_an_adapted_reward_model_trains_its_head_in_full(self):
        found = training("reward_model: true\nadapter: lora\nlora_r: 8\nlora_target_linear: true")
        assert found.lora is not None and found.lora.modules_to_save == ("classifier", "score")

    def test_grpo_with_a_colocated_engine(self):
        found = AXOLOTL.read(fixture("axolotl", "grpo.yaml"), Files()).jobs[0].training
        assert (found.objective, found.num_generations, found.completion_length) == ("grpo", 4, 512)
        assert (found.vllm_memory_share, found.reference_model) == (0.4, "none")

    def test_reward_models(self):
        assert training("reward_model: true").objective == "reward"
        assert training("process_reward_model: true").objective == "token-classification"


class TestParallelism:
    def test_fsdp2_with_tensor_parallelism_states_the_world(self):
        found = AXOLOTL.read(fixture("axolotl", "fsdp2.yaml"), Files()).jobs[0]
        assert found.parallelism.strategy == "fsdp"
        assert (found.parallelism.tensor, found.parallelism.shard, found.parallelism.gpus) == (2, 4, 8)
        assert (found.parallelism.offload, found.parallelism.state_dict) == ("all", "full")
        assert found.training.checkpointing.mode == "full"

    def test_fsdp_without_a_version_is_the_first(self):
        assert job(AXOLOTL, BASE + "fsdp: [full_shard, auto_wrap]").parallelism.strategy == "fsdp1"

    def test_the_sharding_strategy_key_is_dropped_by_the_schema(self):
        text = "fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}"
        assert job(AXOLOTL, BASE + text).parallelism.reshard_after_forward
        assert [key for key, _ in problems(text, "MEM007")] == ["fsdp_config.fsdp_sharding_strategy"]

    def test_a_shipped_deepspeed_file_is_known_by_name(self):
        reading = AXOLOTL.read(fixture("axolotl", "zero3.yaml"), Files())
        assert reading.jobs[0].parallelism.strategy == "zero3"
        assert said(reading, "MEM008") == []

    def test_a_deepspeed_file_of_the_repository_is_read(self):
        files = {"ds.json": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}}
        reading = read(AXOLOTL, BASE + "deepspeed: ds.json", files=files)
        assert reading.companions == ("ds.json",)
        found = reading.jobs[0].parallelism
        assert (found.strategy, found.offload) == ("zero2", "optimizer")

    @pytest.mark.parametrize(
        ("zero", "word"),
        [
            ({"offload_optimizer": {"device": "cpu", "ratio": 0.3}}, "ratio: 0.3"),
            ({"zero_hpz_partition_size": 8}, "zero_hpz_partition_size"),
            ({"mics_shard_size": 8}, "mics_shard_size"),
        ],
    )
    def test_what_is_not_followed_of_zero_3_is_said(self, zero, word):
        for stage, count in ((3, 1), (2, 0)):
            files = {"ds.json": {"zero_optimization": {"stage": stage, **zero}}}
            notes = job(AXOLOTL, BASE + "deepspeed: ds.json", files=files).assumptions
            assert sum(word in note for note in notes) == count
        plain = {"ds.json": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 1}}}}
        assert not any("counted" in note for note in job(AXOLOTL, BASE + "deepspeed: ds.json", files=plain).assumptions)

    @pytest.mark.parametrize("line", ["qat: {weight_dtype: int4}", "use_sonicmoe: true", "tiled_mlp: true"])
    def test_what_is_not_followed_is_said(self, line):
        key = line.partition(":")[0]
        assert any(note.startswith(f"`{key}` is not modelled") for note in job(AXOLOTL, BASE + line).assumptions)
        off = job(AXOLOTL, BASE + f"{key}: false").assumptions
        assert not any("not modelled" in note for note in off)

    def test_an_unknown_deepspeed_file_is_missing(self):
        assert [key for key, _ in problems("deepspeed: own/special.json", "MEM008")] == ["deepspeed"]

    def test_several_gpus_without_sharding_are_ddp(self):
        assert job(AXOLOTL, BASE, gpus=8).parallelism.strategy == "ddp"
        assert job(AXOLOTL, BASE).parallelism.strategy == "none"

    def test_deepspeed_and_fsdp_exclude_each_other(self):
        text = "deepspeed: zero2.json\nfsdp: [full_shard]"
        assert [key for key, _ in problems(text, "MEM003")] == ["deepspeed"]

    @pytest.mark.parametrize(
        "text",
        [
            "optimizer: adamw_8bit\nfsdp_version: 2\nfsdp_config: {offload_params: false}",
            "optimizer: adamw_8bit\nfsdp_version: 1\nfsdp_config: {offload_params: true}",
            "optimizer: muon\ndeepspeed: deepspeed_configs/zero2.json",
            "optimizer: adamw_8bit\ntensor_parallel_size: 2",
        ],
    )
    def test_optimizers_that_the_sharding_refuses(self, text):
        assert [key for key, _ in problems(text, "MEM003")] == ["optimizer"]

    def test_expert_parallelism_needs_its_plugin(self):
        plugin = "plugins: [axolotl.integrations.expert_parallel.ExpertParallelPlugin]\n"
        assert job(AXOLOTL, BASE + plugin + "expert_parallel_size: 2").parallelism.expert == 2
        assert [key for key, _ in problems("expert_parallel_size: 2", "MEM007")] == ["expert_parallel_size"]


def test_a_file_full_of_mistakes_gets_one_sentence_for_each():
    reading = AXOLOTL.read(fixture("axolotl", "mistakes.yaml"), Files())
    assert said(reading, "MEM002") == [
        ("micro_batchsize", "unknown key `micro_batchsize`; did you mean `micro_batch_size`?")
    ]
    assert sorted(key for key, _ in said(reading, "MEM003")) == ["attn_implementation", "optimizer", "sequence_len"]
    assert sorted(key for key, _ in said(reading, "MEM007")) == [
        "cut_cross_entropy",
        "fp16",
        "liger_rms_norm",
        "load_in_4bit",
    ]
    assert len(reading.jobs) == 1


@pytest.mark.parametrize(
    "value", ["[]", "{}", "[[1]]", "{a: {b: c}}", "true", "'x'", "-1", "1.5", "99999999999999999999", "''", "~"]
)
@pytest.mark.parametrize(
    "key",
    sorted(
        {
            "sequence_len",
            "bf16",
            "adapter",
            "lora_target_modules",
            "plugins",
            "fsdp",
            "fsdp_config",
            "deepspeed",
            "gradient_checkpointing",
            "gradient_checkpointing_kwargs",
            "optimizer",
            "trl",
            "rl",
            "selective_checkpointing",
            "image_size",
            "unfrozen_parameters",
            "bnb_config_kwargs",
            "base_model",
            "tokens",
        }
    ),
)
def test_no_value_of_any_key_breaks_the_reader(key, value):
    text = f"base_model: m\nmicro_batch_size: 1\nlora_r: 4\nprocessor_type: P\n{key}: {value}\n"
    reading = AXOLOTL.read(document(text), Files())
    assert reading.jobs or reading.skipped
