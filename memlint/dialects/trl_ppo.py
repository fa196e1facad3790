"""TRL's PPO trainer: rollouts, the models beside the policy, and what this trainer does not do.

Source: TRL 1.12 ``experimental/ppo/ppo_{config,trainer}.py``, the last release that has it, 0.16 to 0.24
``trainer/ppo_{config,trainer}.py``, and the repository's ``examples/scripts/ppo/ppo.py``, which loads the policy from
``sft_model_path``, the value and the reward model from ``reward_model_path``, and a reference without an adapter.
"""

from __future__ import annotations

from memlint.dialects.hf_trainer_args import Arguments
from memlint.dialects.values import Section

LAST = (1, 13)
"""The first release without the trainer."""
_CONFIG = "TRL 1.12: experimental/ppo/ppo_config.py"
_TRAINER = "TRL 1.12: experimental/ppo/ppo_trainer.py"
_SCRIPT = "TRL: examples/scripts/ppo/ppo.py"


def policy_of(section: Section) -> tuple[str | None, str]:
    """The policy's model and the key that names it; ``model_name_or_path`` is the tokenizer's in TRL's own script."""
    model = section.text("sft_model_path")
    if model is not None:
        return model, "sft_model_path"
    return section.text("model_name_or_path"), "model_name_or_path"


def is_old_rloo(section: Section) -> bool:
    """Whether the file is for the RLOO trainer of TRL before 0.22, which shares PPO's rollout settings."""
    return "rloo_k" in section.data


def apply_ppo(arguments: Arguments, version: tuple[int, ...], key: str | None) -> None:
    """Set objective, lengths, rollouts and the models beside the policy."""
    section, draft = arguments.section, arguments.draft
    if key is not None:
        arguments.put("training.objective", "ppo", key)
    else:
        draft.set("training.objective", "ppo", default="TRL's PPO trainer")
    response = section.integer("response_length", minimum=1)
    length = arguments.choose("training.completion_length", "response_length", response, 53, _CONFIG)
    draft.set(
        "training.sequence_length",
        512 + length,
        assumed=f"prompts are not truncated; 512 tokens assumed beside {length} of the completion",
    )
    draft.set("training.padding", True, default=f"default of {_TRAINER}: prompts are padded")
    part = section.integer("local_rollout_forward_batch_size", minimum=1)
    arguments.choose("training.rollout_batch_size", "local_rollout_forward_batch_size", part, 64, _CONFIG)
    parts = section.integer("num_mini_batches", minimum=1)
    count = arguments.choose("training.mini_batches", "num_mini_batches", parts, 1, _CONFIG)
    if version < (0, 17) and count > 1:
        gathered = draft.get("training.micro_batch_size", 8) * draft.get("training.gradient_accumulation_steps", 1)
        arguments.default("training.rollouts", gathered * count, "TRL before 0.17: trainer/ppo_trainer.py")
    kind = "adapter" if draft.get("training.method") in ("lora", "qlora") else "copy"
    arguments.default("training.reference_model", kind, _SCRIPT)
    arguments.default("training.reward_model", "copy", _SCRIPT)
    arguments.default("training.value_model", "copy", _SCRIPT)
    arguments.default("training.loss", "standard", _TRAINER)
    _never(arguments)
    _assume(arguments, version)


def _never(arguments: Arguments) -> None:
    """Settings of TrainingArguments that this trainer's own loop does not read."""
    section = arguments.section
    for stated, name in (("gradient_checkpointing", "gradient checkpointing"), ("max_grad_norm", "clipping")):
        on = section.flag(stated) if stated == "gradient_checkpointing" else section.number(stated)
        if on:
            section.problem(
                "MEM007",
                stated,
                f"`{stated}` has no effect: TRL's PPO trainer runs its own loop, without {name}",
                label="ignored",
                on_key=True,
            )
    for field, value in (
        ("training.checkpointing.mode", "none"),
        ("training.checkpointing.offload", False),
        ("training.max_grad_norm", None),
        ("training.eval_micro_batch_size", None),
    ):
        arguments.default(field, value, _TRAINER)


def _assume(arguments: Arguments, version: tuple[int, ...]) -> None:
    section, notes = arguments.section, arguments.draft.assumptions
    policy, key = policy_of(section)
    if key == "model_name_or_path":
        notes.append("`sft_model_path` is not given: the policy is taken to be `model_name_or_path`")
    scorer = section.text("reward_model_path")
    if scorer is not None and scorer != policy:
        arguments.put("training.reward_model_name", scorer, "reward_model_path")
    elif scorer is None and policy is not None:
        notes.append("the value and the reward model are taken to be as large as the policy")
    if version >= LAST:
        arguments.draft.versions["trl"] = "1.12.0"
        notes.append("TRL has no PPO trainer since 1.13: read as 1.12")
