"""Where the values of a dense tensor lie: which reshapes are views, and in which order elementwise results are written.

A layout is the sizes of a tensor and the steps between neighbours along each dimension, in elements. Sources: ATen of
torch 2.13, TensorUtils.cpp (computeStride_impl), TensorIterator.cpp (reorder_dimensions) and native/Linear.cpp (einsum,
sumproduct_pair).
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

Sizes = tuple[int, ...]


class Layout(NamedTuple):
    """Sizes and strides of a tensor."""

    sizes: Sizes
    strides: Sizes

    def permuted(self, *order: int) -> Layout:
        """``permute``: dimension ``order[i]`` in the place of i."""
        return Layout(tuple([self.sizes[i] for i in order]), tuple([self.strides[i] for i in order]))

    def narrowed(self, dim: int, size: int) -> Layout:
        """The first, or the last, ``size`` of a dimension."""
        return Layout((*self.sizes[:dim], size, *self.sizes[dim + 1 :]), self.strides)

    def unsqueezed(self) -> Layout:
        """``[..., None]``."""
        return Layout((*self.sizes, 1), (*self.strides, 1))


def dense(sizes: Sizes) -> Layout:
    """A contiguous tensor."""
    strides, step = [1] * len(sizes), 1
    for dim in range(len(sizes) - 1, -1, -1):
        strides[dim] = step
        step *= max(1, sizes[dim])
    return Layout(sizes, tuple(strides))


def viewed(layout: Layout, sizes: Sizes) -> Layout | None:
    """``view``: None where the values lie so that ``reshape`` has to copy them (computeStride_impl).

    Neighbouring dimensions merge where one step along the outer is as long as the whole inner one; a dimension of size
    one merges with any.
    """
    strides = [0] * len(sizes)
    at = len(sizes) - 1
    step = layout.strides[-1]
    run = places = 1
    for dim in range(len(layout.sizes) - 1, -1, -1):
        run *= layout.sizes[dim]
        outer = layout.sizes[dim - 1] if dim else 1
        if dim and (outer == 1 or layout.strides[dim - 1] == run * step):
            continue
        while at >= 0 and (places < run or sizes[at] == 1):
            strides[at] = places * step
            places *= sizes[at]
            at -= 1
        if places != run:
            return None
        if dim:
            step, run, places = layout.strides[dim - 1], 1, 1
    return Layout(sizes, tuple(strides)) if at == -1 else None


def copied(layout: Layout, sizes: Sizes) -> bool:
    """Whether ``reshape`` copies."""
    return viewed(layout, sizes) is None


def _belongs_outside(a: int, b: int, sizes: Sizes, operands: list[Sizes]) -> bool | None:
    """Whether dimension a, now inside of b, belongs outside of it (should_swap); None where no operand says."""
    for strides in operands:
        first, second = strides[a], strides[b]
        if first == 0 or second == 0:
            continue
        if first != second:
            return first > second
        if sizes[a] > sizes[b]:
            return True
    return None


def elementwise(*operands: Layout) -> Layout:
    """Result of an elementwise operation of operands of one rank: in the order of the first that has one."""
    sizes = tuple([max(column) for column in zip(*[operand.sizes for operand in operands])])
    steps = [
        tuple([0 if size != whole else step for size, whole, step in zip(o.sizes, sizes, o.strides)]) for o in operands
    ]
    if all(o.sizes == sizes and o.strides == operands[0].strides for o in operands) and _filled(operands[0]):
        return operands[0]
    order = list(range(len(sizes) - 1, -1, -1))
    for place in range(1, len(order)):
        inner = place
        for before in range(place - 1, -1, -1):
            swaps = _belongs_outside(order[before], order[inner], sizes, steps)
            if swaps:
                order[before], order[inner] = order[inner], order[before]
                inner = before
            elif swaps is False:
                break
    strides, step = [0] * len(sizes), 1
    for dim in order:
        strides[dim] = step
        step *= sizes[dim]
    return Layout(sizes, tuple(strides))


def _filled(layout: Layout) -> bool:
    """Without gaps or overlaps."""
    span = 1 + sum([(size - 1) * step for size, step in zip(layout.sizes, layout.strides)])
    return span == prod(layout.sizes) and 0 not in [st for st, si in zip(layout.strides, layout.sizes) if si > 1]


class Contraction:
    """``torch.einsum`` of two operands without repeated labels or an ellipsis, folded for one bmm (sumproduct_pair).

    What both have and the result keeps comes first, then what the left has, and what the right has; each group becomes
    one dimension of the bmm, and an operand that does not lie so is copied. A dimension of size one counts as the
    right's. Where all of the right's come before the left's in the result, the operands change places.
    """

    def __init__(self, equation: str, a: Layout, b: Layout) -> None:
        operands, self.labels = equation.split("->")
        first, second = operands.split(",")
        left, right = _Operand(first, a), _Operand(second, b)
        both = [x for x in self.labels if left.size(x) != 1 and right.size(x) != 1]
        own = [x for x in self.labels if left.size(x) != 1 and right.size(x) == 1]
        other = [x for x in self.labels if left.size(x) == 1]
        summed = sorted(set(first) & set(second) - set(self.labels))
        self.swapped = bool(own and other) and self.labels.index(other[-1]) < self.labels.index(own[0])
        if self.swapped:
            left, right, own, other = right, left, other, own
        self.groups = both, own, other
        left.fold((both, own, summed), other)
        right.fold((both, summed, other), own)
        self.left, self.right = left, right
        self.copies = (right.copied, left.copied) if self.swapped else (left.copied, right.copied)
        """Whether the first operand, and the second, are copied before the bmm."""
        self.sizes = {x: max(left.size(x), right.size(x)) for x in self.labels}
        self.out = _ordered(both + own + other, self.sizes, self.labels)
        """The result: a view of what bmm gives."""

    def backward(self, grad: Layout) -> tuple[bool, Layout, Layout]:
        """Whether a gradient is copied before the two products, and the gradients of both operands."""
        order = [self.labels.index(x) for group in self.groups for x in group]
        sizes = tuple([prod([self.sizes[x] for x in group]) for group in self.groups])
        again = copied(grad.permuted(*order), sizes)
        left, right = self.left.gradient(), self.right.gradient()
        return (again, right, left) if self.swapped else (again, left, right)


class _Operand:
    """An operand of a contraction by its labels."""

    def __init__(self, labels: str, layout: Layout) -> None:
        self.labels = labels
        self.sizes = dict(zip(labels, layout.sizes))
        self.steps = dict(zip(labels, layout.strides))
        self.copied = False
        self.order: list[str] = []

    def size(self, label: str) -> int:
        return self.sizes.get(label, 1)

    def fold(self, groups: tuple[list[str], ...], rest: list[str]) -> None:
        """Make one dimension of each group; what the other operand alone has is of size one here."""
        self.order = [x for group in groups for x in group] + rest
        whole = Layout(tuple([self.size(x) for x in self.order]), tuple([self.steps.get(x, 0) for x in self.order]))
        self.copied = copied(whole, tuple([prod([self.size(x) for x in group]) for group in groups]))

    def gradient(self) -> Layout:
        """What bmm's backward gives, in the operand's own order."""
        return _ordered(self.order, self.sizes, self.labels)


def _ordered(order: list[str], sizes: dict[str, int], labels: str) -> Layout:
    """A dense tensor in one order of its dimensions, seen in another."""
    steps = dict(zip(order, dense(tuple([sizes.get(x, 1) for x in order])).strides))
    return Layout(tuple([sizes.get(x, 1) for x in labels]), tuple([steps[x] for x in labels]))
