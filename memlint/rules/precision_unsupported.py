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
From the GPU's compute capability: bf16 from 8.0, fp8 from 8.9 (NVIDIA, CUDA GPU Compute Capability). A change is shown only
where the job, read again with it, has no bf16 left and no fp16 weights under a GradScaler, which refuses their gradients
(torch amp/grad_scaler.py `_unscale_grads_`).
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import Context, Trial
from memlint.rules.meta import RuleMeta

if TYPE_CHECKING:
    from memlint.job import TrainingJob

META = RuleMeta(code="MEM202", name="precision-unsupported", severity=Severity.ERROR, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding for the first field that asks for a format the target does not have."""
    target, precision = context.target, context.job.training.precision
    if target is None:
        return
    version = ".".join(map(str, target.compute_capability or ()))
    capability = f" (compute capability {version})" if version else ""
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
        trial = _working(context, name)
        yield context.finding(
            META,
            f"bf16 is not supported by {target.name}{capability}; it needs 8.0 or later",
            at=(name,),
            helps=(context.replacement(trial),) if trial is not None else (),
        )
        return


def _working(context: Context, name: str) -> Trial | None:
    """The first change that the config's format can write and that leaves no bf16 and nothing that GradScaler refuses.

    Weights that train become fp32 under fp16 autocast: updates of fp16 weights are lost in their rounding.
    """
    job = context.job
    precision = job.training.precision
    scaled = {"training.precision.autocast": "fp16", "training.precision.grad_scaler": True}
    whole: dict[str, object] = scaled if precision.autocast == "bf16" else {}
    if precision.weights == "bf16":
        trained = job.training.method in ("full", "freeze") and not precision.master_weights
        whole = {**whole, **scaled} if trained else whole
        whole = {**whole, "training.precision.weights": "fp32" if trained else "fp16"}
    for changes in (whole, scaled if name.endswith("autocast") else {name: "fp16"}):
        trial = context.try_changes(changes)
        if trial is not None and trial.text and trial.job is not None and _works(trial.job):
            return trial
    return None


def _works(job: TrainingJob) -> bool:
    precision = job.training.precision
    cast = job.training.method == "full" and precision.trainable_weights is not None  # nothing stays as it is loaded
    if "bf16" in (None if cast else precision.weights, precision.trainable_weights, precision.autocast):
        return False
    from memlint.dialects.promises import lookup
    from memlint.plan.conflicts import fp16_weights_under_a_scaler

    return not fp16_weights_under_a_scaler(lambda field: lookup(job, field), "")
