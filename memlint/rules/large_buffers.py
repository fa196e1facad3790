"""Flag DeepSpeed buffers that take more memory than the job can spare.

## What it does
Speaks where smaller reduction buckets, fewer gathered parameters, fewer undivided ones or smaller sub groups of the
optimizer's step save enough.

## Why it matters
DeepSpeed allocates a reduction bucket whole, two of them with `overlap_comm` in stages 1 and 2, gathers up to
`stage3_max_live_parameters` ahead, and steps over `sub_group_size` at once: with its defaults, several GiB. Smaller ones
cost messages and kernels, and change no result.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-8B
training: {precision: bf16, activation_checkpointing: full, loss: fused}
parallelism: {strategy: zero3}
hardware: {target: 4xL4}
```
```text
train.yaml:4:25: warning[MEM504] large-buffers: reduction buckets are larger than this target can spare; smaller ones save 1.2 GiB
     |
   4 | parallelism: {strategy: zero3}
     |                         ^^^^^
   = note: step 2 of 3 of the plan, where it saves 1.2 GiB
   = help: `parallelism.reduce_bucket_elements: 50000000` saves 1.2 GiB, predicted 26.6 GiB: not enough alone
train.yaml:4:25: warning[MEM504] large-buffers: gathered parameters are larger than this target can spare; smaller ones save 1.9 GiB
     |
   4 | parallelism: {strategy: zero3}
     |                         ^^^^^
   = note: step 3 of 3 of the plan, where it saves 1.9 GiB
   = help: `parallelism.max_live_elements: 100000000` with `parallelism.max_reuse_elements: 100000000` saves 1.9 GiB, predicted 25.9 GiB: not enough alone
   = help: `parallelism.max_live_elements: 100000000`, `parallelism.max_reuse_elements: 100000000` and `parallelism.prefetch_bucket_elements: 0` saves 2.1 GiB, predicted 25.8 GiB: not enough alone
```

## How the number is made
The job is predicted again with a tenth of DeepSpeed's default of bucket, gathered parameters and sub group, with a single
bucket, with nothing gathered ahead, and with its default of undivided parameters.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Callable, Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM504", name="large-buffers", severity=Severity.WARNING, since="0.1")

_ELSEWHERE = ("parallelism.strategy", "parallelism", "hardware.target", "model")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding for each kind of buffer that would save enough to matter."""
    for field, words, candidates in remedies.buffers(context):
        found = context.suggest(META, candidates, message=_message(words), at=(field, *_ELSEWHERE))
        if found is not None:
            yield found


def _message(words: str) -> Callable[[int], str]:
    return lambda saved: f"{words} larger than this target can spare; smaller ones save {gib(saved)} GiB"
