"""LLaMA-Factory's own loss functions on fake tensors, read out of its installed sources.

Its trainers import more than a trace needs, so that only the methods between batch and loss are run: DPO's, KTO's and
the pairwise reward model's of LLaMA-Factory 0.9.5, and those that SFT has of its own (its v1, DFT, EAFT and ASFT). What they call of TRL 0.24 (``dpo_loss``, ``kto_loss``) are a few
numbers a row; the value head is TRL 0.24's models/modeling_value_head.py, which later releases have no more.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Mapping
from contextlib import nullcontext
from types import MethodType, SimpleNamespace
from typing import Any, Literal, Optional, Union

import torch

from benchmarks.objectives.trainers import Setup

NAMES: dict[str, tuple[str, ...]] = {
    "dpo": ("concatenated_forward", "compute_reference_log_probs", "compute_preference_loss", "get_batch_loss_metrics"),
    "kto": ("forward", "concatenated_forward", "compute_reference_log_probs", "get_batch_loss_metrics"),
    "rm": ("compute_loss",),
}
"""Folder under llamafactory/train -> methods of its trainer that are run."""
FOLDERS = {"reward": "rm", "orpo": "dpo", "simpo": "dpo"}


def functions_of(
    path: str, wanted: tuple[str, ...], scope: dict[str, Any], package: str = "llamafactory"
) -> dict[str, Any]:
    """Functions and methods of a source file by name, compiled without their decorators. Raises ImportError."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no {package} on the path")
    with open(os.path.join(os.path.dirname(spec.origin), path), encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    body: list[ast.stmt] = [ast.ImportFrom("__future__", [ast.alias("annotations")], 0)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            node.decorator_list = []
            node.body = _without_super(node.body)
            body.append(node)
    module = ast.fix_missing_locations(ast.Module(body, []))
    exec(compile(module, path, "exec"), scope)
    return {name: scope[name] for name in wanted}


def _without_super(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without those that call ``super()``; of an ``if`` only the branch goes."""
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            node.body, node.orelse = _without_super(node.body), _without_super(node.orelse)
        if not any(isinstance(part, ast.Name) and part.id == "super" for part in ast.walk(node)):
            kept.append(node)
    return kept or [ast.Pass()]


LOSSES = ("dft_loss_func", "_dft_cross_entropy", "eaft_loss_func", "_eaft_cross_entropy")
DIVERGENCE = ("asft_loss_func", "_asft_cross_entropy", "_kl_divergence")
"""Functions of train/trainer_utils.py."""


def _supervised(setup: Setup, model: Any, reference: Any) -> Any:
    """SFT with a loss of its own, the option ``loss``: v1's trainer, or a function that the Trainer is given."""
    kind = setup.options["loss"]
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "Optional": Optional}
    trainer = SimpleNamespace(_metrics={}, device=torch.device("cuda"), model=model, ref_model=reference)
    if kind == "v1":
        log_probs = functions_of("v1/core/base_trainer.py", ("compute_log_probs",), scope)["compute_log_probs"]
        weighted = functions_of("v1/trainers/sft_trainer.py", ("compute_loss",), scope)["compute_loss"]
        trainer.compute_log_probs = MethodType(log_probs, trainer)
        trainer.compute_loss = lambda policy, inputs: weighted(trainer, inputs)
        return trainer
    functions = functions_of("train/trainer_utils.py", (*LOSSES, *DIVERGENCE), scope)
    if kind == "asft":
        own = functions_of("train/sft/trainer.py", ("compute_loss",), {"torch": torch})["compute_loss"]
        trainer.finetuning_args = SimpleNamespace(use_asft_loss=True)
        trainer.compute_loss_func = functions["asft_loss_func"]
        trainer.compute_loss = MethodType(own, trainer)
        return trainer

    def compute_loss(policy: Any, inputs: dict[str, Any]) -> Any:
        # transformers 5.6 trainer.py compute_loss, where compute_loss_func is given.
        labels = inputs.pop("labels")
        outputs = policy(**inputs)
        return functions[f"{kind}_loss_func"](outputs, labels)

    trainer.compute_loss = compute_loss
    return trainer


def make_trainer(setup: Setup, model: Any, reference: Any) -> Any:
    """An object with the trainer's methods and what they read, whose ``compute_loss(model, inputs)`` is the loss."""
    if setup.objective == "sft":
        return _supervised(setup, model, reference)
    folder = FOLDERS.get(setup.objective, setup.objective)
    scope: dict[str, Any] = {
        **{"torch": torch, "nullcontext": nullcontext, "Mapping": Mapping, "IGNORE_INDEX": -100},
        **{"Optional": Optional, "Union": Union, "Literal": Literal},
    }
    functions_of("train/trainer_utils.py", ("get_batch_logps", "nested_detach"), scope)
    methods = functions_of(f"train/{folder}/trainer.py", NAMES[folder], scope)
    kept = setup.reference != "none"
    trainer = SimpleNamespace(
        model=model, ref_model=reference, beta=0.1, bco_gemma=0.0, ftx_gamma=0.0, ld_alpha=None,
        loss_type=setup.objective if setup.objective in ("orpo", "simpo") else "sigmoid",
        finetuning_args=SimpleNamespace(use_ref_model=kept), _metrics={},
        accelerator=SimpleNamespace(unwrap_model=lambda value: value, device=torch.device("cuda")),
        dpo_loss=_dpo_loss, kto_loss=_kto_loss, odds_ratio_loss=_ratio_loss, simpo_loss=_ratio_loss,
    )  # fmt: skip
    for name, method in methods.items():
        setattr(trainer, name, MethodType(method, trainer))
    if folder != "rm":
        trainer.compute_loss = lambda policy, inputs: trainer.get_batch_loss_metrics(policy, inputs)[0]
    return trainer


def _ratio_loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    return -torch.nn.functional.logsigmoid(chosen - rejected)


def _dpo_loss(chosen: Any, rejected: Any, chosen_reference: Any, rejected_reference: Any) -> tuple[Any, Any, Any]:
    losses = _ratio_loss(chosen - chosen_reference, rejected - rejected_reference)
    return losses, chosen.detach(), rejected.detach()


def _kto_loss(chosen: Any, rejected: Any, kl: Any, *references: Any) -> tuple[Any, Any, Any, Any]:
    losses = torch.cat((1 - torch.sigmoid(chosen - references[0]), 1 - torch.sigmoid(references[1] - rejected)), 0)
    return losses, chosen.detach(), rejected.detach(), (kl - references[2]).mean()


def make_batch(setup: Setup) -> dict[str, Any]:
    """One micro batch as its collators make it: full rows of int64 tokens."""
    rows = setup.batch if setup.objective in ("kto", "sft") else 2 * setup.batch

    def tokens() -> torch.Tensor:
        return torch.empty(rows, setup.seq, dtype=torch.long, device="cuda")

    given: dict[str, Any] = {"input_ids": tokens(), "attention_mask": tokens()}
    if setup.objective == "reward":
        return given
    given["labels"] = tokens()
    if setup.options.get("loss") == "v1":
        given["loss_weights"] = torch.empty(rows, setup.seq, device="cuda")
    if setup.objective == "kto":
        given |= {f"kl_{name}": tokens() for name in ("input_ids", "attention_mask", "labels")}
        given["kto_tags"] = torch.empty(rows, dtype=torch.bool, device="cuda")
    return given


class ValueHead(torch.nn.Module):  # type: ignore[misc]  # torch leaves its base untyped
    """TRL 0.24's ValueHead: dropout, and a linear layer in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.1)
        self.summary = torch.nn.Linear(width, 1, device="cuda")

    def forward(self, hidden: torch.Tensor) -> Any:
        """[..., H] -> [..., 1]."""
        output = self.dropout(hidden)
        if output.dtype != self.summary.weight.dtype:
            output = output.to(self.summary.weight.dtype)
        return self.summary(output)


class WithValueHead(torch.nn.Module):  # type: ignore[misc]
    """TRL 0.24's AutoModelForCausalLMWithValueHead around a causal language model."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.pretrained_model = inner
        self.v_head = ValueHead(inner.config.hidden_size)

    def forward(self, input_ids: Any, attention_mask: Any, **options: Any) -> Any:
        """Logits in fp32, no loss, and a value a position."""
        options["output_hidden_states"] = True
        output = self.pretrained_model(input_ids=input_ids, attention_mask=attention_mask, **options)
        last = output.hidden_states[-1]
        logits = output.logits
        value = self.v_head(last).squeeze(-1)
        if logits.dtype != torch.float32:
            logits = logits.float()
        return (logits, None, value)
