"""Remedies of DeepSpeed's buffers: what each key holds on the GPU is in :mod:`memlint.estimate.zero`.

No remedies, because they hold nothing or nothing less: ``allgather_bucket_size``, ``allgather_partitions``,
``round_robin_gradients``, ``overlap_comm`` in stage 3, and ``contiguous_gradients``, without which the gradients that
wait for a reduction take a bucket's place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.estimate.zero import Zero
from memlint.plan.remedy import Changes, Cost, Remedy

if TYPE_CHECKING:
    from memlint.job import TrainingJob

BUCKET_ELEMENTS = 50_000_000
"""A tenth of DeepSpeed's default of 5e8 (runtime/zero/config.py, 0.19.8): 100 MB in half precision."""
GATHERED_ELEMENTS = 100_000_000
"""A tenth of DeepSpeed's default of 1e9 for what is gathered and for what stays gathered."""
SUB_GROUP_ELEMENTS = 100_000_000
"""A tenth of DeepSpeed's default of 1e9."""

_DOCS = "DeepSpeed docs, config-json: "


def _zero(job: TrainingJob) -> Zero | None:
    """The job's buffers with their defaults filled in, where DeepSpeed divides it already."""
    stage = job.parallelism.strategy[4:] if job.parallelism.strategy.startswith("zero") else ""
    return Zero(job, int(stage), 2, "bf16") if stage in ("1", "2", "3") else None


def buckets(job: TrainingJob) -> tuple[Remedy, ...]:
    """A smaller reduction bucket, then also one of them instead of two."""
    zero = _zero(job)
    if zero is None:
        return ()
    small: Changes = {}
    if zero.capacity > BUCKET_ELEMENTS:
        small = {"parallelism.reduce_bucket_elements": BUCKET_ELEMENTS}
    found = []
    if small:
        found.append(
            Remedy(
                name="reduce-bucket",
                dimension="buckets",
                words="smaller reduction buckets",
                changes=small,
                cost=Cost(
                    sentence="more and smaller messages between GPUs",
                    source=_DOCS + "reduce_bucket_size limits the memory of the allreduce",
                ),
                rank={"kernel": 1},
                safe=True,
            )
        )
    if zero.buffers == 2:
        found.append(
            Remedy(
                name="one-reduce-bucket",
                dimension="buckets",
                words="a single reduction bucket" if not small else "a single, smaller reduction bucket",
                changes={**small, "parallelism.overlap_comm": False},
                cost=Cost(
                    sentence="gradients are no longer reduced while the backward runs",
                    source="DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py setup_buckets: overlap_comm makes a second",
                ),
                rank={"kernel": 2},
                safe=True,
            )
        )
    return tuple(found)


def gathering(job: TrainingJob, parameters: int) -> tuple[Remedy, ...]:
    """Fewer parameters of stage 3 gathered at a time, then none ahead of their use; ``parameters``: of the model."""
    zero = _zero(job)
    if zero is None or zero.stage < 3 or parameters <= GATHERED_ELEMENTS:
        return ()
    limits = zero.limits
    changes: Changes = {}
    if limits.live > GATHERED_ELEMENTS and limits.prefetch:
        changes = {"parallelism.max_live_elements": GATHERED_ELEMENTS}
    if limits.reuse > GATHERED_ELEMENTS:
        changes = {**changes, "parallelism.max_reuse_elements": GATHERED_ELEMENTS}
    found = []
    if changes:
        found.append(
            Remedy(
                name="gathered-parameters",
                dimension="gathering",
                words="fewer gathered parameters",
                changes=changes,
                cost=Cost(
                    sentence="weights are gathered later, and once more for a backward that follows soon",
                    source=_DOCS + "stage3_max_live_parameters and stage3_max_reuse_distance: smaller values use less",
                ),
                rank={"kernel": 1},
                safe=True,
            )
        )
    if limits.prefetch and limits.live:
        found.append(
            Remedy(
                name="no-prefetch",
                dimension="gathering",
                words="weights gathered only when they are used",
                changes={**changes, "parallelism.prefetch_bucket_elements": 0},
                cost=Cost(
                    sentence="each layer waits for its weights",
                    source=_DOCS + "stage3_prefetch_bucket_size: smaller values use less memory, but may stall",
                ),
                rank={"kernel": 2},
                safe=True,
            )
        )
    return tuple(found)


def persistence(job: TrainingJob) -> tuple[Remedy, ...]:
    """Divide parameters again that a threshold above DeepSpeed's own keeps whole on each GPU."""
    from memlint.estimate.zero_settings import PERSISTENT_ELEMENTS

    zero = _zero(job)
    if zero is None or zero.stage < 3 or zero.threshold <= PERSISTENT_ELEMENTS:
        return ()
    return (
        Remedy(
            name="persistence-threshold",
            dimension="persistence",
            words="fewer undivided parameters",
            changes={"parallelism.persistence_threshold_elements": PERSISTENT_ELEMENTS},
            cost=Cost(
                sentence="more and smaller messages between GPUs",
                source=_DOCS + "stage3_param_persistence_threshold: smaller values use less memory",
            ),
            rank={"kernel": 1},
            safe=True,
        ),
    )


def sub_group(job: TrainingJob, parameters: int, gpus: int) -> tuple[Remedy, ...]:
    """Step over a smaller part of this GPU's partition of the model's ``parameters`` at a time."""
    zero = _zero(job)
    if zero is None or zero.stage < 3 or zero.offloads or zero.sub_group <= SUB_GROUP_ELEMENTS:
        return ()
    if job.training.method not in ("full", "freeze") or parameters <= SUB_GROUP_ELEMENTS * gpus:
        return ()
    return (
        Remedy(
            name="sub-group",
            dimension="sub-group",
            words="a smaller part updated at a time",
            changes={"parallelism.sub_group_elements": SUB_GROUP_ELEMENTS},
            cost=Cost(
                sentence="more and smaller optimizer kernels",
                source="DeepSpeed 0.19.8 runtime/zero/stage3.py _prepare_fp32_grad_for_sub_group; "
                + _DOCS
                + "sub_group",
            ),
            rank={"kernel": 1},
            safe=True,
        ),
    )
