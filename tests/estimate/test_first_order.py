"""The textbook formulas reproduce the handbook's published figures, and a real model of the same shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memlint.estimate.first_order import (
    OPTIMIZER_MULTIPLIERS,
    Dimensions,
    dimensions_of,
    estimate_first_order,
    first_order,
)
from memlint.hardware.parse import parse_target
from memlint.job import Checkpointing, Precision, Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.units import GIB, MIB

ORACLE = Path(__file__).resolve().parents[3] / "shared" / "oracle" / "points.jsonl"

SMALL = Dimensions(vocab_size=50257, hidden_size=512, num_layers=6, num_heads=8, intermediate_size=2048, max_length=512)
"""The handbook's worked example."""

SCALE = {  # nominal parameters, hidden size, layers, heads; static, activations, checkpointed in GiB, B = 4, T = 2048
    "GPT-2 117M": (117e6, 768, 12, 12, 1.5, 13.6, 1.1),
    "GPT-2 774M": (774e6, 1280, 36, 20, 10.1, 68.2, 1.9),
    "LLaMA-7B": (7e9, 4096, 32, 32, 91.3, 114.0, 3.6),
    "LLaMA-13B": (13e9, 5120, 40, 40, 169.5, 178.1, 4.5),
    "LLaMA-70B": (70e9, 8192, 80, 64, 912.7, 570.0, 7.1),
}

UNKNOWN = Architecture(
    id="somebody/new-model",
    model_type="never-heard-of",
    family="unknown",
    hidden_size=512,
    num_hidden_layers=6,
    vocab_size=50257,
    max_position_embeddings=512,
    config={"num_attention_heads": 8, "intermediate_size": 2048},
)


def test_the_worked_example_counts_parameters_exactly() -> None:
    assert sum(SMALL.parameters().values()) == 70_640_640


def test_the_worked_example_in_binary_megabytes() -> None:
    plain = first_order(SMALL, batch_size=4, sequence_length=512)
    light = first_order(SMALL, batch_size=4, sequence_length=512, checkpointing=True)
    assert f"{plain.parameter_bytes / MIB:.2f}" == "134.74"
    assert f"{plain.gradient_bytes / MIB:.2f}" == "269.47"
    assert f"{plain.optimizer_bytes / MIB:.2f}" == "538.95"
    assert f"{plain.activation_bytes / MIB:.2f}" == "444.00"
    assert f"{light.activation_bytes / MIB:.2f}" == "74.00"
    assert plain.overhead_bytes == 512 * MIB
    assert f"{plain.total_bytes / GIB:.2f}" == "1.85"
    assert f"{light.total_bytes / GIB:.2f}" == "1.49"


@pytest.mark.parametrize("name", SCALE)
def test_the_scale_table_in_binary_gigabytes(name: str) -> None:
    nominal, hidden, layers, heads, static, activations, checkpointed = SCALE[name]
    dimensions = Dimensions(hidden_size=hidden, num_layers=layers, num_heads=heads)
    settings = {"batch_size": 4, "sequence_length": 2048, "parameters": int(nominal)}
    plain = first_order(dimensions, **settings)
    assert plain.static_bytes == 14 * int(nominal)
    assert round(plain.static_bytes / GIB, 1) == static
    assert round(plain.activation_bytes / GIB, 1) == activations
    assert round(first_order(dimensions, **settings, checkpointing=True).activation_bytes / GIB, 1) == checkpointed


@pytest.mark.parametrize(
    ("optimizer", "multiplier"), [("adam", 2), ("lion", 1), ("sgd", 1), ("adafactor", 0.1), ("adam-8bit", 0.5)]
)
def test_optimizer_states_are_multiples_of_the_fp32_parameters(optimizer: str, multiplier: float) -> None:
    result = first_order(SMALL, batch_size=1, sequence_length=1, optimizer=optimizer)
    assert result.optimizer_bytes == round(multiplier * 4 * 70_640_640)
    assert OPTIMIZER_MULTIPLIERS[optimizer] == multiplier


def test_shares_of_the_worked_example() -> None:
    parts = SMALL.parameters()
    total = sum(parts.values())
    shares = {name: round(100 * count / total, 1) for name, count in parts.items()}
    assert shares == {"embedding": 36.4, "positions": 0.4, "layers": 26.8, "head": 36.4, "final_norm": 0.0}


