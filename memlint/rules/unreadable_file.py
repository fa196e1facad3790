"""Flag a training config that cannot be read as YAML, JSON or TOML, or that says one thing twice.

## What it does
Reports broken syntax, a duplicate key, a wrong encoding, and files that are too large or too deeply nested to be a
config, at the place where reading stopped. A duplicate key is a warning: the framework reads the file all the same and
takes the last value.

## Why it matters
The framework stops at the same place, minutes later on a rented GPU; or, for a duplicate key, silently drops a setting.

## Example
```yaml
base_model: Qwen/Qwen3-8B
sequence_len: 2048
micro_batch_size: 1
learning_rate: [0.0002
num_epochs: 1
```
```text
train.yaml:5:11: error[MEM001] unreadable-file: did not find expected ',' or ']', while parsing a flow sequence
     |
   5 | num_epochs: 1
     |           ^
```

## How the number is made
There is none: this is the parser's own message with its line and column.
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import FileContext
from memlint.rules.meta import RuleMeta

META = RuleMeta(code="MEM001", name="unreadable-file", severity=Severity.ERROR, since="0.1")


def check(context: FileContext) -> Iterator[Finding]:
    """Yield one finding for each problem of syntax; a warning where the file is readable all the same."""
    for problem in context.document.problems:
        line, column, end_line, end_column = problem.span
        yield Finding(
            code=META.code,
            name=META.name,
            severity=META.severity if problem.fatal else Severity.WARNING,
            message=problem.message,
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
        )
