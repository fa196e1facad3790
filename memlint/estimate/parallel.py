"""Tensor and pipeline parallelism: the part of a model that one GPU holds.

Tensor parallelism divides heads, key-value heads, the MLP's width and the vocabulary (transformers' tp_plan: colwise q,
k, v, gate, up; rowwise o, down; torch 2.13 distributed/tensor/parallel/style.py); norms are replicated. Pipeline
parallelism gives each GPU its share of the layers; the first stage holds the activations of as many micro batches as
there are stages (1F1B).
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from memlint.estimate.errors import Unsupported
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import TEXT_PARTS
from memlint.records import replace

_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")
_UNDIVIDED = 1.15
"""How much more than its share a GPU may hold (norms, routers, the rest of a padded vocabulary) before a type's layers
count as not divided: those with one matrix for query, key and value (BLOOM, GPT-NeoX) are built from other fields."""


def one_gpu(job: TrainingJob) -> tuple[TrainingJob, tuple[str, ...]]:
    """The job as one GPU of its tensor and pipeline group runs it, and what this takes for granted.

    Of a model of several parts the language model is divided; towers and projectors are whole on every GPU, as in
    transformers' plans, and stand on the first stage.

    Raises:
        Unsupported: the model does not divide by the tensor-parallel size, or its layers are not followed divided.
    """
    parallelism, architecture = job.parallelism, job.architecture
    if architecture is None or (parallelism.tensor == 1 and parallelism.pipeline == 1):
        return job, ()
    notes: list[str] = []
    vocabulary = job.training.vocab_size or architecture.vocab_size
    changes: list[Callable[[dict[str, Any]], None]] = []
    if parallelism.tensor > 1:
        size = parallelism.tensor
        changes.append(lambda text: _narrow(text, size))
        vocabulary = -(-vocabulary // size)
        notes.append(f"tensor parallelism {size}: heads, MLP width and vocabulary are divided; norms are replicated")
    layers = architecture.num_hidden_layers
    if parallelism.pipeline > 1:
        layers = -(-layers // parallelism.pipeline)
        changes.append(lambda text: _shorten(text, architecture.num_hidden_layers, layers))
        notes.append(
            f"pipeline parallelism {parallelism.pipeline}: the first stage, {layers} layers with embedding and head; "
            "the upper end holds the activations of all micro batches in flight"
        )
    config = _changed(architecture.config, changes)
    if _of_parts(architecture):
        notes.append("the language model is divided; image and sound towers are whole on each GPU")
    divided: Architecture = replace(architecture, config=config, num_hidden_layers=layers)
    result = replace_fields(replace(job, architecture=divided), {"training.vocab_size": vocabulary})
    if parallelism.tensor > 1:
        _check_divided(job, architecture, result)
    return result, tuple(notes)


def _changed(config: Mapping[str, Any], changes: list[Callable[[dict[str, Any]], None]]) -> dict[str, Any]:
    """A copy of ``config`` in which the language model's own mapping is changed."""
    copy = dict(config)
    for name in TEXT_PARTS:
        inner = copy.get(name)
        if isinstance(inner, Mapping):
            copy[name] = _changed(inner, changes)
            return copy
    for change in changes:
        change(copy)
    return copy


def _narrow(text: dict[str, Any], size: int) -> None:
    if text.get("head_dim") is None:
        text["head_dim"] = int(text.get("hidden_size") or 0) // int(text.get("num_attention_heads") or 1)
    for name in _DIVIDED:
        value = text.get(name)
        if isinstance(value, (list, tuple)):
            text[name] = [_share(name, one, size) for one in value]
        elif isinstance(value, int) and value > 0:
            text[name] = _share(name, value, size)


def _share(name: str, value: int, size: int) -> int:
    if value % size and not (name == "num_key_value_heads" and size % value == 0):
        raise Unsupported(f"{name} {value} does not divide by the tensor-parallel size {size}")
    return max(1, value // size)


def _shorten(text: dict[str, Any], before: int, layers: int) -> None:
    """Keep the first ``layers`` of ``before``, and what a config lists layer by layer."""
    text["num_hidden_layers"] = layers
    for name, value in text.items():
        if isinstance(value, (list, tuple)) and len(value) == before:
            text[name] = list(value[:layers])
        elif name.endswith("_pattern") and isinstance(value, str) and len(value) == before:
            text[name] = value[:layers]
    crossing = text.get("cross_attention_layers")
    if isinstance(crossing, (list, tuple)):
        text["cross_attention_layers"] = [layer for layer in crossing if layer < layers]
    shared = text.get("num_kv_shared_layers")
    if isinstance(shared, int):
        text["num_kv_shared_layers"] = max(0, shared - (before - layers))  # they are the last ones


def _of_parts(architecture: Architecture) -> bool:
    return any(isinstance(architecture.config.get(name), Mapping) for name in TEXT_PARTS)


def _check_divided(job: TrainingJob, architecture: Architecture, divided: TrainingJob) -> None:
    if _of_parts(architecture):
        return  # towers are whole
    whole = _elements(replace_fields(job, {"parallelism.tensor": 1, "parallelism.pipeline": 1}))
    shared = job.parallelism.tensor * job.parallelism.pipeline
    ends = (1 + job.parallelism.pipeline) * architecture.hidden_size * architecture.vocab_size
    # Embedding and head stand on the stage that is looked at.
    if _elements(divided) > _UNDIVIDED * (whole + ends * (job.parallelism.pipeline > 1)) / shared:
        raise Unsupported(f"the layers of `{architecture.model_type}` are not followed under tensor parallelism")


def _elements(job: TrainingJob) -> int:
    from memlint.estimate.counts import parameter_records

    return sum(record.count * record.numel for record in parameter_records(job) if record.base)
