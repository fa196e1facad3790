"""What every layer of a model sees beside its hidden states: attention choice, masks, rotary tables, checkpointing."""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.kernels import installed
from memlint.estimate.older_attention import copies_queries, repeats_heads
from memlint.estimate.ops.attention import eager_attention, repeat_kv, sdpa
from memlint.estimate.ops.basic import cat
from memlint.estimate.peft_prompts import Prefix
from memlint.job import Checkpointing, TrainingJob
from memlint.models.architecture import Architecture
from memlint.records import dataclass, field

LASTING = ("alibi", "kv", "lasting", "masks", "mask:", "positions", "rope")
"""What decoders' layers are given by keyword: masks, tables of positions, shared keys and values, and what a stack
before has kept.
"""


@dataclass(slots=True)
class Batch:
    """One micro batch on the device: ids and labels [B, S] int64, and a padding mask where there is one."""

    ids: Tensor
    labels: Tensor | None
    mask: Tensor | None = None
    decoder_ids: Tensor | None = None
    pixels: Tensor | None = None
    types: Tensor | None = None
    """token_type_ids of models that tell image tokens from text."""
    beside: tuple[Tensor, ...] = ()
    """What else comes with the pixels: sizes and masks of images."""

    @property
    def rows(self) -> int:
        """Sequences of the micro batch."""
        return self.ids.shape[0]

    @property
    def length(self) -> int:
        """Tokens of one sequence."""
        return self.ids.shape[1]


