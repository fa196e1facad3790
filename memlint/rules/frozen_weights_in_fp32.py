"""Flag frozen base weights that are loaded in fp32.

## What it does
Speaks where an adapter or a few layers are trained and the frozen rest is held in fp32, without quantisation.

## Why it matters
Frozen weights get no update, so their extra mantissa buys nothing: bf16 halves the largest part of the peak.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-8B
training:
  method: lora
  lora: {rank: 16}
  precision: bf16-mixed
  activation_checkpointing: full
hardware: {target: RTX4090}
```
```text
train.yaml:6:14: warning[MEM203] frozen-weights-in-fp32: frozen weights are held in fp32; half precision saves 17.0 GiB
     |
   6 |   precision: bf16-mixed
     |              ^^^^^^^^^^ frozen weights in fp32
   = help: `training.precision: {weights: bf16, autocast: bf16}` fits, predicted 20.4 GiB
```

## How the number is made
The job is predicted again with the weights in half precision; adapters stay in fp32.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM203", name="frozen-weights-in-fp32", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where half-precision frozen weights would save enough to matter."""
    found = context.suggest(
        META,
        remedies.half_frozen_weights(context),
        message=lambda saved: f"frozen weights are held in fp32; half precision saves {gib(saved)} GiB",
        at=("training.precision.weights", "training.precision", "training.method", "model"),
        label="frozen weights in fp32",
    )
    if found is not None:
        yield found
