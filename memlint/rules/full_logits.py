"""Flag a loss that holds the logits of every token over the whole vocabulary.

## What it does
Speaks where the loss is computed from full logits and a fused or chunked loss saves enough.

## Why it matters
With a vocabulary of 128k, the logits of 8k tokens are 2 GiB in bf16, and the fp32 copy, its gradient and the softmax
several times that, all at one moment.

## Example
```yaml
memlint: 1
model: meta-llama/Llama-3.2-1B
training:
  micro_batch_size: 16
  sequence_length: 4096
  activation_checkpointing: full
hardware: {target: A100-80GB}
```
```text
train.yaml:5:20: warning[MEM303] full-logits: the loss holds the logits of every token; a fused loss saves 83.4 GiB
     |
   5 |   sequence_length: 4096
     |                    ^^^^
   = help: `training.loss: fused` fits, predicted 36.8 GiB
```

## How the number is made
The job is predicted again with a loss that never holds more than a chunk of the logits.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM303", name="full-logits", severity=Severity.WARNING, since="0.1")

_TRAINERS = ("axolotl", "llama-factory", "trl")
"""Frameworks with trainers of their own: where no key of theirs asks for a fused loss, there is none to take."""


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where a fused or chunked loss would save enough to matter."""
    own = context.job.framework.partition(" ")[0].lower() in _TRAINERS
    found = context.suggest(
        META,
        [remedy for remedy in remedies.fused_loss(context) if not own or context.writable(remedy.changes)],
        message=lambda saved: f"the loss holds the logits of every token; a fused loss saves {gib(saved)} GiB",
        at=("training.loss", "training.sequence_length", "training.micro_batch_size", "model"),
    )
    if found is not None:
        yield found
