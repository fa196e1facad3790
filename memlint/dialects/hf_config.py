"""A bare Hugging Face config.json: a job where the settings say how it is trained (``[tool.memlint.training]``)."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.document.model import Document
from memlint.errors import UserError
from memlint.findings import KeyEdit
from memlint.job import TrainingJob

_SHAPE = ("architectures", "hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "text_config", "dim")


class HfConfig:
    """The dialect of a model's own config."""

    name = "hf-config"
    title = "Hugging Face config.json"
    version = "5.24.0"
    suffixes = (".json", ".yaml", ".yml")
    markers = ("model_type", "architectures")

    def recognise(self, document: Document) -> bool:
        """Whether the mapping is a model's config: its ``model_type`` and a size, or its ``architectures``."""
        data = document.mapping
        if not isinstance(data.get("model_type"), str) or data.get("memlint") is not None:
            return False
        if any(key in data for key in ("base_model", "model_name_or_path", "output_dir", "trainer", "datasets")):
            return False
        return any(key in data for key in _SHAPE)

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Make a job from the config and the settings' training section; none without that section."""
        settings: Mapping[str, Any] | None = getattr(context, "training", None)
        if not settings:
            return Reading(skipped="model config: no job without `training` in the memlint settings")
        from memlint.dialects.native import job_from_training

        draft = JobDraft("hf-config", document)
        try:
            job = job_from_training(document.mapping, settings, draft)
        except UserError as error:
            return Reading(problems=(Problem(code="MEM003", key=(), message=str(error)),))
        return Reading(jobs=(job,))

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Nothing of the training stands in a model's config."""
        return None


HF_CONFIG = HfConfig()
