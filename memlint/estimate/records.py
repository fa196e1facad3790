"""Parameters as they are recorded while a model is built, and as the optimizer sees them."""

from __future__ import annotations

from math import prod
from typing import Sequence

from memlint.estimate.engine.pool import rounded
from memlint.records import dataclass
from memlint.units import DTYPE_BYTES


@dataclass(slots=True)
class Record:
    """One parameter tensor, or ``count`` equal ones in equal layers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    grad_dtype: str
    count: int
    blocks: tuple[int, ...]
    """Bytes of each storage that makes it up (a quantised weight has its statistics beside it), not rounded."""
    base: bool = True
    """Part of the model itself rather than of an adapter."""
    idle: bool = False
    """Takes no part in the step (a tower without images): no gradient, so no optimizer states."""
    rank: int = 0
    """Of the space in which GaLore or APOLLO steps it; 0: in its own."""
    host: bool = False
    """An expert's, which no GPU has (host_experts.py)."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        trainable: bool,
        grad_dtype: str,
        count: int,
        blocks: tuple[int, ...],
        base: bool = True,
        idle: bool = False,
        rank: int = 0,
        host: bool = False,
    ) -> None:
        # Written out, since hundreds are made for an estimate.
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.trainable = trainable
        self.grad_dtype = grad_dtype
        self.count = count
        self.blocks = blocks
        self.base = base
        self.idle = idle
        self.rank = rank
        self.host = host

    @property
    def numel(self) -> int:
        """Elements of one tensor."""
        return prod(self.shape)


def whole_bytes(records: Sequence[Record]) -> int:
    """Bytes of parameters on a GPU that holds them undivided."""
    return sum([r.count * ((size + 511) & ~511) for r in records if not r.host for size in r.blocks])


@dataclass(frozen=True, slots=True)
class Slot:
    """One trainable tensor as the optimizer sees it (its shard or master copy), ``count`` times."""

    shape: tuple[int, ...]
    dtype: str
    grad_dtype: str
    count: int
    matrix: bool = True
    """Still has the parameter's own dimensions (a flat partition has not)."""
    after: int = 0
    """Elements of what stands before it among the trained ones; of equal ones, the most."""
    rank: int = 0
    """See :class:`Record`."""
    table: bool = False
    """An embedding or the head, by the name that optimizers know them by."""
    fp32_states: bool = False
    """An embedding whose states an 8-bit optimizer of bitsandbytes keeps in 32 bits."""

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Rounded bytes of the parameter tensor."""
        return rounded(self.numel * DTYPE_BYTES[self.dtype])

    @property
    def grad_bytes(self) -> int:
        """Rounded bytes of its gradient."""
        return rounded(self.numel * DTYPE_BYTES[self.grad_dtype])


EMBEDDINGS = frozenset(
    (
        "embed_tokens", "embed_tokens_per_layer", "embed_positions", "wte", "wpe", "embeddings", "word_embeddings",
        "position_embeddings", "token_type_embeddings", "token_embedding", "position_embedding", "embed_in",
        "tokens_embed", "positions_embed", "tok_embeddings", "shared", "relative_attention_bias", "rel_embeddings",
        "pos_embed", "tile_embedding", "embedding", "visual_embeddings_table",
    )
)  # fmt: skip
"""Last names of the modules of transformers 5.24 that are ``nn.Embedding`` and have a weight of their own."""


_Key = tuple[tuple[int, ...], str, str, int, bool, bool]


def is_embedding(record: Record) -> bool:
    """Whether a tensor is the table of an ``nn.Embedding``, by its name in the checkpoint."""
    module, _, leaf = record.name.rpartition(".")
    return leaf == "weight" and len(record.shape) == 2 and module.rpartition(".")[2] in EMBEDDINGS


def slots_of(records: Sequence[Record], *, fp32_embedding_states: bool = False) -> list[Slot]:
    """Trainable tensors of a model, equal ones together."""
    counts: dict[_Key, int] = {}
    after: dict[_Key, int] = {}
    before = 0
    for record in records:
        if record.trainable and not record.idle and not record.host:
            table = "embed" in record.name or "lm_head" in record.name
            apart = fp32_embedding_states and is_embedding(record)
            key = record.shape, record.dtype, record.grad_dtype, record.rank, table, apart
            counts[key] = counts.get(key, 0) + record.count
            after[key] = max(after.get(key, 0), before)
            before = record.numel
    return [
        Slot(key[0], key[1], key[2], count, after=after[key], rank=key[3], table=key[4], fp32_states=key[5])
        for key, count in counts.items()
    ]
