"""The estimator's answer: bytes over one steady step, by phase and component."""

from __future__ import annotations

from typing import Mapping

from memlint.records import dataclass

COMPONENTS = (
    "parameters",
    "gradients",
    "optimizer_states",
    "activations",
    "logits",
    "temporaries",
    "communication",
    "inputs",
)
"""Components of the allocated peak, in report order; they sum to ``allocated_bytes``."""

PHASES = ("forward", "loss", "backward", "clip", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """One phase of the step: its highest and its final allocated bytes."""

    phase: str
    peak_bytes: int
    end_bytes: int
    components: Mapping[str, int]
    """Live bytes by component at the phase's peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """A stated part of ``device_bytes`` outside the allocated peak, with its range and source."""

    name: str
    low_bytes: int
    expected_bytes: int
    high_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Predicted memory of one GPU in an evaluation between training steps. All sizes in bytes."""

    rows: int
    """Rows of one evaluation forward."""
    allocated_bytes: int
    device_bytes: int
    low_bytes: int
    high_bytes: int
    components: Mapping[str, int]
    """Sum to ``allocated_bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted memory of one GPU in one steady step (second or later). All sizes in bytes."""

    method: str
    """simulated, first-order or traced."""
    parameters: int
    """Elements of the model, tied weights once (whole model, not per GPU)."""
    trainable_parameters: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    low_bytes: int
    high_bytes: int
    phase: str
    components: Mapping[str, int]
    static: Mapping[str, int]
    """parameters, gradients, optimizer_states per GPU over the whole step."""
    forward_end_activation_bytes: int
    timeline: tuple[PhasePeak, ...]
    overheads: tuple[Overhead, ...] = ()
    host_bytes: int = 0
    paged_bytes: int = 0
    """Part of the optimizer states that lies in unified memory: on the GPU while it has room."""
    assumptions: tuple[str, ...] = ()
    evaluation: Evaluation | None = None
    """Of the run's evaluation, where somebody asked for it (engine/whole_run.py) and it may need more than the step."""

    @property
    def highest_bytes(self) -> int:
        """The expected device bytes of the step or of the evaluation, whichever is more."""
        return max(self.device_bytes, self.evaluation.device_bytes if self.evaluation is not None else 0)
