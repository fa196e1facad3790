"""Flag a job that moves more to a node's main memory than the node has.

## What it does
Compares what offloading keeps in host memory (optimizer states, gradients, weights, checkpointed inputs) with the main
memory of one node: that of the cloud instance, of `host-memory` in the settings, or of `hardware.host_memory` in a
native job file. Where none of these says it, the rule is silent.

## Why it matters
The kernel ends the process without a Python traceback, or the machine swaps until nothing moves.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-8B
training:
  precision: bf16
parallelism: {strategy: zero2, offload: optimizer}
hardware: {target: g5.2xlarge}
```
```text
train.yaml:5:41: error[MEM103] host-out-of-memory: host memory of 76.3 GiB is needed on each node, which has 32.0 GiB on g5.2xlarge
     |
   5 | parallelism: {strategy: zero2, offload: optimizer}
     |                                         ^^^^^^^^^ kept in main memory
```

## How the number is made
Each GPU's process holds its share of the states and of fp32 gradients (16 bytes a parameter in all for Adam, as in
DeepSpeed's `estimate_zero2_model_states_mem_needs`), the processes of a node together. The data loader, and the whole
model that each process may load at first, come on top, so a job that passes may still need more.
"""  # noqa: E501 - the example shows the tool's own lines

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Fix, Help, Severity
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta
from memlint.units import gib

META = RuleMeta(code="MEM103", name="host-out-of-memory", severity=Severity.ERROR, since="0.1")

_LESS = ("none", "optimizer", "parameters")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding where a node's main memory does not hold what is moved to it."""
    estimate, limit = context.estimate, context.host_limit
    if estimate is None or limit is None or estimate.host_bytes <= limit:
        return
    where = f" on {context.target.spec}" if context.target is not None and context.target.host_bytes == limit else ""
    helps = tuple(_helps(context, limit))
    yield context.finding(
        META,
        f"host memory of {gib(estimate.host_bytes)} GiB is needed on each node, which has {gib(limit)} GiB{where}",
        at=("parallelism.offload", "training.checkpointing.offload", "training.optimizer", "parallelism.strategy"),
        label="kept in main memory",
        helps=helps,
        fix=helps[0].fix if helps else None,
    )


def _helps(context: Context, limit: int) -> Iterator[Help]:
    """Offload less, where the GPU then still holds the job."""
    for offload in ("none",) if context.job.parallelism.offload == "experts" else _LESS:
        if offload == context.job.parallelism.offload or context.job.parallelism.offload == "none":
            continue
        trial = context.try_changes({"parallelism.offload": offload})
        if trial is None or not trial.text or trial.estimate.host_bytes > limit:
            continue
        verdict = context.judge(trial.estimate)
        if verdict in ("fits", "tight"):
            host = trial.estimate.host_bytes
            yield Help(
                text=f"{trial.text} needs {f'{gib(host)} GiB' if host else 'none'} of it, and"
                f" {gib(trial.estimate.device_bytes)} GiB on the GPU",
                fits_after=verdict == "fits",
                fix=Fix(safe=False, edits=trial.edits),
            )
            return
