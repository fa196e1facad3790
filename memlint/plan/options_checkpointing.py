"""Remedies of activation checkpointing: every layer, a part of the work, and what waits on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.plan.flops import recompute_share
from memlint.plan.remedy import Changes, Cost, Remedy

if TYPE_CHECKING:
    from memlint.job import TrainingJob

_TRAINERS = ("hf-trainer", "trl")
"""Frameworks whose checkpointing is that of transformers' Trainer."""


def checkpointing(job: TrainingJob, parameters: int, *, faster: bool = False) -> tuple[Remedy, ...]:
    """Recompute every layer in the backward; then also keep the layers' inputs in host memory.

    ``faster``: a part of the work where the framework has a key for that, and none at all, are options too. They are
    not the least change that fits, but the shorter step.
    """
    now = job.training.checkpointing
    share = recompute_share(job, parameters) if parameters else 1 / 3
    found: list[Remedy] = []
    if faster and now.mode in ("full", "offload"):
        found.append(_none(-share / (1 + share)))
    if faster and now.mode in ("none", "full", "offload") and now.every == 1:
        saved = share / 2 if now.mode == "none" else -share / 2 / (1 + share)
        found += _a_part(job, saved, 1 if now.mode == "none" else -1)
    if now.mode == "none" or (now.mode == "full" and now.every > 1):
        found.append(_every_layer(share if now.mode == "none" else share * (1 - 1 / now.every), now.every, len(found)))
    if now.mode in ("none", "full") and not now.offload and (_framework(job) != "hf-trainer" or _is_recent(job)):
        price = len(found) + 1 if now.mode == "none" else 2
        found.append(_inputs_on_the_host(job, share if now.mode == "none" else 0.0, price))
    return tuple(found)


def _none(compute: float) -> Remedy:
    return Remedy(
        name="checkpointing-none",
        dimension="checkpointing",
        words="no activation checkpointing",
        changes={"training.checkpointing.mode": "none"},
        cost=Cost(
            compute=compute,
            sentence=f"{-compute:.0%} less compute: no layer runs its forward twice",
            source="FLOPs of the layers' forward over those of the step with it repeated",
        ),
        rank={"compute": -2},
    )


def _a_part(job: TrainingJob, compute: float, price: int) -> list[Remedy]:
    """All but some operations (a native job), or every second layer (transformers' Trainer)."""
    how = "more" if compute > 0 else "less"
    if _framework(job) == "native":
        name, words = "checkpointing-selective", "selective activation checkpointing"
        changes: Changes = {"training.checkpointing.mode": "selective"}
        what = "every second matrix product and no attention is computed again"
        source = "torchtitan distributed/activation_checkpoint.py; torch 2.13 create_selective_checkpoint_contexts"
    elif _framework(job) in _TRAINERS and _is_recent(job):
        name, words = "checkpointing-every-2", "activation checkpointing of every second layer"
        changes = {"training.checkpointing.mode": "full", "training.checkpointing.every": 2}
        what = "every second layer runs its forward twice"
        source = "Chen et al. 2016, arXiv:1604.06174; transformers 5.24 modeling_utils.py `every_n_layers`"
    else:
        return []
    cost = Cost(compute=compute, sentence=f"about {abs(compute):.0%} {how} compute: {what}", source=source)
    return [
        Remedy(name=name, dimension="checkpointing", words=words, changes=changes, cost=cost, rank={"compute": price})
    ]


def _every_layer(share: float, every: int, before: int) -> Remedy:
    changes: dict[str, object] = {"training.checkpointing.mode": "full"}
    if every > 1:
        changes["training.checkpointing.every"] = 1
    return Remedy(
        name="checkpointing-full",
        dimension="checkpointing",
        words="activation checkpointing",
        changes=changes,
        cost=Cost(
            compute=share,
            sentence=f"{share:.0%} more compute: each layer runs its forward twice",
            source="Chen et al. 2016, arXiv:1604.06174; share from the FLOPs of this model at this length",
        ),
        rank={"compute": before + 1},
    )


def _inputs_on_the_host(job: TrainingJob, share: float, price: int) -> Remedy:
    changes: dict[str, object] = {"training.checkpointing.mode": "offload"}
    if _framework(job) in _TRAINERS:
        # transformers and TRL have a switch beside the one for checkpointing.
        changes = {"training.checkpointing.mode": "full", "training.checkpointing.offload": True}
    elif _framework(job) != "axolotl" and not job.training.checkpointing.reentrant:
        # The function of Unsloth and LLaMA-Factory has reentry whatever the job says.
        changes["training.checkpointing.reentrant"] = True
    return Remedy(
        name="checkpointing-offload",
        dimension="checkpointing",
        words="activation checkpointing with its inputs on the host",
        changes=changes,
        cost=Cost(
            compute=share,
            sentence="each layer's input crosses PCIe twice" + (f", {share:.0%} more compute" if share else ""),
            source="torch autograd/graph.py save_on_cpu; axolotl activation_offloading; unsloth",
        ),
        rank={"compute": price},
    )


def _framework(job: TrainingJob) -> str:
    return job.framework.partition(" ")[0].lower()


def _is_recent(job: TrainingJob) -> bool:
    """Whether the job names a transformers whose Trainer takes ``every_n_layers`` and ``offload`` (5.24).

    They are so new that, unlike for other remedies, a job that names no release is not taken to have them.
    """
    from memlint.dialects.values import version_tuple

    own = version_tuple(job.versions.get("transformers"))
    return bool(own) and own >= (5, 24)
