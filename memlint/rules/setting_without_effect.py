"""Flag a memory setting that another setting overrides or contradicts.

## What it does
Reports a value that the framework ignores because of another one in the same file or in a companion file.

## Why it matters
The author believes that a saving is switched on, and plans batch and sequence for it.

## Example
```yaml
model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
finetuning_type: full
lora_rank: 16
dataset: identity
template: qwen
cutoff_len: 2048
per_device_train_batch_size: 1
output_dir: out
bf16: true
```

## How the number is made
There is none: the framework's source says which setting wins.
"""

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
