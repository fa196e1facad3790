"""Which remedies exist: by precision, method, GPU, library release, and what the job does already."""

from __future__ import annotations

import pytest

from memlint.dialects.native import apply_sets
from memlint.hardware.parse import parse_target
from memlint.job import Lora, Quantization, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.models.resolve import resolve_model
from memlint.plan import options, options_scale, options_zero
from memlint.plan.conflicts import CONFLICTS, contradiction
from memlint.plan.flops import recompute_share, step_flops
from memlint.plan.options_checkpointing import checkpointing
from memlint.plan.remedy import CATEGORIES, price
from memlint.plan.space import Setting, all_remedies, remedy_space
from memlint.records import replace

LLAMA = resolve_model("meta-llama/Llama-3.2-1B", base_dir=".", settings_models={}, search_root=".", offline=True)


def job(*sets, **fields):
    made = TrainingJob(model="meta-llama/Llama-3.2-1B", architecture=LLAMA.architecture)
    made = apply_sets(made, sets)
    return replace_fields(made, {name.replace("__", "."): value for name, value in fields.items()})


def space(made, target="A100-80GB", gpus=1, **more):
    setting = Setting(job=made, target=parse_target(target), gpus=gpus, parameters=1_235_814_400, **more)
    return [remedy.name for remedy in all_remedies(setting)]


class TestPrecision:
    def test_autocast_is_offered_where_the_forward_runs_in_fp32(self):
        (found,) = options.mixed_precision(job("training.precision=fp32"), parse_target("A100-80GB"))
        assert found.changes["training.precision.autocast"] == "bf16"

    @pytest.mark.parametrize("target", ["T4", "V100-32GB"])
    def test_no_bf16_before_ampere(self, target):
        (found,) = options.mixed_precision(job("training.precision=fp32"), parse_target(target))
        assert found.changes == {"training.precision.autocast": "fp16", "training.precision.grad_scaler": True}

    @pytest.mark.parametrize("precision", ["bf16-mixed", "bf16", "fp16-mixed"])
    def test_half_precision_needs_none(self, precision):
        assert options.mixed_precision(job(f"training.precision={precision}"), None) == ()

    def test_only_a_frozen_base_is_halved(self):
        lora = job("training.method=lora", training__lora=Lora(rank=8))
        assert [r.changes for r in options.half_frozen_weights(lora, None)] == [{"training.precision.weights": "bf16"}]
        assert options.half_frozen_weights(job(), None) == ()
        assert options.half_frozen_weights(replace_fields(lora, {"training.quantization": Quantization()}), None) == ()

    def test_the_two_halves_of_a_gpu_without_bf16_are_one(self):
        lora = job("training.method=lora", training__lora=Lora(rank=8))
        (found,) = options.half_frozen_weights(lora, parse_target("T4"))
        assert found.changes == {
            "training.precision.weights": "fp16",
            "training.precision.autocast": "fp16",
            "training.precision.grad_scaler": True,
        }

    def test_layers_that_train_among_frozen_ones_stay_in_fp32(self):
        frozen = job("training.method=freeze", "training.trainable_layers=2")
        (found,) = options.half_frozen_weights(frozen, None)
        assert found.changes == {"training.precision.weights": "bf16", "training.precision.trainable_weights": "fp32"}
        assert options.half_frozen_weights(job("training.method=freeze"), None) == (), "nothing is frozen"
        alone = replace_fields(frozen, {"training.precision.autocast": None})
        assert options.half_frozen_weights(alone, None) == (), "layers of two dtypes need autocast"


class TestKernels:
    def test_eager_attention_is_replaced_safely(self):
        (found,) = options.fused_attention(job("training.attention=eager"))
        assert found.safe
        assert options.fused_attention(job("training.attention=flash")) == ()

    def test_a_fused_loss_is_offered_once(self):
        assert options.fused_loss(job())
        assert options.fused_loss(job("training.loss=fused")) == ()

    def test_old_releases_do_not_have_every_kernel(self):
        eager = job("training.attention=eager")
        assert {"attention-sdpa", "loss-fused"} <= set(space(eager))
        assert "loss-fused" not in space(replace_fields(eager, {"versions": {"transformers": "4.40.1"}}))
        assert "attention-sdpa" not in space(replace_fields(eager, {"versions": {"transformers": "4.30"}}))
        assert "optimizer-adamw-fused" not in space(replace_fields(eager, {"versions": {"torch": "1.13.1"}}))
        assert "loss-fused" in space(replace_fields(eager, {"versions": {"transformers": "a branch"}}))


