"""Flag a run that computes in fp32 where half precision serves.

## What it does
Speaks where the forward runs in fp32: fp32 weights and no autocast. It offers bf16 autocast, or fp16 where the target
has no bf16.

## Why it matters
Mixed precision halves most activations, runs several times faster on tensor cores, and leaves weights, gradients and
optimizer states in fp32 as they were.

## Example
```yaml
memlint: 1
model: openai-community/gpt2-xl
training:
  micro_batch_size: 8
  sequence_length: 1024
  precision: fp32
hardware: {target: A100-80GB}
```
```text
train.yaml:6:14: warning[MEM201] full-precision: computes in fp32; mixed precision saves 13.8 GiB
     |
   6 |   precision: fp32
     |              ^^^^ fp32 compute
   = note: step 1 of 2 of the plan, where it saves 13.8 GiB
   = help: `training.precision: bf16-mixed` saves 13.8 GiB, predicted 77.1 GiB: tight
```

## How the number is made
The job is predicted again with autocast, including the half-precision copies of weights that autocast keeps.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM201", name="full-precision", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where mixed precision would save enough to matter."""
    found = context.suggest(
        META,
        remedies.mixed_precision(context),
        message=lambda saved: f"computes in fp32; mixed precision saves {gib(saved)} GiB",
        at=("training.precision.autocast", "training.precision", "training.precision.weights", "model"),
        label="fp32 compute",
    )
    if found is not None:
        yield found
