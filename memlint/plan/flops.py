"""FLOPs of one training step by part, to say what recomputation costs this model at this length.

A matrix multiplication of weights with n elements takes 2 n FLOPs per token; attention takes 4 T H per token and layer
for scores and values together, half of it where the mask is causal (Narayanan et al. 2021, arXiv:2104.04473, section
5.1 and appendix: 2 n per token forward, twice that backward). A frozen weight needs no gradient, so its backward
costs as much as its forward. Element-wise operations are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.records import dataclass

if TYPE_CHECKING:
    from memlint.job import TrainingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlops:
    """FLOPs of one token in one step."""

    layers: float
    """Forward of all layers: what full checkpointing runs a second time."""
    head: float
    """Forward of the output embedding."""
    backward: float

    @property
    def total(self) -> float:
        """Forward and backward, nothing recomputed."""
        return self.layers + self.head + self.backward


def step_flops(job: TrainingJob, parameters: int) -> StepFlops | None:
    """Return the FLOPs per token of a job whose model has ``parameters`` elements; None without an architecture."""
    architecture = job.architecture
    if architecture is None:
        return None
    hidden, depth = architecture.hidden_size, architecture.num_hidden_layers
    embedding = architecture.vocab_size * hidden
    matrices = 1 if architecture.tie_word_embeddings else 2
    body = max(parameters - matrices * embedding, 0)
    layers = 2.0 * body + 2.0 * job.training.sequence_length * hidden * depth
    head = 2.0 * embedding
    twice = job.training.method == "full"
    return StepFlops(layers=layers, head=head, backward=(2.0 if twice else 1.0) * (layers + head))


def recompute_share(job: TrainingJob, parameters: int) -> float:
    """Return what running the layers' forward a second time adds to a step, as a share of it."""
    flops = step_flops(job, parameters)
    return flops.layers / flops.total if flops is not None and flops.total else 1 / 3