class TestCheckpointing:
    def test_its_cost_comes_from_the_models_own_flops(self):
        (full, offload) = checkpointing(job(), 1_235_814_400)
        assert full.cost.compute == recompute_share(job(), 1_235_814_400)
        assert offload.cost.compute == full.cost.compute
        assert f"{full.cost.compute:.0%} more compute" in full.cost.sentence

    def test_a_third_at_most_and_half_where_weights_are_frozen(self):
        share = recompute_share(job(), 1_235_814_400)
        assert 0.2 < share < 1 / 3
        lora = job("training.method=lora", training__lora=Lora())
        assert share * 1.5 == pytest.approx(recompute_share(lora, 1_235_814_400))

    def test_longer_sequences_cost_more(self):
        short, long = job("training.sequence_length=512"), job("training.sequence_length=32768")
        assert recompute_share(long, 1_235_814_400) > recompute_share(short, 1_235_814_400)

    def test_forward_flops_are_two_per_weight_and_the_causal_half_of_attention(self):
        # By hand: 16 layers of Llama-3.2-1B hold 973,146,112 weights (2048 wide; 60,821,632 each), 2 FLOPs a token;
        # scores and values 4 T H L, causal half: 2 x 2048 x 2048 x 16; the head is 128,256 x 2048.
        flops = step_flops(job("training.sequence_length=2048"), 1_235_814_400)
        assert flops.layers == pytest.approx(2 * 973_146_112 + 2 * 2048 * 2048 * 16, rel=1e-4)
        assert flops.head == 2 * 128_256 * 2048
        assert flops.backward == 2 * (flops.layers + flops.head)

    def test_for_speed_a_part_comes_before_the_whole(self):
        found = checkpointing(job(), 1_235_814_400, faster=True)
        assert [r.name for r in found] == ["checkpointing-selective", "checkpointing-full", "checkpointing-offload"]
        assert [r.rank["compute"] for r in found] == [1, 2, 3]
        assert found[0].cost.compute == found[1].cost.compute / 2

    def test_for_speed_what_is_checkpointed_is_taken_back_as_far_as_it_goes(self):
        found = checkpointing(job("training.activation_checkpointing=full"), 1_235_814_400, faster=True)
        assert [(r.name, r.rank["compute"]) for r in found] == [
            ("checkpointing-none", -2),
            ("checkpointing-selective", -1),
            ("checkpointing-offload", 2),
        ]
        assert found[0].cost.compute < found[1].cost.compute < 0

    def test_every_second_layer_may_become_every_layer(self):
        every = job("training.activation_checkpointing=full", training__checkpointing__every=2)
        full = checkpointing(every, 1_235_814_400)[0]
        assert full.changes == {"training.checkpointing.mode": "full", "training.checkpointing.every": 1}
        assert full.cost.compute == recompute_share(every, 1_235_814_400) / 2

    def test_what_only_the_newest_trainer_takes_needs_its_release_named(self):
        trainer = replace(job(), framework="hf-trainer 5.24")
        recent = replace_fields(trainer, {"versions": {"transformers": "5.24.0"}})
        assert [r.name for r in checkpointing(trainer, 0, faster=True)] == ["checkpointing-full"]
        names = [r.name for r in checkpointing(recent, 0, faster=True)]
        assert names == ["checkpointing-every-2", "checkpointing-full", "checkpointing-offload"]
        trl = replace(job(), framework="trl 1.16")
        assert [r.name for r in checkpointing(trl, 0)] == ["checkpointing-full", "checkpointing-offload"]

    def test_it_is_taken_back_only_for_speed(self):
        full = job("training.activation_checkpointing=full")
        assert "checkpointing-none" not in space(full)
        assert "checkpointing-none" in space(full, faster=True)


