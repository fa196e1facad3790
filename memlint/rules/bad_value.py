"""Flag a value that the framework or the model cannot take.

## What it does
Reports a memory-relevant value of the wrong type or outside its allowed set, model shapes that cannot exist, such as a
hidden size that its heads do not divide, and adapters or patterns that name nothing of the model, so that nothing
trains.

## Why it matters
The framework rejects the file at start, or reads it as something else (`2e-5` is a string to PyYAML), and no prediction
made from it would be worth anything.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-8B
training:
  micro_batch_size: zero
```
```text
train.yaml:4:21: error[MEM003] bad-value: `micro_batch_size` must be a whole number, not `zero`
     |
   4 |   micro_batch_size: zero
     |                     ^^^^
```

## How the number is made
There is none: allowed values come from the framework's own source, named on `memlint dialects`.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import FileContext
from memlint.rules.meta import RuleMeta
from memlint.rules.problems import findings_of

META = RuleMeta(code="MEM003", name="bad-value", severity=Severity.ERROR, since="0.1")


def check(context: FileContext) -> Iterator[Finding]:
    """Yield one finding for each such problem that the reader of the format noticed."""
    yield from findings_of(META, context)
