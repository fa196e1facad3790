"""LLaMA-Factory 0.9.5: what a file means for memory in the v0, v1 and Megatron forms."""

from __future__ import annotations

import pytest
from dialect_reading import Files, document, fixture, job, read, said, stated_origins

from memlint.dialects.llamafactory import LLAMAFACTORY
from memlint.dialects.llamafactory_model import PROJECTOR, VISION

BASE = """
model_name_or_path: Qwen/Qwen3-4B
do_train: true
dataset: own
template: qwen3
output_dir: out
learning_rate: 1e-4
bf16: true
"""
FULL = BASE + "stage: sft\nfinetuning_type: full\n"
LORA = BASE + "stage: sft\nfinetuning_type: lora\n"
V1 = "model: Qwen/Qwen3-4B\nmodel_class: llm\ntrain_dataset: data.yaml\noutput_dir: out\n"


def training(text, **context):
    return job(LLAMAFACTORY, text, **context).training


def problems(text, code):
    return said(read(LLAMAFACTORY, text), code)


class TestRecognition:
    @pytest.mark.parametrize("text", [FULL, BASE + "cutoff_len: 512\n", V1 + "dist_config: {name: fsdp2}\n"])
    def test_own_keys_decide(self, text):
        assert LLAMAFACTORY.recognise(document(text))

    @pytest.mark.parametrize(
        "text",
        [
            "model_name_or_path: m\noutput_dir: o\nper_device_train_batch_size: 1\nnum_train_epochs: 1\n",
            "model: m\ntuner_type: lora\ndataset: [a]\n",
            "stage: test\nscript: [pytest]\n",
            "model_name_or_path: m\ndataset_name: d\nuse_peft: true\n",
        ],
    )
    def test_other_programs_are_left_alone(self, text):
        assert not LLAMAFACTORY.recognise(document(text))

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (BASE.replace("do_train: true\n", "") + "export_dir: out\n", "exports"),
            (BASE.replace("true\ndataset", "false\ndataset") + "do_predict: true\n", "predicts"),
            ("model_name_or_path: m\ntemplate: qwen\ninfer_backend: vllm\n", "inference"),
            (BASE.replace("learning_rate: 1e-4\n", "") + "tokenized_path: t\n", "preprocesses"),
            (BASE.replace("model_name_or_path: Qwen/Qwen3-4B\n", "") + "finetuning_type: lora\n", "command line"),
        ],
    )
    def test_files_that_train_nothing_say_why(self, text, reason):
        reading = read(LLAMAFACTORY, text)
        assert reading.jobs == ()
        assert reason in reading.skipped

    def test_an_export_fixture_is_skipped(self):
        assert "exports" in LLAMAFACTORY.read(fixture("llamafactory", "export.yaml"), Files()).skipped

    @pytest.mark.parametrize(
        "name", ["lora_sft", "full_zero3", "qlora_dpo", "freeze", "megatron", "v1_lora", "asft", "mistakes"]
    )
    def test_every_origin_says_exactly_one_thing(self, name):
        reading = LLAMAFACTORY.read(fixture("llamafactory", f"{name}.yaml"), Files())
        assert set(stated_origins(reading.jobs[0]).values()) == {1}


class TestPrecision:
    def test_weights_come_in_the_checkpoints_dtype_and_trainable_ones_are_cast_to_fp32(self):
        precision = training(FULL).precision
        assert (precision.weights, precision.trainable_weights, precision.autocast) == ("auto", "fp32", "bf16")

    def test_pure_bf16_leaves_them(self):
        assert training(FULL + "pure_bf16: true").precision.trainable_weights is None

    def test_zero3_leaves_them_to_deepspeed(self):
        precision = LLAMAFACTORY.read(fixture("llamafactory", "full_zero3.yaml"), Files()).jobs[0].training.precision
        assert (precision.weights, precision.trainable_weights, precision.master_weights) == ("bf16", None, True)

    def test_zero3_with_quantisation_still_casts(self):
        text = LORA + "quantization_bit: 4\nfsdp: full_shard\n"
        assert training(text).precision.trainable_weights == "fp32"

    def test_pure_bf16_is_refused_with_zero3(self):
        text = FULL + "pure_bf16: true\ndeepspeed: examples/deepspeed/ds_z3_config.json\n"
        assert [key for key, _ in problems(text, "MEM003")] == ["pure_bf16"]

    def test_no_half_precision_means_no_autocast(self):
        assert training(FULL.replace("bf16: true\n", "")).precision.autocast is None

    def test_bf16_and_fp16_exclude_each_other(self):
        assert [key for key, _ in problems(FULL + "fp16: true", "MEM003")] == ["fp16"]

    def test_fp16_scales_gradients(self):
        precision = training(FULL.replace("bf16", "fp16")).precision
        assert (precision.autocast, precision.grad_scaler) == ("fp16", True)