class TestOptimizer:
    def test_from_free_to_risky(self):
        found = options.optimizers(job())
        names = [r.name.removeprefix("optimizer-") for r in found]
        assert names == ["adamw-fused", "adamw-8bit", "adafactor", "lion-8bit"]
        assert [r.cost.convergence for r in found] == ["none", "small", "risk", "risk"]
        assert [r.safe for r in found] == [True, False, False, False]

    def test_only_the_same_algorithm_is_called_safe_or_small(self):
        """Adam's weight decay is part of its gradient, AdamW's is not: `--fix` must not make one of the other."""
        adam = options.optimizers(job("training.optimizer=adam"))
        assert [(r.name, r.safe) for r in adam][:2] == [("optimizer-adam-fused", True), ("optimizer-adamw-8bit", False)]
        for now in ("muon", "rmsprop", "stable-adamw"):
            found = options.optimizers(job(f"training.optimizer={now}"))
            assert {(r.safe, r.cost.convergence) for r in found} == {(False, "risk")}
        lion = options.optimizers(job("training.optimizer=lion"))
        assert [(r.name, r.cost.convergence) for r in lion] == [
            ("optimizer-lion-8bit", "small"),
            ("optimizer-adamw-8bit", "risk"),
            ("optimizer-adafactor", "risk"),
        ]
        paged = options.paged_states(job("training.optimizer=muon"))
        assert paged is not None and paged.cost.convergence == "risk"

    def test_paged_states_are_for_what_has_whole_or_8_bit_ones(self):
        paged = options.paged_states(job("training.optimizer=adamw-8bit"))
        assert paged is not None and paged.rank == {"optimizer": 1, "offload": 1}
        assert options.paged_states(job("training.optimizer=adafactor")) is None

    @pytest.mark.parametrize("name", ["sgd", "adafactor", "adamw-8bit", "lomo"])
    def test_light_ones_stay(self, name):
        assert options.optimizers(job(f"training.optimizer={name}")) == ()

    def test_the_step_moves_into_backward_only_where_nothing_needs_all_gradients(self):
        free = job("training.max_grad_norm=null")
        assert options.step_in_backward(free)
        assert options.step_in_backward(job()) == ()
        assert options.step_in_backward(replace_fields(free, {"training.gradient_accumulation_steps": 2})) == ()


def image_job(*sets, **config):
    architecture = read_config(config)
    assert isinstance(architecture, Architecture), architecture
    return replace_fields(job("training.micro_batch_size=64", *sets), {"architecture": architecture})


class TestBatch:
    @pytest.mark.parametrize("model_type", ["clip", "siglip", "siglip2"])
    def test_rows_that_are_compared_with_each_other_stay_together(self, model_type):
        """Every image against every text of the micro batch: of one row nothing can be learnt."""
        assert options_scale.micro_batches(image_job(model_type=model_type)) == ()
        classes = image_job("training.objective=sequence-classification", model_type=model_type)
        assert all(remedy.safe for remedy in options_scale.micro_batches(classes))

    def test_rows_that_are_normalised_together_are_no_safe_change(self):
        found = options_scale.micro_batches(
            image_job("training.objective=sequence-classification", model_type="resnet")
        )
        assert found
        assert {(remedy.safe, remedy.cost.convergence) for remedy in found} == {(False, "small")}

    def test_kto_keeps_two_rows(self):
        """TRL refuses one, and the KL term of a few is another estimate."""
        found = options_scale.micro_batches(job("training.objective=kto", "training.micro_batch_size=8"))
        assert [remedy.changes["training.micro_batch_size"] for remedy in found] == [4, 2]
        assert not any(remedy.safe for remedy in found)

    def test_every_divisor_keeps_the_global_batch(self):
        made = job("training.micro_batch_size=12", "training.gradient_accumulation_steps=2")
        found = options_scale.micro_batches(made)
        assert [r.changes["training.micro_batch_size"] for r in found] == [6, 4, 3, 2, 1]
        for remedy in found:
            product = 1
            for value in remedy.changes.values():
                product *= value
            assert product == 24
            assert remedy.safe

    def test_for_speed_larger_ones_come_first(self):
        made = job("training.micro_batch_size=2", "training.gradient_accumulation_steps=4")
        found = options_scale.micro_batches(made, faster=True)
        assert [r.changes["training.micro_batch_size"] for r in found] == [8, 4, 1]
        ranks = [r.rank["batch"] for r in found]
        assert ranks == sorted(ranks)
        assert ranks[1] < 0 < ranks[2]

    def test_rows_that_are_compared_stay_together_and_are_embedded_by_parts(self):
        made = job("training.micro_batch_size=12", "training.objective=contrastive")
        assert [r.changes for r in options_scale.micro_batches(made)] == [
            {"training.embedding_mini_batch": size} for size in (6, 4, 3, 2, 1)
        ]
        cached = replace_fields(made, {"training.embedding_mini_batch": 4})
        assert [r.changes["training.embedding_mini_batch"] for r in options_scale.micro_batches(cached)] == [3, 2, 1]
        assert options.fused_loss(made) == options_scale.sharding(made, 8) == ()

    def test_one_row_stays_one_row(self):
        assert options_scale.micro_batches(job()) == ()


