"""Give a job its architecture, and say in one sentence why it has none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Mapping

from memlint.dialects.base import Problem
from memlint.records import replace

if TYPE_CHECKING:
    from memlint.document.model import Document
    from memlint.engine.companions import Companions
    from memlint.job import TrainingJob
    from memlint.models.resolve import Resolved
    from memlint.settings.model import Settings


def resolve(
    job: TrainingJob,
    *,
    document: Document,
    companions: Companions,
    settings: Settings,
    offline: bool,
    use_cache: bool = True,
) -> tuple[TrainingJob, str | None, tuple[Problem, ...]]:
    """Return the job with its architecture, why there is none, and what is wrong in the model's config (MEM003)."""
    if job.architecture is not None:
        return job, None, ()
    if not job.model:
        return job, "the file names no model, so nothing can be predicted", ()
    from memlint.models.resolve import resolve_model

    resolved = resolve_model(
        job.model,
        base_dir=os.path.dirname(os.path.abspath(document.path)),
        settings_models=settings.models,
        search_root=companions.search_root,
        offline=offline,
        use_cache=use_cache,
    )
    if resolved.architecture is not None:
        architecture = resolved.architecture
        if isinstance(job.model, Mapping) and architecture.id is None:
            architecture = replace(architecture, id=document.path)
        from memlint.models.checkpoint import as_stored

        job = replace(job, architecture=architecture)
        if job.training.objective == "ppo" and job.training.reward_model_name not in (None, job.model):
            job = _scored(job, document, companions, settings, offline=offline, use_cache=use_cache)
        return as_stored(job, architecture), None, ()
    reason = resolved.reason or "the model's shape is not known"
    return job, reason, _problems(resolved, job, companions)


def _scored(
    job: TrainingJob,
    document: Document,
    companions: Companions,
    settings: Settings,
    *,
    offline: bool,
    use_cache: bool,
) -> TrainingJob:
    """The job with the shape of its reward model, or with a sentence that it is not known."""
    from memlint.models.resolve import resolve_model

    name = job.training.reward_model_name
    assert name is not None
    found = resolve_model(
        name,
        base_dir=os.path.dirname(os.path.abspath(document.path)),
        settings_models=settings.models,
        search_root=companions.search_root,
        offline=offline,
        use_cache=use_cache,
    ).architecture
    if found is not None:
        return replace(job, scorer=found)
    models = "the value and the reward model are" if job.training.value_model == "copy" else "the reward model is"
    sentence = f"`{name[:80]}` is not known here: {models} taken to be as large as the policy"
    return replace(job, assumptions=(*job.assumptions, sentence))


def _problems(resolved: Resolved, job: TrainingJob, companions: Companions) -> tuple[Problem, ...]:
    if not resolved.problems:
        return ()
    if isinstance(job.model, Mapping):
        origin = job.origin("model")
        at, file = (origin.key, origin.file) if origin is not None else ((), None)
        return tuple(
            Problem(code=found.code, key=(*at, *found.key), message=found.message, file=file)
            for found in resolved.problems
        )
    if resolved.file is not None:
        shown = companions.show(resolved.file)
        if shown is not None:
            return tuple(
                Problem(code=found.code, key=found.key, message=found.message, file=shown)
                for found in resolved.problems
            )
    origin = job.origin("model")
    key = origin.key if origin is not None else ()
    return tuple(
        Problem(code=found.code, key=key, message=f"the model's config: {found.message}") for found in resolved.problems
    )
