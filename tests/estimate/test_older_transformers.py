"""Under a stated older transformers a model is as its code was then; published figures are its judges."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.measured import in_metric
from memlint.estimate.older_attention import copies_queries, repeats_heads
from memlint.estimate.simulate import simulate
from memlint.estimate.step import run_step
from memlint.job import Checkpointing, Lora, Precision, Quantization, Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.catalog import find
from memlint.models.config import read_config
from memlint.records import replace

MIXTRAL, MISTRAL = "mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mistral-7B-v0.1"
LLAMA = "meta-llama/Llama-3.1-8B"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def _job(model: str, transformers: str, rows: int = 4, bits: int | None = 4, torch: str = "2.4") -> TrainingJob:
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
    versions = {"transformers": transformers, "bitsandbytes": "0.43.3", "torch": torch}
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


SANTACODER = {
    "model_type": "gpt_bigcode", "n_embd": 2048, "n_head": 16, "n_layer": 24, "n_inner": 8192, "vocab_size": 49280,
    "n_positions": 2048, "multi_query": True, "activation_function": "gelu_fast", "scale_attn_weights": True,
    "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attention_softmax_in_fp32": True,
    "tie_word_embeddings": True,
}  # fmt: skip
"""bigcode/gpt_bigcode-santacoder config.json."""


def _santacoder(rows: int, bits: int | None, version: str = "4.45.2") -> TrainingJob:
    architecture = read_config(SANTACODER, id="bigcode/gpt_bigcode-santacoder")
    assert isinstance(architecture, Architecture)
    training = Training(
        method="full" if bits is None else "qlora",
        lora=None if bits is None else Lora(rank=16, targets=("c_attn",), dropout=0.1),
        quantization=None if bits is None else Quantization(kbit_preparation=False),
        micro_batch_size=rows,
        sequence_length=2048,
        precision=Precision(weights="bf16", autocast=None if bits is None else "bf16"),
        checkpointing=Checkpointing(mode="full", reentrant=True),
        attention="flash",
    )
    versions = {"transformers": version, "bitsandbytes": "0.43.3", "torch": "2.4"}
    return TrainingJob(
        model="bigcode/gpt_bigcode-santacoder",
        architecture=architecture,
        training=training,
        framework="hf-trainer",
        versions=versions,
    )


@pytest.mark.parametrize(
    ("rows", "bits", "peak"),
    [
        pytest.param(8, None, 15_193_274_880, id="every parameter"),
        pytest.param(4, 4, 9_148_997_120, id="in 4 bits"),
        pytest.param(8, 4, 17_486_716_416, id="and twice the rows"),
    ],
)
def test_santacoders_outputs_hold_the_cache_and_autocasts_are_copied(rows: int, bits: int | None, peak: int) -> None:
    """fms-acceleration's a100_80gb.csv at 0aab2c6. Its forward did not turn ``use_cache`` off under checkpointing, and
    accelerate's copies of half logits in fp32 stand beside them.
    """
    expected, _, _ = in_metric("max_memory_allocated", job := _santacoder(rows, bits), simulate(job))
    assert expected == pytest.approx(peak, rel=2e-3)


def test_the_cache_is_kept_under_checkpointing_before_4_53_where_nothing_turns_it_off() -> None:
    def held(framework: str, version: str, mode: str = "full") -> int:
        job = replace_fields(_santacoder(8, None, version), {"training.checkpointing.mode": mode})
        return max(phase.peak_bytes for phase in simulate(replace(job, framework=framework)).timeline[:2])

    fused = 24 * 8 * 2048 * (2048 + 2 * 128) * 2
    assert held("hf-trainer", "4.45.2") - held("axolotl", "4.45.2") == fused
    assert held("hf-trainer", "4.52") - held("axolotl", "4.52") == fused
    assert held("hf-trainer", "4.53") == held("axolotl", "4.53")
    assert held("hf-trainer", "4.45.2", "none") == held("axolotl", "4.45.2", "none")  # saved anyhow


@pytest.mark.parametrize(("rows", "peak"), [(4, 20_556_796_416), (8, 36_801_860_096)])
def test_flash_attention_of_mistral_saved_repeated_heads_before_4_48(rows: int, peak: int) -> None:
    """fms-acceleration's a100_80gb.csv at 0aab2c6, QLoRA by TRL, which keeps the norms in fp32 and nothing else of what
    k-bit preparation casts (trainer/utils.py peft_module_casting_to_bf16). Its peak lies in SiLU's backward, which is
    one kernel on a GPU: the low end.
    """
    changes = {
        "training.precision.fp32_modules": ("input_layernorm", "post_attention_layernorm", "norm"),
        "training.precision.weights": "bf16",
        "training.precision.autocast": "bf16",
        "training.lora.dropout": 0.1,
        "training.packing": True,
    }
    job = replace_fields(_job(MISTRAL, "4.45.2", rows), changes)
    _, low, _ = in_metric("max_memory_allocated", job, simulate(job))
    assert low == pytest.approx(peak, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "version", "attention", "repeats"),
    [
        (MISTRAL, "4.47.1", "flash", True),
        (MISTRAL, "4.48.0", "flash", False),
        (MISTRAL, "4.53.3", "sdpa", True),
        (MISTRAL, "4.54.0", "sdpa", False),
        (LLAMA, "4.45.2", "flash", False),
        (LLAMA, "4.45.2", "sdpa", True),
        (LLAMA, "4.45.2", "eager", False),
        ("Qwen/Qwen1.5-MoE-A2.7B", "4.57.1", "flash", True),
        ("allenai/OLMoE-1B-7B-0924", "4.57.1", "sdpa", True),
        ("allenai/OLMoE-1B-7B-0924", "4.57.1", "flash", False),
    ],
)
def test_grouped_heads_were_repeated_before_the_kernel(model: str, version: str, attention: str, repeats: bool) -> None:
    job = replace_fields(_job(model, version, torch="2.5"), {"training.attention": attention})
    assert repeats_heads(job) is repeats


def test_sdpa_takes_grouped_heads_from_torch_2_5_on() -> None:
    assert repeats_heads(replace_fields(_job(LLAMA, "4.57", torch="2.4"), {"training.attention": "sdpa"}))


@pytest.mark.parametrize(
    ("version", "copies"), [("4.47.1", False), ("4.48.0", True), ("4.55.4", True), ("4.56.0", False)]
)
def test_sdpa_got_contiguous_queries_from_4_48_to_4_55(version: str, copies: bool) -> None:
    assert copies_queries(replace_fields(_job(MISTRAL, version), {"training.attention": "sdpa"})) is copies


def test_repeated_heads_are_saved_at_full_width_and_flash_outputs_are_copied() -> None:
    def held(version: str) -> int:
        changes = {"training.attention": "sdpa", "training.checkpointing.mode": "none"}
        return run_step(replace_fields(_job(LLAMA, version, 1, None, "2.5"), changes)).forward_end_bytes

    assert held("4.55") - held("4.57") == 32 * 4096 * 4096 * 2
    assert held("4.53") - held("4.55") == 32 * 2 * 4096 * (32 - 8) * 128 * 2
