"""Flag a job that may not fit: the predicted interval reaches into the margin that should stay free.

## What it does
Compares the high end of the predicted interval with the usable memory less `margin` (a setting, 5 % by default).

## Why it matters
A longer batch, another driver or a fragmented allocator is then enough to stop the run.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-4B
training:
  micro_batch_size: 1
  sequence_length: 4096
  activation_checkpointing: full
hardware: {target: A100-80GB}
```
```text
train.yaml:4:21: warning[MEM102] thin-headroom: predicted peak 75.8 GiB (75.3-77.8) leaves less than the margin of 5% free of 79.1 GiB usable on A100-80GB
     |
   4 |   micro_batch_size: 1
     |                     ^
   = breakdown: weights 15.0, gradients 15.0, optimizer 30.0, temporaries 15.0, other 0.9 (GiB per GPU)
   = help: `training.optimizer: adamw-fused` fits, predicted 62.0 GiB
```

## How the number is made
As for `out-of-memory`; the margin is a share of the usable memory.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context, breakdown
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM102", name="thin-headroom", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where the high end of the prediction exceeds the usable memory less the margin."""
    estimate, target = context.estimate, context.target
    if context.verdict != "tight" or estimate is None or target is None or context.usable is None:
        return
    interval = f"{gib(estimate.low_bytes)}-{gib(estimate.high_bytes)}"
    peak = f"predicted peak {gib(estimate.device_bytes)} GiB ({interval})"
    if estimate.high_bytes > context.usable:
        text = f"{peak} may exceed {gib(context.usable)} GiB usable on {target.name}"
    else:
        text = (
            f"{peak} leaves less than the margin of {context.margin:.0%}"
            f" free of {gib(context.usable)} GiB usable on {target.name}"
        )
    helps = remedies.fitting(context)
    floor = remedies.floor_note(context)
    yield context.finding(
        META,
        text,
        at=("training.micro_batch_size", "training.sequence_length", "model"),
        breakdown=breakdown(estimate),
        helps=helps,
        notes=(*context.assumed, *((floor,) if floor is not None else ())),
        saves_bytes=helps[0].saves_bytes if helps else None,
        fits_after=helps[0].fits_after if helps else None,
        fix=helps[0].fix if helps else None,
    )
