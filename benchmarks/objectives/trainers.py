"""TRL's trainers without their ``__init__``: the attributes and the batch that ``compute_loss`` reads."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections import defaultdict
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.objectives.declared import trainer_class


def _installed() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in importlib.metadata.version("trl").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return ()


VERSION = _installed()
"""The installed TRL: 1.16, or the 1.9 that axolotl 0.19 pins; empty where there is none."""

KINDS: dict[str, tuple[str, str, str]] = {
    "sft": ("trainer.sft_trainer", "SFTTrainer", "SFTConfig"),
    "dpo": ("trainer.dpo_trainer", "DPOTrainer", "DPOConfig"),
    "kto": ("trainer.kto_trainer", "KTOTrainer", "KTOConfig"),
    "reward": ("trainer.reward_trainer", "RewardTrainer", "RewardConfig"),
    "grpo": ("trainer.grpo_trainer", "GRPOTrainer", "GRPOConfig"),
    "rloo": ("trainer.rloo_trainer", "RLOOTrainer", "RLOOConfig"),
    "orpo": ("experimental.orpo.orpo_trainer", "ORPOTrainer", "ORPOConfig"),
    "cpo": ("experimental.cpo.cpo_trainer", "CPOTrainer", "CPOConfig"),
}
"""Objective -> module in TRL 1.16, trainer, config beside it."""

FUSED: dict[str, tuple[str, ...]] = {
    "sft": ("log_probs", "entropy", "is_top1"),
    "dpo": ("log_probs", "entropy", "mean_logits", "is_top1"),
    "kto": ("log_probs", "entropy", "mean_logits"),
    "grpo": ("log_probs", "entropy"),
    "rloo": ("log_probs", "entropy"),
}
"""Outputs of the fused head that each trainer's __init__ asks for (add_fused_lm_head)."""

