"""What loading a model takes before the first step, where that can exceed the step.

transformers 5.0 to 5.3 read a checkpoint in worker threads that copy bf16 tensors to the GPU while the main thread
quantises them one by one (core_model_loading.py, spawn_materialize); 5.4 reads in step where it quantises on the fly,
because the threads were "loading full-precision tensors to GPU faster than the main thread can quantize them, which
would cause a large memory spike". How far they run ahead is a race, at most to the end: the whole model in half
precision.
"""

from __future__ import annotations

from collections.abc import Iterable

from memlint.estimate.records import Record
from memlint.estimate.versions import before, version_of
from memlint.job import REPLICATED, TrainingJob

ON_THE_FLY = ("nf4", "fp4", "int8")
"""bitsandbytes' formats: quantised while loading, unless the checkpoint is in them already."""


def most_while_loading(job: TrainingJob, records: Iterable[Record]) -> int:
    """Bytes that loading may take at most on one GPU; 0 where it stays below what training takes."""
    quantization, architecture = job.training.quantization, job.architecture
    if quantization is None or quantization.type not in ON_THE_FLY:
        return 0
    if architecture is not None and architecture.quantization is not None:
        return 0
    if job.parallelism.strategy not in REPLICATED:
        return 0  # sharded loading has ways of its own
    if not version_of(job, "transformers") or before(job, "transformers", 5) or not before(job, "transformers", 5, 4):
        return 0
    return sum(2 * r.numel * r.count for r in records if r.base and not r.host)
