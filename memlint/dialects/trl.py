"""TRL recipes: flat YAML for ``trl sft|dpo|grpo|kto|reward|rloo`` and for scripts built on TRL (alignment-handbook, its
own for PPO).

Source: TRL 1.16.0 ``trainer/*_config.py``, ``trainer/*_trainer.py``, ``trainer/utils.py``, ``scripts/*.py``; version
boundaries read in the wheels of 0.12 to 1.15.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.base import JobDraft, Problem, ReadContext, Reading
from memlint.dialects.hf_trainer_args import Arguments, Defaults, apply_sharding, is_v4
from memlint.dialects.hf_trainer_keys import MEMORY_ARGS
from memlint.dialects.spelling import near_misses
from memlint.dialects.trl_keys import KNOWN, MEMORY_KEYS, SCRIPT_KEYS, STRONG, infer_trainer
from memlint.dialects.trl_model import apply_model
from memlint.dialects.trl_objective import apply_objective, check_generations
from memlint.dialects.trl_ppo import apply_ppo, is_old_rloo, policy_of
from memlint.dialects.values import Section, version_tuple
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob

VERSION = "1.16.0"
_BASE = "TRL 1.16: trainer/base_config.py"


class Trl:
    """The TRL dialect."""

    name = "trl"
    title = "TRL YAML"
    version = VERSION
    suffixes = (".yaml", ".yml", ".json")
    markers = ("model_name_or_path", "max_prompt_length", "num_generations", "dataset_mixer")

    def recognise(self, document: Document) -> bool:
        """Whether the mapping is a recipe: a model, an argument of the HF Trainer, and something only TRL has."""
        data = document.mapping
        if not any(key in data for key in _ARGUMENTS):
            return False
        if any(key in data for key in _OTHERS):
            return False
        if "model_name_or_path" not in data and "sft_model_path" not in data:
            # Recipes whose model comes from the command line.
            return (
                "max_prompt_length" in data
                and ("beta" in data or "num_generations" in data)
                and any(key in data for key in ("per_device_train_batch_size", "num_train_epochs"))
            )
        if any(key in data for key in STRONG):
            return True
        named = "dataset_name" in data or isinstance(data.get("datasets"), list)
        return named and all(key in KNOWN for key in data)

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Turn a recipe into the job of its trainer."""
        problems: list[Problem] = []
        companions: list[str] = []
        section = Section(document.mapping, problems)
        problems.extend(near_misses(section.data, (*MEMORY_ARGS, *MEMORY_KEYS), KNOWN))
        version = context.versions.get("trl", VERSION)
        draft = JobDraft(f"trl {'.'.join(version.split('.')[:2])}", document)
        draft.versions["trl"] = version
        trainer, key = infer_trainer(section.data, document.path)
        model, named = section.text("model_name_or_path"), "model_name_or_path"
        if trainer == "ppo":
            if is_old_rloo(section):
                return Reading(
                    problems=tuple(problems), skipped="TRL RLOO file before 0.22: that trainer is not modelled"
                )
            model, named = policy_of(section)
        if model is None:
            return Reading(problems=tuple(problems), skipped="TRL file without a model: it comes from the command line")
        draft.model = model
        draft.set("model", model, key=section.path(named))
        _note_trainer(draft, trainer, key)
        arguments = Arguments(draft, section, context, _defaults(version_tuple(version), is_v4(context), trainer))
        arguments.apply()
        apply_model(arguments, version_tuple(version), trainer)
        if trainer == "ppo":
            apply_ppo(arguments, version_tuple(version), key)
        else:
            apply_objective(arguments, version_tuple(version), trainer, key)
        _join(draft, section, context, companions)
        _after_sharding(arguments)
        check_generations(arguments)
        del draft.values["model"]
        return Reading(jobs=(draft.build(),), problems=tuple(problems), companions=tuple(companions))

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write changes as keys of the recipe, sharding as the launch config TRL ships when none is named."""
        rest = dict(changes)
        edits: list[KeyEdit] = []
        strategy = rest.get("parallelism.strategy")
        data = document.mapping
        named = any(data.get(key) for key in ("deepspeed", "fsdp"))
        named = named or data.get("accelerate_config") not in (None, *_SHIPPED.values(), "single_gpu")
        if strategy in _SHIPPED and not named and "parallelism.offload" not in rest:
            del rest["parallelism.strategy"]
            edits.append(KeyEdit(path=("accelerate_config",), value=_SHIPPED[strategy]))
        if rest.get("training.loss") in ("fused", "chunked") and version_tuple(job.versions.get("trl")) >= (1, 6):
            return None  # the default is chunked already; only a custom loss function is not
        if rest or not edits:
            from memlint.dialects.hf_trainer_express import express_arguments

            more = express_arguments(rest, document, job, model_keys=True)
            if more is None:
                return None
            edits.extend(more)
        return tuple(edits)


TRL = Trl()

_ARGUMENTS = (
    "per_device_train_batch_size",
    "output_dir",
    "num_train_epochs",
    "learning_rate",
    "gradient_accumulation_steps",
)
_OTHERS = (
    "stage",
    "finetuning_type",
    "base_model",
    "cutoff_len",
    "use_lora",
    "use_qlora",
    "dataset_mixer_list",
    "use_slow_tokenizer",
    "tuner_type",
    "train_type",
    "rlhf_type",
    "distributed_type",
    "exp_name",
)
_SHIPPED = {"ddp": "multi_gpu", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3", "fsdp": "fsdp2", "fsdp1": "fsdp1"}


def _defaults(version: tuple[int, ...], old_transformers: bool, trainer: str) -> Defaults:
    """Defaults of one release: checkpointing on since 0.22, bf16 since 0.19, reentrant off since 0.29."""
    return Defaults(
        source=_BASE if version >= (1, 0) else f"TRL {'.'.join(map(str, version[:2]))}: trainer/sft_config.py",
        checkpointing=version >= (0, 22),
        reentrant=old_transformers and version < (0, 29),
        bf16=version >= (0, 19),
        # From 1.15 on the fused LM head takes the place of Liger's loss; only its layer kernels apply. The trainers of
        # preferences and policies have losses of their own (trl_objective.py).
        liger_loss=version < (1, 15) and trainer == "sft",
        liger_key=("use_liger_kernel", "use_liger"),
    )


def _note_trainer(draft: JobDraft, trainer: str, key: str | None) -> None:
    if key is None:
        place = "the path of the file" if trainer != "sft" else "no key of another trainer"
        draft.assumptions.append(f"read as TRL's {trainer.upper()} trainer ({place} says so)")


def _join(draft: JobDraft, section: Section, context: ReadContext, companions: list[str]) -> None:
    """The launch config a recipe may name, then its own sharding keys (scripts pass them to TrainingArguments)."""
    if section.has("accelerate_config"):
        from memlint.dialects.accelerate import join_accelerate

        join_accelerate(draft, section, "accelerate_config", context, companions, framework="trl")
    gpus = section.integer("num_processes", minimum=1)
    if gpus is not None:
        draft.set("parallelism.gpus", gpus, key=section.path("num_processes"))
    if section.has("deepspeed", "fsdp") or draft.get("parallelism.strategy") is None:
        apply_sharding(draft, section, context, companions, framework="trl")
    if draft.get("parallelism.strategy") == "ddp" and not section.has("deepspeed", "fsdp", "accelerate_config"):
        draft.assumptions.append(
            "the launch config decides sharding and the recipe names none: a full copy on each GPU assumed"
            " (`accelerate_config: zero3` in the recipe names one)"
        )


def _after_sharding(arguments: Arguments) -> None:
    """ZeRO-3 with adapters: adapters in the base's dtype, reentrant checkpointing forced (sft_trainer.py)."""
    draft = arguments.draft
    if draft.get("parallelism.strategy") != "zero3" or draft.get("training.method") not in ("lora", "qlora"):
        return
    if draft.get("training.checkpointing.mode", "none") != "none":
        arguments.default("training.checkpointing.reentrant", True, "TRL 1.16: trainer/sft_trainer.py with ZeRO-3")
    if draft.get("training.method") == "lora":
        dtype = draft.get("training.precision.weights", "bf16")
        arguments.default("training.lora.dtype", dtype, "TRL 1.16: trainer/sft_trainer.py with ZeRO-3")


__all__ = ["SCRIPT_KEYS", "TRL", "Trl"]
