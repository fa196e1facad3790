"""Flag a run on several GPUs in which each of them holds everything.

## What it does
Speaks where the run has more than one GPU, nothing is sharded, and sharding saves enough.

## Why it matters
Plain data parallelism keeps weights, gradients and optimizer states on every GPU; ZeRO and FSDP keep one share each,
for some communication.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-4B
training:
  activation_checkpointing: full
parallelism: {strategy: ddp}
hardware: {target: 8xA100-80GB}
```
```text
train.yaml:5:25: warning[MEM501] replicated-states: each of 8 GPUs holds all states; sharding saves 57.5 GiB on each
     |
   5 | parallelism: {strategy: ddp}
     |                         ^^^
   = help: `parallelism.strategy: zero2` fits, predicted 34.3 GiB
   = help: `parallelism.strategy: fsdp` fits, predicted 12.0 GiB
   = help: `parallelism.strategy: zero3` fits, predicted 29.4 GiB
```

## How the number is made
The job is predicted again with ZeRO 2 or FSDP over the declared GPUs, gather and reduce buffers included.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM501", name="replicated-states", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where sharding over the run's own GPUs would save enough to matter."""
    found = context.suggest(
        META,
        remedies.sharding(context),
        message=lambda saved: f"each of {context.gpus} GPUs holds all states; sharding saves {gib(saved)} GiB on each",
        at=("parallelism.strategy", "parallelism", "hardware.target", "model"),
    )
    if found is not None:
        yield found
