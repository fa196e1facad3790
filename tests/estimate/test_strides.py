"""Which reshapes are views, and which operands of an einsum are copied: the rule by strides, and torch itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from memlint.estimate.ops.chunk_scan import Copies, Folds, scan_copies
from memlint.estimate.ops.strides import Contraction, Layout, copied, dense, elementwise, viewed

SIZES = {"b": 2, "c": 3, "l": 5, "s": 5, "z": 4, "h": 7, "p": 11, "n": 13}
EQUATIONS = (
    "bclhn,bcshn->bclsh",
    "bclsh,bcshp->bclhp",
    "bclhn,bclhp->bchpn",
    "bzch,bzhpn->bchpn",
    "bclhn,bchpn->bclhp",
)


def test_neighbours_merge_where_one_step_of_the_outer_passes_the_whole_inner() -> None:
    assert viewed(dense((2, 3, 4)), (6, 4)) == dense((6, 4))
    assert copied(dense((2, 3, 4)).permuted(1, 0, 2), (6, 4))
    assert not copied(dense((2, 3, 4)).permuted(0, 2, 1), (2, 4, 3))
    assert copied(dense((2, 3, 4)).narrowed(1, 2), (4, 4))


def test_a_dimension_of_size_one_merges_with_any() -> None:
    assert not copied(dense((2, 1, 4)).permuted(1, 0, 2), (2, 4))
    assert not copied(dense((1, 3, 4)).narrowed(1, 2), (2, 4))


def test_elementwise_results_lie_as_their_first_operand_does() -> None:
    turned = dense((4, 3, 2)).permuted(2, 1, 0)
    assert elementwise(turned, dense((2, 3, 4))) == turned
    assert elementwise(dense((2, 3, 1)), turned).strides == (3, 1, 6), "the second says where the third dimension is"


def test_one_sequence_of_one_chunk_is_folded_without_a_copy() -> None:
    """Positions and heads trade places only: nothing stands between them that a group would have to skip."""
    nothing = Folds(False, False, False)
    copies = scan_copies(1, 1, 128, 16, 64, 64, channels_first=True)
    assert copies == Copies(*[nothing] * 5, output=True, x=False, key=False, query=False)


def test_chunks_between_rows_and_heads_make_every_operand_a_copy() -> None:
    copies = scan_copies(2, 4, 128, 16, 64, 64, channels_first=True)
    assert copies.scores == (True, True, False)
    assert copies.states == copies.read == (True, True, True)
    assert copies.x and copies.key and copies.query


def layouts(labels: str, order: tuple[int, ...], sizes: dict[str, int]) -> Layout:
    return dense(tuple(sizes[labels[i]] for i in order)).permuted(*sorted(range(len(order)), key=order.__getitem__))


@pytest.mark.measure
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("ones", ["", "b", "c", "bc", "h", "ch"])
def test_torch_copies_what_the_rule_says(equation: str, ones: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copied(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.clone.default:
                seen.append(args[0].untyped_storage()._cdata)
            return func(*args, **(kwargs or {}))

    sizes = {label: 1 if label in ones else size for label, size in SIZES.items()}
    first, second = equation.partition("->")[0].split(",")
    seen: list[int] = []
    for turned in itertools.islice(itertools.permutations(range(len(second))), 0, None, 7):
        a, b = dense(tuple(sizes[x] for x in first)), layouts(second, turned, sizes)
        rule = Contraction(equation, a, b)
        left, right = (torch.empty_strided(x.sizes, x.strides, requires_grad=True) for x in (a, b))
        seen.clear()
        with Copied():
            out = torch.einsum(equation, left, right)
        assert tuple(x.untyped_storage()._cdata in seen for x in (left, right)) == rule.copies
        assert strides(out) == strides(rule.out)
        grad = dense(rule.out.sizes)
        seen.clear()
        with Copied():
            made = torch.autograd.grad(out, (left, right), torch.empty_strided(grad.sizes, grad.strides))
        again, *grads = rule.backward(grad)
        assert bool(seen) == again
        assert [strides(x) for x in made] == [strides(x) for x in grads]


def strides(tensor: Any) -> list[int]:
    """Steps along the dimensions that have any."""
    sizes, steps = (tensor.sizes, tensor.strides) if isinstance(tensor, Layout) else (tensor.shape, tensor.stride())
    return [step for size, step in zip(sizes, steps) if size > 1]


@pytest.mark.measure
def test_torch_writes_elementwise_results_in_the_order_of_the_rule() -> None:
    torch = pytest.importorskip("torch")
    for sizes in ((2, 3, 4), (1, 3, 4), (2, 1, 4), (1, 1, 4)):
        for first, second in itertools.product(itertools.permutations(range(3)), repeat=2):
            for thin in (None, 0, 1, 2):
                labels = dict(zip("xyz", sizes))
                a = layouts("xyz", first, labels)
                b = layouts("xyz", second, labels if thin is None else {**labels, "xyz"[thin]: 1})
                for pair in ((a, b), (b, a)):
                    real = torch.mul(*[torch.empty_strided(*x, device="meta") for x in pair])
                    assert strides(real) == strides(elementwise(*pair)), pair
