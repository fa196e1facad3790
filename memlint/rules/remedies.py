"""The remedies of a job under check, the plan made of them, and their help lines.

What each remedy changes and costs stands in :mod:`memlint.plan.options`; here they meet a config in its own dialect.
"""

from __future__ import annotations

from typing import Iterator, Sequence

from memlint.findings import Fix, Help
from memlint.job import REPLICATED
from memlint.plan import options, options_checkpointing, options_scale, options_zero
from memlint.plan.remedy import Remedy
from memlint.plan.result import Plan
from memlint.rules.context import Context
from memlint.units import gib

Remedies = Sequence[Remedy]


def mixed_precision(context: Context) -> Remedies:
    """Autocast where the forward runs in fp32."""
    return options.mixed_precision(context.job, context.target)


def half_frozen_weights(context: Context) -> Remedies:
    """Half-precision base weights where the base is frozen and not quantised."""
    return options.half_frozen_weights(context.job, context.target)


def fused_attention(context: Context) -> Remedies:
    """Fused attention instead of eager."""
    return options.fused_attention(context.job)


def fused_loss(context: Context) -> Remedies:
    """A loss that never holds all logits."""
    return options.fused_loss(context.job)


def checkpointing(context: Context) -> Remedies:
    """Checkpoint every layer where none is."""
    found = options_checkpointing.checkpointing(
        context.job, context.estimate.parameters if context.estimate is not None else 0
    )
    return [remedy for remedy in found if remedy.name == "checkpointing-full"]


def lighter_optimizers(context: Context) -> Remedies:
    """A fused step, 8-bit AdamW, then Adafactor, in place of an optimizer with full-size states."""
    lighter = ("optimizer-adamw-fused", "optimizer-adam-fused", "optimizer-adamw-8bit", "optimizer-adafactor")
    return [remedy for remedy in options.optimizers(context.job) if remedy.name in lighter]


def smaller_micro_batch(context: Context) -> Remedies:
    """The largest divisor of the micro batch that fits, accumulation raised to match; the smallest where none fits."""
    sizes = options_scale.micro_batches(context.job)
    if context.verdict == "fits":
        return sizes[:1]
    for remedy in sizes:
        trial = context.try_changes(remedy.changes)
        if trial is not None and context.judge(trial.estimate) == "fits":
            return [remedy]
    return sizes[-1:]


def sharding(context: Context) -> Remedies:
    """ZeRO 2, then FSDP, then ZeRO 3, over GPUs that now hold everything each."""
    if context.gpus < 2 or context.job.parallelism.strategy not in REPLICATED:
        return []
    found = options_scale.sharding(context.job, context.gpus)
    return [remedy for remedy in found if remedy.name in ("zero2", "fsdp", "zero3")]


def buffers(context: Context) -> Iterator[tuple[str, str, Remedies]]:
    """The native field of each of DeepSpeed's buffers, what it is called, and what makes it smaller."""
    job = context.job
    parameters = context.estimate.parameters if context.estimate is not None else 0
    yield "parallelism.reduce_bucket_elements", "reduction buckets are", options_zero.buckets(job)
    gathering = options_zero.gathering(job, parameters)
    yield "parallelism.max_live_elements", "gathered parameters are", gathering
    yield "parallelism.persistence_threshold_elements", "undivided parameters are", options_zero.persistence(job)
    parts = options_zero.sub_group(job, parameters, context.gpus)
    yield "parallelism.sub_group_elements", "sub groups of the step are", parts


def plan_of(context: Context) -> Plan | None:
    """The cheapest plan that fits the job's target (or is at least tight), made once; None where there is none."""
    if "plan" not in context.memo:
        context.memo["plan"] = _plan(context)
    found: Plan | None = context.memo["plan"]
    return found


def _plan(context: Context) -> Plan | None:
    if context.estimate is None or context.verdict not in ("oom", "tight"):
        return None
    from memlint.plan.planner import Planner
    from memlint.plan.question import from_context

    question = from_context(context)
    if question is None:
        return None
    planner = context.memo["planner"] = Planner(question)
    plan = planner.best()
    return plan if plan is not None and plan.changes else None


def part_of_plan(context: Context, remedy: Remedy) -> str | None:
    """``step 2 of 3 of the plan, where it saves 12.3 GiB``; None where the plan does without this kind of remedy."""
    plan = plan_of(context)
    if plan is None or len(plan.steps) < 2:
        return None
    for number, step in enumerate(plan.steps, 1):
        if step.remedy.dimension == remedy.dimension:
            saved = f", where it saves {gib(step.saves_bytes)} GiB" if step.saves_bytes is not None else ""
            what = "" if step.remedy.name == remedy.name else f" ({step.remedy.words})"
            return f"step {number} of {len(plan.steps)} of the plan{what}{saved}"
    return None


