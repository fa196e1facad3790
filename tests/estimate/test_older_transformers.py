"""Under a stated older transformers a model is as its code was then; published figures are its judges."""

from __future__ import annotations

import pytest

from memlint.estimate.simulate import simulate
from memlint.job import Checkpointing, Lora, Precision, Quantization, Training, TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.catalog import find
from memlint.models.config import read_config
from memlint.records import replace

MIXTRAL, MISTRAL = "mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mistral-7B-v0.1"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def _job(model: str, transformers: str, rows: int = 4, bits: int | None = 4) -> TrainingJob:
    row = find(model)
    assert row is not None
    architecture = read_config({k: v for k, v in row.config.items() if k != "quantization_config"}, id=model)
    assert isinstance(architecture, Architecture)
    training = Training(
        method="full" if bits is None else "qlora",
        lora=None if bits is None else Lora(rank=16, targets=ATTENTION),
        quantization=None if bits is None else Quantization(kbit_preparation=False),
        micro_batch_size=rows,
        sequence_length=4096,
        precision=Precision(weights="fp16", autocast=None if bits is None else "fp16"),
        checkpointing=Checkpointing(mode="full", reentrant=True),
        attention="flash",
    )
    versions = {"transformers": transformers, "bitsandbytes": "0.43.3", "torch": "2.4"}
    return TrainingJob(model=model, architecture=architecture, training=training, versions=versions)


@pytest.mark.parametrize(
    ("model", "rows", "bits", "peak"),
    [
        pytest.param(MIXTRAL, 4, 4, 36_218_024_448, id="experts in 4 bits"),
        pytest.param(MIXTRAL, 8, 4, 47_207_756_288, id="and twice the rows"),
        pytest.param(MISTRAL, 4, 4, 15_860_019_712, id="Mistral in 4 bits"),
        pytest.param(MISTRAL, 4, None, 72_971_724_288, id="Mistral, every parameter"),
    ],
)
def test_peaks_are_those_that_fms_acceleration_measured(model: str, rows: int, bits: int | None, peak: int) -> None:
    """github.com/foundation-model-stack/fms-acceleration scripts/benchmarks/refs/a100_80gb.csv at 04702cc: bytes of
    max_memory_allocated, which counts cuBLAS' workspaces, on an A100.
    """
    estimate = simulate(_job(model, "4.40.2", rows, bits))
    workspace = next(o for o in estimate.overheads if o.name == "cublas_workspace")
    assert estimate.allocated_bytes + workspace.expected_bytes == pytest.approx(peak, rel=5e-4)


def test_experts_are_linear_modules_before_transformers_5_and_fused_parameters_after() -> None:
    """bitsandbytes takes linear modules alone: fused, the experts stay in half precision."""
    before, after = (simulate(_job(MIXTRAL, version)).static["parameters"] for version in ("4.57", "5.0"))
    assert before < 27 * 2**30 and after > 85 * 2**30


def test_all_linear_adapts_the_experts_that_are_linear_modules() -> None:
    def trained(version: str) -> int:
        job = _job(MIXTRAL, version)
        lora = Lora(rank=8, targets=("w1", "w2", "w3"))
        return simulate(replace(job, training=replace(job.training, lora=lora))).trainable_parameters

    assert trained("4.57") == 32 * 8 * 3 * 8 * (4096 + 14336)


@pytest.mark.parametrize(("version", "kept"), [("4.41.2", True), ("4.42.0", False)])
def test_every_layer_of_mistral_kept_cos_and_sin_of_all_positions_before_4_42(version: str, kept: bool) -> None:
    newest = simulate(_job(MISTRAL, "4.57", bits=None)).static["parameters"]
    tables = 32 * 2 * 32768 * 128 * 2
    assert simulate(_job(MISTRAL, version, bits=None)).static["parameters"] - newest == kept * tables