class TestMethods:
    def test_a_file_that_forgets_the_method_is_lora_of_rank_8_on_every_linear_layer(self):
        found = training(BASE + "cutoff_len: 512\n")
        assert (found.method, found.lora.rank, found.lora.alpha, found.lora.targets) == ("lora", 8, 16.0, "all-linear")
        assert found.lora.dtype == "fp32"

    def test_targets_may_be_a_comma_string(self):
        found = LLAMAFACTORY.read(fixture("llamafactory", "lora_sft.yaml"), Files()).jobs[0].training
        assert (found.lora.rank, found.lora.alpha, found.lora.targets) == (16, 32.0, ("q_proj", "v_proj"))

    @pytest.mark.parametrize("text", ["resize_vocab: true", "add_tokens: <a>,<b>", "add_special_tokens: <c>"])
    def test_new_tokens_make_both_embeddings_trainable(self, text):
        assert training(LORA + text).lora.modules_to_save == ("embed_tokens", "lm_head")

    def test_additional_target_wins_over_the_resize_rule(self):
        found = training(LORA + "resize_vocab: true\nadditional_target: lm_head")
        assert found.lora.modules_to_save == ("lm_head",)

    def test_quantisation_on_the_fly(self):
        found = LLAMAFACTORY.read(fixture("llamafactory", "qlora_dpo.yaml"), Files()).jobs[0].training
        assert found.method == "qlora"
        quantization = found.quantization
        assert (quantization.type, quantization.double_quant, quantization.storage) == ("nf4", True, "bf16")
        assert not quantization.kbit_preparation

    @pytest.mark.parametrize(
        ("text", "bits", "kind"),
        [
            ("quantization_bit: 8", 8, "int8"),
            ("quantization_bit: 3\nquantization_method: hqq", 3, "hqq"),
            ("quantization_bit: 8\nquantization_method: eetq", 8, "int8"),
            ("quantization_bit: 4\nquantization_type: fp4", 4, "fp4"),
        ],
    )
    def test_libraries_and_bits(self, text, bits, kind):
        quantization = training(LORA + text).quantization
        assert (quantization.bits, quantization.type) == (bits, kind)

    def test_bits_that_a_library_does_not_have_are_refused(self):
        assert [key for key, _ in problems(LORA + "quantization_bit: 3", "MEM003")] == ["quantization_bit"]

    def test_a_quantised_model_is_not_trained_in_full(self):
        assert [key for key, _ in problems(FULL + "quantization_bit: 4", "MEM003")] == ["quantization_bit"]

    def test_freeze_trains_the_last_layers_and_named_modules(self):
        found = LLAMAFACTORY.read(fixture("llamafactory", "freeze.yaml"), Files()).jobs[0].training
        assert (found.method, found.trainable_layers) == ("freeze", 4)
        assert found.trainable_patterns == ("embed_tokens",)
        assert training(BASE + "finetuning_type: freeze\n").trainable_layers == 2

    def test_a_negative_number_trains_the_first_layers(self):
        assert training(BASE + "finetuning_type: freeze\nfreeze_trainable_layers: -3\n").trainable_layers == -3

    def test_towers_and_projector_are_frozen_by_default(self):
        assert training(FULL).freeze == (*VISION, *PROJECTOR)
        assert training(FULL + "freeze_vision_tower: false\nfreeze_multi_modal_projector: false").freeze == ()

    def test_oft_goes_to_the_targets_of_lora(self):
        text = BASE + "finetuning_type: oft\noft_target: q_proj\n"
        assert training(text).lora.targets == "all-linear"
        assert [key for key, _ in problems(text, "MEM007")] == ["oft_target"]


