"""Jobs of the traced evaluations in ``traces_evaluations.jsonl``: a forward and its loss without gradients.

Made by ``python -m benchmarks.evaluations`` with transformers 5.24 and torch 2.13; ``peak`` is what stands above
weights and optimizer states.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.evaluation import evaluation_of
from memlint.estimate.kernels import exactly
from memlint.estimate.simulate import simulate
from memlint.job import TrainingJob, replace_fields
from tests.estimate import traced

OBJECTIVES = {"causal": "causal-lm", "seq2seq": "seq2seq-lm", "mlm": "masked-lm"}


def title(point: dict[str, Any]) -> str:
    """A test's name for an evaluation."""
    return f"{point['config']['model_type']} {point['precision']} {point['attention']} {point['batch']}x{point['seq']}"


def job(point: dict[str, Any]) -> TrainingJob:
    """The job whose evaluation was traced."""
    base = traced.job({**point, "checkpointing": "none", "optimizer": "sgd"})
    changes = {"training.eval_micro_batch_size": point["batch"], "training.objective": OBJECTIVES[point["head"]]}
    return exactly(replace_fields(base, changes), {})


def simulated(point: dict[str, Any]) -> int:
    """Highest bytes of the simulated evaluation above weights and optimizer states."""
    made = job(point)
    step = simulate(made)
    found = evaluation_of(made, step)
    assert found is not None
    return found.allocated_bytes - step.static["parameters"] - step.static["optimizer_states"]