def fitting(context: Context) -> tuple[Help, ...]:
    """The plan as one block of help lines: all of it first, then its steps; where nothing fits, other methods."""
    plan = plan_of(context)
    hint = expandable_segments(context)
    hints = (hint,) if hint is not None else ()
    if plan is None or context.estimate is None:
        return (*_others(context), *hints)
    lines = [_help(context, plan, f"{plan.text} ")]
    if len(plan.steps) > 1:
        for number, step in enumerate(plan.steps, 1):
            if step.device_bytes is None:
                continue
            reached = f"predicted {gib(step.device_bytes)} GiB"
            if step.evaluation_bytes is not None:
                reached = f"an evaluation takes {gib(step.evaluation_bytes)} GiB"
            lines.append(
                Help(
                    text=f"step {number}: {step.text or step.remedy.words} ({step.remedy.words}: "
                    f"{step.remedy.cost.sentence}), {reached}",
                    saves_bytes=context.estimate.device_bytes - step.device_bytes,
                )
            )
    if plan.verdict != "fits":
        lines += _others(context)
    return (*lines, *hints)


def expandable_segments(context: Context) -> Help | None:
    """PyTorch's own remedy against fragmentation, where that is what makes a job tight; no file's key sets it."""
    estimate, usable = context.estimate, context.usable
    now = next((part for part in estimate.overheads if part.name == "allocator_slack"), None) if estimate else None
    if estimate is None or usable is None or now is None or context.verdict != "tight":
        return None
    from memlint.hardware.overheads import allocator_slack

    churn = max(0, estimate.allocated_bytes - sum(estimate.static.values()))
    sharded = context.job.parallelism.strategy not in REPLICATED
    then = allocator_slack(churn, sharded=sharded, expandable_segments=True)
    high = estimate.high_bytes - now.high_bytes + then.high_bytes
    saved = now.expected_bytes - then.expected_bytes
    if high > usable * (1 - context.margin):
        return None
    return Help(
        text="`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment keeps the high end at"
        f" {gib(high)} GiB and fits, predicted {gib(estimate.device_bytes - saved)} GiB",
        saves_bytes=saved,
        fits_after=True,
    )


def _help(context: Context, plan: Plan, what: str) -> Help:
    assert context.estimate is not None
    saved = context.estimate.device_bytes - plan.estimate.device_bytes
    predicted = f"predicted {gib(plan.estimate.device_bytes)} GiB"
    words = {"fits": f"fits, {predicted}", "tight": f"saves {gib(saved)} GiB, {predicted}: tight"}
    return Help(
        text=what + words.get(plan.verdict, f"saves {gib(saved)} GiB, {predicted}: not enough"),
        saves_bytes=saved,
        fits_after=None if plan.verdict == "unknown" else plan.verdict == "fits",
        fix=Fix(safe=plan.safe, edits=plan.edits) if plan.edits else None,
    )


_KINDS = {"method": "another method", "sequence": "shorter rows", "data": "full rows"}


def _others(context: Context) -> tuple[Help, ...]:
    """LoRA, QLoRA, shorter or packed rows where they fit; they train something else, which is the user's choice, so
    these carry no fix.
    """
    planner = context.memo.get("planner")
    if planner is None:
        return ()
    lines = []
    for offer in planner.offers():
        if offer.verdict == "fits" and offer.text:
            from memlint.records import replace

            kind = _KINDS[offer.steps[0].remedy.dimension]
            lines.append(replace(_help(context, offer, f"{kind}: {offer.text} "), fix=None))
    return tuple(lines)


def floor_note(context: Context) -> str | None:
    """What the lowest reachable peak is made of, where no plan fits; None otherwise."""
    planner = context.memo.get("planner")
    plan = plan_of(context)
    if planner is None or context.estimate is None or (plan is not None and plan.verdict == "fits"):
        return None
    floor = planner.floor()
    if floor is None or context.verdict != "oom":
        return None
    parts = sorted(floor.estimate.components.items(), key=lambda item: -item[1])[:3]
    made = ", ".join(f"{name.replace('_', ' ')} {gib(size)}" for name, size in parts if size)
    lowest = f"the lowest it reaches is {gib(floor.estimate.device_bytes)} GiB ({made})"
    engine = sum(part.expected_bytes for part in floor.estimate.overheads if part.name == "vllm_engine")
    if engine:
        origin = context.job.origin("training.vllm_memory_share")
        key = str(origin.key[-1]) if origin is not None and origin.key else "training.vllm_memory_share"
        return f"no other setting of this file fits beside a vLLM engine of {gib(engine)} GiB (`{key}`): {lowest}"
    return f"no setting of this file fits: {lowest}"