class TestRows:
    def test_the_trainer_takes_eight_rows_of_2048_tokens_unless_told(self):
        found = training(FULL)
        assert (found.micro_batch_size, found.gradient_accumulation_steps, found.sequence_length) == (8, 1, 2048)

    def test_pre_training_packs(self):
        found = LLAMAFACTORY.read(fixture("llamafactory", "freeze.yaml"), Files()).jobs[0].training
        assert (found.packing, found.padding) == (True, False)

    def test_sft_pads_to_a_multiple_of_eight(self):
        found = training(FULL)
        assert (found.packing, found.padding) == (False, True)

    def test_neat_packing_is_flat_under_flash_attention_only(self):
        flat = training(FULL + "neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1")
        masked = training(FULL + "neat_packing: true\nper_device_train_batch_size: 1")
        assert (flat.varlen, flat.padding) == (True, False)
        assert (masked.varlen, masked.padding) == (False, True)

    def test_neat_packing_with_flash_attention_takes_one_row(self):
        text = FULL + "neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 2"
        assert [key for key, _ in problems(text, "MEM003")] == ["neat_packing"]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("", "sdpa"), ("flash_attn: auto", "sdpa"), ("flash_attn: disabled", "eager"), ("flash_attn: fa2", "flash")],
    )
    def test_attention(self, text, expected):
        assert training(FULL + text).attention == expected

    def test_evaluation(self):
        found = LLAMAFACTORY.read(fixture("llamafactory", "lora_sft.yaml"), Files()).jobs[0].training
        assert found.eval_micro_batch_size == 1
        assert training(FULL).eval_micro_batch_size is None
        assert training(FULL + "val_size: 0.1\neval_strategy: steps").eval_micro_batch_size == 8

    def test_a_template_that_sees_brings_an_image_into_every_batch(self):
        seeing = FULL.replace("template: qwen3", "template: llava")
        assert seeing != FULL
        assert [training(text).images for text in (FULL, seeing, seeing.replace("sft", "pt"))] == [0, 1, 0]

    def test_image_pixels(self):
        found = training(FULL + "image_max_pixels: 262144")
        assert (found.images, found.image_pixels) == (1, 262144)


