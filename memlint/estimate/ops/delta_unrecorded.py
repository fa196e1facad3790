"""The gated delta rule's loop over chunks where nothing is recorded: evaluations, generation, references.

Source: transformers 5.24 models/qwen3_next/modeling_qwen3_next.py (torch_chunk_gated_delta_rule).
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Shape, Tape, Tensor


def _times(f: Tape, left: Shape, right: Shape, shape: Shape, copied: Shape | None = None) -> Tensor:
    """``left @ right`` without a graph: of ``shape``, from half copies under autocast, or a copy of one operand."""
    copies = [f.new(operand, f.autocast) for operand in (left, right)] if f.autocast is not None else []
    if copied is not None and not copies:
        copies.append(f.new(copied, "fp32"))
    product = f.new(shape, f.autocast or "fp32")
    copies.clear()
    return product


def unrecorded_loop(
    f: Tape, first: list[Tensor], part: Shape, chunks: int, *, strided: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The recurrence without a graph: -> its last state, and the frame's variables of the last chunk.

    The state before, its decayed copy, the update and the sum of both are there at once, beside what the chunk has read
    from the state and what it has corrected. ``first`` gives away the state that it holds.
    """
    last = first.pop()
    state, length = last.shape, part[-2]
    wide, square = (*part[:-1], state[-2]), (*part[:-1], length)
    new = inter = None
    for _ in range(min(chunks, 2)):
        product = _times(f, wide, state, part)
        new = f.new(part, "fp32")
        del product
        inter = _times(f, wide, state, part, wide if strided else None)
        product = _times(f, square, part, part)
        total = f.like(product)
        del product, total
        faded = f.like(last)
        product = _times(f, wide, part, state, wide if strided else None)
        last = f.like(last)
        del faded, product
    assert new is not None and inter is not None
    return last, (new, inter)
