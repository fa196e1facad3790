"""Trained tokens in front of every sequence: prompt tuning, P-tuning and prefix tuning.

Sources: peft 0.21 peft_model.py (PeftModelForCausalLM.forward, get_prompt), tuners/{prompt_tuning,p_tuning,
prefix_tuning}/model.py. Gradients go through every layer to reach what trains, as they do not where nothing before the
layers does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.engine.graph import Shape
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.ops.basic import cast, cat, expand_copy, saving_output
from memlint.estimate.ops.images import requiring_grad
from memlint.estimate.ops.linear import Weight, embedding, linear
from memlint.estimate.peft_factors import vector_bank
from memlint.job import TrainingJob, replace_fields

if TYPE_CHECKING:
    from memlint.estimate.build import Build

IN_SEQUENCE = ("prompt", "p-tuning")
"""Methods whose tokens run through the model as the others do."""
PROMPTS = (*IN_SEQUENCE, "prefix")


def with_prompt(job: TrainingJob) -> TrainingJob:
    """The job with the sequences that its model sees: prompts make them longer."""
    training = job.training
    if training.method not in IN_SEQUENCE:
        return job
    return replace_fields(job, {"training.sequence_length": training.sequence_length + training.virtual_tokens})


class Prompt:
    """A trained table of tokens, and the layers through which P-tuning's encoder sends what is looked up."""

    __slots__ = ("layers", "table")

    def __init__(self, table: Weight, layers: tuple[tuple[Weight, Weight], ...] = ()) -> None:
        self.table, self.layers = table, layers

    @property
    def shape(self) -> Shape:
        """Tokens and width."""
        return self.table.shape


def prompt(build: Build, width: int) -> Prompt | None:
    """The parameters that stand outside all layers: of a prompt for hidden size ``width``, what is looked up; None for
    other methods.
    """
    training = build.training
    method, tokens = training.method, training.virtual_tokens
    if build.frozen or build.reference:
        return None
    if method == "vblora":
        vector_bank(build)
    if method not in PROMPTS:
        return None
    architecture = build.job.architecture
    if method == "prefix" and architecture is not None:
        # PrefixEncoder without projection: keys and values of every layer.
        heads = architecture.get("num_attention_heads", 1)
        size = architecture.get("num_key_value_heads", heads) * (architecture.get("head_dim") or width // heads)
        width = 2 * architecture.num_hidden_layers * size
    name = "prompt_encoder.embedding.weight"
    table = build.parameter(name, tokens, width, dtype="fp32", adapter=True)
    if method != "p-tuning":
        return Prompt(table)
    # PromptEncoder of kind MLP: three linear layers, encoder_hidden_size as wide as the tokens.
    layers = [
        (
            build.parameter(f"prompt_encoder.mlp_head.{layer}.weight", width, width, dtype="fp32", adapter=True),
            build.parameter(f"prompt_encoder.mlp_head.{layer}.bias", width, dtype="fp32", adapter=True),
        )
        for layer in (0, 2, 4)
    ]
    return Prompt(table, tuple(layers))


def in_front(f: Tape, prompt: Prompt, words: Tensor) -> Tensor:
    """``cat((prompts, inputs_embeds), dim=1)``: words [B, S, H] -> [B, T + S, H]."""
    rows, length, width = words.shape
    tokens = prompt.shape[0]
    # P-tuning's encoder runs once for the batch; its result is repeated (get_prompt).
    ids = f.new((1 if prompt.layers else rows, tokens), "int64")
    prompts = embedding(f, prompt.table, ids)
    for number, (weight, bias) in enumerate(prompt.layers):
        prompts = linear(f, prompts, weight, bias)
        if number < len(prompt.layers) - 1:
            prompts = saving_output(f, prompts)  # ReLU
    if prompt.layers:
        prompts = expand_copy(f, prompts, (rows, tokens, width))
    prompts = cast(f, prompts, words.dtype)
    return cat(f, prompts, words, shape=(rows, tokens + length, width))


def prefixed(f: Tape, tokens: int, x: Tensor) -> Tensor:
    """A layer's keys or values [B, kv, S, D] behind those of the prefix, as the cache gives them back.

    Each layer's part of the prefix is a view of one looked-up table, whose gradient is not worth following.
    """
    rows, heads, length, depth = x.shape
    part = requiring_grad(f, f.new((rows, heads, tokens, depth), x.dtype))
    return cat(f, part, x, shape=(rows, heads, tokens + length, depth))