class TestStep:
    def test_checkpointing_is_on_and_reentrant_by_default(self):
        found = training(FULL).checkpointing
        assert (found.mode, found.reentrant) == ("full", True)

    def test_it_is_switched_off_by_its_own_key(self):
        assert training(FULL + "disable_gradient_checkpointing: true").checkpointing.mode == "none"

    def test_the_trainers_switch_turns_it_on_again(self):
        text = FULL + "disable_gradient_checkpointing: true\ngradient_checkpointing: true"
        assert training(text).checkpointing.mode == "full"
        assert [key for key, _ in problems(text, "MEM007")] == ["disable_gradient_checkpointing"]

    def test_the_trainers_switch_does_not_turn_it_off(self):
        text = FULL + "gradient_checkpointing: false"
        assert training(text).checkpointing.mode == "full"
        assert [key for key, _ in problems(text, "MEM007")] == ["gradient_checkpointing"]

    @pytest.mark.parametrize(
        ("text", "reentrant"),
        [
            ("use_reentrant_gc: false", False),
            ("use_reentrant_gc: false\ngradient_checkpointing: true", True),
            ("gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}", False),
            ("fsdp: full_shard\nfsdp_config: {version: 2}", False),
        ],
    )
    def test_reentrance(self, text, reentrant):
        assert training(FULL + text).checkpointing.reentrant is reentrant

    def test_unsloth_checkpoints_go_to_the_host(self):
        found = training(FULL + "use_unsloth_gc: true").checkpointing
        assert (found.mode, found.offload) == ("offload", True)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "use_reentrant_gc: false",
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}",
            "fsdp: full_shard\nfsdp_config: {version: 2}",
        ],
    )
    def test_unsloth_checkpoints_have_reentry_whatever_is_asked_for(self, text):
        assert training(FULL + "use_unsloth_gc: true\n" + text).checkpointing.reentrant

    @pytest.mark.parametrize(
        ("stage", "loss"), [("sft", "fused"), ("pt", "fused"), ("dpo", "standard"), ("rm", "standard")]
    )
    def test_ligers_fused_loss_serves_pre_training_and_sft_only(self, stage, loss):
        text = BASE + f"stage: {stage}\nfinetuning_type: full\nenable_liger_kernel: true\n"
        assert training(text).loss == loss

    @pytest.mark.parametrize("name", ["dft", "eaft", "asft"])
    def test_own_losses_need_the_logits(self, name):
        found = training(FULL + f"enable_liger_kernel: true\nuse_{name}_loss: true")
        assert (found.loss, found.reference_model) == (name, "copy" if name == "asft" else "none")
        assert training(FULL.replace("sft", "pt") + f"use_{name}_loss: true").loss == "standard"

    def test_asft_stops_without_a_reference_model(self):
        text = LORA + "use_asft_loss: true"
        assert [key for key, _ in problems(text, "MEM003")] == ["use_asft_loss"]
        assert training(text).reference_model == "none"
        assert not problems(text + "\nref_model: Qwen/Qwen3-4B", "MEM003")
        assert training(text + "\nref_model: Qwen/Qwen3-4B").reference_model == "copy"

    @pytest.mark.parametrize(
        ("text", "native"),
        [
            ("", "adamw-fused"),
            ("optim: paged_adamw_8bit", "paged-adamw-8bit"),
            ("use_galore: true", "galore-adamw"),
            ("use_galore: true\noptim: adamw_8bit", "galore-adamw-8bit"),
            ("use_apollo: true\noptim: adamw_torch", "apollo"),
            ("use_muon: true", "muon"),
        ],
    )
    def test_own_optimizers_come_before_optim(self, text, native):
        assert training(FULL + text).optimizer == native

    @pytest.mark.parametrize(
        ("text", "rank", "targets"),
        [
            ("use_galore: true", 16, ()),
            ("use_galore: true\ngalore_rank: 64\ngalore_target: mlp,self_attn", 64, ("mlp", "self_attn")),
            ("use_apollo: true\noptim: adamw_torch\napollo_rank: 1\napollo_target: all", 1, ()),
            ("optim: galore_adamw\noptim_target_modules: [mlp]\noptim_args: rank=8", 8, ("mlp",)),
            ("optim: adamw_torch\noptim_args: rank=8", None, ()),
        ],
    )
    def test_what_galore_and_apollo_project(self, text, rank, targets):
        found = training(FULL + text)
        assert (found.optimizer_rank, found.optimizer_targets) == (rank, targets)

    def test_galore_is_refused_with_lora_and_with_deepspeed(self):
        assert [key for key, _ in problems(LORA + "use_galore: true", "MEM003")] == ["use_galore"]
        zero = FULL + "use_galore: true\ndeepspeed: examples/deepspeed/ds_z2_config.json"
        assert [key for key, _ in problems(zero, "MEM003")] == ["use_galore"]

    @pytest.mark.parametrize(
        ("text", "reference"),
        [
            ("stage: dpo\nfinetuning_type: full", "copy"),
            ("stage: dpo\nfinetuning_type: lora", "adapter"),
            ("stage: dpo\nfinetuning_type: freeze", "copy"),
            ("stage: dpo\nfinetuning_type: full\npref_loss: orpo", "none"),
            ("stage: dpo\nfinetuning_type: full\npref_loss: simpo", "none"),
            ("stage: kto\nfinetuning_type: full", "copy"),
            ("stage: kto\nfinetuning_type: lora\nref_model: other/model", "copy"),
            ("stage: sft\nfinetuning_type: full\nuse_asft_loss: true", "copy"),
            ("stage: rm\nfinetuning_type: full", "none"),
        ],
    )
    def test_reference_models(self, text, reference):
        assert training(BASE + text).reference_model == reference

    def test_objectives(self):
        assert training(BASE + "stage: rm\n").objective == "reward"
        assert training(BASE + "stage: kto\n").objective == "kto"
        assert training(BASE + "stage: dpo\npref_loss: orpo\n").objective == "orpo"


