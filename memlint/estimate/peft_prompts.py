"""Trained tokens in front of every sequence: prompt tuning, P-tuning and prefix tuning.

Sources: peft 0.21 peft_model.py (PeftModelForCausalLM.forward, get_prompt), tuners/{prompt_tuning,p_tuning,
prefix_tuning}/model.py. Gradients go through every layer to reach what trains, as they do not where nothing before the
layers does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import cast, cat, saving_output, slice_of
from memlint.estimate.ops.linear import Weight, embedding, linear
from memlint.estimate.peft_factors import vector_bank
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture

if TYPE_CHECKING:
    from memlint.estimate.build import Build
    from memlint.estimate.embeddings import Embedding

IN_SEQUENCE = ("prompt", "p-tuning")
"""Methods whose tokens run through the model as the others do."""
PROMPTS = (*IN_SEQUENCE, "prefix")
OUTSIDE = (*PROMPTS, "vblora")
"""Methods with parameters that stand outside all layers."""


def with_prompt(job: TrainingJob) -> TrainingJob:
    """The job with the sequences that its model sees: prompts make them longer."""
    training = job.training
    if training.method not in IN_SEQUENCE:
        return job
    changes: dict[str, object] = {"training.sequence_length": training.sequence_length + training.virtual_tokens}
    if training.target_sequence_length is None and training.objective in TWO_STACKS:
        changes["training.target_sequence_length"] = training.sequence_length
    return replace_fields(job, changes)


TWO_STACKS = ("seq2seq-lm",)
"""Objectives of an encoder-decoder: tokens of a prompt stand before what its encoder reads."""


class Prompt:
    """A trained table of tokens, and the layers through which P-tuning's encoder sends what is looked up."""

    __slots__ = ("layers", "table", "tokens")

    def __init__(self, table: Weight, tokens: int, layers: tuple[tuple[Weight, Weight], ...] = ()) -> None:
        self.table, self.tokens, self.layers = table, tokens, layers


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
    rows = tokens
    if method == "prefix" and architecture is not None:
        width = prefix_width(architecture, width)
    elif training.objective in TWO_STACKS:
        rows *= 2  # num_transformer_submodules: the decoder's half is looked up too, and cut off
    name = "prompt_encoder.embedding.weight"
    table = build.parameter(name, rows, width, dtype="fp32", adapter=True)
    if method != "p-tuning":
        return Prompt(table, tokens)
    # PromptEncoder of kind MLP: three linear layers, encoder_hidden_size as wide as the tokens.
    layers = [
        (
            build.parameter(f"prompt_encoder.mlp_head.{layer}.weight", width, width, dtype="fp32", adapter=True),
            build.parameter(f"prompt_encoder.mlp_head.{layer}.bias", width, dtype="fp32", adapter=True),
        )
        for layer in (0, 2, 4)
    ]
    return Prompt(table, tokens, tuple(layers))


def prefix_width(architecture: Architecture, width: int) -> int:
    """PrefixEncoder without projection: keys and values of every layer."""
    heads = architecture.get("num_attention_heads", 1)
    size = architecture.get("num_key_value_heads", heads) * (architecture.get("head_dim") or width // heads)
    return int(2 * architecture.num_hidden_layers * size)


def _repeat_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.shapes[0][0], grad.dtype),)  # summed over what was repeated


