"""Flag eager attention, whose score matrices grow with the square of the sequence.

## What it does
Speaks where attention is `eager` and a fused kernel (sdpa, flash) saves enough.

## Why it matters
Eager attention stores heads x sequence x sequence scores and probabilities for every layer; fused kernels store neither
and are faster, with the same result within numerics.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-4B
training:
  micro_batch_size: 1
  sequence_length: 8192
  attention: eager
  activation_checkpointing: full
hardware: {target: A100-80GB}
```
```text
train.yaml:6:14: warning[MEM302] quadratic-attention: eager attention keeps the whole score matrix; a fused kernel saves 10.2 GiB
     |
   6 |   attention: eager
     |              ^^^^^
   = note: step 1 of 2 of the plan, where it saves 10.2 GiB
   = help: `training.attention: sdpa` saves 10.2 GiB, predicted 75.8 GiB: tight
```

## How the number is made
The job is predicted again with sdpa.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM302", name="quadratic-attention", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where fused attention would save enough to matter."""
    found = context.suggest(
        META,
        remedies.fused_attention(context),
        message=lambda saved: f"eager attention keeps the whole score matrix; a fused kernel saves {gib(saved)} GiB",
        at=("training.attention", "training.sequence_length", "model"),
    )
    if found is not None:
        yield found
