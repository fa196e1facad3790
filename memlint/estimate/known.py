"""What a step learns of a stack's layers for the next step of the same model, which counts them without running them.

The two steps differ in the optional packages that layers may use (estimate/kernels.py). A layer that asks for none does
the same in both, provided that all it leaves behind is its output and what its own backward lets go: then its block
stands for its equals in the next step as it did in the first.
"""

from __future__ import annotations

from typing import Any, Hashable, Iterable, Iterator

from memlint.estimate.build import Build
from memlint.estimate.engine.graph import Block
from memlint.estimate.engine.pool import Storage
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Env


def tensors(shared: Any) -> Iterator[Tensor]:
    """What layers share, in an order that is the same in every step; not what they leave in a cache for the model."""
    if isinstance(shared, Tensor):
        yield shared
    elif isinstance(shared, dict):
        for name, value in shared.items():
            if name != "cache":
                yield from tensors(value)
    elif isinstance(shared, (tuple, list)):
        for value in shared:
            if type(value) is not int:  # an image's windows are hundreds
                yield from tensors(value)


Sizes = list[tuple[int, int]]
"""Bytes and component of storages."""


class Learned:
    """A block, and what the next step has to put in the place of what this one's run held."""

    __slots__ = ("block", "casts", "kept", "saved")

    def __init__(self, block: Block, saved: list[tuple[int, int]], casts: Sizes, kept: Sizes) -> None:
        self.block = block
        self.saved = saved
        """What it saves of the tensors that layers share: its marks in the block's backward, and places."""
        self.casts, self.kept = casts, kept
        """Autocast's copies of its parameters that its nodes do not hold; and what it leaves in the cache of them."""


class Known:
    """The blocks of a stack in the first step, by what their layers found."""

    __slots__ = ("blocks", "build", "call", "calls", "step")

    def __init__(self, build: Build) -> None:
        self.build = build
        self.blocks: dict[Hashable, Learned] = {}
        self.step = self.calls = 0
        """The step under way, and how often the stack has been called in it."""
        self.call: Hashable = None
        """The call under way; None: nothing is learned of it, nor known."""

    def begin(self, f: Tape, env: Env, *, plain: bool) -> None:
        """Begin a call of the stack. ``plain``: what a layer does depends on its input alone."""
        if self.step != env.step:
            self.step, self.calls = env.step, 0
        self.calls += 1
        self.call = None
        if plain and self.build.asks and env.step > 0 and not f.inside:
            self.call = self.calls, f.grad_enabled, f.adapters, f.autocast, f.component

    def beside(self, f: Tape, env: Env, x: Tensor, *, loose: bool) -> Hashable:
        """What a block could change but the bytes, and the form of what it hands on: the same before and after it."""
        storage = x.storage
        form = x.shape, x.dtype, None if storage is None else (storage.size, None if loose else storage.component)
        sizes = [
            (name, id(value), len(value) if isinstance(value, list) and name != "cache" else 0)
            for name, value in env.state.items()
        ]
        return form, env.questions, len(f.lingering), len(f.kept), tuple(sizes)

    def before(self, f: Tape, env: Env) -> tuple[int, int]:
        """How many copies autocast has cached, and how many layers have left something in the cache."""
        return len(f.cast_cache), len(env.state.get("cache", ()))

    def learn(self, f: Tape, env: Env, like: Hashable, block: Block, shared: Any, before: tuple[int, int]) -> None:
        """Note a block that has changed nothing else; see :meth:`before`."""
        places = {id(tensor.storage): place for place, tensor in enumerate(tensors(shared))}
        saved = [(mark, places.get(id(storage), -1)) for mark, storage in block.given]
        if f.one_kernel_silu or block.forward.own or any(place < 0 for _, place in saved):
            return
        seen = {id(tensor.storage) for node in block.nodes for tensor in node.saved if tensor is not None}

        def unseen(made: Iterable[Tensor]) -> Sizes:
            found = {id(t.storage): t.storage for t in made if t.storage is not None and id(t.storage) not in seen}
            return [(storage.size, storage.component) for storage in found.values()]

        copies, kept = before
        casts = unseen(list(f.cast_cache.values())[copies:])
        self.blocks[self.call, like] = Learned(block, saved, casts, unseen(tensors(env.state.get("cache", [])[kept:])))

    def recall(self, f: Tape, env: Env, like: Hashable, shared: Any) -> Block | None:
        """The block that layers are counted like; none of them has been counted in this step."""
        learned = self.blocks.get((self.call, like))
        block = None if learned is None else learned.block.anew(decomposed=not f.one_kernel_silu)
        if learned is None or block is None:
            return None
        storages = [tensor.storage for tensor in tensors(shared)]
        for mark, place in learned.saved:
            storage = storages[place]
            assert storage is not None
            block.given.append((mark, storage))

        def counted(size: int, component: int) -> Tensor:
            # Counted with each of the equal blocks, it goes with the cache that has it.
            storage = Storage.counted(f.pool, size, component)
            storage.repeat = block.made
            return Tensor((), "", storage)

        for size, component in learned.casts:
            copied = counted(size, component)
            f.cast_cache[id(copied)] = copied
        if learned.kept:
            env.state["cache"].append(tuple([counted(size, component) for size, component in learned.kept]))
        return block
