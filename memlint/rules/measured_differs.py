"""Flag a job whose real run took more or less memory than the prediction allows.

## What it does
Compares what a run really took with the predicted interval. The figure comes from `memlint check --verify`, which runs
two training steps on this machine's GPU, or from a comment `# memlint: measured=23.6GiB` that states the peak of a run
as nvidia-smi or `memlint verify` showed it.

## Why it matters
A prediction that a measurement refutes must not decide what fits. Either the config does not say what the run did, or
memlint is wrong about it: then `memlint verify SOURCE --output report.json` holds everything that a bug report needs.

## Example
```yaml
# memlint: measured=79.3GiB
memlint: 1
model: Qwen/Qwen3-0.6B
training:
  micro_batch_size: 4
  sequence_length: 1024
  activation_checkpointing: full
hardware: {target: A100-80GB}
```
```text
train.yaml:1:1: error[MEM901] measured-differs: measured peak 79.3 GiB stated in a comment is above predicted 15.1 GiB (14.8-15.9)
     |
   1 | # memlint: measured=79.3GiB
     | ^
```

## How the number is made
The measured figure is what the driver counts for the process at its peak: tensors, what the caching allocator holds
beside them, CUDA context and libraries. The interval is that of `estimate`, for the GPU that the run was made on.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM901", name="measured-differs", severity=Severity.ERROR, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where the measured peak lies outside the predicted interval."""
    run = context.measured
    if run is None:
        return
    predicted = f"predicted {gib(run.expected_bytes)} GiB ({gib(run.low_bytes)}-{gib(run.high_bytes)})"
    if run.measured_bytes is None:
        if run.usable_bytes is None or run.high_bytes > run.usable_bytes:
            return
        text = f"the run {run.where} ran out of memory although {predicted} fits {gib(run.usable_bytes)} GiB usable"
    elif run.measured_bytes > run.high_bytes:
        text = f"measured peak {gib(run.measured_bytes)} GiB {run.where} is above {predicted}"
    elif run.measured_bytes < run.low_bytes:
        text = f"measured peak {gib(run.measured_bytes)} GiB {run.where} is below {predicted}"
    else:
        return
    if run.line is None:
        yield context.finding(
            META,
            text,
            at=("training.micro_batch_size", "training.sequence_length", "model"),
            notes=(*run.notes, *context.assumed),
        )
        return
    yield Finding(
        code=META.code,
        name=META.name,
        severity=META.severity,
        message=text,
        line=run.line,
        column=run.column,
        notes=context.assumed,
    )
