"""Give a job its architecture, and say in one sentence why it has none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memlint.errors import UserError

if TYPE_CHECKING:
    from memlint.dialects.base import Problem
    from memlint.document.model import Document
    from memlint.job import TrainingJob
    from memlint.settings.model import Settings


def resolve(
    job: TrainingJob, *, document: Document, settings: Settings, search_root: str, offline: bool
) -> tuple[TrainingJob, str | None, tuple[Problem, ...]]:
    """Return the job with its architecture, why there is none, and what is wrong in an inline config (MEM003)."""
    if job.architecture is not None:
        return job, None, ()
    if not job.model:
        return job, "the file names no model, so nothing can be predicted", ()
    from memlint.models.resolve import resolve_job

    try:
        resolved = resolve_job(
            job,
            base_dir=os.path.dirname(os.path.abspath(document.path)),
            settings_models=settings.models,
            search_root=search_root,
            offline=offline,
        )
    except UserError as error:
        return job, str(error), ()
    if resolved.architecture is None:
        return resolved, "the model's shape is not known, so nothing can be predicted", ()
    return resolved, None, ()
