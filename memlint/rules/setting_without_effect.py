"""Flag a memory setting that another setting overrides or contradicts.

## What it does
Reports a value that the framework ignores because of another one in the same file or in a companion file.

## Why it matters
The author believes that a saving is switched on, and plans batch and sequence for it.

## Example
```yaml
base_model: Qwen/Qwen3-0.6B
sequence_len: 2048
micro_batch_size: 1
rl: dpo
cut_cross_entropy: true
plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]
bf16: true
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
```
```text
train.yaml:5:1: warning[MEM007] setting-without-effect: the fused loss has no effect with `rl: dpo`, whose loss is computed from the logits
     |
   5 | cut_cross_entropy: true
     | ^^^^^^^^^^^^^^^^^ has no effect
```

## How the number is made
There is none: the framework's source says which setting wins.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import FileContext
from memlint.rules.meta import RuleMeta
from memlint.rules.problems import findings_of

META = RuleMeta(code="MEM007", name="setting-without-effect", severity=Severity.WARNING, since="0.1")


def check(context: FileContext) -> Iterator[Finding]:
    """Yield one finding for each such problem that the reader of the format noticed."""
    yield from findings_of(META, context)
