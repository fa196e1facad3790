"""Note that no GPU is declared, so that a prediction has nothing to be compared with.

## What it does
Speaks once for each job for which neither the command line nor the file nor the settings name a target.

## Why it matters
The peak is predicted all the same, but memlint cannot say whether it fits.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-0.6B
training:
  micro_batch_size: 1
```
```text
train.yaml:2:8: info[MEM005] no-target: no GPU is declared, so the predicted peak is compared with nothing
     |
   2 | model: Qwen/Qwen3-0.6B
     |        ^^^^^^^^^^^^^^^
   = help: declare one with `--target A100-80GB`, with `target` in the settings, or with a comment `# memlint: target=8xA100-80GB` in the file
```

## How the number is made
There is none.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Help, Severity
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta

META = RuleMeta(code="MEM005", name="no-target", severity=Severity.INFO, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where no target is declared."""
    if context.target is None and context.estimate is not None:
        yield context.finding(
            META,
            "no GPU is declared, so the predicted peak is compared with nothing",
            at=("model",),
            helps=(
                Help(
                    text="declare one with `--target A100-80GB`, with `target` in the settings,"
                    " or with a comment `# memlint: target=8xA100-80GB` in the file"
                ),
            ),
        )
