"""How stage 3 of ZeRO reduces gradients: one bucket, which lives as long as the optimizer.

Source: DeepSpeed 0.19.8 runtime/zero/stage3.py and runtime/comm/coalesced_collectives.py, functions that comments name.
"""

from __future__ import annotations

from math import prod

from memlint.estimate.engine.pool import COMMUNICATION, GRADIENTS
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.units import Unit
from memlint.estimate.zero_settings import Forms
from memlint.units import DTYPE_BYTES


class Scatter:
    """Stage 3: gradients go through one bucket, which lives as long as the optimizer, into a rank's flat shares.

    Source: runtime/zero/stage3.py, __add_grad_to_ipg_bucket and __reduce_and_partition_ipg_grads, and runtime/comm/
    coalesced_collectives.py, reduce_scatter_coalesced.
    """

    def __init__(self, world: int, capacity: int, forms: Forms, size: int, *, buffered: bool) -> None:
        """``capacity``: elements of the bucket; ``size``: bytes of a gradient's element; ``buffered``:
        contiguous_gradients.
        """
        self.world = world
        self.capacity = capacity
        self.whole = not buffered
        """Every layer must be run: gradients wait where they are."""
        self.size = DTYPE_BYTES[forms.wire]
        self.casts = self.size if self.size != size else 0
        """Bytes an element of the copy that goes over the wire, of what is not in the bucket."""
        self.sums = DTYPE_BYTES[forms.summed] if forms.summed != forms.wire else 0
        """Bytes an element of a rank's shares in the dtype that they are summed in, where the wire's is another."""
        self.total = 0
        self.layers: dict[int, int] = {}
        """id of a unit -> elements of it that train."""
        self.waiting: list[Tensor] = []
        self.members: list[int] = []
        self.filled = 0
        self.inside: Unit | None = None
        self.copies = False

    def watch(self, unit: Unit | None, elements: int) -> None:
        """Note a parameter that trains; ``unit``: its layer."""
        if unit is not None:
            self.layers[id(unit)] = self.layers.get(id(unit), 0) + elements

    def take(self, f: Tape, leaf: Leaf, grad: Tensor, unit: Unit | None) -> None:
        """reduce_independent_p_g_buckets_and_remove_grads: a parameter's gradient is complete."""
        elements = prod(leaf.shape)
        many = unit is not None and f.pool.repeat is not None
        if many and unit is not None:
            span = self.layers[id(unit)] * unit.count
            if self.inside is not unit:
                self.inside = unit
                self.copies = self.filled + span > self.capacity
            if self.copies and elements <= self.capacity:
                # One layer is run for several, and the bucket may be full at any parameter of any of them.
                f.pool.touch(self._copied(min(self.capacity, span), 2), COMMUNICATION)
            self.waiting.clear()
            self.filled = (self.filled + elements * unit.count) % self.capacity if self.capacity else 0
            self.members = [self.filled] if self.filled else []
        else:
            if self.members and self.filled + elements > self.capacity:
                self.reduce(f)
            self.filled += elements
            self.members.append(elements)
        if elements <= self.capacity and not self.whole:
            return
        if grad.storage is not None:
            grad.storage.relabel(GRADIENTS)
            if many:
                f.pool.hand_over(grad.storage)
        self.waiting.append(grad)

    def reduce(self, f: Tape) -> None:
        """The ranks' shares of what the bucket holds are interleaved in a copy, but of one gradient that divides."""
        # A parameter that many layers share comes here for each of them.
        f.pool.touch(self._copied(min(self.filled, self.total), len(self.members)), COMMUNICATION)
        self.waiting.clear()
        self.members.clear()
        self.filled = 0

    def _copied(self, elements: int, members: int) -> int:
        """__avg_scatter_grads: cast to the wire's dtype, interleaved, and the shares cast to the dtype of the sums."""
        cast = self.casts if self.whole or elements > self.capacity else 0
        mixed = self.size if members > 1 or elements % self.world else 0
        return elements * (cast + mixed) + -(-elements // self.world) * self.sums