class TestSharding:
    def test_a_single_gpu_can_only_offload(self):
        assert [r.name for r in options_scale.sharding(job(), 1)] == ["zero2-offload-optimizer", "zero3-offload-all"]

    def test_several_gpus_divide_step_by_step(self):
        found = [r.name for r in options_scale.sharding(job(), 8)]
        assert found[:4] == ["zero1", "zero2", "fsdp", "zero3"]

    def test_deepspeed_stays_deepspeed_and_fsdp_stays_fsdp(self):
        assert [r.name for r in options_scale.sharding(job("parallelism.strategy=zero2"), 8)] == [
            "zero3",
            "zero2-offload-optimizer",
            "zero3-offload-optimizer",
            "zero3-offload-all",
        ]
        assert [r.name for r in options_scale.sharding(job("parallelism.strategy=fsdp"), 8)] == ["fsdp-offload-all"]

    def test_what_is_offloaded_is_not_offloaded_again(self):
        made = job("parallelism.strategy=zero3", "parallelism.offload=all")
        assert options_scale.sharding(made, 8) == ()

    def test_quantised_and_model_parallel_jobs_are_left_alone(self):
        assert options_scale.sharding(job("training.method=qlora", training__quantization=Quantization()), 8) == ()
        assert options_scale.sharding(job("parallelism.tensor=2"), 8) == ()

    def test_the_optimizer_alone_moves_to_the_host_in_stage_3_too(self):
        made = job("parallelism.strategy=zero3")
        assert [r.name for r in options_scale.sharding(made, 1)] == ["zero3-offload-optimizer", "zero3-offload-all"]


class TestDeepSpeedBuffers:
    def names(self, *sets, gpus=2, parameters=10**9):
        made = job("parallelism.strategy=zero3", *sets)
        found = (
            options_zero.buckets(made),
            options_zero.gathering(made, parameters),
            options_zero.persistence(made),
            options_zero.sub_group(made, parameters, gpus),
        )
        return [remedy.name for group in found for remedy in group]

    def test_only_under_deepspeed(self):
        assert options_zero.buckets(job()) == options_zero.gathering(job(), 10**9) == ()
        assert options_zero.persistence(job()) == options_zero.sub_group(job(), 10**9, 2) == ()

    def test_stage_3_has_all_of_them(self):
        assert self.names() == ["reduce-bucket", "gathered-parameters", "no-prefetch", "sub-group"]
        large = self.names("parallelism.persistence_threshold_elements=1000000")
        assert large == ["reduce-bucket", "gathered-parameters", "no-prefetch", "persistence-threshold", "sub-group"]

    def test_what_is_small_already_is_left(self):
        small = ("reduce_bucket", "max_live", "max_reuse", "prefetch_bucket", "sub_group")
        assert self.names(*(f"parallelism.{name}_elements=0" for name in small)) == []

    def test_the_second_bucket_only_below_stage_3_where_communication_overlaps(self):
        overlapped = job("parallelism.strategy=zero2", "parallelism.overlap_comm=true")
        assert [r.name for r in options_zero.buckets(overlapped)] == ["reduce-bucket", "one-reduce-bucket"]
        assert options_zero.buckets(overlapped)[1].changes["parallelism.overlap_comm"] is False
        assert [r.name for r in options_zero.buckets(job("parallelism.strategy=zero2"))] == ["reduce-bucket"]
        assert "one-reduce-bucket" not in self.names("parallelism.overlap_comm=true")

    def test_none_goes_with_another_stage_or_offload(self):
        made = job("parallelism.strategy=zero2")
        changes = {"parallelism.strategy": "zero3", "parallelism.reduce_bucket_elements": 50_000_000}
        conflict = contradiction(changes, made, "native")
        assert conflict is not None and conflict.name == "buffers-of-a-replaced-config"
        del changes["parallelism.strategy"]
        assert contradiction(changes, made, "native") is None

    def test_no_sub_group_where_the_cpu_steps_or_the_partition_is_small(self):
        assert "sub-group" not in self.names("parallelism.offload=optimizer")
        assert "sub-group" not in self.names(gpus=16)


def test_other_methods_are_offered_but_in_no_plan():
    assert [r.name for r in options_scale.adapters(job())] == ["lora", "qlora"]
    assert [r.name for r in options_scale.adapters(job("training.method=lora", training__lora=Lora()))] == ["qlora"]
    assert not {"lora", "qlora"} & set(space(job(), gpus=8, faster=True))


