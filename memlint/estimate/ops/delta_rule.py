"""The chunked gated delta rule in PyTorch: qwen3_next, qwen3_5.

Source: transformers 5.24 models/qwen3_next/modeling_qwen3_next.py (torch_chunk_gated_delta_rule), which runs where
flash-linear-attention is not installed. Each chunk of 64 positions keeps its recurrent state [B, h, k, v] in fp32.
"""

from __future__ import annotations

from math import prod

from memlint.estimate.engine.pool import ACTIVATIONS, rounded
from memlint.estimate.engine.tape import Node, Shape, Tape, Tensor
from memlint.estimate.ops.basic import cast, copy, expand_copy, mul, rsqrt, saving_output, scale, shift, slice_of
from memlint.estimate.ops.chunk_scan import copied_back, cumsum, remade
from memlint.estimate.ops.delta_unrecorded import unrecorded_loop
from memlint.estimate.ops.gather import masked_fill, subtract, sum_last
from memlint.estimate.ops.linear import matmul

CHUNK = 64
"""chunk_size of torch_chunk_gated_delta_rule."""


def l2norm(f: Tape, x: Tensor) -> Tensor:
    """``x * rsqrt((x * x).sum(-1, keepdim=True) + eps)``."""
    inverse = rsqrt(f, shift(f, sum_last(f, mul(f, x, x))))
    return mul(f, x, inverse)


def _solve_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # linalg_solve_triangular_backward: a solve for b; for A a product, negated, its lower triangle.
    grad_b = f.new(node.shapes[1][0], grad.dtype)
    shape = node.shapes[0][0]
    product = f.new(shape, grad.dtype)
    negative = f.new(shape, grad.dtype)
    del product
    lower = f.new(shape, grad.dtype)
    del negative
    return lower, grad_b


