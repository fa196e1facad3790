"""Rows that a collator joins into one, with cumulative lengths in place of a mask.

Source: transformers 5.24 data/data_collator.py (DataCollatorWithFlattening) and what the frameworks make like it. Only
attention tells the samples of such a row apart. A state-space or linear-attention layer runs over the row as one
sequence: the model of mamba2 does not hand its layers what the collator knows of samples, and the PyTorch functions of
the others refuse it (integrations/hub_kernels.py, "can't keep packed sequences apart").
"""

from __future__ import annotations

from memlint.job import TrainingJob, replace_fields


def flattened(job: TrainingJob) -> TrainingJob:
    """The job with the row that its model sees; the same where rows stay apart.

    Preference and policy losses are taken of whole samples, whose number counts: theirs stay apart.
    """
    training = job.training
    if not training.varlen or training.micro_batch_size == 1:
        return job
    if training.attention != "flash" or training.objective != "causal-lm":
        return job
    tokens = training.micro_batch_size * training.sequence_length
    return replace_fields(job, {"training.micro_batch_size": 1, "training.sequence_length": tokens})
