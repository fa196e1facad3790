"""The least that a compiled model with its loss inside keeps of the logits.

Read in torch 2.13 and seen in inductor's code for transformers 5.24's Llama on a CPU (tests/measure/test_compiled.py):

* the partitioner saves the logits as the product made them, in the compute dtype, with a maximum and a sum a row; the
  fp32 copy, the log-probabilities and their gradients are never laid down (_functorch/partitioners.py);
* a model that returns its logits gets a gradient for them although nobody uses them: zeros, laid down by autograd's
  Function (torch/csrc/autograd/python_function.cpp, materialize_grads), in the dtype of what is returned;
* the gradient is written over the saved logits where those are no output and no input of the compiled function
  (_functorch/_aot_autograd/graph_compile.py collect_fw_donated_buffer_idxs; on by default from torch 2.6,
  _functorch/config.py donated_buffer). Under autocast the output is accelerate's fp32 copy, so it is; in pure half
  precision the saved logits are the output itself, so it is not.

A loss compiled by itself (torchtune) takes the logits as an input: nothing is donated. What is kept of a compiled layer
is the partitioner's choice and is taken as eager keeps it.
"""

from __future__ import annotations

from typing import Sequence

from memlint.estimate.result import PhasePeak
from memlint.estimate.versions import before
from memlint.job import TrainingJob
from memlint.units import DTYPE_BYTES

OWN_LOOPS = ("torchtune", "litgpt", "torchtitan")
"""Frameworks whose loss is not part of the model's forward."""


def lowest_peak(job: TrainingJob, timeline: Sequence[PhasePeak]) -> int:
    """The least of a step's peak in bytes: with a compiled loss, if the job has one, else as simulated."""
    least = least_logits(job)
    if least is None:
        return max(phase.peak_bytes for phase in timeline)
    return max(phase.peak_bytes - max(0, phase.components["logits"] - least) for phase in timeline)


def least_logits(job: TrainingJob) -> int | None:
    """Bytes of logits, zeros and gradient together; None where no loss is compiled with the model."""
    training, a = job.training, job.architecture
    if not training.compile or a is None or training.objective != "causal-lm" or training.loss != "standard":
        return None
    if job.framework.partition(" ")[0] in OWN_LOOPS:
        return None
    rows = training.vocab_size or a.vocab_size
    count = training.micro_batch_size * -(-training.sequence_length // job.parallelism.context) * rows
    compute = DTYPE_BYTES[training.precision.autocast or training.precision.weights]
    if training.precision.autocast is None:
        return count * 3 * compute
    saved = compute if not before(job, "torch", 2, 6) else 2 * compute
    return count * (saved + DTYPE_BYTES["fp32"])
