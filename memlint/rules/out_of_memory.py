"""Flag a job whose predicted peak cannot fit the declared GPU.

## What it does
Compares the low end of the predicted interval with the memory that CUDA reports as usable on the target. It says what
the peak is made of, and the changes, each recomputed, that make the job fit.

## Why it matters
The run would stop with `torch.OutOfMemoryError`, possibly only at its longest batch, hours after it was queued.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-4B
training:
  micro_batch_size: 8
  sequence_length: 4096
hardware: {target: A100-80GB}
```
```text
train.yaml:4:21: error[MEM101] out-of-memory: predicted peak 330.4 GiB (324.5-362.8) exceeds 79.1 GiB usable on A100-80GB
     |
   4 |   micro_batch_size: 8
     |                     ^ activations and logits, 279.1 GiB, grow with batch and sequence
   = breakdown: weights 15.0, optimizer 30.0, activations 222.6, logits 56.5, other 6.4 (GiB per GPU)
   = help: `training.loss: fused`, `training.activation_checkpointing: full` and `training.optimizer: adamw-fused` fits, predicted 70.3 GiB
   = help: step 1: `training.loss: fused` (a fused loss: no more compute; needs the kernel's package), predicted 277.4 GiB
   = help: step 2: `training.activation_checkpointing: full` (activation checkpointing: 30% more compute: each layer runs its forward twice), predicted 75.8 GiB
   = help: step 3: `training.optimizer: adamw-fused` (the fused AdamW step: free: faster, same result within numerics), predicted 70.3 GiB
```

## How the number is made
One steady training step is run on tensors that have a shape and a dtype but no data; the peak of live bytes, rounded as
the CUDA caching allocator rounds them, plus allocator slack, CUDA context and library workspaces. The ends of the
interval come from the ranges of these overheads and from the assumptions that were made.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules import remedies
from memlint.rules.context import Context, breakdown
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM101", name="out-of-memory", severity=Severity.ERROR, since="0.1")


_STATIC = ("parameters", "gradients", "optimizer_states")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where even the low end of the prediction exceeds the usable memory."""
    estimate, target = context.estimate, context.target
    if context.verdict != "oom" or estimate is None or target is None or context.usable is None:
        return
    growing = sum(size for part, size in estimate.components.items() if part not in _STATIC)
    static = sum(estimate.components.get(part, 0) for part in _STATIC)
    at: tuple[str, ...]
    if growing >= static:
        at = ("training.micro_batch_size", "training.sequence_length", "model")
        label = f"activations and logits, {gib(growing)} GiB, grow with batch and sequence"
    else:
        at = ("model", "training.micro_batch_size")
        label = f"weights, gradients and optimizer take {gib(static)} GiB at any batch"
    helps = remedies.fitting(context)
    floor = remedies.floor_note(context)
    yield context.finding(
        META,
        f"predicted peak {gib(estimate.device_bytes)} GiB ({gib(estimate.low_bytes)}-{gib(estimate.high_bytes)})"
        f" exceeds {gib(context.usable)} GiB usable on {target.name}",
        at=at,
        label=label,
        breakdown=breakdown(estimate),
        helps=helps,
        notes=(*context.assumed, *((floor,) if floor is not None else ())),
        saves_bytes=helps[0].saves_bytes if helps else None,
        fits_after=helps[0].fits_after if helps else None,
        fix=helps[0].fix if helps else None,
    )
