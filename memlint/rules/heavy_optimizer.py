"""Flag an optimizer whose states take more memory than the job can spare.

## What it does
Speaks where a lighter optimizer saves enough: 8-bit AdamW, then Adafactor.

## Why it matters
AdamW keeps two moments for each trained parameter, 8 bytes in fp32; 8-bit AdamW keeps 2 bytes, Adafactor almost none.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-4B
training:
  precision: bf16
  activation_checkpointing: full
hardware: {target: L40S}
```
```text
train.yaml:2:8: warning[MEM401] heavy-optimizer: optimizer `adamw` is heavy for this target; a lighter one saves 13.6 GiB
     |
   2 | model: Qwen/Qwen3-4B
     |        ^^^^^^^^^^^^^
   = help: `training.optimizer: adamw-8bit` saves 13.6 GiB, predicted 24.6 GiB
   = help: `training.optimizer: adafactor` saves 16.7 GiB, predicted 21.4 GiB
```

## How the number is made
The job is predicted again with each of these optimizers, block statistics and step temporaries included.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM401", name="heavy-optimizer", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where a lighter optimizer would save enough to matter."""
    found = context.suggest(
        META,
        remedies.lighter_optimizers(context),
        message=lambda saved: (
            f"optimizer `{context.job.training.optimizer}` is heavy for this target; a lighter one"
            f" saves {gib(saved)} GiB"
        ),
        at=("training.optimizer", "model"),
    )
    if found is not None:
        yield found
