"""From token embeddings to a contrastive loss: pooling, cosine similarity and its softmax.

Sources: sentence-transformers 6.2 ``sentence_transformer/modules/pooling.py``, ``util/{similarity,tensor}.py`` and
``sentence_transformer/losses/multiple_negatives_ranking.py``; torch 2.13 derivatives.yaml.
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import cast, copy, mul, scale
from memlint.estimate.ops.convolutions import vector_norm
from memlint.estimate.ops.gather import clamp, divide, expand
from memlint.estimate.ops.views import gather, index

HALVES = ("bf16", "fp16")


def _expanded(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # sum_backward: the gradient expanded, a view; validate_outputs casts it to the summed tensor's dtype.
    return (Tensor(node.meta, grad.dtype, grad.storage),)


def _sum_tokens(f: Tape, x: Tensor, dtype: str) -> Tensor:
    """``x.sum(dim=1, dtype=...)`` of x [B, S, H]."""
    out = f.new((x.shape[0], x.shape[2]), dtype)
    return f.record(out, _expanded, (x,), (), x.shape) if f.needs(x) else out


def _over_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.like(grad),)


def _over(f: Tape, x: Tensor, count: Tensor) -> Tensor:
    """``x / count`` by numbers that need no gradient: saves them alone."""
    saved = f.save(count) if f.needs(x) else ()
    out = f.like(x)
    return f.record(out, _over_backward, (x,), saved) if f.needs(x) else out


def mean_of_tokens(f: Tape, x: Tensor) -> Tensor:
    """Pooling's ``mean``: x [B, S, H] times the mask, summed and divided in fp32 -> [B, H]."""
    rows, length, _ = x.shape
    exact = "fp32" if x.dtype in HALVES else x.dtype
    mask = f.new((rows, length, 1), x.dtype)
    total = _sum_tokens(f, mul(f, x, mask), exact)
    count = f.new((rows, 1), exact)
    pooled = cast(f, _over(f, total, count), x.dtype)
    return copy(f, pooled)


def first_token(f: Tape, x: Tensor) -> Tensor:
    """Pooling's ``cls``: the first token that is none of padding, gathered -> [B, H]."""
    rows, _, width = x.shape
    at = f.new((rows,), "int64")
    return copy(f, gather(f, x, at, (rows, width)))


def last_token(f: Tape, x: Tensor) -> Tensor:
    """Pooling's ``lasttoken``: gathered from the tokens times a mask that is as large as they are -> [B, H]."""
    rows, _, width = x.shape
    at = f.new((rows,), "int64")
    mask = f.new(x.shape, x.dtype)
    return copy(f, gather(f, mul(f, x, mask), at, (rows, width)))


POOLINGS = {"mean": mean_of_tokens, "cls": first_token, "last-token": last_token}
"""``training.pooling`` -> token embeddings [B, S, H] to [B, H]."""


def unit(f: Tape, x: Tensor) -> Tensor:
    """``F.normalize(x, dim=-1)`` of x [N, H], in fp32 (util/tensor.py _convert_to_float_tensor)."""
    return normalised(f, cast(f, x, "fp32"))


def normalised(f: Tape, x: Tensor) -> Tensor:
    """``F.normalize(x, dim=-1)`` of x [N, H]."""
    length = clamp(f, vector_norm(f, x, (x.shape[0], 1)), 1)
    return divide(f, x, expand(f, length, x.shape))


def _joined(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    return tuple([Tensor(shape, grad.dtype, grad.storage) for shape, _ in node.shapes])


def stacked(f: Tape, parts: list[Tensor], made: Tensor | None = None) -> Tensor:
    """``torch.cat(parts, dim=0)``; ``made``: its result is there, and backward goes through it once more."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    out = f.new(shape, parts[0].dtype) if made is None else made.detach()
    return f.record(out, _joined, tuple(parts)) if f.needs(*parts) else out


def _logsumexp_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # grad * (self - result).exp()
    shape: Shape = node.meta
    shifted = f.new(shape, grad.dtype)
    weights = f.new(shape, grad.dtype)
    del shifted
    out = f.new(shape, grad.dtype)
    del weights
    return (out,)


def log_sum_exp(f: Tape, x: Tensor) -> Tensor:
    """``torch.logsumexp(x, dim=1)``: saves its input and its result."""
    # logsumexp_out_impl: the shifted input, whose exponentials are taken in place.
    shifted = f.like(x)
    del shifted
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    out = f.new(x.shape[:1], x.dtype)
    return f.record(out, _logsumexp_backward, (x,), saved + f.save(out), x.shape) if recorded else out


def ranking_loss(f: Tape, queries: Tensor, positives: Tensor, documents: Tensor, rows: int) -> Tensor:
    """The mean over ``rows`` of log-sum-exp of all documents' similarities less that of the own positive.

    queries, positives [B, H], documents [D, H], all documents of the batch.
    """
    ids, others = f.new((rows,), "int64"), f.new((rows,), "int64")
    width = queries.shape[1]
    local, unused = index(f, queries, (rows, width), ids), index(f, positives, (rows, width), ids)
    similar = _product(f, unit(f, local), unit(f, documents))
    similar = scale(f, similar)
    own = index(f, similar, (rows,), others)
    scores = copy(f, similar)
    total = log_sum_exp(f, scores)
    loss = _mean_difference(f, own, total)
    del local, unused
    return loss


def _product_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = node.saved
    first = f.new(node.shapes[0][0], grad.dtype) if b is not None else None
    return first, f.new(node.shapes[1][0], grad.dtype) if a is not None else None


def _product(f: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``torch.mm(a, b.T)``."""
    recorded = f.needs(a, b)
    saved = f.save(a if b.node is not None else None, b if a.node is not None else None) if recorded else ()
    out = f.new((a.shape[0], b.shape[0]), a.dtype)
    return f.record(out, _product_backward, (a, b), saved) if recorded else out


def _difference_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    return f.new(node.shapes[0][0], grad.dtype), f.new(node.shapes[1][0], grad.dtype)


def _mean_difference(f: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``-(a - b).mean()``."""
    out = f.new((), b.dtype)
    return f.record(out, _difference_backward, (a, b)) if f.needs(a, b) else out
