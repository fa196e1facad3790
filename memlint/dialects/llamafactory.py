"""LLaMA-Factory: flat YAML or JSON for ``llamafactory-cli train``, in its v0, v1 and Megatron forms.

Read against LLaMA-Factory 0.9.5 (wheel on the package index): hparams/, model/, train/, v1/. The parts are in
``llamafactory_*.py``.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.base import ReadContext, Reading
from memlint.dialects.llamafactory_base import VERSION
from memlint.dialects.llamafactory_v0 import read_v0, recognise_v0
from memlint.dialects.llamafactory_v1 import read_v1, recognise_v1
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob


class LlamaFactory:
    """The LLaMA-Factory dialect."""

    name = "llamafactory"
    title = "LLaMA-Factory YAML"
    version = VERSION
    suffixes: tuple[str, ...] = (".yaml", ".yml", ".json")
    markers: tuple[str, ...] = ("model_name_or_path", "finetuning_type", "model_class", "peft_config")

    def recognise(self, document: Document) -> bool:
        """Whether the mapping is of the v0 or the v1 form."""
        return recognise_v0(document) or recognise_v1(document)

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Turn the file into one job; files that merge, predict or preprocess are skipped with the reason."""
        return read_v0(document, context) if recognise_v0(document) else read_v1(document, context)

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write native fields as LLaMA-Factory keys; None where they cannot be written here.

        The edits are applied, the result is read again, and only edits that keep their promise are returned.
        """
        from memlint.dialects.deepspeed_express import express_buffers
        from memlint.dialects.llamafactory_express import express
        from memlint.dialects.promises import kept, spread

        buffers = express_buffers(changes, document, job)
        if buffers is None:
            return None
        asked = spread(buffers[1])
        edits = tuple(express(asked, document, job).values())
        if asked and not (edits and kept(self, document, edits, asked, job.parallelism.gpus)):
            return None
        return (*edits, *buffers[0]) or None


LLAMAFACTORY = LlamaFactory()
