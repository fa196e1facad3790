"""The allocator and the tape: what lives, when, and what a repeated block stands for."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.engine.graph import Block
from memlint.estimate.engine.pool import ACTIVATIONS, GRADIENTS, TEMPORARIES, Pool, Storage, rounded
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.ops.basic import add, cast, dropout, mul
from memlint.estimate.ops.linear import Weight, linear


def test_a_storage_lives_as_long_as_something_refers_to_it() -> None:
    pool = Pool()
    storage = Storage()
    storage.begin(pool, 1000, TEMPORARIES)
    assert pool.live == 1024
    del storage
    assert pool.live == 0
    assert pool.peak == 1024


def test_sizes_are_rounded_to_512_bytes() -> None:
    assert [rounded(n) for n in (0, 1, 512, 513)] == [0, 512, 512, 1024]


def test_a_view_shares_its_storage() -> None:
    f = Tape()
    x = f.new((4, 128), "fp32")
    y = x.view(2, 256)
    del x
    assert f.pool.live == 2048
    del y
    assert f.pool.live == 0


def test_a_product_saves_what_its_gradients_need() -> None:
    f = Tape()
    weight = Weight("w", (128, 64), "bf16", True, None)
    x = f.new((2, 64), "bf16")
    y = linear(f, x, weight)
    del x
    assert f.pool.components[ACTIVATIONS] == 512, "the input is saved for the weight's gradient"
    grad = f.like(y)
    root = y
    del y
    f.run_backward(root, grad)
    assert f.pool.components[ACTIVATIONS] == 0
    assert f.pool.components[GRADIENTS] == 128 * 64 * 2


def test_a_frozen_weight_saves_no_input() -> None:
    f = Tape()
    frozen = Weight("w", (64, 64), "bf16", False, None)
    trained = Weight("v", (64, 64), "bf16", True, None)
    x = f.new((512, 64), "bf16")
    y = linear(f, x, frozen)
    del x
    assert f.pool.components[ACTIVATIONS] == 0
    linear(f, y, trained)
    assert f.pool.components[ACTIVATIONS] == 512 * 64 * 2


def test_no_gradient_no_memory() -> None:
    f = Tape()
    f.grad_enabled = False
    weight = Weight("w", (64, 64), "bf16", True, None)
    x = f.new((512, 64), "bf16")
    for _ in range(4):
        x = linear(f, x, weight)
    assert f.pool.live == 512 * 64 * 2
    assert f.nodes == []


def _block(weight: Weight) -> object:
    def run(f: Tape, x: Tensor) -> Tensor:
        h = mul(f, cast(f, x, "fp32"), x)
        return add(f, x, cast(f, dropout(f, linear(f, cast(f, h, "bf16"), weight), 0.1), "bf16"))

    return run


def _wider(weight: Weight) -> object:
    def run(f: Tape, x: Tensor) -> Tensor:
        h = linear(f, cast(f, cast(f, x, "fp32"), "bf16"), weight)
        return add(f, x, mul(f, cast(f, dropout(f, h, 0.1), "bf16"), x))

    return run


def _stack(kinds: str, shortcut: bool, together: bool = False) -> tuple[int, int, list[int], list[int]]:
    """Layers of kinds ``a`` and ``b``; the shortcut runs the first one of each kind that comes after the same other.

    ``together``: equal neighbours are counted at once.
    """
    f = Tape()
    make = {"a": _block, "b": _wider}
    weights = [Weight(f"w{i}", (64, 64), "bf16", True, None) for i in range(len(kinds))]
    x = f.new((512, 64), "bf16")
    done: dict[str, Block] = {}
    counted = 0
    for index in range(len(kinds)):
        if index < counted:
            continue
        # The gradient that this function gives to the last layer is its own.
        pair = kinds[index - 1 : index + 1] if 0 < index < len(kinds) - 1 else str(index)
        if pair in done:
            times = 1
            while together and kinds[index : index + times + 2] == kinds[index] * (times + 2):
                times += 1
            counted = index + times
            x = f.repeat_block(done[pair], x, times)
            continue
        run: Any = make[kinds[index]](weights[index])
        if shortcut:
            opened, x = f.begin_block(x)
            done[pair], x = f.end_block(opened, run(f, x))
        else:
            x = run(f, x)
    done.clear()
    forward, live = f.pool.peak, f.pool.components[:]
    f.pool.begin()
    grad = f.like(x)
    root = x
    del x
    f.run_backward(root, grad)
    return forward, f.pool.peak, live, f.pool.components[:]


def test_one_run_of_a_repeated_block_stands_for_all_of_them() -> None:
    for layers in (4, 7, 40):
        assert _stack("a" * layers, shortcut=True) == _stack("a" * layers, shortcut=False)


def test_equal_neighbours_counted_at_once_are_as_many_counted_singly() -> None:
    for kinds in ("aaaaaa", "abbbbab", "aaabaaabaaab", "baaaaaab"):
        assert _stack(kinds, shortcut=True, together=True) == _stack(kinds, shortcut=False)


@pytest.mark.parametrize("kinds", ["aaabaaabaaab", "abbabbbaabab", "bababa", "aab", "aaaaaabbbbbb"])
def test_blocks_of_several_kinds_stand_in_any_order(kinds: str) -> None:
    assert _stack(kinds, shortcut=True) == _stack(kinds, shortcut=False)


def test_checkpointing_keeps_the_input_only() -> None:
    f = Tape()
    weight = Weight("w", (64, 64), "bf16", True, None)
    x = f.new((512, 64), "bf16")
    block = _block(weight)
    out = f.checkpoint(lambda t: block(f, t), (x,), reentrant=False)  # type: ignore[operator]
    del x
    assert f.pool.live == 2 * 512 * 64 * 2, "the input and the output"
    grad = f.like(out)
    root = out
    del out
    f.run_backward(root, grad)
    assert f.pool.components[GRADIENTS] == 64 * 64 * 2


def _with_buffer(size: int, hollow: int) -> object:
    def run(f: Tape, x: Tensor) -> Tensor:
        y = mul(f, x, x)
        buffer = f.buffer(size, hollow)
        saved = f.save(y, buffer)
        scratch = f.like(y)
        del scratch, buffer
        return f.record(f.like(y), lambda f, node, grad: (f.like(grad),), (y,), saved)

    return run


@pytest.mark.parametrize(("size", "hollow"), [(1 << 20, 4096), (0, 4096), (5000, 5000)])
def test_a_buffer_of_another_size_in_the_recomputation_is_counted_with_the_first_run(size: int, hollow: int) -> None:
    def step(together: bool) -> tuple[int, list[int], int, list[int]]:
        f = Tape()
        f.counts_twice = together
        x = f.record(f.new((512, 64), "bf16"), lambda f, node, grad: (None,), (f.new((1,), "bf16"),))
        out = f.checkpoint(lambda t: _with_buffer(size, hollow)(f, t), (x,), reentrant=False)  # type: ignore[operator]
        del x
        forward = f.pool.peak, f.pool.peak_components
        f.pool.begin()
        grad = f.like(out)
        root = out
        del out
        f.run_backward(root, grad)
        return (*forward, f.pool.peak, f.pool.peak_components)

    assert step(together=True) == step(together=False)
