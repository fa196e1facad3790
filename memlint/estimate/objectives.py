"""What a trainer changes in the model before the first step."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.job import TrainingJob, replace_fields
from memlint.records import replace

QUIET = ("dpo", "orpo", "cpo", "kto", "reward", "ppo")
"""Objectives whose trainers switch dropout off: ``disable_dropout`` is on by default in TRL 1.16's DPO, KTO, reward,
ORPO and CPO configs (off in GRPO's and RLOO's) and in LLaMA-Factory 0.9.5 train/{dpo,kto}/trainer.py, whose reward and
PPO trainers have none; TRL's PPO trainer always does so, to all four models. ``disable_dropout_in_model`` sets p of
every nn.Dropout to zero, an adapter's too (TRL trainer/utils.py).
"""


def without_dropout(job: TrainingJob) -> TrainingJob:
    """The job as its trainer runs it; the same where the trainer leaves dropout on.

    Probabilities that a model hands to its attention function as numbers stay: they are no nn.Dropout modules.
    """
    objective = job.training.objective
    if objective not in QUIET or job.architecture is None:
        return job
    if objective in ("reward", "ppo") and job.framework.lower().startswith("llama"):
        return job
    a = job.architecture
    quiet = replace(job, architecture=replace(a, config=_quiet(a.config, a.model_type)))
    if job.training.lora is not None and job.training.lora.dropout:
        quiet = replace_fields(quiet, {"training.lora.dropout": 0.0})
    return quiet


def _quiet(config: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    values = dict(config)
    numbers = NUMBERS.get(model_type, AS_NUMBERS)
    for name, value in config.items():
        if isinstance(value, Mapping):
            values[name] = _quiet(value, str(value.get("model_type", model_type)))
        elif isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")) and name not in numbers:
            values[name] = 0.0
    return values


AS_NUMBERS = ("attention_dropout",)
NUMBERS: dict[str, tuple[str, ...]] = {
    "bloom": (),
    "gpt_bigcode": ("attn_pdrop",),
    "gptj": ("attn_pdrop",),
    "opt": ("dropout", "attention_dropout"),
}
"""model_type -> config fields that its modeling file passes on as a number instead of making an nn.Dropout of it
(transformers 5.24); AS_NUMBERS for all others, as the Llama shapes do.
"""
