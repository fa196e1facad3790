"""The evaluation that is predicted against the real model's forward and loss under no_grad, on fake tensors."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch._subclasses import FakeTensorMode

from memlint.estimate.evaluation import evaluation_of
from memlint.estimate.simulate import simulate
from memlint.job import Precision, TrainingJob, replace_fields
from memlint.measure.trace.build import make_config, make_inputs, make_model
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.mode import RecordingMode
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.settings import TraceSettings
from memlint.models.config import read_config

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}


def traced_evaluation(config: dict[str, Any], rows: int, length: int, autocast: str | None) -> int:
    """Highest allocated bytes of one evaluation forward beyond the weights."""
    install_idle_cuda()
    recorder = Recorder(None)
    settings = TraceSettings(weights="fp32" if autocast else "bf16", autocast=autocast, batch=rows, seq=length, steps=1)
    made = make_config(config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_choices(recorder, padding=False))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(RecordingMode(recorder, padding=False))
        recorder.enter("build", 0)
        dtype = torch.float32 if autocast else torch.bfloat16
        model = make_model(made, head=settings.head, dtype=dtype, attention="sdpa")
        model.eval()
        weights = recorder.live
        inputs = make_inputs(made, settings)
        recorder.enter("forward", 1)
        half = torch.autocast("cuda", torch.bfloat16) if autocast else contextlib.nullcontext()
        with torch.no_grad(), half:
            model(**inputs, use_cache=False)
    return recorder.mark(1, "forward").peak.bytes - weights


@pytest.mark.parametrize("autocast", [None, "bf16"])
@pytest.mark.parametrize(("rows", "length"), [(1, 512), (8, 512), (4, 2048)])
def test_a_forward_without_gradients_takes_what_is_predicted(autocast: str | None, rows: int, length: int) -> None:
    precision = Precision(weights="fp32", autocast="bf16") if autocast else Precision(weights="bf16", autocast=None)
    architecture = read_config(CONFIG)
    job = replace_fields(
        TrainingJob(model="tiny", architecture=architecture),  # type: ignore[arg-type]
        {
            "training.precision": precision,
            "training.sequence_length": length,
            "training.eval_micro_batch_size": rows,
        },
    )
    estimate = simulate(job)
    evaluation = evaluation_of(job, estimate)
    assert evaluation is not None
    predicted = evaluation.allocated_bytes - estimate.static["parameters"] - estimate.static["optimizer_states"]
    assert predicted == pytest.approx(traced_evaluation(CONFIG, rows, length, autocast), rel=0.01)
