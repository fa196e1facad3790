"""Note that the model's own code is not known, so that the prediction comes from the nearest shape.

## What it does
Speaks where the `model_type` is not one that memlint models operation by operation.

## Why it matters
The figure is then good to tens of percent rather than to a few, and its interval is wide: that in which memlint's own
types lie when each is taken as unknown.

## Example
```yaml
memlint: 1
model:
  model_type: brandnew
  hidden_size: 1024
  num_hidden_layers: 8
  num_attention_heads: 8
  intermediate_size: 4096
  vocab_size: 32000
training:
  micro_batch_size: 1
```
```text
train.yaml:2:1: info[MEM006] approximate-architecture: `brandnew` is not an architecture that memlint knows: computed as a plain decoder of its fields, with a wide interval
     |
   2 | model:
     | ^^^^^
```

## How the number is made
From the nearest shape of a decoder's fields (plain, with experts, with latent attention), or from the textbook formulas
(`memlint estimate --method first-order`) where they are not those of a decoder.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta

META = RuleMeta(code="MEM006", name="approximate-architecture", severity=Severity.INFO, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where the prediction is approximate."""
    if context.approximate is not None:
        yield context.finding(META, context.approximate, at=("model",))
