"""The part of a PPO update in which completions are generated and scored, without gradients.

Sources: TRL 1.12 ``experimental/ppo/ppo_trainer.py`` (generate, batch_generation, train), LLaMA-Factory 0.9.5
``train/ppo/trainer.py``, transformers 5.24 ``generation/utils.py`` (_sample, _prefill) and ``cache_utils.py``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Sequence

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import ACTIVATIONS, COMMUNICATION, INPUTS, LOGITS, TEMPORARIES, rounded
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Batch
from memlint.estimate.errors import Unsupported
from memlint.estimate.heads import matrix_of
from memlint.estimate.ops.basic import slice_of
from memlint.estimate.outputs import Outputs, held_by_the_next
from memlint.estimate.records import Record
from memlint.models.architecture import Architecture
from memlint.units import DTYPE_BYTES

Model = tuple[Any, Any]
"""Body and head."""


def roll_out(model: Any, f: Tape, phase: Callable[[str], None]) -> None:
    """Run the phases ``generation`` and ``scoring`` of a model that trains with PPO.

    Raises:
        Unsupported: its family has no model of them.
    """
    ppo = getattr(model, "ppo", None)
    if ppo is None:
        raise Unsupported("no memory model of PPO for this family yet")
    training = model.job.training
    if training.gradient_accumulation_steps > 1 and not training.optimizer_in_backward:
        # A layer that the rollout runs for the first time has gradients in training as the others have.
        for leaf in model.leaves():
            leaf.grad = True
    gathered = gathered_bytes(model.build)
    f.pool.begin()
    f.pool.add(gathered, COMMUNICATION)

    def over(name: str) -> None:
        phase(name)
        if name == "generation":
            f.pool.add(-gathered, COMMUNICATION)

    ppo.roll_out(f, over)


def gathered_bytes(build: Build) -> int:
    """ZeRO-3: what is trained, and the frozen base under its adapter, is whole on every GPU while it generates.

    TRL 1.12 models/utils.py unwrap_model_for_generation (``ds3_gather_for_generation``, on by default) and 0.9.6:
    deepspeed.zero.GatheredParameters(model.parameters()), the value model's too.
    """
    zero = build.sharding.zero
    if zero is None or zero.stage != 3:
        return 0
    return sum(
        [r.count * rounded(size) for r in build.records if (r.base or r.trainable) and not r.host for size in r.blocks]
    )


def batch_of(f: Tape, rows: int, length: int, *, padding: bool) -> Batch:
    """ids and, where rows are padded, the mask that goes with them: [rows, length] int64 each."""
    shape = (rows, length)
    return Batch(
        ids=f.new(shape, "int64", INPUTS), labels=None, mask=f.new(shape, "int64", INPUTS) if padding else None
    )


class Keeping:
    """A body whose every hidden state lives until :meth:`forget` (``output_hidden_states``), and its keys and values
    (``use_cache``) as long as they are held.
    """

    def __init__(self, a: Architecture, body: Any) -> None:
        self.a, self.body = a, body
        self.env = body.env
        layers = getattr(body, "layers", None)
        self.layers = layers if hasattr(layers, "keeps") else None
        self.owed = 0
        """Bytes of the last layer's output, where something else than this list holds it."""

    def __call__(self, f: Tape, batch: Batch, *, hidden: bool, cache: bool) -> tuple[Tensor, list[Any]]:
        """The last hidden states [B, S, H], and keys and values of every layer, for the caller to hold."""
        kept: list[Any] = []
        if cache:
            self.env.state["cache"] = kept
        if self.layers is not None:
            self.layers.keeps = self.layers.keeps_first = hidden
        out = self.body(f, batch)
        if cache and not kept and not f.grad_enabled:
            # This family's code has no cache; where gradients are kept, so are keys and values.
            kept.append(f.new((cache_bytes(self.a, batch.rows, batch.length, out.dtype),), "uint8"))
        if self.layers is not None and hidden:
            # The last one is the normalised state: the last layer's own output is not kept.
            self.owed = self.layers.outputs.drop_last(f)
        return out, kept

    def outliving(self, f: Tape, out: Tensor) -> Tensor:
        """The last hidden states of a forward whose others outlive its backward."""
        owed, self.owed = self.owed, 0
        return f.record(out.detach(), _let_go, (out,), (), owed) if owed and out.node is not None else out

    def given(self) -> Tensor | None:
        """What the first layer was given, where that is kept."""
        return None if self.layers is None else self.layers.outputs.given

    def forget(self, f: Tape) -> None:
        """Let the hidden states go."""
        if self.layers is not None:
            self.layers.outputs.forget(f, f.grad_enabled and held_by_the_next(self.env.checkpointing))

    def taken(self, f: Tape) -> Callable[[], None]:
        """Set the hidden states aside: what lets them go, after another forward has kept its own."""
        layers = self.layers
        kept = Outputs()
        if layers is not None:
            kept, layers.outputs = layers.outputs, kept
        return partial(kept.forget, f)


