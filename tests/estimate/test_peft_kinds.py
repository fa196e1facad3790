"""PEFT's methods other than LoRA: what trains, and that what carries gradients costs what it does."""

from __future__ import annotations

import pytest

from memlint.estimate.simulate import simulate
from memlint.job import Lora, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.catalog import find
from memlint.models.config import read_config

ATTENTION = ("q_proj", "v_proj")
PUBLISHED = {
    "ia3": (286_720, Lora(targets="default")),
    "vera": (129_024, Lora(rank=256, targets=ATTENTION)),
    "boft": (802_816, Lora(targets=ATTENTION)),
    "oft": (8_171_520, Lora(targets=ATTENTION, block_size=96)),
    "loha": (18_350_080, Lora(rank=32, targets=ATTENTION)),
    "prompt": (614_400, None),
    "prefix": (11_468_800, None),
}
"""Trainable parameters of Llama-3.2-3B as huggingface/peft prints them (method_comparison/MetaMathQA at 5d602fdbf);
the two prompts have 200 tokens."""


def _job(method: str, lora: Lora | None, **fields: object) -> TrainingJob:
    row = find("meta-llama/Llama-3.2-3B")
    assert row is not None
    architecture = read_config(row.config)
    assert isinstance(architecture, Architecture)
    job = TrainingJob(model="meta-llama/Llama-3.2-3B", architecture=architecture)
    common = {"precision.weights": "bf16", "precision.autocast": None, "sequence_length": 512, "method": method}
    return replace_fields(job, {f"training.{k}": v for k, v in {**common, "lora": lora, **fields}.items()})


@pytest.mark.parametrize("method", sorted(PUBLISHED))
def test_trains_as_many_parameters_as_peft_prints(method: str) -> None:
    count, lora = PUBLISHED[method]
    assert simulate(_job(method, lora, virtual_tokens=200)).trainable_parameters == count


@pytest.mark.parametrize("method", ["prompt", "p-tuning", "prefix"])
def test_gradients_of_a_prompt_pass_through_every_layer(method: str) -> None:
    """Nothing but the prompt trains, and yet each layer keeps what its backward needs."""
    adapter = simulate(_job("lora", Lora(rank=8, targets=ATTENTION)))
    prompted = simulate(_job(method, None))
    assert prompted.forward_end_activation_bytes > 0.85 * adapter.forward_end_activation_bytes


def test_more_tokens_of_a_prompt_need_more() -> None:
    few, many = (simulate(_job("prompt", None, virtual_tokens=n)).allocated_bytes for n in (8, 256))
    assert many > few


@pytest.mark.parametrize("method", ["miss", "hra", "xlora", "road", "vblora"])
def test_a_method_without_a_model_is_lora_in_a_wider_interval_and_says_so(method: str) -> None:
    lora = simulate(_job("lora", Lora(targets="default")))
    other = simulate(_job(method, None))
    assert other.allocated_bytes == lora.allocated_bytes
    assert other.low_bytes < lora.low_bytes < lora.high_bytes < other.high_bytes
    assert any(f"`{method}`" in text for text in other.assumptions)


def test_frozen_matrices_of_vera_are_there_once() -> None:
    """Two fp32 buffers, 256 x 3072 and 3072 x 256, however many layers use them."""
    vera = simulate(_job("vera", Lora(rank=256, targets=("q_proj",))))
    plain = simulate(_job("lora", Lora(rank=1, targets=("q_proj",))))
    adapters = 28 * ((256 + 3072) * 4 - 2 * 3072 * 4)
    assert vera.static["parameters"] - plain.static["parameters"] == 2 * 256 * 3072 * 4 + adapters


@pytest.mark.parametrize(
    ("width", "block"),
    [
        pytest.param(66, 33, id="the nearest divisor above"),
        pytest.param(100, 25, id="below"),
        pytest.param(24, 24, id="narrower than a block"),
    ],
)
def test_oft_takes_the_nearest_block_that_divides(width: int, block: int) -> None:
    """peft 0.21 tuners/oft/layer.py adjust_oft_parameters of the default, 32."""
    shape = read_config(
        {
            "model_type": "llama",
            "hidden_size": width,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 128,
            "vocab_size": 64,
        }
    )
    assert isinstance(shape, Architecture)
    job = replace_fields(
        TrainingJob(model="m", architecture=shape),
        {"training.method": "oft", "training.lora": Lora(targets=("q_proj",)), "training.sequence_length": 16},
    )
    assert simulate(job).trainable_parameters == width // block * (block * (block - 1) // 2)