def test_every_remedy_names_its_cost_and_source():
    made = job("training.precision=fp32", "training.attention=eager", "training.micro_batch_size=4")
    setting = Setting(job=made, target=parse_target("8xT4"), gpus=8, parameters=10**9, faster=True)
    remedies = [*all_remedies(setting), *options_scale.adapters(made)]
    assert len({remedy.name for remedy in remedies}) == len(remedies)
    for remedy in remedies:
        assert remedy.cost.sentence
        assert len(remedy.cost.source) > 15
        assert set(remedy.rank) <= set(CATEGORIES)


def test_dimensions_come_in_the_handbooks_order():
    made = job("training.precision=fp32", "training.attention=eager", "training.micro_batch_size=4")
    setting = Setting(job=made, target=parse_target("8xA100-80GB"), gpus=8, parameters=10**9)
    found = [dimension.name for dimension in remedy_space(setting)]
    assert found == ["precision", "attention", "loss", "checkpointing", "optimizer", "batch", "sharding"]


def test_prices_compare_the_dearest_category_first():
    by_name = {r.name: r for r in all_remedies(Setting(job=job(), target=None, gpus=8, parameters=10**9))}
    order = ["loss-fused", "checkpointing-full", "optimizer-adamw-8bit", "zero1", "zero2-offload-optimizer"]
    prices = [price((by_name[name],)) for name in order]
    assert prices == sorted(prices)
    assert price(tuple(by_name[name] for name in order[:3])) < price((by_name["zero1"],))


class TestConflicts:
    def test_each_has_a_reason_and_a_source(self):
        assert len({conflict.name for conflict in CONFLICTS}) == len(CONFLICTS)
        for conflict in CONFLICTS:
            assert conflict.why
            assert ".py" in conflict.source

    @pytest.mark.parametrize(
        ("sets", "changes", "name"),
        [
            ((), {"training.optimizer": "adamw-8bit", "parallelism.strategy": "fsdp"}, "bitsandbytes-under-fsdp"),
            (
                (),
                {
                    "training.optimizer": "adamw-8bit",
                    "parallelism.strategy": "zero2",
                    "parallelism.offload": "optimizer",
                },
                "offload-without-cpu-adam",
            ),
            (
                (),
                {"training.optimizer": "adafactor", "parallelism.strategy": "zero1"},
                "adafactor-on-flat-partitions",
            ),
            (
                ("training.max_grad_norm=null",),
                {"training.optimizer_in_backward": True, "training.gradient_accumulation_steps": 2},
                "step-in-backward-with-accumulation",
            ),
            ((), {"training.optimizer_in_backward": True}, "step-in-backward-with-clipping"),
            (("training.optimizer=galore-adamw",), {"parallelism.strategy": "fsdp"}, "projections-of-parts"),
            (("training.optimizer=apollo",), {"parallelism.strategy": "zero2"}, "projections-of-parts"),
            (("parallelism.pipeline=2",), {"parallelism.strategy": "zero2"}, "gradients-partitioned-in-a-pipeline"),
            (("parallelism.tensor=2",), {"training.loss": "fused"}, "fused-loss-under-tensor-parallelism"),
            (
                ("training.precision=fp16-mixed",),
                {"training.precision.weights": "fp16"},
                "fp16-weights-under-a-scaler",
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_each_is_found(self, sets, changes, name):
        assert contradiction(changes, job(*sets), "native").name == name

    def test_a_scaler_takes_weights_that_are_cast_before_they_train(self):
        made = job("training.precision=fp16-mixed", "training.precision.trainable_weights=fp32")
        assert contradiction({"training.precision.weights": "fp16"}, made, "llamafactory") is None

    def test_a_dialect_may_have_its_own_way(self):
        changes = {"training.optimizer": "adamw-8bit", "parallelism.strategy": "fsdp"}
        assert contradiction(changes, job(), "axolotl") is None

    def test_what_the_job_has_already_is_its_own_affair(self):
        made = job("training.optimizer=adafactor", "parallelism.strategy=zero1")
        assert contradiction({"training.micro_batch_size": 1}, made, "native") is None


def test_nothing_that_excludes_experts_on_the_host_is_offered_beside_them():
    kept = job("parallelism.offload=experts")
    assert options_scale.sharding(kept, 8) == ()
    assert options_scale.tensor_parallel(kept, 8, 8) == ()
    assert [remedy.name for remedy in options_scale.adapters(kept)] == ["lora"]