@dataclass(slots=True)
class Env:
    """Settings of the run that layers ask for; ``state`` holds tensors a model shares among its layers."""

    attention: str
    padding: bool
    checkpointing: Checkpointing
    capability: tuple[int, int] | None
    liger: frozenset[str]
    prefix: Prefix | None = None
    """Trained keys and values in front of every layer's own (prefix tuning)."""
    kernels: frozenset[str] = frozenset()
    """Optional packages that run (estimate/kernels.py)."""
    evaluating: bool = False
    """The model is in eval mode, for which transformers has no function from projection to projection."""
    masked: bool = False
    """Every batch comes with a mask, also one that hides nothing: masks of the model have its rows."""
    past: list[dict[str, Any]] | None = None
    """What forwards have shared, where all of it lives until the backward is over; None: it does not."""
    positions: bool = False
    """Each row comes with positions of its own, so that rotary tables have as many rows."""
    positional: bool = False
    """Layers get their masks by position, so that reentrant checkpoints save them as they save other inputs."""
    repeats: bool = False
    """Keys and values of grouped heads are repeated before a fused kernel (estimate/older_attention.py)."""
    dense: bool = False
    """sdpa gets contiguous copies of q, k and v (estimate/older_attention.py)."""
    asked: set[str] = field(default_factory=set)
    """Optional packages that layers of this model would have used."""
    questions: int = 0
    """How often layers have asked for one."""
    step: int = 0
    """The number of the step of this model; 0: none."""
    state: dict[str, Any] = field(default_factory=dict)
    lasting: dict[str, Any] = field(default_factory=dict)
    """What of it reentrant checkpoints hold in their closures, as long as the graph lives."""
    left: Tensor | None = None
    """A second output of the layer that has just run (attention weights of bloom, falcon, mpt): the model's loop
    variable holds it until the next layer returns."""
    weights: Tensor | None = None
    """The attention weights that the running layer's ``_`` names until it returns: most decoders of transformers 5.24
    say ``hidden_states, _ = self.self_attn(...)``. Without gradients nothing else holds them."""

    @classmethod
    def of(cls, job: TrainingJob, capability: tuple[int, int] | None) -> Env:
        """Read the settings from a job."""
        training = job.training
        return cls(
            attention=_available(training.attention, job.architecture),
            padding=training.padding,
            prefix=Prefix(training.virtual_tokens) if training.method == "prefix" else None,
            checkpointing=training.checkpointing,
            capability=capability,
            liger=frozenset(training.liger),
            kernels=installed(job),
            repeats=repeats_heads(job),
            dense=copies_queries(job),
        )

    def begin(self, kernels: frozenset[str]) -> None:
        """Forget an earlier step; ``kernels`` are the optional packages that run in the next one."""
        self.step += 1
        self.kernels, self.asked = kernels, set()
        self.state, self.lasting, self.left, self.weights = {}, {}, None, None

    def number(self, f: Tape, length: int) -> None:
        """Make the tokens' positions, which decoders' models give to each layer beside the tables made of them."""
        self.state["positions"] = None if self.positions else f.new((1, length), "int64")

    def kernel(self, package: str) -> bool:
        """Whether an optional package's kernels run; the question itself is remembered."""
        self.asked.add(package)
        self.questions += 1
        return package in self.kernels

    def release(self) -> None:
        """Forget shared tensors when a model's forward returns; checkpointed layers hold theirs until they are done."""
        if self.past is not None:
            self.past.append(self.state)
        self.state = {}
        if self.lasting:
            self.state["lasting"], self.lasting = self.lasting, {}

    def checkpointed(self, index: int) -> bool:
        """Whether layer ``index`` runs under activation checkpointing (every n-th layer)."""
        options = self.checkpointing
        return options.mode != "none" and index % options.every == 0

    def closure(self, block: Any) -> dict[str, Any]:
        """What a checkpointed layer holds until its backward: its own arguments, not what other kinds of layers share.

        A block says what it ``uses``; or its ``kind`` names its mask, and its rotary tables, where there are several.
        """
        state, uses = self.state, getattr(block, "uses", None)
        if uses is not None:
            return {name: state[name] for name in uses}
        masks, kind = state.get("masks"), getattr(block, "kind", None)
        if masks is None or len(masks) < 2 or not isinstance(kind, str) or self.checkpointing.reentrant:
            return state
        own = kind if kind in masks else "full"
        state.setdefault("router", [])
        others = {f"rope:{name}" for name in masks if name != own} | ({"rope"} if f"rope:{own}" in state else set())
        return {**{name: value for name, value in state.items() if name not in others}, "masks": {own: masks[own]}}

    def call(
        self, f: Tape, block: Callable[..., Tensor], index: int, *inputs: Tensor, keywords: tuple[Tensor, ...] = ()
    ) -> Tensor:
        """Run one layer, checkpointed or not; ``keywords`` are in the checkpoint's closure, not among its inputs."""
        if not self.checkpointed(index):
            out = block(f, *inputs, *keywords)
            self.weights = None
            return out

        state = self.closure(block)
        selection = None
        if self.checkpointing.mode == "selective":
            from memlint.estimate.engine.selective import Selection

            selection = Selection(self.checkpointing.save)
        # The policy is a context of the non-reentrant form.
        reentrant = self.checkpointing.reentrant and selection is None
        runs: list[object] = []
        unused: list[tuple[tuple[int, ...], str]] = []

        def run(*again: Tensor) -> Tensor:
            outer, self.state = self.state, state
            # CheckpointFunction holds all outputs; its backward is called with zeros for the one that nobody used.
            zeros = f.new(*unused[0]) if runs and unused else None
            out = block(f, *again)
            self.state, self.weights = outer, None
            if runs:
                if zeros is not None:
                    runs.append((self.left, zeros))
                self.left = None
            elif reentrant and self.left is not None:
                unused.append((self.left.shape, self.left.dtype))
            runs.append(True)
            return out

        options = self.checkpointing
        custom = reentrant and options.mode == "offload"
        how = {"reentrant": reentrant, "offload": options.offload or options.mode == "offload", "custom": custom}
        out = f.checkpoint(run, inputs, **how, selection=selection, keywords=keywords)
        if reentrant and out.node is not None and not (f.graphless or keywords or self.positional):
            # CheckpointFunction keeps its closure in an attribute; one inside of another has nothing else.
            self.lasting.update({name: value for name, value in state.items() if name.startswith(LASTING)})
        return out

    def mask(
        self, f: Tape, rows: int, length: int, dtype: str, window: int | None = None, *, blocks: bool = False
    ) -> Tensor | None:
        """The attention mask that transformers 5.24 makes once per kind of layer (masking_utils.py), or None.

        sdpa skips it without padding and inside the window; eager always has one, in the model's dtype, a row of the
        batch each; sdpa's is boolean, shared over the batch unless it holds padding or ``blocks`` of tokens that see
        one another.
        """
        if self.attention in ("flash", "flex"):
            return None
        wide = window is not None and length >= window
        prefix = self.prefix.tokens if self.prefix is not None and self.prefix.active else 0
        if self.attention == "sdpa" and not self.padding and not wide and not blocks and not prefix:
            return None
        seen = length + prefix
        boolean = f.new((rows if self.padding or self.masked or blocks else 1, 1, length, seen), "bool")
        if wide or self.padding:
            partial = f.new(boolean.shape, "bool")
            del partial
        if self.attention == "eager":
            return f.new((rows, 1, length, seen), dtype)
        if f.one_mask:
            return f.new((rows, 1, length, -(-seen // 16) * 16), f.autocast or dtype)
        return boolean.view(rows, 1, length, seen)

    def name(self, f: Tape, weights: Tensor) -> None:
        """Let the running layer hold its attention weights; in a compiled graph nothing has a name."""
        self.weights = None if f.one_mask else weights

    def named(self, f: Tape, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What a module's names hold until it returns."""
        return () if f.one_mask else tensors

    def cached(self, f: Tape, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values as the cache gives them back, where the forward has one (``use_cache``).

        DynamicCache.update (transformers 5.24 cache_utils.py): cat((nothing yet, new)), held until the outputs die.
        """
        cache = self.state.get("cache")
        if cache is not None:
            k, v = cat(f, k, shape=k.shape), cat(f, v, shape=v.shape)
            cache.append((k.detach(), v.detach()))
        return k, v

    def attend(
        self,
        f: Tape,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        p: float = 0.0,
        *,
        causal: bool = True,
        dense: bool = False,
        softcap: bool = False,
    ) -> Tensor:
        """Attention as the job asks for it: q [B, h, S, D], k and v [B, kv, S, D] -> [B, S, h*D].

        ``dense``: q is contiguous as [B, h, S, D] (a concatenation), not a transposed view of [B, S, h, D].
        """
        joined = self.prefix is not None and self.prefix.active and causal
        if joined:
            assert self.prefix is not None
            k, v = self.prefix.join(f, k, v)
        if self.attention == "eager":
            joined = joined or (causal and self.state.get("cache") is not None)
            out, weights = eager_attention(f, q, k, v, mask, p, softcap=softcap, joined=joined)
            self.name(f, weights)
            return out
        if self.repeats:
            k, v = repeat_kv(f, k, q.shape[1]), repeat_kv(f, v, q.shape[1])
        if self.attention == "sdpa":
            return sdpa(f, q, k, v, mask, causal=causal, capability=self.capability, dense=dense or self.dense, p=p)
        return sdpa(f, q, k, v, None, force="flash", dense=dense)


NO_SDPA = ("gemma2",)
"""Model types for which transformers 5.24 refuses scaled_dot_product_attention (soft-capping) and runs eager by
default.
"""


def _available(attention: str, architecture: Architecture | None) -> str:
    if attention == "sdpa" and architecture is not None and architecture.model_type in NO_SDPA:
        return "eager"
    return attention
