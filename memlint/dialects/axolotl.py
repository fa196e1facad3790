"""axolotl: one flat YAML file that names model, adapter, batch and sharding.

Read against axolotl 0.19.0 (wheel on the package index): utils/schemas/, utils/config/__init__.py, loaders/,
core/builders/. The parts are in ``axolotl_*.py``.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.axolotl_base import PINS, VERSION, Run
from memlint.dialects.axolotl_batch import read_attention, read_batch, read_evaluation, read_images, read_sequence
from memlint.dialects.axolotl_model import read_method, read_model, read_precision
from memlint.dialects.axolotl_parallel import find_sharding, read_parallelism
from memlint.dialects.axolotl_step import read_checkpointing, read_loss, read_objective, read_optimizer, read_reference
from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.dialects.spelling import near_misses
from memlint.dialects.values import Section, as_strings
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob

RELEVANT = (
    "activation_offloading",
    "adapter",
    "attn_implementation",
    "base_model",
    "context_parallel_size",
    "cut_cross_entropy",
    "deepspeed",
    "dp_shard_size",
    "eval_batch_size",
    "flash_attention",
    "fsdp_config",
    "fsdp_version",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "liger_fused_linear_cross_entropy",
    "load_in_4bit",
    "load_in_8bit",
    "lora_dropout",
    "lora_modules_to_save",
    "lora_r",
    "lora_target_linear",
    "lora_target_modules",
    "micro_batch_size",
    "optimizer",
    "pad_to_sequence_len",
    "sample_packing",
    "sequence_len",
    "tensor_parallel_size",
    "unfrozen_parameters",
)
"""Keys whose misspelling changes memory: axolotl ignores unknown keys, so the typo is silent."""

_BESIDE = ("micro_batch_size", "sequence_len", "adapter", "num_epochs", "sample_packing", "val_set_size", "lora_r")
_OTHERS = ("model_name_or_path", "finetuning_type", "input_features", "output_features", "per_device_train_batch_size")


class Axolotl:
    """The axolotl dialect."""

    name = "axolotl"
    title = "axolotl YAML"
    version = VERSION
    suffixes: tuple[str, ...] = (".yaml", ".yml")
    markers: tuple[str, ...] = ("base_model",)

    def recognise(self, document: Document) -> bool:
        """Whether the mapping names ``base_model`` beside axolotl's own keys, and nobody else's."""
        data = document.mapping
        if "base_model" not in data or any(key in data for key in _OTHERS):
            return False
        own = sum(key in data for key in _BESIDE)
        if own >= 3 or "pretraining_dataset" in data:
            return True
        datasets = data.get("datasets")
        entries = [entry for entry in datasets if isinstance(entry, dict)] if isinstance(datasets, list) else []
        return any("path" in entry and (own >= 1 or "type" in entry) for entry in entries)

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Turn the file into one job; axolotl reads one run per file."""
        from memlint.dialects.axolotl_keys import KNOWN

        problems: list[Problem] = list(near_misses(document.mapping, RELEVANT, KNOWN))
        cfg = Section(document.mapping, problems)
        run = Run(cfg=cfg, draft=JobDraft(f"axolotl {VERSION}", document), context=context, problems=problems)
        run.plugins = as_strings(cfg.raw("plugins")) or ()
        if run.plugin("HatcheryPlugin"):
            return Reading(problems=tuple(problems), skipped="trains on a remote service (hatchery plugin)")
        if not read_model(run):
            return Reading(problems=tuple(problems), skipped="no model: `base_model` is empty")
        run.draft.versions.update({**PINS, **context.versions})
        run.adapter = _adapter(cfg)
        read_objective(run)
        find_sharding(run)
        read_batch(run)
        read_attention(run)
        read_sequence(run)
        read_precision(run)
        read_method(run)
        read_reference(run)
        read_checkpointing(run)
        read_loss(run)
        read_optimizer(run)
        read_evaluation(run)
        read_images(run)
        read_parallelism(run)
        return Reading(jobs=(run.draft.build(),), problems=tuple(problems), companions=tuple(run.companions))

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write native fields as axolotl keys; None where they cannot be written here.

        The edits are applied, the result is read again, and only edits that keep their promise are returned.
        """
        from memlint.dialects.axolotl_express import express
        from memlint.dialects.deepspeed_express import express_buffers
        from memlint.dialects.promises import kept, spread

        buffers = express_buffers(changes, document, job)
        if buffers is None:
            return None
        asked = spread(buffers[1])
        edits = tuple(express(asked, document, job).values())
        if asked and not (edits and kept(self, document, edits, asked, job.parallelism.gpus)):
            return None
        return (*edits, *buffers[0]) or None


AXOLOTL = Axolotl()


def _adapter(cfg: Section) -> str | None:
    value = cfg.text("adapter")
    return value.strip() or None if value is not None else None