class TestParallelism:
    def test_the_repositorys_deepspeed_files_are_known_by_name(self):
        reading = LLAMAFACTORY.read(fixture("llamafactory", "full_zero3.yaml"), Files())
        assert reading.jobs[0].parallelism.strategy == "zero3"
        assert said(reading, "MEM008") == []

    def test_fsdp_is_the_first_version_unless_told(self):
        assert job(LLAMAFACTORY, FULL + "fsdp: full_shard auto_wrap").parallelism.strategy == "fsdp1"
        found = job(LLAMAFACTORY, FULL + "fsdp: [full_shard, auto_wrap, offload]\nfsdp_config: {version: 2}")
        assert (found.parallelism.strategy, found.parallelism.offload) == ("fsdp", "all")

    def test_fsdp_settings_may_be_in_a_file(self):
        text = FULL + "fsdp: full_shard\nfsdp_config: fsdp.json"
        assert job(LLAMAFACTORY, text, files={"fsdp.json": {"version": 2}}).parallelism.strategy == "fsdp"
        assert [key for key, _ in problems(text, "MEM008")] == ["fsdp_config"]

    def test_fsdp_settings_alone_do_nothing(self):
        assert [key for key, _ in problems(FULL + "fsdp_config: {version: 2}", "MEM007")] == ["fsdp_config"]

    @pytest.mark.parametrize(
        ("settings", "form"),
        [
            ("", "bf16"),
            ("kt_config: {kt_expert_weight_format: INT8, kt_num_threads: 64}\n", "int8"),
            ("kt_config: {kt_expert_weight_format: [1]}\n", "bf16"),
        ],
    )
    def test_ktransformers_leaves_the_experts_on_the_host(self, settings, form):
        reading = read(LLAMAFACTORY, LORA + "use_kt: true\n" + settings)
        parallelism = reading.jobs[0].parallelism
        assert (parallelism.offload, parallelism.expert_format) == ("experts", form)
        assert said(reading, "MEM003") == []
        assert any(f"routed experts ({form})" in sentence for sentence in reading.jobs[0].assumptions)

    def test_what_ktransformers_refuses_is_named(self):
        zero3 = "use_kt: true\ndeepspeed: examples/deepspeed/ds_z3_config.json\n"
        assert ("use_kt", "`use_kt` is incompatible with DeepSpeed ZeRO-3; drop one of them") in problems(
            LORA + zero3, "MEM003"
        )
        oft = BASE + "stage: sft\nfinetuning_type: oft\nuse_kt: true\n"
        assert [key for key, _ in problems(oft, "MEM003")] == ["use_kt"]

    def test_several_gpus_are_ddp(self):
        assert job(LLAMAFACTORY, FULL, gpus=4).parallelism.strategy == "ddp"

    def test_ray_states_the_world(self):
        assert job(LLAMAFACTORY, FULL + "ray_num_workers: 4").parallelism.gpus == 4


class TestMegatron:
    def test_fixture(self):
        found = LLAMAFACTORY.read(fixture("llamafactory", "megatron.yaml"), Files()).jobs[0]
        parallelism = found.parallelism
        assert (parallelism.tensor, parallelism.pipeline, parallelism.expert) == (2, 4, 2)
        assert parallelism.sequence_parallel
        assert parallelism.strategy == "zero1"
        precision = found.training.precision
        assert (precision.weights, precision.gradients, precision.master_weights) == ("bf16", "fp32", True)
        assert found.training.checkpointing.mode == "full"

    def test_recomputation_is_off_without_its_key(self):
        assert training(FULL + "tensor_model_parallel_size: 2").checkpointing.mode == "none"

    def test_sequence_parallelism_needs_tensor_parallelism(self):
        text = FULL + "pipeline_model_parallel_size: 2\nsequence_parallel: true"
        assert [key for key, _ in problems(text, "MEM007")] == ["sequence_parallel"]


class TestV1:
    def test_full_tuning_is_fp32_throughout(self):
        found = training(V1)
        assert (found.method, found.precision.weights, found.precision.autocast) == ("full", "fp32", None)
        assert (found.micro_batch_size, found.optimizer, found.checkpointing.mode) == (1, "adamw", "full")
        assert not found.checkpointing.reentrant

    def test_fsdp2_computes_in_bf16(self):
        found = job(LLAMAFACTORY, V1 + "dist_config: {name: fsdp2}")
        assert (found.parallelism.strategy, found.training.precision.autocast) == ("fsdp", "bf16")

    def test_lora_fixture(self):
        found = LLAMAFACTORY.read(fixture("llamafactory", "v1_lora.yaml"), Files()).jobs[0]
        assert found.training.method == "qlora"
        assert (found.training.lora.rank, found.training.lora.dropout) == (16, 0.05)
        assert (found.training.quantization.storage, found.parallelism.offload) == ("fp16", "all")
        assert found.origin("training.lora.rank").key == ("peft_config", "r")

    def test_freeze(self):
        found = training(V1 + "peft_config: {name: freeze, freeze_trainable_layers: 3}")
        assert (found.method, found.trainable_layers, found.trainable_patterns) == ("freeze", 3, ())
        assert found.precision.trainable_weights == "fp32"

    def test_the_global_batch_is_spread_over_the_gpus(self):
        text = V1 + "micro_batch_size: 2\nglobal_batch_size: 32\n"
        assert training(text, gpus=4).gradient_accumulation_steps == 4

    def test_the_trainer_weighs_tokens_beside_the_models_own_loss(self):
        assert training(V1 + "dist_config: {name: fsdp2}").loss == "token-weighted"
        kernels = "kernel_config: {name: liger_kernel, include_kernels: %s}"
        found = training(V1 + kernels % "auto")
        assert (found.loss, found.liger) == ("token-weighted", ("rope", "rms_norm", "swiglu"))
        assert training(V1 + kernels % "'swiglu,cross_entropy'").liger == ("swiglu",)

    def test_liger_is_left_out_where_no_kernel_is_named(self):
        text = V1 + "kernel_config: {name: liger_kernel}"
        assert training(text).liger == ()
        assert [key for key, _ in problems(text, "MEM007")] == ["kernel_config.name"]

    def test_padding_free_needs_flash_attention(self):
        assert training(V1 + "batching_strategy: padding_free\nflash_attn: flash_attention_2").varlen
        assert [key for key, _ in problems(V1 + "batching_strategy: padding_free", "MEM003")] == ["batching_strategy"]

    def test_quantisation_needs_an_adapter(self):
        assert [key for key, _ in problems(V1 + "quant_config: {name: bnb, quantization_bit: 4}", "MEM003")] == [
            "quant_config"
        ]

    def test_deepspeed_reads_its_file(self):
        text = V1 + "dist_config: {name: deepspeed, config_file: examples/deepspeed/ds_z3_config.json}"
        assert job(LLAMAFACTORY, text).parallelism.strategy == "zero3"


