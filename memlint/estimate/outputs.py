"""Layers' outputs that a model keeps (output_hidden_states), where one layer stands for many."""

from __future__ import annotations

from sys import getrefcount
from typing import Hashable

from memlint.estimate.engine.pool import TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.job import Checkpointing


def held_by_the_next(checkpointing: Checkpointing) -> bool:
    """Whether a layer's output lives on as the input of the checkpoint that follows."""
    inside = checkpointing.mode == "none" or checkpointing.mode == "offload" or checkpointing.offload
    return not inside and checkpointing.every == 1


class _Kept:
    """Outputs of the layers of one part: of the last one it holds those of ``others`` equal parts too."""

    __slots__ = ("others", "repeated", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.others = 0
        self.repeated = False


class Outputs:
    """What has been kept, by the parts of the stack that made it."""

    __slots__ = ("dropped", "given", "kept", "latest")

    def __init__(self) -> None:
        self.given: Tensor | None = None
        """What the first layer was given: ``hidden_states[0]``."""
        self.dropped = False
        """The last layer's output has been let go before the others'."""
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
        self.kept[part].repeated = True

    def drop_last(self, f: Tape) -> int:
        """Let the last layer's output go; the bytes of it that something else holds, which the list cannot tell later.

        Equal layers hand on one storage, so that this one's holder has it beside the list and this call.
        """
        kept = self.kept.get(self.latest)
        if kept is None:
            return 0
        self.dropped = True
        if not kept.others:
            kept.tensors.pop()
            return 0
        kept.others -= 1
        storage = kept.tensors[-1].storage
        if storage is None:
            return 0
        if getrefcount(storage) > 3:
            return storage.size
        f.pool.add(-storage.size, storage.component)
        return 0

    def forget(self, f: Tape, held: bool = False) -> None:
        """Let all go; one that was handed from block to equal block stands for all of theirs.

        ``held``: what follows each layer but the last holds its output if that has a graph, so that nothing goes but
        the last one's. Where equal layers hand on one storage, letting it go frees that, which :meth:`drop_last` may
        have taken off already.
        """
        for part, kept in self.kept.items():
            dropped = self.dropped and part == self.latest
            times = (-1 if kept.repeated and dropped else 0) if held else kept.others
            while kept.tensors:
                x = kept.tensors.pop()
                component = x.storage.component if x.storage is not None else TEMPORARIES
                before = f.pool.live
                del x
                f.pool.add(times * (f.pool.live - before), component)
                times = 0
        self.kept.clear()
        self.given, self.dropped = None, False
