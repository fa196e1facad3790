"""Selective checkpointing against the real model's, with torch's own policy contexts, on fake tensors."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from memlint.estimate.simulate import run_step
from memlint.job import Checkpointing, Precision, TrainingJob, replace_fields
from memlint.measure.trace.build import make_config, make_inputs, make_model
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.mode import RecordingMode
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.settings import TraceSettings
from memlint.models.config import read_config

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}
ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)


def policy_of(names: tuple[str, ...]) -> Any:
    counts = {False: 0, True: 0}

    def policy(ctx: Any, op: Any, *args: Any, **more: Any) -> CheckpointPolicy:
        if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            counts[ctx.is_recompute] += 1
            every = 1 if "mm" in names else 2 if "mm/2" in names else 0
            keep = every > 0 and (counts[ctx.is_recompute] - 1) % every == 0
        else:
            keep = "attention" in names and op in ATTENTION
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def contexts(names: tuple[str, ...]) -> Any:
    """A policy of its own for each layer, whose products are counted from one (torchtitan's context_fn)."""
    return create_selective_checkpoint_contexts(policy_of(names))


def traced(names: tuple[str, ...], rows: int, length: int) -> dict[str, int]:
    """Live bytes beyond the weights when the forward has ended, and the peaks of forward and backward."""
    install_idle_cuda()
    recorder = Recorder(None)
    settings = TraceSettings(weights="bf16", batch=rows, seq=length, steps=1)
    config = make_config({**CONFIG, "num_key_value_heads": 8})
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_choices(recorder, padding=False))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(RecordingMode(recorder, padding=False))
        recorder.enter("build", 0)
        model = make_model(config, head=settings.head, dtype=torch.bfloat16, attention="sdpa")
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": partial(contexts, names)})
        weights = recorder.live
        inputs = make_inputs(config, settings)
        recorder.enter("forward", 1)
        loss = model(**inputs, use_cache=False).loss
        end = recorder.live - weights
        recorder.enter("backward", 1)
        loss.backward()
        return {"end": end, "backward": recorder.mark(1, "backward").peak.bytes - weights}


@pytest.mark.parametrize("names", [("attention",), ("mm",), ("mm/2",), ("attention", "mm/2"), ("attention", "mm")])
def test_what_is_kept_is_what_torch_keeps(names: tuple[str, ...]) -> None:
    rows, length = 4, 512
    job = replace_fields(
        TrainingJob(model="tiny", architecture=read_config({**CONFIG, "num_key_value_heads": 8})),  # type: ignore[arg-type]
        {
            "training.precision": Precision(weights="bf16", autocast=None),
            "training.micro_batch_size": rows,
            "training.sequence_length": length,
            "training.checkpointing": Checkpointing(mode="selective", save=names),
        },
    )
    step = run_step(job)
    found = traced(names, rows, length)
    backward = next(phase for phase in step.timeline if phase.phase == "backward")
    static = step.static["parameters"] + step.static["optimizer_states"]
    assert step.forward_end_bytes == pytest.approx(found["end"], rel=0.01)
    assert backward.peak_bytes - static == pytest.approx(found["backward"], rel=0.02)
