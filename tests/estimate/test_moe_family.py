"""Mixtures of experts and latent attention: parameters, memory against traces, adapters on experts, quantisation."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import Step, count_parameters, parameter_records, run_step, simulate
from memlint.job import Lora, Quantization, TrainingJob, replace_fields
from tests.estimate.traced import architecture, job, peak, phases_of, points, retraced, simulated, title

POINTS = points("traces_experts.jsonl")
QWEN: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 1024,
}


def qwen(changes: dict[str, Any] | None = None, **fields: Any) -> TrainingJob:
    start = TrainingJob(model="tiny", architecture=architecture({**QWEN, **fields}))
    return replace_fields(
        start, {"training.sequence_length": 256, "training.precision.weights": "bf16", **(changes or {})}
    )


def adapter(**fields: Any) -> dict[str, Any]:
    return {"training.method": "lora", "training.lora": Lora(**fields)}


def names(step: Step) -> set[str]:
    return {record.name for record in step.build.records}


@pytest.mark.parametrize("point", POINTS, ids=title)
def test_the_simulation_agrees_with_the_trace(point: dict[str, Any]) -> None:
    step = simulated(point)
    phase, traced = peak(point["phase_peaks"])
    predicted_phase, predicted = peak(phases_of(step))
    assert predicted == pytest.approx(traced, rel=0.005)
    assert predicted_phase == phase
    assert step.forward_end_bytes == pytest.approx(point["forward_end_bytes"], rel=0.005)


@pytest.mark.parametrize("point", POINTS, ids=title)
def test_the_model_has_exactly_the_parameters_that_transformers_builds(point: dict[str, Any]) -> None:
    assert sum(r.count * r.numel for r in simulated(point).build.records) == point["parameters"]


@pytest.mark.parametrize("point", POINTS[::3], ids=title)
def test_one_block_that_stands_for_many_gives_what_all_of_them_give(point: dict[str, Any]) -> None:
    config = {**point["config"], "n_layers" if point["config"]["model_type"] == "dbrx" else "num_hidden_layers": 12}
    deep = {**point, "config": config, "seq": 128}
    assert phases_of(simulated(deep)) == phases_of(simulated(deep, full=True))


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        # The sizes that the models' cards state.
        ({"model_type": "mixtral", "sliding_window": None}, 46.7),
        ({**QWEN, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
          "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
          "vocab_size": 151936}, 30.5),
        ({"model_type": "deepseek_v3"}, 671.0),
        ({"model_type": "phimoe", "num_hidden_layers": 32, "lm_head_bias": True, "attention_bias": True}, 41.9),
        ({"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32}, 20.9),
    ],
    ids=["Mixtral-8x7B", "Qwen3-30B-A3B", "DeepSeek-V3", "Phi-3.5-MoE", "gpt-oss-20b"],
)  # fmt: skip
def test_published_sizes(config: dict[str, Any], billions: float) -> None:
    assert count_parameters(architecture(config)) / 1e9 == pytest.approx(billions, rel=0.002)


def test_expert_weights_bear_the_names_of_transformers_5() -> None:
    assert {
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.down_proj",
    } <= names(run_step(qwen()))


def test_activations_grow_with_the_experts_a_token_takes_not_with_all_of_them() -> None:
    two = run_step(qwen()).forward_end_bytes
    four = run_step(qwen(num_experts_per_tok=4)).forward_end_bytes
    many = run_step(qwen(num_experts=16)).forward_end_bytes
    assert four > 1.2 * two
    assert many < 1.02 * two


@pytest.mark.parametrize(("prepared", "dtype"), [(False, "bf16"), (True, "fp32")])
def test_four_bit_quantisation_leaves_fused_experts_whole(prepared: bool, dtype: str) -> None:
    """bitsandbytes quantises Linear modules only; prepare_model_for_kbit_training even casts the experts to fp32."""
    quantization = Quantization(kbit_preparation=prepared)
    changes = {
        "training.method": "qlora",
        "training.quantization": quantization,
        "training.lora": Lora(targets=("q_proj",)),
    }
    kinds = {record.name: record.dtype for record in run_step(qwen(changes)).build.records}
    assert kinds["model.layers.0.self_attn.q_proj.weight"] == "nf4"
    assert kinds["model.layers.0.mlp.experts.gate_up_proj"] == dtype


def test_all_linear_reaches_experts_and_router_where_peft_converts_the_type() -> None:
    step = run_step(qwen(adapter(targets="all-linear", rank=4)))
    shapes = {record.name: record.shape for record in step.build.records}
    # gate and up are fused, so their rank doubles; a rank for each of the eight experts.
    assert shapes["model.layers.0.mlp.experts.gate_up_proj.lora_A"] == (2 * 4 * 8, 256)
    assert shapes["model.layers.0.mlp.experts.down_proj.lora_B"] == (256, 4 * 8)
    assert "model.layers.0.mlp.gate.lora_A" in shapes


def test_an_adapter_on_experts_costs_a_copy_of_their_weights() -> None:
    attention = adapter(targets=("q_proj", "v_proj"), rank=4)
    everywhere = adapter(targets="all-linear", rank=4)
    experts = 6 * 2 * 8 * 3 * 128 * 256
    more = run_step(qwen(everywhere)).forward_end_bytes - run_step(qwen(attention)).forward_end_bytes
    assert more > experts


def test_types_that_peft_does_not_convert_keep_their_experts_frozen() -> None:
    config = next(p["config"] for p in POINTS if p["config"]["model_type"] == "granitemoe")
    start = TrainingJob(model="tiny", architecture=architecture(config))
    step = run_step(replace_fields(start, adapter(targets="all-linear")))
    assert not any("experts" in record.name for record in step.build.records if record.trainable)


def test_target_parameters_name_fused_experts() -> None:
    step = run_step(qwen(adapter(targets=("q_proj",), target_parameters=("mlp.experts.down_proj",))))
    adapted = {record.name for record in step.build.records if record.trainable and "experts" in record.name}
    assert {name.rpartition(".")[0] for name in adapted} >= {"model.layers.0.mlp.experts.down_proj"}
    assert not any("gate_up_proj" in name for name in adapted)


def test_dense_layers_before_the_mixtures() -> None:
    config = next(p["config"] for p in POINTS if p["config"]["model_type"] == "deepseek_v3")
    found = names(run_step(TrainingJob(model="tiny", architecture=architecture(config))))
    assert "model.layers.0.mlp.gate_proj.weight" in found
    assert "model.layers.1.mlp.experts.down_proj" in found


def test_a_type_that_nobody_has_compared_is_refused() -> None:
    known = architecture(QWEN)
    other = type(known)(**{name: getattr(known, name) for name in known.__slots__} | {"model_type": "jetmoe"})
    with pytest.raises(Unsupported, match="jetmoe"):
        run_step(TrainingJob(model="tiny", architecture=other))


@pytest.mark.measure
@pytest.mark.slow
def test_the_figures_are_those_of_the_trace() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    point = next(p for p in POINTS if p["config"]["model_type"] == "qwen3_moe")
    assert retraced(point) == point["phase_peaks"]


def test_job_of_a_point_reads_its_adapter() -> None:
    point = next(p for p in POINTS if "lora" in p)
    assert job(point).training.lora is not None


SMALL = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 128}
OF_PARAMETERS: dict[str, dict[str, Any]] = {
    "gpt_oss": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma4_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16, "enable_moe_block": True}
    | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", OF_PARAMETERS)
def test_adapters_of_parameters_are_as_large_as_peft_makes_them(model_type: str) -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    fields, targets = {**SMALL, **OF_PARAMETERS[model_type]}, ("experts.gate_up_proj", "experts.down_proj")
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(model_type, **fields)
        options = peft.LoraConfig(r=4, target_modules=["q_proj"], target_parameters=list(targets))
        real = peft.get_peft_model(transformers.AutoModelForCausalLM.from_config(config), options)
    start = TrainingJob(model=model_type, architecture=architecture({"model_type": model_type, **fields}))
    adapted = replace_fields(start, adapter(rank=4, targets=("q_proj",), target_parameters=targets))
    ours = sum(record.count * record.numel for record in parameter_records(adapted) if record.trainable)
    assert ours == sum(parameter.numel() for parameter in real.parameters() if parameter.requires_grad)


def test_adapters_of_parameters_that_are_not_followed_are_said() -> None:
    named = adapter(targets=("q_proj",), target_parameters=("7.mlp.experts.down_proj",))
    assert any("7.mlp.experts.down_proj) are not followed" in note for note in simulate(qwen(named)).assumptions)


@pytest.mark.parametrize(
    ("asked", "said"),
    [("sdpa", ["`gpt_oss` has no sdpa attention in transformers: computed with eager"]), ("eager", [])],
)
def test_another_attention_than_the_job_names_is_said(asked: str, said: list[str]) -> None:
    made = qwen({"training.attention": asked}, model_type="gpt_oss", num_local_experts=4, layer_types=None)
    assert [note for note in simulate(made).assumptions if "attention" in note] == said
