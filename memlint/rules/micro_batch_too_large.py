"""Flag a micro batch that can be made smaller without changing what is optimised.

## What it does
Speaks where the micro batch is above one and moving part of it into gradient accumulation saves enough.

## Why it matters
Accumulated gradients give the same global batch and the same update; only the GPU's utilisation changes.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-1.7B
training:
  micro_batch_size: 16
  sequence_length: 4096
  activation_checkpointing: full
hardware: {target: A100-80GB}
```
```text
train.yaml:4:21: warning[MEM601] micro-batch-too-large: a micro batch of 16 is more than needed; 4 with more accumulation saves 90.4 GiB
     |
   4 |   micro_batch_size: 16
     |                     ^^
   = help: `training.micro_batch_size: 4` with `training.gradient_accumulation_steps: 4` fits, predicted 59.1 GiB
```

## How the number is made
The job is predicted again with the largest divisor of the micro batch that fits, and accumulation raised by the same
factor.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.plan.remedy import Changes
from memlint.records import replace
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM601", name="micro-batch-too-large", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where a smaller micro batch with more accumulation would save enough to matter."""
    candidates = remedies.smaller_micro_batch(context)
    found = context.suggest(
        META,
        candidates,
        message=lambda saved: (
            f"a micro batch of {context.job.training.micro_batch_size} is more than needed;"
            f" {_instead(candidates[0].changes)} saves {gib(saved)} GiB"
        ),
        at=("training.micro_batch_size", "model"),
    )
    if found is None:
        return
    if META.code not in context.named and (context.verdict == "fits" or not found.fits_after):
        # A batch that fits is used well, and one row is not what a job needs that does not fit with it either: the
        # saving is worth a word, but `--fix` must not slow the run down for it.
        found = replace(found, fix=None)
    yield found


def _instead(changes: Changes) -> str:
    mini = changes.get("training.embedding_mini_batch")
    if mini is not None:
        return f"{mini} embedded at a time, with cached gradients,"
    return f"{changes['training.micro_batch_size']} with more accumulation"