def solve_triangular(f: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``torch.linalg.solve_triangular(a, b)``: saves a and its result."""
    recorded = f.needs(a, b)
    out = f.like(b)
    return f.record(out, _solve_backward, (a, b), f.save(a, out)) if recorded else out


def _arrival_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # CopySlices of the last chunk: the gradient copied whole, a chunk of it cloned and zeroed.
    out = f.like(grad)
    part, zeros = f.new(node.meta, grad.dtype), f.new(node.meta, grad.dtype)
    del part, zeros
    return (out,)


def _loop_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # From the last chunk to the first: the first step makes the five full-sized gradients, the following ones make one
    # more at a time and add it; the states of a chunk go with its step.
    chunks, state, part, plain = node.meta
    if plain:
        return _chunks_backward(f, node, grad)
    saved = list(node.saved)
    node.saved = ()
    shapes = [shape for shape, _ in node.shapes]
    made: dict[int, Tensor] = {}
    arriving = f.new(part, "fp32")
    held = f.new(part, "fp32")
    for index in (2, 3, 0, 1, 4):
        made[index] = f.new(shapes[index], "fp32")
    if saved:
        saved.pop()
    if chunks > 1:
        carried = f.new(state, "fp32")
        more = f.new(shapes[3], "fp32")
        del carried, more
    del arriving, held
    saved.clear()
    return tuple(made[index] for index in range(5))


def _chunks_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The same node by node, where nothing is cast or copied for the products.

    A chunk's product gives a gradient of its own size, of which select makes a full-sized one; it is added to that of
    the later chunks in place. What a chunk has saved goes with the node that needs it.
    """
    chunks, state, part, _ = node.meta
    (values, _), (decayed, _), (inner, _), (query, _), (key, _) = node.shapes
    square, wide = (*part[:-1], inner[-1]), (*part[:-1], query[-1])
    saved = list(node.saved)
    node.saved = ()
    saved.pop()
    saved.pop()
    rows, states = rounded(4 * prod(part)), rounded(4 * prod(state))
    whole: dict[int, Tensor] = {}
    current: Tensor | None = None
    carried = update = None
    pairs: Tensor | None = None
    # From the third on a chunk does what the one before did, with less still saved.
    for chunk in sorted({*range(max(0, chunks - 3), chunks), *range(min(2, chunks))}, reverse=True):
        first, left = chunk == 0, (chunk + 1) * (rows + states)
        pairs = None
        pairs = f.new((left,), "uint8", ACTIVATIONS)
        following = f.like(grad) if chunk < chunks - 1 else None
        arriving: Tensor | None = f.new(part, "fp32")
        if following is not None:
            if not first:
                zeros = f.new(part, "fp32")
                del zeros
            grad.storage = None
            current = None if first else following
            del following
        # inner @ v_new
        piece = f.new(square, "fp32")
        new = f.new(part, "fp32")
        pairs = None
        left -= rows
        pairs = f.new((left,), "uint8", ACTIVATIONS)
        if first:
            saved[0 if chunks == 1 else 1] = None
        if update is not None:
            total = f.new(part, "fp32")
            new, update = total, None
            del total
        whole.setdefault(2, f.new(inner, "fp32"))
        del piece
        # query @ state
        of_state = None if first else f.new(state, "fp32")
        piece = f.new(wide, "fp32")
        arriving = None
        if chunk == 1:
            saved[2] = None
        if of_state is not None and carried is not None:
            carried, of_state = f.new(state, "fp32"), None
        elif of_state is not None:
            carried, of_state = of_state, None
        whole.setdefault(3, f.new(query, "fp32"))
        del piece
        # v_new = values - decayed @ state
        negative: Tensor | None = f.new(part, "fp32")
        of_state = None if first else f.new(state, "fp32")
        piece = f.new(wide, "fp32")
        negative = pairs = None
        left -= states
        pairs = f.new((left,), "uint8", ACTIVATIONS)
        if chunk == 1:
            saved[0] = None
        if of_state is not None:
            carried, of_state = f.new(state, "fp32"), None
        whole.setdefault(1, f.new(decayed, "fp32"))
        del piece
        whole.setdefault(0, f.new(values, "fp32"))
        del new
        if first:
            break
        # state = state * decay + key @ v_new, of the chunk before
        update = f.new(part, "fp32")
        piece = f.new(wide, "fp32")
        if chunk == 1:
            saved[3] = None
        whole.setdefault(4, f.new(key, "fp32"))
        del piece
        before = f.new(state, "fp32") if chunk > 1 else None
        summed = f.new(state, "fp32")
        del summed
        carried = before
        del before
    del current, arriving, negative, pairs
    saved.clear()
    return tuple(whole.get(index) for index in range(5))


def chunk_loop(
    f: Tape,
    values: Tensor,
    decayed: Tensor,
    inner: Tensor,
    query: Tensor,
    key: Tensor,
    decay: Tensor | None,
    *,
    strided: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The recurrence over chunks: -> the output [b, h, c, l, v], and what the caller's frame still holds.

    ``strided``: a chunk of query or key has to be copied for its product, and the copy is kept instead of the whole.
    Autocast's half copies are dense.
    """
    b, h, chunks, length, width = values.shape
    state: Shape = (b, h, query.shape[-1], width)
    part: Shape = (b, h, length, width)
    out = f.like(values)
    plain = f.autocast is None and not strided
    final = pair = rounded(4 * prod(state)) + rounded(4 * prod(part))
    whole: tuple[Tensor, ...] = (decayed, inner, query, key)
    if f.autocast is not None:
        # Each product takes half copies of its operands and keeps them; the state stays in fp32 for its decay. The
        # first state needs no gradient, and the last update of the state is never used.
        rows = prod(part) // width
        wide, half = rounded(2 * rows * query.shape[-1]), rounded(2 * prod(part))
        pair = (
            rounded(4 * prod(state)) + 2 * rounded(2 * prod(state)) + 2 * half + 3 * wide + rounded(2 * rows * length)
        )
        final = pair - rounded(4 * prod(state)) - half - wide
        # Beside a first state without gradient its two factors are not kept.
        final -= 2 * wide
        whole = ()
    elif strided:
        pair += 2 * rounded(4 * (prod(part) // width) * query.shape[-1])
        whole = (decayed, inner)
    if chunks == 1:
        # The only state is the first one, and its update is never used.
        whole = () if f.autocast is not None else (inner,)
        decay = None
    kept = [f.buffer(pair * (chunks - 1), hollow=pair), f.new((final,), "uint8")]
    saved = f.save(*whole, decay, *kept)
    transient = [f.new(part, "fp32"), f.new(state, "fp32")]
    del transient
    out = f.record(out, _loop_backward, (values, decayed, inner, query, key), saved, (chunks, state, part, plain))
    out = f.record(Tensor(out.shape, out.dtype, out.storage), _arrival_backward, (out,), (), part)
    return out, (f.new(part, "fp32"),)


def delta_rule(f: Tape, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """query and key [b, S, hk, k], value [b, S, hv, v], g and beta [b, S, hv] -> [b, S, hv, v] in query's dtype."""
    dtype = query.dtype
    b, s, heads, width = value.shape
    k = query.shape[-1]
    if query.shape[2] != heads:
        query, key = expand_copy(f, query, (b, s, heads, k)), expand_copy(f, key, (b, s, heads, k))
    query, key, value, beta, g = [cast(f, t, "fp32") for t in (query, key, value, beta, g)]
    query, key, value = query.view(b, heads, s, k), key.view(b, heads, s, k), value.view(b, heads, s, width)
    query = l2norm(f, query)
    key = l2norm(f, key)
    query = scale(f, query)
    total = -(-s // CHUNK) * CHUNK
    chunks = total // CHUNK
    # Nothing was cast and nothing is padded: the tensors are still transposed views, which every product copies.
    strided = dtype == "fp32" and total == s
    query, key, value = [remade(f, t, (b, heads, total, t.shape[-1])) for t in (query, key, value)]
    beta, g = [remade(f, t.view(b, heads, s), (b, heads, total)) for t in (beta, g)]
    rate = beta.view(b, heads, total, 1)
    v_beta, k_beta = mul(f, value, rate), mul(f, key, rate)
    query, key = query.view(b, heads, chunks, CHUNK, k), key.view(b, heads, chunks, CHUNK, k)
    k_beta = copied_back(f, k_beta, (b, heads, chunks, CHUNK, k))
    v_beta = copied_back(f, v_beta, (b, heads, chunks, CHUNK, width))
    g = g.view(b, heads, chunks, CHUNK)
    mask = f.new((CHUNK, CHUNK), "bool")
    total_decay = cumsum(f, g)
    pairs = subtract(f, total_decay.view(b, heads, chunks, CHUNK, 1), total_decay.view(b, heads, chunks, 1, CHUNK))
    pairs = masked_fill(f, pairs, mask)
    pairs = saving_output(f, pairs)
    system = mul(f, matmul(f, k_beta, key, CHUNK, copy_a=strided, copy_b=strided), pairs)
    inner = mul(f, matmul(f, query, key, CHUNK, copy_a=strided, copy_b=strided), pairs)
    wide = (b, heads, chunks, CHUNK, 1)
    decayed_beta = mul(f, k_beta, saving_output(f, total_decay).view(*wide))
    values = solve_triangular(f, system, v_beta)
    decayed = solve_triangular(f, system, decayed_beta)
    graph = f.needs(values, decayed, inner, query, key)
    first: list[Tensor] = []
    if not graph:
        # Of tensors that a graph does not keep, what is there while the next ones are made matters.
        first, out = [f.new((b, heads, k, width), "fp32")], f.like(values)
    query = mul(f, query, saving_output(f, total_decay).view(*wide))
    if chunks == 1:
        # What only the update of the state has needs no gradient, and goes when this function returns.
        total_decay, key = total_decay.detach(), key.detach()
    last = slice_of(f, total_decay, (b, heads, chunks, 1))
    key = mul(f, key, saving_output(f, subtract(f, last, total_decay)).view(*wide))
    decay = saving_output(f, slice_of(f, total_decay, (b, heads, chunks)))
    copies = strided and b > 1
    held: tuple[Tensor, ...]
    if graph:
        out, held = chunk_loop(f, values, decayed, inner, query, key, decay, strided=copies)
    else:
        last, held = unrecorded_loop(f, first, (b, heads, CHUNK, width), chunks, strided=copies)
    out = copy(f, out, (b, heads, total, width))
    if total > s:
        out = slice_of(f, out, (b, heads, s, width))
    result = cast(f, out, dtype) if dtype != "fp32" else copy(f, out)
    del held, v_beta, k_beta, decayed_beta, mask, rate, last
    return result.view(b, s, heads, width)
