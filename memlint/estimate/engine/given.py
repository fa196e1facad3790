"""What a block's nodes save of tensors from before it."""

from __future__ import annotations

from memlint.estimate.engine.change import Repeat
from memlint.estimate.engine.graph import Node, Tensor
from memlint.estimate.engine.pool import Pool, Storage


class Watched(Tensor):
    """A saved tensor from before the block, in the node that lets it go last."""

    __slots__ = ("mark", "pool")

    def __init__(self, tensor: Tensor, pool: Pool) -> None:
        super().__init__(tensor.shape, tensor.dtype, tensor.storage, tensor.node)
        self.pool = pool
        self.mark = pool.mark()

    def __del__(self) -> None:
        if self.pool.cut(self.mark):
            self.pool.restart()


def given_to(pool: Pool, nodes: list[Node], made: Repeat) -> tuple[list[tuple[int, Storage]], list[Tensor]]:
    """What nodes save of tensors that were there before the block, and of its input."""
    given: list[tuple[int, Storage]] = []
    entries: list[Tensor] = []
    seen = set()
    for node in nodes:
        for place, tensor in enumerate(node.saved):
            storage = None if tensor is None else tensor.storage
            if tensor is None or storage is None or storage.repeat is made:
                continue
            key = id(storage)
            if key == made.input:
                entries.append(tensor)
            elif key not in seen:
                seen.add(key)
                watched = Watched(tensor, pool)
                node.saved = (*node.saved[:place], watched, *node.saved[place + 1 :])
                given.append((watched.mark, storage))
    return given, entries
