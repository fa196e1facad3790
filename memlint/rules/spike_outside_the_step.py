"""Flag an evaluation that does not fit although the training step does.

## What it does
Predicts the evaluation of a run that has one: forward and loss without gradients over the rows of one evaluation batch,
beside the weights and the optimizer states. Speaks where its expected peak exceeds the usable memory.

## Why it matters
The run trains for hours and stops at its first evaluation. `per_device_eval_batch_size` is 8 where nobody sets it, all
logits of these rows are made at once, and Liger's fused loss, which spares them in training, stands aside in eval mode.

## Example
```yaml
memlint: 1
model: meta-llama/Llama-3.2-1B
training:
  micro_batch_size: 1
  sequence_length: 4096
  eval_micro_batch_size: 16
hardware: {target: A100-40GB}
```
```text
train.yaml:6:26: warning[MEM104] spike-outside-the-step: an evaluation of 16 rows takes 97.2 GiB (95.3-107.3), the training step 30.7, of 39.4 GiB usable on A100-40GB
     |
   6 |   eval_micro_batch_size: 16
     |                          ^^ rows of an evaluation
   = help: `training.eval_micro_batch_size: 2` keeps an evaluation at 26.8 GiB
```

## How the number is made
From transformers' `evaluation_loop`: gradients are gone (`zero_grad` comes before), states are there, nothing is saved
for a backward. Logits that a script's `compute_metrics` keeps over several batches are not in its config and come on
top; `eval_accumulation_steps` or `preprocess_logits_for_metrics` bound them.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

from memlint.findings import Finding, Fix, Help, Severity
from memlint.records import replace
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate, Evaluation

META = RuleMeta(code="MEM104", name="spike-outside-the-step", severity=Severity.WARNING, since="0.1")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where the run's evaluation is expected to exceed the usable memory."""
    from memlint.estimate.evaluation import below_the_step, evaluation_of, loss_of

    estimate, usable, target = context.estimate, context.usable, context.target
    if estimate is None or usable is None or target is None or below_the_step(context.job):
        return
    evaluation = evaluation_of(context.job, estimate, target)
    if evaluation is None or evaluation.device_bytes <= usable:
        return
    notes = []
    if loss_of(context.job) != context.job.training.loss:
        notes.append("Liger's fused loss stands aside in eval mode: the logits of all rows are made at once")
    helps = tuple(_smaller(context, evaluation))
    interval = f"{gib(evaluation.low_bytes)}-{gib(evaluation.high_bytes)}"
    yield context.finding(
        META,
        f"an evaluation of {evaluation.rows} rows takes {gib(evaluation.device_bytes)} GiB ({interval}), the training"
        f" step {gib(estimate.device_bytes)}, of {gib(usable)} GiB usable on {target.name}",
        at=("training.eval_micro_batch_size", "training.micro_batch_size", "model"),
        label="rows of an evaluation" if context.stated("training.eval_micro_batch_size") else None,
        helps=helps,
        notes=tuple(notes),
        saves_bytes=helps[0].saves_bytes if helps else None,
        fits_after=helps[0].fits_after if helps else None,
        fix=helps[0].fix if helps else None,
    )


def _smaller(context: Context, evaluation: Evaluation) -> Iterator[Help]:
    """The largest half, quarter, ... of the rows that fits."""
    from memlint.estimate.evaluation import evaluation_of
    from memlint.plan.options_scale import evaluation_batches

    for remedy in evaluation_batches(context.job):
        trial = context.try_changes(remedy.changes)
        if trial is None or trial.job is None or not trial.text:
            continue
        less = evaluation_of(trial.job, trial.estimate, context.target)
        if less is None or context.judge(_as_step(trial.estimate, less)) != "fits":
            continue
        yield Help(
            text=f"{trial.text} keeps an evaluation at {gib(less.device_bytes)} GiB",
            saves_bytes=evaluation.device_bytes - less.device_bytes,
            fits_after=True,
            fix=Fix(safe=remedy.safe, edits=trial.edits),
        )
        return


def _as_step(estimate: Estimate, evaluation: Evaluation) -> Estimate:
    return replace(estimate, low_bytes=evaluation.low_bytes, high_bytes=evaluation.high_bytes)
