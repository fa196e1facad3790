"""Low, expected and high of every job: in this order, whatever the type, setup, optimizer, storage and GPU."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.accuracy.measured import ALLOCATED, in_metric
from memlint.estimate.errors import Unsupported
from memlint.estimate.optimizer import RULES
from memlint.estimate.simulate import simulate
from memlint.hardware.parse import parse_target
from memlint.job import Quantization, TrainingJob, replace_fields
from tests.estimate.exact_jobs import SETUPS, configs, starting
from tests.estimate.jobs import job as tiny_job

STORED: tuple[Quantization | None, ...] = (
    None,
    Quantization(bits=4, type="nf4"),
    Quantization(bits=8, type="int8"),
    Quantization(bits=4, type="gptq"),
)
EVERYWHERE = st.fixed_dictionaries(
    {
        "training.optimizer": st.sampled_from(sorted(RULES)),
        "training.length_mean": st.sampled_from((None, 100)),
        "training.length_deviation": st.just(40),
        "training.max_grad_norm": st.sampled_from((None, 1.0)),
    }
)


def ordered(job: TrainingJob, gpu: str | None) -> None:
    """Hold the interval of a job, in the metric of the driver and in those of PyTorch's allocator, to its order."""
    try:
        estimate = simulate(job, None if gpu is None else parse_target(gpu))
    except Unsupported:
        return
    assert estimate.low_bytes <= estimate.device_bytes <= estimate.high_bytes
    for metric in (*ALLOCATED, "max_memory_reserved", "unspecified"):
        expected, low, high = in_metric(metric, job, estimate)
        assert low <= expected <= high, metric


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(list(configs())),
    name=st.sampled_from(list(SETUPS)),
    changes=EVERYWHERE,
    gpu=st.sampled_from((None, "A100-80GB", "RTX4090", "8xH100-80GB")),
)
def test_the_interval_of_every_type_and_setup_holds_its_middle(
    kind: tuple[str, dict[str, Any]], name: str, changes: dict[str, Any], gpu: str | None
) -> None:
    start = starting(*kind)
    if start is not None:
        ordered(replace_fields(start, {**changes, **SETUPS[name]}), gpu)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(("llama", "gemma2", "gpt2", "mixtral", "phi3")),
    framework=st.sampled_from(("", "litgpt", "torchtune")),
    stored=st.sampled_from(STORED),
    batch=st.integers(1, 3),
    compiled=st.booleans(),
    changes=EVERYWHERE,
)
def test_the_interval_of_stored_weights_and_of_frameworks_holds_its_middle(
    kind: str, framework: str, stored: Quantization | None, batch: int, compiled: bool, changes: dict[str, Any]
) -> None:
    fields = {
        **changes,
        "training.compile": compiled,
        "framework": framework,
        "training.micro_batch_size": batch,
        "training.method": "lora" if stored is None else "qlora",
        "training.lora.rank": 8,
        "training.quantization": stored,
    }
    ordered(tiny_job(fields, model_type=kind, num_hidden_layers=3, pad_token_id=0), "A100-80GB")


def test_lengths_that_vary_replay_every_layer_of_a_model_that_shares_keys() -> None:
    kind = next(config for family, config in configs() if config["model_type"] == "gemma3n_text")
    start = starting("gemma", kind)
    assert start is not None
    lengths = {"training.length_mean": 100, "training.length_deviation": 40}
    ordered(replace_fields(start, {**lengths, **SETUPS["full bf16 eager reentrant"]}), None)