def _let_go(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # The norm behind has the last layer's output to itself, and its backward frees it.
    f.pool.add(-node.meta, ACTIVATIONS)
    return (grad,)


def generate(
    f: Tape, policy: Keeping, head: Any, rows: int, prompt: int, completion: int, decoding: Decoding, *, padding: bool
) -> Tensor:
    """One call of ``model.generate`` with ``output_scores``: the stacked logits [rows, completion, V] in fp32.

    The prompt's forward fills the cache; each further token adds one entry, which ``torch.cat`` copies. The scores of
    every position are fp32 copies; they, their stack and the cache are alive together. While the last token is
    computed, the logits and probabilities of the one before stand beside the scores.
    """
    cache = cached(f, policy, head, rows, prompt, completion, padding=padding)
    vocabulary = matrix_of(head.head).shape[0]
    f.pool.touch(4 * (completion + 1) * rows * vocabulary + decoding.bytes(rows), TEMPORARIES)
    scores = f.new((completion, rows, vocabulary), "fp32", LOGITS)
    stacked = f.new((rows, completion, vocabulary), "fp32", LOGITS)
    del scores, cache
    return stacked


def cached(f: Tape, policy: Keeping, head: Any, rows: int, prompt: int, completion: int, *, padding: bool) -> Tensor:
    """The cache when the last token is sampled: the prompt's forward has run, and the step that copies the most."""
    batch = batch_of(f, rows, prompt, padding=padding)
    hidden, kept = policy(f, batch, hidden=False, cache=True)
    last = slice_of(f, hidden, (rows, 1, hidden.shape[-1]))
    del hidden
    logits = head.logits(f, last)
    vocabulary = matrix_of(head.head).shape[0]
    # The sampled row: its copy in fp32, its scores, their softmax (_sample).
    f.pool.touch(3 * 4 * rows * vocabulary, LOGITS)
    del logits, last
    size = held_bytes(f, kept)
    del kept
    total = size * (prompt + completion - 1) // prompt
    cache = f.new((total,), "uint8", ACTIVATIONS)
    # One layer's keys (or values) are copied into a tensor one longer while the old one lives.
    f.pool.touch(total // (2 * policy.a.num_hidden_layers), TEMPORARIES)
    return cache


CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts")
"""Config fields that say to how many experts a token goes."""


class Decoding:
    """What a mixture's layer holds of its experts while one more token of each row is computed.

    On CUDA ``generate`` switches from grouped_mm to batched_mm there (transformers 5.0 to 5.24 generation/utils.py
    _optimize_model_for_decode), which copies an expert's matrices for each token that goes to it (integrations/moe.py
    batched_mm_experts_forward): the second one while the first copy still has its name. PEFT's ParamWrapper makes the
    sums of adapted matrices before.
    """

    def __init__(self, a: Architecture, records: Sequence[Record]) -> None:
        chosen = next((int(a.get(name)) for name in CHOSEN if a.get(name)), 0)
        whole = [r for r in records if r.base and not r.host and len(r.shape) == 3 and r.dtype in DTYPE_BYTES]
        matrices = {r.name: r for r in whole if ".experts." in r.name}
        self.layers: dict[str, tuple[int, int]] = {}
        """Of each layer, bytes for every token and bytes that stand beside them."""
        for name, r in matrices.items():
            self._add(name, chosen * sum(r.blocks) // r.shape[0], 0)
        for r in records:
            name, _, factor = r.name.rpartition(".")
            owner = matrices.get(name)
            if owner is not None and not r.base:
                cast = 0 if r.dtype == owner.dtype else DTYPE_BYTES[owner.dtype] * r.numel
                self._add(name, 0, cast + (sum(owner.blocks) if factor == "lora_A" else 0))

    def _add(self, name: str, each: int, beside: int) -> None:
        layer = name.rpartition(".experts.")[0]
        before = self.layers.get(layer, (0, 0))
        self.layers[layer] = before[0] + each, before[1] + beside

    def bytes(self, rows: int) -> int:
        """The most of any layer."""
        return max((rows * size + whole for size, whole in self.layers.values()), default=0)


def held_bytes(f: Tape, held: list[Any]) -> int:
    """Let go of what a list holds and say how many bytes that were."""
    before = f.pool.live
    held.clear()
    return before - f.pool.live


def cache_bytes(a: Architecture, rows: int, length: int, dtype: str) -> int:
    """Keys and values of all layers for so many tokens, where the family's code does not make them.

    DeepSeek's latent attention caches expanded heads (transformers 5.24 modeling_deepseek_v3.py).
    """
    heads = int(a.get("num_attention_heads") or 1)
    width = int(a.get("head_dim") or a.hidden_size // heads)
    each = 2 * int(a.get("num_key_value_heads") or heads) * width
    if a.get("kv_lora_rank"):
        key = int(a.get("qk_nope_head_dim") or width) + int(a.get("qk_rope_head_dim") or 0)
        each = heads * (key + int(a.get("v_head_dim") or width))
    return a.num_hidden_layers * rows * length * each * DTYPE_BYTES[dtype]
