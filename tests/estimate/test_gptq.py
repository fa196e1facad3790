"""GPTQ bases: what of a weight lives during training depends on the library that unpacks it."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.quantized import QuantizedWeight
from memlint.estimate.result import Estimate
from memlint.estimate.simulate import simulate
from memlint.job import Lora, Precision, Quantization, Training, TrainingJob, replace_fields
from tests.estimate.jobs import architecture

HIDDEN, INNER, LAYERS = 512, 1024, 3
LAYER = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER
"""Elements of one layer's seven matrices."""

NF4: dict[str, Any] = {"training.quantization.type": "nf4"}
"""bitsandbytes, which saves the packed weight."""


def estimate(version: str, **changes: Any) -> Estimate:
    shape = architecture(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=1000,
    )
    job = TrainingJob(
        model="m",
        architecture=shape,
        versions={"transformers": version},
        training=Training(
            method="qlora",
            lora=Lora(rank=4),
            quantization=Quantization(type="gptq", kbit_preparation=False),
            precision=Precision(weights="fp16", autocast=None),
            sequence_length=256,
        ),
    )
    return simulate(replace_fields(job, changes))


def test_auto_gptq_keeps_every_weight_unpacked_until_the_backward() -> None:
    """qlinear_cuda_old.py: torch.matmul(x, weight) saves the fp16 weight for x's gradient."""
    unpacked, packed = estimate("4.36.2"), estimate("4.36.2", **NF4)
    kept = unpacked.forward_end_activation_bytes - packed.forward_end_activation_bytes
    # The first layer's q, k and v see the embeddings, which require no gradient here.
    assert kept == 2 * (LAYERS * LAYER - 3 * HIDDEN * HIDDEN)


def test_checkpointing_keeps_one_layer_of_them() -> None:
    full: dict[str, Any] = {"training.checkpointing.mode": "full"}
    # The last release over auto_gptq; older ones keep rotary tables in every layer too.
    unpacked, packed = estimate("4.48.3", **full), estimate("4.48.3", **full, **NF4)
    assert unpacked.forward_end_activation_bytes == packed.forward_end_activation_bytes
    # The adapters of the newest library are the same, those of bitsandbytes are not: they cast elsewhere.
    anew = estimate("5.24.0", **full)
    assert 2 * HIDDEN * INNER < unpacked.allocated_bytes - anew.allocated_bytes <= 2 * LAYER


def test_the_newest_library_unpacks_anew_in_the_backward() -> None:
    """gptqmodel triton_utils/dequant.py saves the packed weight, as bitsandbytes does."""
    gptq, packed = estimate("5.24.0"), estimate("5.24.0", **NF4)
    assert gptq.forward_end_activation_bytes == packed.forward_end_activation_bytes


@pytest.mark.parametrize(
    ("kind", "group", "sizes"),
    [
        pytest.param("gptq", 128, [1024 * 256, 8 * 512 * 2, 8 * 256, 4096], id="groups of 128"),
        pytest.param("gptq", 32, [1024 * 256, 32 * 512 * 2, 32 * 256, 4096], id="groups of 32"),
        pytest.param("gptq", -1, [1024 * 256, 512 * 2, 256, 4096], id="one group"),
        pytest.param("awq", 128, [1024 * 256, 8 * 512 * 2, 8 * 256], id="awq has no group numbers"),
    ],
)
def test_a_weight_of_512_by_1024_is_stored_as_gptqmodel_does(kind: str, group: int, sizes: list[int]) -> None:
    """gptqmodel 7.7 nn_modules/qlinear/__init__.py: qweight, scales in fp16, qzeros, g_idx in int32."""
    weight = QuantizedWeight(512, 1024, Quantization(type=kind, group_size=group), "fp16")
    assert weight.storages() == sizes
