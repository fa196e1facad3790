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
    "miss": (7_340_032, Lora(rank=64, targets=ATTENTION)),
    "bone": (7_340_032, Lora(rank=64, targets=ATTENTION)),
    "fourierft": (56_000, Lora(targets=ATTENTION)),
    "c3a": (5_505_024, Lora(targets=ATTENTION, block_size=64)),
    "shira": (9_175_040, Lora(rank=32, targets=ATTENTION)),
    "hira": (9_175_040, Lora(rank=32, targets=ATTENTION)),
    "randlora": (9_289_728, Lora(rank=32, targets=ATTENTION)),
    "ln-tuning": (175_104, None),
    "prompt": (614_400, None),
    "prefix": (11_468_800, None),
}
"""Trainable parameters of Llama-3.2-3B as huggingface/peft prints them (method_comparison/MetaMathQA at 5d602fdbf);
the two prompts have 200 tokens."""


SMALL = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1536,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}
TRACED = {
    "miss": (64, 66_425_856, 98_304),
    "hra": (4, 98_442_240, 8_192),
    "road": (8, 76_829_696, 1_536),
    "fourierft": (8, 74_273_792, 4_000),
    "c3a": (8, 72_623_104, 3_072),
    "hira": (8, 74_503_168, 28_672),
    "randlora": (32, 73_178_112, 22_016),
    "vblora": (8, 74_167_296, 94_208),
    "delora": (8, 73_221_120, 28_676),
    "ln-tuning": (8, 68_408_320, 2_560),
    "p-tuning": (8, 90_227_712, 853_504),
    "ia3": (8, 67_364_864, 1_536),
    "vera": (64, 71_824_384, 1_792),
    "loha": (8, 74_847_232, 57_344),
    "lokr": (8, 74_205_184, 2_816),
    "adalora": (8, 79_514_624, 28_708),
    "oft": (8, 73_917_440, 31_744),
}
"""Rank, peak of the second step and trained parameters of SMALL in bf16, two rows of 512 tokens, AdamW, fp32 adapters
on q_proj and v_proj (p-tuning: 128 tokens; adalora: of a task, whose forward regularises): peft 0.21.0 over
transformers 5.24 and torch 2.13, on fake tensors."""


def _small(method: str, rank: int) -> TrainingJob:
    architecture = read_config(SMALL)
    assert isinstance(architecture, Architecture)
    fields: dict[str, object] = {
        "precision.weights": "bf16",
        "precision.autocast": None,
        "micro_batch_size": 2,
        "sequence_length": 512,
        "virtual_tokens": 128,
        "method": method,
        "lora": None if method in ("p-tuning", "ln-tuning") else Lora(rank=rank, targets=ATTENTION),
    }
    job = TrainingJob(model="m", architecture=architecture)
    return replace_fields(job, {f"training.{k}": v for k, v in fields.items()})


@pytest.mark.parametrize("method", sorted(TRACED))
def test_needs_what_a_trace_of_peft_s_own_layers_needs(method: str) -> None:
    rank, peak, trained = TRACED[method]
    estimate = simulate(_small(method, rank))
    assert estimate.trainable_parameters == trained
    assert estimate.allocated_bytes == pytest.approx(peak, rel=1e-4)


def test_each_reflection_of_hra_keeps_a_matrix_as_wide_as_the_input() -> None:
    """hra/layer.py get_delta_weight: ``2 * weight @ u`` keeps the doubled matrix, fp32, for every vector."""
    one, five = (simulate(_small("hra", rank)).forward_end_activation_bytes for rank in (1, 5))
    assert 4 * 2 * 2 * 512 * 512 * 4 < five - one < 1.05 * 4 * 2 * 2 * 512 * 512 * 4


def test_shira_keeps_a_copy_of_each_weight_and_the_places_of_what_trains() -> None:
    """A clone in the weight's dtype, and int64 places, two for each value."""

    def kept(rank: int, *targets: str) -> int:
        job = replace_fields(_small("shira", rank), {"training.lora": Lora(rank=rank, targets=targets)})
        return simulate(job).forward_end_activation_bytes

    assert kept(9, "q_proj") - kept(8, "q_proj") == 2 * (512 + 512) * 16
    assert kept(8, "q_proj", "o_proj") - kept(8, "q_proj") >= 2 * (512 * 512 * 2 + 8 * (512 + 512) * 16)


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


@pytest.mark.parametrize("method", ["poly", "trainable-tokens", "xlora"])
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


def test_a_rank_of_thousands_takes_no_longer_than_its_answer_is_worth() -> None:
    """Each reflection is followed by itself; beyond what any GPU holds they are not, but for their vectors."""
    many, most = (simulate(_small("hra", rank)) for rank in (1024, 65536))
    vectors = 4 * 65536 * 512 * 4
    assert most.forward_end_activation_bytes < many.forward_end_activation_bytes + 3 * vectors
    assert most.trainable_parameters == 64 * many.trainable_parameters


@pytest.mark.parametrize(
    ("precision", "adapter", "peak"),
    [("bf16", "bf16", 42_431_488), ("autocast", "fp32", 61_489_664)],
)
def test_older_oft_turns_the_weight_by_a_matrix_as_wide_as_the_input(precision: str, adapter: str, peak: int) -> None:
    """peft 0.15's own layer on fake tensors; from 0.16 on it is the input that is turned, block by block.

    Half weights without autocast the release refuses; the code between both casts input and weight to fp32, and keeps
    four fp32 matrices a layer: identity, weight, turned and scaled weight.
    """
    lora = Lora(targets=ATTENTION, dtype=adapter, block_size=32)
    fields: dict[str, object] = {"training.micro_batch_size": 2, "training.sequence_length": 128, "training.lora": lora}
    if precision == "autocast":
        fields |= {"training.precision.weights": "fp32", "training.precision.autocast": "bf16"}
    job = replace_fields(_small("oft", 8), fields)
    old = simulate(replace_fields(job, {"versions": {"peft": "0.15.2"}}))
    assert old.allocated_bytes == pytest.approx(peak, rel=1e-4)
    assert old.trainable_parameters == 2 * (2 * 16 * 32 * 32 + 512 + 256)
    assert old.allocated_bytes > simulate(job).allocated_bytes
