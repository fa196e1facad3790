"""Flag offloading to the host where it is not needed, or where nothing else makes a job fit.

## What it does
Speaks of a job that offloads states or weights although the GPUs hold them with a quarter of their memory to spare; and
of a job that does not fit, whose cheapest plan offloads.

## Why it matters
An offloaded step runs on the CPU and moves states over PCIe in every step: several times slower, for nothing where the
memory is there. Where it is needed, the host must have that much memory.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-0.6B
training:
  precision: bf16
  activation_checkpointing: full
parallelism: {strategy: zero2, offload: optimizer}
hardware: {target: 2xA100-80GB}
```
```text
train.yaml:6:41: warning[MEM502] offload-needed-or-wasted: offloading to the host is not needed: without it the peak is 7.9 GiB (6.9-9.8) of 79.1 GiB usable
     |
   6 | parallelism: {strategy: zero2, offload: optimizer}
     |                                         ^^^^^^^^^ costs time in every step
   = help: `parallelism.offload: none` keeps all of it on the GPU
```

## How the number is made
The job is predicted again without offloading, and its high end held against three quarters of the usable memory; the
plan is that of MEM101.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Fix, Help, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM502", name="offload-needed-or-wasted", severity=Severity.WARNING, since="0.1")

SPARE = 0.25
"""Share of the usable memory that must stay free before offloading is called wasted: a choice of memlint."""

_AT = ("parallelism.offload", "parallelism.strategy", "parallelism", "hardware.target", "model")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding of either kind."""
    found = _wasted(context) if context.job.parallelism.offload != "none" else _needed(context)
    if found is not None:
        yield found


def _wasted(context: Context) -> Finding | None:
    usable = context.usable
    if usable is None or context.estimate is None or context.verdict == "oom":
        return None
    trial = context.try_changes({"parallelism.offload": "none"})
    if trial is None or not trial.text or trial.estimate.high_bytes > usable * (1 - SPARE):
        return None
    held = trial.estimate
    text = f"{trial.text} keeps all of it on the GPU"
    fix = Fix(safe=False, edits=trial.edits)
    return context.finding(
        META,
        f"offloading to the host is not needed: without it the peak is {gib(held.device_bytes)} GiB"
        f" ({gib(held.low_bytes)}-{gib(held.high_bytes)}) of {gib(usable)} GiB usable",
        at=_AT,
        label="costs time in every step",
        helps=(Help(text=text, fits_after=True, fix=fix),),
        fits_after=True,
        fix=fix,
    )


def _needed(context: Context) -> Finding | None:
    plan = remedies.plan_of(context) if context.verdict == "oom" else None
    if plan is None or plan.verdict != "fits":
        return None
    step = next((step for step in plan.steps if step.remedy.rank.get("offload")), None)
    if step is None:
        return None
    host, limit = plan.estimate.host_bytes, context.host_limit
    known = f"of {gib(limit)} GiB there" if limit is not None else "which is not declared (`host-memory`)"
    return context.finding(
        META,
        f"the job fits only with states in host memory: {step.remedy.words} needs {gib(host)} GiB of it on each node,"
        f" {known}",
        at=_AT,
        notes=(f"step {plan.steps.index(step) + 1} of {len(plan.steps)} of the plan",),
        fits_after=True,
    )
