"""TrainingArguments as YAML or JSON: flat for HfArgumentParser, or nested in a home-made file.

Source: transformers 5.24.0 ``training_args.py``, ``hf_argparser.py``, ``modeling_utils.py``; 4.57.6 where pinned.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.accelerate_fsdp import FSDP_KEYS
from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.dialects.hf_trainer_args import TRANSFORMERS, Arguments, Defaults, apply_sharding, is_v4, trainer_source
from memlint.dialects.hf_trainer_home import HomeMade
from memlint.dialects.hf_trainer_keys import DISTINCT, MEMORY_ARGS, TRAINING_ARGS
from memlint.dialects.spelling import near_misses
from memlint.dialects.values import Section
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import KeyPath, TrainingJob

_SECTIONS = (
    "training_args",
    "training_arguments",
    "training",
    "trainer",
    "train",
    "trainer_args",
    "train_args",
    "hf_training_args",
    "sft",
    "sft_config",
    "args",
    "finetune",
    "finetuning",
)
_SIZES = ("per_device_train_batch_size", "per_gpu_train_batch_size", "per_device_eval_batch_size", "num_train_epochs")
_FSDP_ALONE = frozenset(
    {
        "backward_prefetch",
        "forward_prefetch",
        "transformer_layer_cls_to_wrap",
        "cpu_ram_efficient_loading",
        "activation_checkpointing",
        "auto_wrap_policy",
        "reshard_after_forward",
        "sync_module_states",
        "use_orig_params",
        "state_dict_type",
        "fsdp_config",
        "xla",
        "xla_fsdp_grad_ckpt",
        "min_num_params",
        "limit_all_gathers",
        "version",
    }
)


class HfTrainer:
    """The HF Trainer dialect."""

    name = "hf-trainer"
    title = "HF TrainingArguments YAML/JSON"
    version = TRANSFORMERS
    suffixes = (".yaml", ".yml", ".json")
    markers = (
        "per_device_train_batch_size",
        "per_gpu_train_batch_size",
        "per_device_eval_batch_size",
        "num_train_epochs",
        "backward_prefetch",
        "transformer_layer_cls_to_wrap",
        "cpu_ram_efficient_loading",
    )

    def recognise(self, document: Document) -> bool:
        """Whether TrainingArguments stand at top level or in one nested mapping, or the file is an ``fsdp_config``."""
        return find_arguments(document.mapping) is not None or is_fsdp_file(document.mapping)

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Turn the arguments into a job when the file also names the model."""
        problems: list[Problem] = []
        companions: list[str] = []
        prefix = find_arguments(document.mapping)
        if prefix is None:
            return Reading(skipped="FSDP file: checked with the training file that names it")
        section = Section(document.mapping, problems)
        arguments_data: Any = document.mapping
        for part in prefix:
            arguments_data = arguments_data[part]
        inner = Section(arguments_data, problems, prefix=prefix)
        problems.extend(near_misses(inner.data, MEMORY_ARGS, TRAINING_ARGS, prefix=prefix))
        draft = JobDraft(f"hf-trainer {context.versions.get('transformers', TRANSFORMERS)}", document)
        old = is_v4(context)
        arguments = Arguments(draft, inner, context, Defaults(source=trainer_source(context), reentrant=old))
        arguments.apply()
        home = HomeMade(draft, document.mapping, prefix, problems)
        if not home.model():
            return Reading(problems=tuple(problems), skipped="names no model (the script does): nothing to predict")
        home.objective()
        home.sequence_length()
        home.method()
        home.dtype(old)
        home.attention()
        home.checkpointing()
        draft.set("training.padding", True, default="default of transformers 5.24: data/data_collator.py")
        if inner.number("label_smoothing_factor"):
            draft.assumptions.append(
                "`label_smoothing_factor` takes the loss from all logits outside the model: its copies are not counted"
            )
        if section.data.get("finetuning_type") is None:
            draft.assumptions.append("read as a script on the HF Trainer; what its code changes is not seen")
        apply_sharding(draft, inner, context, companions, framework="hf-trainer")
        return Reading(jobs=(draft.build(),), problems=tuple(problems), companions=tuple(companions))

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write changes as TrainingArguments where they stand."""
        from memlint.dialects.hf_trainer_express import express_arguments

        prefix = find_arguments(document.mapping)
        return None if prefix is None else express_arguments(changes, document, job, prefix=prefix)


HF_TRAINER = HfTrainer()


def find_arguments(data: Mapping[str, Any]) -> KeyPath | None:
    """Return the path of the mapping that holds TrainingArguments, () for the file itself; None when there is none.

    Two names that hardly anything else uses are asked for, one of them a batch size or a number of epochs.
    """
    if _are_arguments(data):
        return ()
    best: KeyPath | None = None
    for key in _SECTIONS:
        inner = data.get(key)
        if isinstance(inner, dict):
            if _are_arguments(inner):
                return (key,)
            for deeper in _SECTIONS:
                nested = inner.get(deeper)
                if best is None and isinstance(nested, dict) and _are_arguments(nested):
                    best = (key, deeper)
    return best


def _are_arguments(data: Mapping[str, Any]) -> bool:
    if not any(name in data for name in _SIZES):
        return False
    return sum(1 for name in data if name in DISTINCT) >= 2 or (
        "per_device_train_batch_size" in data and ("output_dir" in data or "learning_rate" in data)
    )


def is_fsdp_file(data: Mapping[str, Any]) -> bool:
    """Whether the mapping is what ``--fsdp_config`` takes: nothing but FSDP settings, two of them at least."""
    keys = [key for key in data if isinstance(key, str) and not key.startswith("_")]
    if len(keys) < 2 or not all(key in FSDP_KEYS or key in ("fsdp", "fsdp_config") for key in keys):
        return False
    return any(key.removeprefix("fsdp_") in _FSDP_ALONE or key in _FSDP_ALONE for key in keys)