class Prompted:
    """An embedding in front of whose words trained tokens stand."""

    __slots__ = ("base", "held", "prompt", "weight")

    def __init__(self, base: Embedding, prompt: Prompt, held: list[Tensor]) -> None:
        self.base, self.prompt, self.weight = base, prompt, base.weight
        self.held = held
        """Where prompts and inputs stay: PeftModel.forward holds them until the model inside it returns."""

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, T + S], which hold the tokens too -> [B, T + S, H]: ``cat((prompts, inputs_embeds), dim=1)``."""
        rows, length = ids.shape
        tokens = self.prompt.tokens
        if not f.adapters:
            return self.base(f, ids.view(rows, length - tokens))
        words = self.base(f, ids.view(rows, length - tokens))
        prompts = cast(f, self._prompts(f, rows), words.dtype)
        if prompts.shape[1] > tokens:
            prompts = slice_of(f, prompts, (rows, tokens, words.shape[2]))
        inputs = cat(f, prompts, words, shape=(rows, length, words.shape[2]))
        self.held += prompts.detach(), inputs.detach()
        return inputs

    def _prompts(self, f: Tape, rows: int) -> Tensor:
        """get_prompt: the encoder runs once for the batch, and its result is repeated."""
        table, layers = self.prompt.table, self.prompt.layers
        prompts = embedding(f, table, f.new((1, table.shape[0]), "int64"))
        for number, (weight, bias) in enumerate(layers):
            prompts = linear(f, prompts, weight, bias)
            if number < len(layers) - 1:
                prompts = saving_output(f, prompts)  # ReLU
        return f.record(f.new((rows, *table.shape), prompts.dtype), _repeat_backward, (prompts,))


def prompted(build: Build, base: Embedding, width: int) -> Any:
    """The embedding ``base`` of the model's inputs as the job's method runs it."""
    table, architecture = prompt(build, width), build.job.architecture
    if table is None:
        return base
    if build.training.method in IN_SEQUENCE:
        return Prompted(base, table, build.held)
    prefix = build.prefix
    if prefix is None or architecture is None:
        return base
    prefix.table, prefix.held = table.table, build.held
    twice = build.training.objective in TWO_STACKS
    return Prefixed(base, prefix, architecture.num_hidden_layers, twice=twice)


def words_of(embed: Any) -> Any:
    """The embedding without what stands in front of an encoder's inputs: that of a decoder's."""
    if isinstance(embed, Prefixed):
        embed.prefix.active = bool(embed.prefix.parts)
    return embed.base if isinstance(embed, (Prompted, Prefixed)) else embed


class Prefix:
    """Keys and values of every layer that stand before those of the tokens, in the cache that PEFT gives the model.

    get_prompt looks all of them up at once; DynamicCache takes each layer's as views and puts what attention has joined
    in their place. PeftModel.forward holds the cache until the model inside it returns.
    """

    __slots__ = ("active", "held", "kept", "parts", "table", "tokens")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.table: Weight | None = None
        self.held: list[Tensor] = []
        self.active = False
        """The attention that runs now has a prefix; not that of an encoder."""
        self.parts: list[Tensor] = []
        """Views of what was looked up, of the layers to come: keys and values in turn, last first."""
        self.kept: list[Tensor] = []
        """The parts' gradients: their nodes are older than all others, so each runs when the rest of the backward is
        over, and its gradient, a view of that of the joined keys or values, lives until then."""

    def look_up(self, f: Tape, rows: int, dtype: str, layers: int, *, twice: bool) -> None:
        """Fill ``parts`` for a batch of ``rows``; ``dtype`` is that of the model. ``twice``: for both of a decoder's
        attentions, of which that over the source is then given none.
        """
        assert self.table is not None
        tokens, width = self.table.shape
        whole = cast(f, embedding(f, self.table, f.new((rows, tokens), "int64")), dtype)
        if twice:
            whole = cat(f, whole, whole, shape=(rows, tokens, 2 * width))
        self.parts, self.kept = [], []
        for index in range(2 * layers):
            part = Tensor((rows, tokens, width // (2 * layers)), dtype, whole.storage)
            if f.needs(whole):
                f.record(part, _part_backward, (whole,), (), (self, index == 0))
            self.parts.append(part)
        self.parts.reverse()
        self.active = not twice

    def join(self, f: Tape, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, kv, S, D] of the next layer behind those of its prefix."""
        joined = []
        for x in (k, v):
            rows, heads, length, depth = x.shape
            part = self.parts.pop().view(rows, heads, self.tokens, depth)
            joined.append(cat(f, part, x, shape=(rows, heads, self.tokens + length, depth)))
        self.held += [x.detach() for x in joined]
        self.active = bool(self.parts)
        return joined[0], joined[1]

    def across(self, f: Tape, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a source as the cache gives them back: ``cat((nothing yet, new))``."""
        k, v = cat(f, k, shape=k.shape), cat(f, v, shape=v.shape)
        self.held += k.detach(), v.detach()
        return k, v


def _part_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None]:
    # UnbindBackward stacks a layer's two gradients; SplitBackward joins those of all layers, and the view before the
    # permutation copies them.
    prefix, first = node.meta
    prefix.kept.append(f.like(grad))
    if not first:
        return (None,)
    shape, dtype = node.shapes[0]
    whole = f.new(shape, dtype)
    prefix.kept.clear()
    return (f.like(whole),)


class Prefixed:
    """An embedding before which a prefix is looked up."""

    __slots__ = ("base", "layers", "prefix", "twice", "weight")

    def __init__(self, base: Embedding, prefix: Prefix, layers: int, *, twice: bool) -> None:
        self.base, self.prefix, self.weight, self.layers = base, prefix, base.weight, layers
        self.twice = twice

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        if f.adapters:
            self.prefix.look_up(f, ids.shape[0], self.weight.dtype, self.layers, twice=self.twice)
        return self.base(f, ids)
