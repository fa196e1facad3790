"""Flag a key that the framework does not know but that is one typing slip away from one that costs memory.

## What it does
Compares every unknown key of a recognised config with the keys that decide memory, and reports a near miss with the
name that was probably meant. Keys that resemble nothing are left alone.

## Why it matters
Most frameworks ignore a key they do not know: `gradient_checkpoint: true` trains without checkpointing, and the run
dies of it an hour later.

## Example
```yaml
base_model: Qwen/Qwen3-0.6B
sequence_len: 2048
micro_batch_size: 1
gradient_checkpoint: true
optimizer: adamw_torch
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
```
```text
train.yaml:4:1: warning[MEM002] unknown-key: unknown key `gradient_checkpoint`; did you mean `gradient_checkpointing`?
     |
   4 | gradient_checkpoint: true
     | ^^^^^^^^^^^^^^^^^^^ has no effect
```

## How the number is made
There is none: the nearest known key by edit similarity.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import FileContext
from memlint.rules.meta import RuleMeta
from memlint.rules.problems import findings_of

META = RuleMeta(code="MEM002", name="unknown-key", severity=Severity.WARNING, since="0.1")


def check(context: FileContext) -> Iterator[Finding]:
    """Yield one finding for each such problem that the reader of the format noticed."""
    yield from findings_of(META, context)