@pytest.mark.measure
def test_the_same_transformer_in_torch_has_the_same_parameters_footprint_and_shares() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Small(nn.Module):  # type: ignore[misc, name-defined]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50257, 512)
            self.positions = nn.Embedding(512, 512)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(512, 8, dim_feedforward=2048, norm_first=True, batch_first=True)
                for _ in range(6)
            )
            self.final_norm = nn.LayerNorm(512)
            self.head = nn.Linear(512, 50257, bias=False)

    with torch.device("meta"):
        model = Small()
    counted = {
        name: sum(parameter.numel() for parameter in child.parameters()) for name, child in model.named_children()
    }
    assert counted == SMALL.parameters()

    def footprint(module: object) -> int:
        return sum(p.numel() * p.element_size() for p in module.parameters())  # type: ignore[attr-defined]

    plain = {"batch_size": 1, "sequence_length": 1}
    assert footprint(model) == first_order(SMALL, **plain, bytes_per_parameter=4).parameter_bytes == 282_562_560
    assert footprint(model.half()) == first_order(SMALL, **plain).parameter_bytes == 141_281_280
    total = sum(counted.values())
    shares = [round(100 * counted[name] / total, 1) for name in ("embedding", "head", "layers", "positions")]
    assert shares == [36.4, 36.4, 26.8, 0.4]


def job(**changes: object) -> TrainingJob:
    return replace_fields(TrainingJob(model="somebody/new-model", architecture=UNKNOWN), changes)


def test_an_unknown_architecture_is_estimated_and_named_as_such() -> None:
    estimate = estimate_first_order(job(**{"training.micro_batch_size": 4, "training.sequence_length": 512}))
    assert estimate.method == "first-order"
    assert estimate.parameters == estimate.trainable_parameters == 70_640_640
    assert estimate.static == {
        "parameters": 4 * 70_640_640,
        "gradients": 4 * 70_640_640,
        "optimizer_states": 8 * 70_640_640,
    }
    assert estimate.components["activations"] == estimate.forward_end_activation_bytes == 444 * MIB
    assert sum(estimate.components.values()) == estimate.allocated_bytes
    assert estimate.device_bytes == estimate.allocated_bytes + 512 * MIB
    assert estimate.low_bytes < estimate.device_bytes < estimate.high_bytes
    assert estimate.high_bytes > 1.5 * estimate.low_bytes
    assert any("`never-heard-of` is not known" in note for note in estimate.assumptions)


@pytest.mark.parametrize(
    ("changes", "gradients", "states"),
    [
        ({"training.optimizer": "lion"}, 4.0, 4.0),
        ({"training.optimizer": "paged-adamw-8bit"}, 4.0, 2.0),
        ({"training.optimizer": "adafactor"}, 4.0, 0.4),
        ({"training.optimizer": "sgd"}, 4.0, 0.0),
        ({"training.optimizer_in_backward": True}, 0.0, 8.0),
        ({"training.precision.weights": "bf16"}, 2.0, 4.0),
        ({"training.precision.weights": "bf16", "training.precision.master_weights": True}, 2.0, 12.0),
        ({"parallelism.strategy": "zero1", "parallelism.gpus": 4}, 4.0, 2.0),
        ({"parallelism.strategy": "zero2", "parallelism.gpus": 4}, 1.0, 2.0),
    ],
)
def test_settings_change_the_bytes_of_one_parameter(
    changes: dict[str, object], gradients: float, states: float
) -> None:
    estimate = estimate_first_order(job(**changes))
    assert estimate.static["gradients"] / 70_640_640 == pytest.approx(gradients)
    assert estimate.static["optimizer_states"] / 70_640_640 == pytest.approx(states)


def test_a_target_gives_the_number_of_ranks_that_shard() -> None:
    sharded = job(**{"parallelism.strategy": "fsdp"})
    alone, eight = estimate_first_order(sharded), estimate_first_order(sharded, parse_target("8xA100-80GB"))
    for name in ("parameters", "gradients", "optimizer_states"):
        assert eight.static[name] == pytest.approx(alone.static[name] / 8, abs=1)


