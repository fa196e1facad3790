"""A unit of sharded training: parameters that are gathered together, and their gradients reduced together."""

from __future__ import annotations

from memlint.estimate.engine.tape import Tensor
from memlint.records import dataclass, field


@dataclass(slots=True)
class Unit:
    """A layer, or what is outside all layers. Sizes in bytes unless they say elements."""

    count: int = 1
    """How many equal layers it stands for."""
    gathered_bytes: int = 0
    """What one collective gathers."""
    whole_bytes: int = 0
    """The parameters made of it, each rounded as the allocator does."""
    gradients: list[Tensor] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)
    """id of a leaf -> index of its gradient."""
    gradient_elements: int = 0
    gradient_dtype: str = ""
    """dtype of the reduced gradients that the optimizer takes."""
    keeps: bool = True
    """The reduced gradients are new, not added to those of an earlier micro batch."""
    shard_bytes: int = 0
    buffer: Tensor | None = None
    """The whole parameters while they are gathered."""
    arriving: Tensor | None = None
    """FSDP2: a collective's output that has not been copied into parameters yet."""
    place: int = -1
    """FSDP2: index in the order of the forward."""
    reduced: bool = False
    """FSDP2: post_backward has run."""
    reduced_elements: int = 0
    """FSDP2: elements that it has reduced."""

    def begin(self) -> None:
        """Forget an earlier step."""
        self.gradients, self.owners = [], {}
        self.gradient_elements = self.shard_bytes = self.reduced_elements = 0
        self.buffer = self.arriving = None
        self.place, self.reduced = -1, False
