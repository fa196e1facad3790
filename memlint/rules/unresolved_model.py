"""Flag a model whose shape could not be found, so that nothing can be predicted.

## What it does
Says where memlint looked for the model's config and why it found none.

## Why it matters
Without the model's shape there is no prediction, and a silent pass would look like a good one.

## Example
```yaml
memlint: 1
model: nobody/no-such-model
training:
  micro_batch_size: 1
```
```text
train.yaml:2:8: warning[MEM004] unresolved-model: the shape of `nobody/no-such-model` is not known offline: run `memlint models add nobody/no-such-model` once with a network
     |
   2 | model: nobody/no-such-model
     |        ^^^^^^^^^^^^^^^^^^^^
```

## How the number is made
There is none. Sources in order: inline or path, `models` setting, saved beside the project, the Hugging Face cache on
disk, the bundled catalog, and the hub unless offline.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta

META = RuleMeta(code="MEM004", name="unresolved-model", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where the job has no architecture."""
    if context.unresolved is not None:
        yield context.finding(META, context.unresolved, at=("model",))