class TestInterpolation:
    def test_references_are_followed_for_the_figure_and_reported(self):
        text = FULL + "length: 1024\ncutoff_len: ${length}\n"
        assert training(text).sequence_length == 1024
        assert [key for key, _ in problems(text, "MEM003")] == ["cutoff_len"]

    def test_the_environment_is_never_read(self, monkeypatch):
        monkeypatch.setenv("SECRET", "hf_token")
        reading = read(LLAMAFACTORY, FULL.replace("Qwen/Qwen3-4B", "${oc.env:SECRET}"))
        assert reading.jobs == ()
        assert "hf_token" not in repr(reading)

    def test_loops_end(self):
        assert read(LLAMAFACTORY, FULL + "a: ${b}\nb: ${a}\ncutoff_len: x${a}${b}\n").jobs


def test_a_file_full_of_mistakes_gets_one_sentence_for_each():
    reading = LLAMAFACTORY.read(fixture("llamafactory", "mistakes.yaml"), Files())
    assert said(reading, "MEM002") == []
    assert sorted(key for key, _ in said(reading, "MEM003")) == [
        "flash_attn",
        "fp16",
        "per_device_train_batch_size",
        "quantization_bit",
    ]
    assert [key for key, _ in said(reading, "MEM007")] == ["gradient_checkpointing"]


def test_near_misses_of_memory_relevant_keys_are_reported():
    text = FULL + "per_device_train_batchsize: 2\ncutof_len: 512\n"
    assert sorted(key for key, _ in problems(text, "MEM002")) == ["cutof_len", "per_device_train_batchsize"]


@pytest.mark.parametrize("value", ["[]", "{}", "[[1]]", "{a: {b: c}}", "true", "'x'", "-1", "1.5", "''", "~"])
@pytest.mark.parametrize(
    "key",
    [
        "cutoff_len",
        "stage",
        "lora_target",
        "deepspeed",
        "fsdp",
        "fsdp_config",
        "quantization_bit",
        "flash_attn",
        "freeze_trainable_layers",
        "gradient_checkpointing_kwargs",
        "kt_config",
        "optim",
        "image_max_pixels",
        "add_tokens",
        "tensor_model_parallel_size",
    ],
)
def test_no_value_of_any_key_breaks_the_reader(key, value):
    reading = read(LLAMAFACTORY, BASE + f"finetuning_type: freeze\nuse_kt: true\n{key}: {value}\n")
    assert reading.jobs or reading.skipped


@pytest.mark.parametrize("value", ["[]", "{}", "[[1]]", "{name: lora}", "{name: freeze}", "true", "'x'", "-1", "~"])
@pytest.mark.parametrize(
    "key", ["peft_config", "quant_config", "dist_config", "optim_config", "kernel_config", "model"]
)
def test_no_value_of_any_v1_key_breaks_the_reader(key, value):
    doc = document(V1 + f"{key}: {value}\n")
    reading = LLAMAFACTORY.read(doc, Files())
    assert reading.jobs or reading.skipped
