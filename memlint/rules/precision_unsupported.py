"""Flag a number format that the declared GPU cannot compute in.

## What it does
Reports bf16 on GPUs before Ampere and fp8 on GPUs before Ada and Hopper, where a file asks for it by name. A value such
as `auto` leaves the choice to the framework and is not reported.

## Why it matters
The Hugging Face Trainer refuses to start with bf16 on such a GPU; elsewhere it is emulated, slowly.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-0.6B
training:
  precision: bf16-mixed
hardware: {target: T4}
```
```text
train.yaml:4:14: error[MEM202] precision-unsupported: bf16 is not supported by T4 (compute capability 7.5); it needs 8.0 or later
     |
   4 |   precision: bf16-mixed
     |              ^^^^^^^^^^
   = help: `training.precision: fp16-mixed` works there, predicted 27.2 GiB
```

## How the number is made
From the GPU's compute capability: bf16 from 8.0, fp8 from 8.9 (NVIDIA, CUDA GPU Compute Capability).
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta

META = RuleMeta(code="MEM202", name="precision-unsupported", severity=Severity.ERROR, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding for the first field that asks for a format the target does not have."""
    target, precision = context.target, context.job.training.precision
    if target is None:
        return
    capability = (
        f" (compute capability {'.'.join(map(str, target.compute_capability))})" if (target.compute_capability) else ""
    )
    if precision.fp8 and target.fp8 is False and context.stated("training.precision.fp8"):
        yield context.finding(
            META,
            f"fp8 is not supported by {target.name}{capability}; it needs 8.9 or later",
            at=("training.precision.fp8", "training.precision"),
        )
    if target.bf16 is not False:
        return
    for field, dtype in (("autocast", precision.autocast), ("weights", precision.weights)):
        name = f"training.precision.{field}"
        if dtype != "bf16" or not context.stated(name) or context.value_at(name) == "auto":
            continue
        changes = {name: "fp16", "training.precision.grad_scaler": field == "autocast"}
        trial = context.try_changes(changes)
        yield context.finding(
            META,
            f"bf16 is not supported by {target.name}{capability}; it needs 8.0 or later",
            at=(name,),
            helps=(context.replacement(trial),) if trial is not None and trial.text else (),
        )
        return
