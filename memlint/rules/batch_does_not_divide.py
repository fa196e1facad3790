"""Flag batch sizes of which one does not divide the other, so that the framework does not start.

## What it does
Reports a global batch that is no multiple of micro batch, accumulation and GPUs (DeepSpeed's `train_batch_size`,
LLaMA-Factory's `global_batch_size`), and generations that do not divide the completions of a step (GRPO).

## Why it matters
The framework checks this when it starts, after the nodes have been allocated and the model has been loaded.

## Example
```yaml
model_name_or_path: Qwen/Qwen3-0.6B
output_dir: out
dataset_name: trl-lib/tldr
reward_funcs: [accuracy_reward]
num_generations: 8
per_device_train_batch_size: 3
gradient_accumulation_steps: 2
max_completion_length: 256
num_processes: 2
```
```text
train.yaml:5:18: error[MEM603] batch-does-not-divide: `num_generations: 8` does not divide the 12 completions of a step (3 x 2 on 2 GPUs)
     |
   5 | num_generations: 8
     |                  ^ the trainer refuses to start
```

## How the number is made
There is none: DeepSpeed 0.19 runtime/config.py `_batch_assertion`; LLaMA-Factory v1/core/utils/batching.py; TRL
trainer/grpo_config.py.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import FileContext
from memlint.rules.meta import RuleMeta
from memlint.rules.problems import findings_of

META = RuleMeta(code="MEM603", name="batch-does-not-divide", severity=Severity.ERROR, since="0.1")


def check(context: FileContext) -> Iterator[Finding]:
    """Yield one finding for each such problem that the reader of the format noticed."""
    yield from findings_of(META, context)
