"""LLaMA-Factory's ``stage: ppo``: completions, the reward model's three forms, the value head, mixed precision.

Sources: LLaMA-Factory 0.9.5 ``train/ppo/{workflow,trainer}.py``, ``train/trainer_utils.py`` (create_reward_model),
``hparams/{finetuning,generating}_args.py``; TRL 0.9.6 ``trainer/ppo_trainer.py``, the newest that this stage takes.
"""

from __future__ import annotations

from memlint.dialects.llamafactory_base import Run

REWARDS = {"lora": "adapter", "full": "copy", "api": "none"}
"""``reward_model_type`` -> native: another adapter on the policy, a second frozen model, a server."""
TRL = "0.9.6"
_HPARAMS = "hparams/finetuning_args.py"
_TRAINER = "train/ppo/trainer.py"


def read_ppo(run: Run) -> None:
    """What the other parts do not know of PPO; call it after them."""
    cfg, draft = run.cfg, run.draft
    new = cfg.integer("max_new_tokens", minimum=1)
    completion = run.choose("training.completion_length", "max_new_tokens", new, 1024, "hparams/generating_args.py")
    total = draft.get("training.sequence_length") + completion
    if cfg.has("cutoff_len"):
        run.put("training.sequence_length", total, "cutoff_len")
    else:
        run.default("training.sequence_length", total, "hparams/data_args.py, and the completion")
    run.assume(f"prompts are taken to fill `cutoff_len`, with {completion} tokens of a completion after them")
    run.default("training.padding", True, f"{_TRAINER}: rows are padded")
    kind = cfg.text("reward_model_type", REWARDS)
    native = run.choose(
        "training.reward_model", "reward_model_type", REWARDS[kind] if kind else None, "adapter", _HPARAMS
    )
    if not cfg.has("reward_model"):
        run.reject("stage", "`stage: ppo` needs `reward_model`: an adapter, a model, or the address of a server")
    if native == "adapter" and run.method not in ("lora", "oft"):
        key = "reward_model_type" if kind else "stage"
        run.reject(
            key, f"a reward adapter needs `finetuning_type: lora`, not `{run.method}`; set `reward_model_type: full`"
        )
    scorer = cfg.text("reward_model")
    if native == "copy" and scorer is not None:
        run.put("training.reward_model_name", scorer, "reward_model")
    run.default("training.value_model", "head", "model/loader.py: add_valuehead")
    buffer = cfg.integer("ppo_buffer_size", minimum=1) or 1
    if buffer > 1:
        gathered = draft.get("training.micro_batch_size") * draft.get("training.gradient_accumulation_steps")
        run.put("training.rollouts", gathered * buffer, "ppo_buffer_size")
    if draft.get("training.precision.autocast") is None:
        # torch.autocast(device_type) around every forward but the generation's: fp16 on CUDA.
        run.default("training.precision.autocast", "fp16", f"{_TRAINER}: amp_context")
    # Its parameters are an iterator, which the first step exhausts.
    run.default("training.max_grad_norm", None, f"{_TRAINER}: clips the first step only (TRL {TRL})")
    draft.versions["trl"] = run.context.versions.get("trl", TRL)
