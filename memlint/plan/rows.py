"""What the rows of a micro batch mean to each other: whether a run with fewer of them, accumulated, is the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memlint.job import TrainingJob

_TOWERS = ("clip", "siglip", "siglip2")
_CLASSES = ("image-classification", "sequence-classification")

_BATCH_NORM = ("resnet", "segformer")
"""transformers 5.24 modeling_resnet.py (nn.BatchNorm2d after every convolution), modeling_segformer.py (in the decode
head): in training they normalise by the mean and variance of the micro batch."""


def are_compared(job: TrainingJob) -> bool:
    """Whether the loss compares the rows with each other, so that fewer rows are another task.

    transformers 5.24 modeling_clip.py image_text_contrastive_loss, modeling_siglip.py: every image of the micro batch
    against every text.
    """
    architecture = job.architecture
    towers = architecture is not None and architecture.model_type in _TOWERS
    return job.training.objective == "contrastive" or (towers and job.training.objective not in _CLASSES)


def fewest(job: TrainingJob) -> int:
    """The smallest micro batch that the trainer takes.

    KTO's KL term pairs each prompt with another row's completion: TRL 1.16 trainer/kto_trainer.py raises at one row
    ("Actual (not effective) batch size must be > 1").
    """
    return 2 if job.training.objective == "kto" else 1


def why_mixed(job: TrainingJob) -> str | None:
    """Why the result depends a little on which rows run together; None where it does not."""
    if job.training.objective == "kto":
        return "KTO estimates its KL term over the rows of a micro batch"
    if job.architecture is not None and job.architecture.model_type in _BATCH_NORM:
        return "batch normalisation takes its mean and variance from the rows of a micro batch"
    return None
