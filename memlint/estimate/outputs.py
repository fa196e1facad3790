"""Layers' outputs that a model keeps (output_hidden_states), where one layer stands for many."""

from __future__ import annotations

from typing import Hashable

from memlint.estimate.engine.pool import TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor


class _Kept:
    """Outputs of the layers of one part: of the last one it holds those of ``others`` equal parts too."""

    __slots__ = ("others", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.others = 0


class Outputs:
    """What has been kept, by the parts of the stack that made it."""

    __slots__ = ("kept", "latest")

    def __init__(self) -> None:
        self.kept: dict[Hashable, _Kept] = {}
        self.latest: Hashable = None
        """Whose output was kept last."""

    def keep(self, part: Hashable, x: Tensor) -> None:
        """Keep the output of a layer that has run."""
        self.latest = part
        self.kept.setdefault(part, _Kept()).tensors.append(x)

    def repeat(self, part: Hashable) -> None:
        """Keep the output of an equal one."""
        self.latest = part
        self.kept[part].others += 1

    def drop_last(self, f: Tape) -> None:
        """Let the last layer's output go."""
        kept = self.kept.get(self.latest)
        if kept is None:
            return
        if not kept.others:
            kept.tensors.pop()
            return
        kept.others -= 1
        storage = kept.tensors[-1].storage
        if storage is not None:
            f.pool.add(-storage.size, storage.component)

    def forget(self, f: Tape) -> None:
        """Let all go; one that was handed from block to equal block stands for all of theirs."""
        for kept in self.kept.values():
            times = kept.others
            while kept.tensors:
                x = kept.tensors.pop()
                component = x.storage.component if x.storage is not None else TEMPORARIES
                before = f.pool.live
                del x
                f.pool.add(times * (f.pool.live - before), component)
                times = 0
        self.kept.clear()
