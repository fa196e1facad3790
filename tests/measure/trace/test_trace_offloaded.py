"""Checkpoints that rest in host memory, with unsloth's own autograd function around the real model's layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from memlint.engine.source import open_source
from memlint.estimate.simulate import run_step
from memlint.job import Checkpointing, Precision, Training, TrainingJob
from memlint.measure.trace import run as run_module
from memlint.measure.trace.settings import LoraSettings, TraceSettings
from tests.estimate.traced import architecture, phases_of

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]

CONFIG = {
    "model_type": "phi3",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
    "pad_token_id": 0,
}


class Offloaded(torch.autograd.Function):
    """LLaMA-Factory 0.9.5 model/model_utils/checkpointing.py UnslothGradientCheckpointing."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, forward_function: Any, hidden_states: Any, *args: Any) -> Any:
        saved = hidden_states.to("cpu", non_blocking=True)
        with torch.no_grad():
            outputs = forward_function(hidden_states, *args)
        ctx.save_for_backward(saved)
        ctx.forward_function, ctx.args = forward_function, args
        return outputs

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad_output: Any) -> Any:
        (hidden_states,) = ctx.saved_tensors
        hidden_states = hidden_states.to("cuda", non_blocking=True).detach()
        hidden_states.requires_grad_(True)
        with torch.enable_grad():
            output = ctx.forward_function(hidden_states, *ctx.args)
        torch.autograd.backward(output, grad_output)
        return (None, hidden_states.grad) + (None,) * len(ctx.args)


def offload_layers(model: Any, settings: TraceSettings) -> None:
    """In place of the trace's own checkpoints."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable({"use_reentrant": True})
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for index, layer in enumerate(layers):
        layer._gradient_checkpointing_func = Offloaded.apply
        layer.gradient_checkpointing = index % settings.checkpoint_every == 0


def compare(job: TrainingJob, settings: TraceSettings, monkeypatch: pytest.MonkeyPatch, *, rel: float) -> None:
    """A job's phases against those of the real model with unsloth's checkpoints."""
    monkeypatch.setattr(run_module, "checkpoint_layers", offload_layers)
    real = run_module.trace(CONFIG, settings, every_layer=True).phase_peaks
    for name, size in phases_of(run_step(job, (8, 0))).items():
        assert size == pytest.approx(real[name], rel=rel), name


@pytest.mark.parametrize(
    ("weights", "autocast"), [("bf16", None), ("fp32", "bf16")], ids=["bf16", "fp32 under autocast"]
)
def test_what_comes_back_from_the_host_lives_until_its_layer_is_done(
    weights: str, autocast: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = TrainingJob(
        model="tiny",
        architecture=architecture(CONFIG),
        training=Training(
            micro_batch_size=2,
            sequence_length=500,
            precision=Precision(weights=weights, autocast=autocast),
            optimizer="sgd",
            checkpointing=Checkpointing(mode="offload", reentrant=True),
        ),
    )
    settings = TraceSettings(
        batch=2, seq=500, weights=weights, autocast=autocast, checkpointing="reentrant", optimizer="sgd"
    )
    compare(job, settings, monkeypatch, rel=0.002)


def test_every_second_layer_of_a_job_file_goes_to_the_host_under_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
memlint: 1
model: %s
training:
  method: lora
  lora: {rank: 8}
  precision: fp32
  micro_batch_size: 4
  sequence_length: 1024
  optimizer: sgd
  activation_checkpointing: {mode: offload, every: 2}
"""
    path = tmp_path / "job.yaml"
    path.write_text(text % json.dumps(CONFIG), encoding="utf-8")
    settings = TraceSettings(
        batch=4,
        seq=1024,
        weights="fp32",
        checkpointing="reentrant",
        checkpoint_every=2,
        optimizer="sgd",
        lora=LoraSettings(rank=8),
    )
    compare(open_source(str(path), offline=True, isolated=True).job, settings, monkeypatch, rel=1e-4)
