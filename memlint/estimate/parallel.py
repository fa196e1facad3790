"""Tensor and pipeline parallelism: the part of a model that one GPU holds.

Tensor parallelism divides heads, key-value heads, the MLP's width and the vocabulary (transformers' tp_plan: colwise q,
k, v, gate, up; rowwise o, down; torch 2.13 distributed/tensor/parallel/style.py); norms are replicated. Pipeline
parallelism gives each GPU its share of the layers; the first stage holds the activations of as many micro batches as
there are stages (1F1B).
"""

from __future__ import annotations

from memlint.estimate.errors import Unsupported
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.records import replace

_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")


def one_gpu(job: TrainingJob) -> tuple[TrainingJob, tuple[str, ...]]:
    """The job as one GPU of its tensor and pipeline group runs it, and what this takes for granted.

    Raises:
        Unsupported: the model does not divide by the tensor-parallel size.
    """
    parallelism, architecture = job.parallelism, job.architecture
    if architecture is None or (parallelism.tensor == 1 and parallelism.pipeline == 1):
        return job, ()
    notes: list[str] = []
    config = dict(architecture.config)
    vocabulary = job.training.vocab_size or architecture.vocab_size
    if parallelism.tensor > 1:
        size = parallelism.tensor
        config.setdefault("head_dim", architecture.hidden_size // int(config.get("num_attention_heads") or 1))
        if config["head_dim"] is None:
            config["head_dim"] = architecture.hidden_size // int(config["num_attention_heads"])
        for name in _DIVIDED:
            value = config.get(name)
            if not isinstance(value, int) or value <= 0:
                continue
            if value % size and not (name == "num_key_value_heads" and size % value == 0):
                raise Unsupported(f"{name} {value} does not divide by the tensor-parallel size {size}")
            config[name] = max(1, value // size)
        vocabulary = -(-vocabulary // size)
        notes.append(f"tensor parallelism {size}: heads, MLP width and vocabulary are divided; norms are replicated")
    layers = architecture.num_hidden_layers
    if parallelism.pipeline > 1:
        layers = -(-layers // parallelism.pipeline)
        config["num_hidden_layers"] = layers
        types = config.get("layer_types")
        if isinstance(types, (list, tuple)):
            config["layer_types"] = list(types[:layers])
        notes.append(
            f"pipeline parallelism {parallelism.pipeline}: the first stage, {layers} layers with embedding and head; "
            "the upper end holds the activations of all micro batches in flight"
        )
    divided: Architecture = replace(architecture, config=config, num_hidden_layers=layers)
    return replace_fields(replace(job, architecture=divided), {"training.vocab_size": vocabulary}), tuple(notes)
