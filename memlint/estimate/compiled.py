"""What ``torch_compile`` makes of a step: the whole model in one graph, its loss inside.

accelerate 1.15 calls ``torch.compile`` on the prepared model (accelerator.py prepare_model), and most models of
transformers 5.24 are one graph from ids to loss. What is then kept is the partitioner's choice, see
:mod:`memlint.estimate.engine.compiled_tape`; beside it, seen in inductor's code and in the live bytes of a compiled
step (tests/measure/test_compiled.py, test_compiled_saves.py):

* while dynamo traces, transformers never leaves out the attention mask (masking_utils.py _ignore_causal_mask_sdpa), so
  sdpa takes the kernel that knows masks, over repeated keys and values;
* a model that returns its logits gets a gradient for them although nobody uses them: zeros, laid down by autograd's
  Function (torch/csrc/autograd/python_function.cpp, materialize_grads), in the dtype of what is returned;
* a gradient may be written over what forward has saved where that is no output of the graph (_functorch/_aot_autograd/
  graph_compile.py collect_fw_donated_buffer_idxs; on by default from torch 2.6, _functorch/config.py donated_buffer).
  Under autocast the output is accelerate's fp32 copy of the logits; in pure half precision it is the logits themselves;
* a half embedding's gradient is gathered in fp32 (_decomp/decompositions.py embedding_dense_backward).

The expected figure follows the compiled step for the families that are held to the partitioner; for others that step
is the low end alone. The high end is always the higher of both: where the graph breaks, at custom kernels and at code
that depends on data, what lies between graphs is as eager has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from memlint.estimate.result import PhasePeak
from memlint.estimate.versions import before
from memlint.job import TrainingJob, replace_fields

if TYPE_CHECKING:
    from memlint.estimate.simulate import Step

OWN_LOOPS = ("torchtune", "litgpt", "torchtitan")
"""Frameworks that compile layers or their loss one by one."""
HELD = ("llama", "gpt2", "encoder")
"""Families of which tests/measure/test_compiled_saves.py holds members to the partitioner's choice."""
INSIDE = ("causal-lm", "masked-lm", "sequence-classification", "token-classification")
"""Objectives whose loss is part of the model's forward."""


def lowest_peak(job: TrainingJob, timeline: Sequence[PhasePeak]) -> int:
    """The peak of a step in bytes."""
    return max(phase.peak_bytes for phase in timeline)


def compiled_step(job: TrainingJob, capability: tuple[int, int] | None, world: int) -> Step | None:
    """The step of a job whose model is compiled whole; None for one that is not.

    Raises:
        Unsupported: there is no model of this architecture.
    """
    training, architecture = job.training, job.architecture
    if not training.compile or architecture is None or training.objective not in INSIDE:
        return None
    if job.framework.partition(" ")[0] in OWN_LOOPS or job.parallelism.strategy not in ("none", "ddp"):
        return None
    from memlint.estimate.engine.compiled_tape import CompiledTape
    from memlint.estimate.simulate import run_step

    # DDPOptimizer (torch/_dynamo/backends/distributed.py) breaks the graph at every bucket of gradients.
    tape = CompiledTape(donates=not before(job, "torch", 2, 6), together=job.parallelism.strategy == "none")
    if training.attention == "sdpa":
        job = replace_fields(job, {"training.padding": True})
    # An encoder's first layer may leave attention weights to the loop's variable where the others leave none, so none
    # of its layers stands for another.
    full = architecture.family == "encoder"
    return run_step(job, capability, world=world, full=full, one_kernel_silu=True, tape=tape)


def expects(job: TrainingJob) -> bool:
    """Whether the compiled step is the expected one."""
    return job.architecture is not None and job.architecture.family in HELD


SPARED = 0.35
"""The most of what a step adds to its static bytes that compiling whole models was seen to spare (the models of
tests/measure/test_compiled_saves.py: 7 to 35 % less than eager)."""


def unfollowed(job: TrainingJob) -> str | None:
    """What is said of a compiled job whose graphs are not followed: a loss outside the model, or a sharded model."""
    if not job.training.compile or job.framework.partition(" ")[0] in OWN_LOOPS:
        return None
    what = (
        f"a sharded ({job.parallelism.strategy})" if job.training.objective in INSIDE else f"a {job.training.objective}"
    )
    return f"what torch.compile spares in {what} job is not known: expected without it, and the low end allows for it"


def least_compiled(lowest: int, step: Step) -> int:
    """The least peak of such a job, from the least one of its step without the compiler."""
    return lowest - int(SPARED * max(0, lowest - sum(step.static.values())))


def told(job: TrainingJob) -> str:
    """What the estimate assumes of the compiled step."""
    if expects(job):
        return "torch.compile takes the model as one graph; the high end is the step without it"
    return "what torch.compile keeps of this model is not known: expected without it, and the low end is one graph's"