def test_an_adapter_trains_little_and_a_quantised_base_is_small() -> None:
    full = estimate_first_order(job())
    lora = estimate_first_order(job(**{"training.method": "lora", "training.lora.rank": 8}))
    qlora = estimate_first_order(
        job(**{"training.method": "qlora", "training.lora.rank": 8, "training.quantization.bits": 4})
    )
    assert lora.trainable_parameters == 6 * 8 * (8 * 512 + 3 * (512 + 2048))
    assert lora.static["optimizer_states"] == 8 * lora.trainable_parameters
    assert qlora.static["parameters"] < lora.static["parameters"] / 4 < full.static["parameters"]


def test_experts_that_no_quantiser_takes_stay_whole() -> None:
    # transformers 5 holds a block's experts in one tensor, which is no linear module.
    config = {"model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 4, "num_experts": 64}
    config |= {"moe_intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024}
    architecture = read_config(config)
    assert isinstance(architecture, Architecture)
    start = TrainingJob(model="m", architecture=architecture)
    start = replace_fields(start, {"training.precision.weights": "bf16", "training.method": "qlora"})
    quantised = estimate_first_order(replace_fields(start, {"training.quantization.type": "nf4"}))
    experts = 4 * 64 * 3 * 256 * 128
    assert quantised.static["parameters"] > 2 * experts


def test_checkpointing_keeps_one_layer_and_more_tokens_never_need_less() -> None:
    plain = estimate_first_order(job())
    light = estimate_first_order(job(**{"training.checkpointing.mode": "full"}))
    assert plain.components["activations"] == 6 * light.components["activations"]
    longer = estimate_first_order(job(**{"training.sequence_length": 4096}))
    assert longer.low_bytes >= plain.low_bytes
    assert longer.high_bytes > plain.high_bytes


def test_learned_positions_and_a_tied_head_are_seen() -> None:
    assert dimensions_of(UNKNOWN) == SMALL
    rotary = replace(UNKNOWN, config={**UNKNOWN.config, "rope_theta": 10000.0}, tie_word_embeddings=True)
    parts = dimensions_of(rotary).parameters()
    assert parts["positions"] == parts["head"] == 0


def test_without_an_architecture_there_is_nothing_to_estimate() -> None:
    with pytest.raises(ValueError, match="no architecture"):
        estimate_first_order(TrainingJob(model="x"))


def test_experts_and_gated_networks_are_counted_where_the_config_names_them() -> None:
    mixtral = replace(
        UNKNOWN,
        hidden_size=4096,
        num_hidden_layers=32,
        vocab_size=32000,
        config={
            "num_attention_heads": 32,
            "intermediate_size": 14336,
            "num_local_experts": 8,
            "hidden_act": "silu",
            "rope_theta": 1e6,
        },
    )
    count = sum(dimensions_of(mixtral).parameters().values())
    assert count == pytest.approx(46_702_792_704, rel=0.02)  # Mixtral-8x7B, which has grouped queries and no biases


@pytest.mark.skipif(not ORACLE.exists(), reason="the shared reference points are not beside this checkout")
def test_the_interval_holds_the_traced_peak_of_real_models() -> None:
    precisions = {"fp32": ("fp32", None), "bf16": ("bf16", None), "bf16-autocast": ("fp32", "bf16")}
    inside = []
    for line in ORACLE.read_text(encoding="utf-8").splitlines():
        point = json.loads(line)
        architecture = read_config({"model_type": point["model_type"], **point["config"]}, id=point["model"])
        assert isinstance(architecture, Architecture), point["model"]
        weights, autocast = precisions[point["precision"]]
        estimate = estimate_first_order(
            TrainingJob(
                model=point["model"],
                architecture=architecture,
                training=Training(
                    micro_batch_size=point["batch"],
                    sequence_length=point["seq"],
                    precision=Precision(weights=weights, autocast=autocast),
                    optimizer="adamw-8bit" if point["optim"] == "adam8bit" else point["optim"],
                    attention=point["attn"],
                    checkpointing=Checkpointing(mode="none" if point["ckpt"] == "none" else "full"),
                ),
            )
        )
        inside.append(estimate.low_bytes <= point["peak_bytes"] <= estimate.high_bytes)
    assert len(inside) >= 70
    assert sum(inside) / len(inside) >= 0.95
