"""Flag a companion file that the config names and that is not there.

## What it does
Looks for the DeepSpeed or accelerate file that a config points to: first from the framework's working directory (the
nearest repository root, or the `search-root` setting), then beside the config. Files outside the repository are never
opened.

## Why it matters
Without it the run does not start; and the prediction lacks the very settings that shard or offload it.

## Example
```yaml
base_model: Qwen/Qwen3-0.6B
sequence_len: 2048
micro_batch_size: 1
deepspeed: configs/zero3_missing.json
optimizer: adamw_torch
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
```
```text
train.yaml:4:12: error[MEM008] missing-file: DeepSpeed file `configs/zero3_missing.json` does not exist; ZeRO stage 3 is assumed from its name
     |
   4 | deepspeed: configs/zero3_missing.json
     |            ^^^^^^^^^^^^^^^^^^^^^^^^^^ not found
```

## How the number is made
There is none.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import FileContext
from memlint.rules.meta import RuleMeta
from memlint.rules.problems import findings_of

META = RuleMeta(code="MEM008", name="missing-file", severity=Severity.ERROR, since="0.1")


def check(context: FileContext) -> Iterator[Finding]:
    """Yield one finding for each such problem that the reader of the format noticed."""
    yield from findings_of(META, context)
