"""Flag a run that keeps every layer's activations where recomputing them would matter.

## What it does
Speaks where activation checkpointing is off and switching it on saves enough.

## Why it matters
Checkpointing keeps one tensor per layer and runs each layer's forward a second time: about a third more compute for the
largest saving of activation memory there is.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-4B
training:
  micro_batch_size: 4
  sequence_length: 4096
hardware: {target: A100-80GB}
```
```text
train.yaml:4:21: warning[MEM301] checkpointing-off: activation checkpointing is off; switching it on saves 108.8 GiB
     |
   4 |   micro_batch_size: 4
     |                     ^
   = note: step 2 of 3 of the plan, where it saves 90.1 GiB
   = help: `training.activation_checkpointing: full` saves 108.8 GiB, predicted 82.8 GiB: not enough alone
```

## How the number is made
The job is predicted again with every layer checkpointed, its recompute in the backward included.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM301", name="checkpointing-off", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where activation checkpointing would save enough to matter."""
    found = context.suggest(
        META,
        remedies.checkpointing(context),
        message=lambda saved: f"activation checkpointing is off; switching it on saves {gib(saved)} GiB",
        at=("training.checkpointing.mode", "training.checkpointing", "training.micro_batch_size", "model"),
    )
    if found is not None:
        yield found