DROPS = ("dpo", "kto", "reward", "orpo", "cpo")
"""Trainers whose config has disable_dropout on by default."""
PAIRS = ("dpo", "orpo", "cpo", "reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run: the objective and what of it changes memory. Lengths in tokens, ``batch`` in samples or pairs."""

    objective: str
    batch: int
    seq: int
    completion: int = 0
    """grpo and rloo: the part of ``seq`` that was generated."""
    reference: str = "none"
    options: dict[str, Any]
    """Fields of the trainer's config that differ from its defaults."""


def _arguments(setup: Setup) -> Any:
    module, _, name = KINDS[setup.objective]
    config = trainer_class(module.replace("_trainer", "_config"), name)
    values: dict[str, Any] = {}
    for field in fields(config):
        if field.default is not MISSING:
            values[field.name] = field.default
        elif field.default_factory is not MISSING:
            values[field.name] = field.default_factory()
    if setup.objective == "sft" and values["loss_type"] is None:
        values["loss_type"] = "chunked_nll"  # SFTConfig.__post_init__ of TRL 1.9
    values.update(setup.options)
    return SimpleNamespace(**{**values, "report_to": [], "device": torch.device("cuda")})


def _same(value: Any, *args: Any, **options: Any) -> Any:
    return value


def make_trainer(setup: Setup, model: Any, reference: Any, autocast: torch.dtype | None) -> Any:
    """The trainer of ``setup`` around a model that is ready; ``reference`` is its second model or None."""
    module, name, _ = KINDS[setup.objective]
    owner = trainer_class(module, name)
    trainer: Any = object.__new__(owner)
    trainer.args = arguments = _arguments(setup)
    # Values that __init__ copies from the config under the same name.
    for key, value in vars(arguments).items():
        with contextlib.suppress(AttributeError):
            setattr(trainer, key, value)

    def context() -> Any:
        return torch.autocast("cuda", autocast) if autocast else contextlib.nullcontext()

    trainer.accelerator = SimpleNamespace(
        device=torch.device("cuda"), gather=_same, gather_for_metrics=_same, reduce=_same, unwrap_model=_same,
        autocast=context, num_processes=1, sync_gradients=True, parallelism_config=None, is_main_process=True,
    )  # fmt: skip
    trainer.model, trainer.ref_model = model, reference
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    trainer._stored_metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    trainer.aux_loss_enabled = trainer.is_encoder_decoder = trainer._peft_has_been_casted_to_bf16 = False
    trainer.compute_loss_func = trainer.label_smoother = None
    trainer.model_accepts_loss_kwargs, trainer.num_virtual_tokens = False, 0
    trainer.current_gradient_accumulation_steps = 1
    trainer.use_liger_kernel, trainer.model_kwarg_keys = False, ("logits_to_keep",)
    trainer.padding_value = trainer.pad_token_id = 0
    if setup.objective in ("dpo", "kto"):
        trainer.precompute_ref_logps = setup.reference == "precomputed"
        trainer.loss_types = arguments.loss_type
        trainer.loss_weights = [1.0] * len(arguments.loss_type)
        trainer.calculate_KL = arguments.loss_type == "kto"
    if setup.objective in ("grpo", "rloo"):
        trainer.epsilon_low, trainer.epsilon_high = arguments.epsilon, arguments.epsilon_high or arguments.epsilon
        trainer._entropy_bonus_enabled = trainer.use_adaptive_entropy = False
        arguments.steps_per_generation = 1
    return trainer


def make_batch(setup: Setup) -> dict[str, Any]:
    """One micro batch as the trainer's collator makes it: full rows of int64 tokens."""
    batch, seq = setup.batch, setup.seq
    rows = 2 * batch if setup.objective in PAIRS else batch

    def tokens(rows: int, length: int = seq) -> torch.Tensor:
        return torch.empty(rows, length, dtype=torch.long, device="cuda")

    def numbers(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device="cuda")

    if setup.objective in ("orpo", "cpo"):
        names = ("input_ids", "attention_mask", "labels")
        return {f"{side}_{name}": tokens(batch) for side in ("chosen", "rejected") for name in names}
    if setup.objective in ("grpo", "rloo"):
        completion = setup.completion
        given: dict[str, Any] = {
            "prompt_ids": tokens(batch, seq - completion),
            "prompt_mask": tokens(batch, seq - completion),
            "completion_ids": tokens(batch, completion),
            "completion_mask": tokens(batch, completion),
            "advantages": numbers(batch),
        }
        if setup.objective == "rloo":
            return {**given, "old_logps": numbers(batch)}
        if setup.reference != "none":
            given["ref_per_token_logps"] = numbers(batch, completion)
        return {**given, "num_items_in_batch": numbers(1)[0]}
    given = {"input_ids": tokens(rows), "attention_mask": tokens(rows)}
    if setup.objective == "sft":
        given["labels"] = tokens(rows)
    if setup.objective in ("dpo", "kto"):
        given["completion_mask"] = tokens(rows)
    if setup.objective == "kto":
        given |= {f"KL_{name}": tokens(rows) for name in ("input_ids", "attention_mask", "completion_mask")}
        given["label"] = torch.empty(rows, dtype=torch.bool, device="cuda")
    if setup.reference == "precomputed":
        known = ("chosen_logps", "rejected_logps") if setup.objective == "dpo" else ("logps", "KL_logps")
        given |= {f"ref_{name}": numbers(batch) for name in known}
    return given


def add_head(setup: Setup, model: Any, reference: Any) -> None:
    """The fused head that the trainer's __init__ puts on the model and, plain, on the reference."""
    outputs = FUSED.get(setup.objective)
    if setup.objective == "sft" and VERSION < (1, 15) and "loss_type" not in setup.options:
        trainer_class("trainer.sft_trainer", "_patch_chunked_ce_lm_head")(model, chunk_size=256)
    if outputs is None or VERSION < (1, 15):
        return
    put: Callable[..., None] = trainer_class("trainer.utils", "add_fused_lm_head")
    put(model, outputs=outputs)
    if reference is not None:
        put(reference)
