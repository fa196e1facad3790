"""Flag a division over GPUs that the framework rejects.

## What it does
Reports sizes of tensor, pipeline, context and expert parallelism that do not divide the GPUs of the run, the model's
heads, layers or experts, and combinations that no framework takes.

## Why it matters
The launcher stops on its first assertion, after the nodes have been allocated.

## Example
```yaml
memlint: 1
model: Qwen/Qwen3-4B
parallelism: {tensor: 3, gpus: 8}
hardware: {target: 8xA100-80GB}
```
```text
train.yaml:3:23: error[MEM503] incompatible-sharding: 8 GPUs do not divide into groups of tensor 3
     |
   3 | parallelism: {tensor: 3, gpus: 8}
     |                       ^
train.yaml:3:23: error[MEM503] incompatible-sharding: 32 attention heads do not divide by tensor parallelism 3
     |
   3 | parallelism: {tensor: 3, gpus: 8}
     |                       ^
```

## How the number is made
There is none: torch's device mesh needs the product of its sides to be the number of GPUs
(distributed/device_mesh.py); heads, layers and experts are whole (Megatron-LM arguments.py; transformers
integrations/tensor_parallel.py); ZeRO 2 and 3 do not run in a pipeline (DeepSpeed runtime/pipe/engine.py).
"""

from __future__ import annotations

from typing import Iterator

from memlint.findings import Finding, Severity
from memlint.rules.context import Context
from memlint.rules.meta import RuleMeta

META = RuleMeta(code="MEM503", name="incompatible-sharding", severity=Severity.ERROR, since="0.1")

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def check(context: Context) -> Iterator[Finding]:
    """Yield one finding for each size that does not divide, or one for the combination."""
    for name, message in (*_over_gpus(context), *_over_the_model(context), *_combinations(context)):
        yield context.finding(META, message, at=(name, "parallelism.gpus", "parallelism", "model"))


def _over_gpus(context: Context) -> Iterator[tuple[str, str]]:
    parallelism = context.job.parallelism
    gpus = parallelism.gpus or (context.target.gpus if context.target is not None else 1)
    if gpus == 1 and parallelism.gpus is None:
        return  # a target of one GPU says which kind it is, not how many there are
    sides = {"tensor": parallelism.tensor, "pipeline": parallelism.pipeline, "context": parallelism.context}
    used = {name: size for name, size in sides.items() if size > 1}
    product = 1
    for size in used.values():
        product *= size
    if gpus % product:
        words = " x ".join(f"{name} {size}" for name, size in used.items())
        yield f"parallelism.{next(iter(used))}", f"{gpus} GPUs do not divide into groups of {words}"
    elif parallelism.shard and (gpus // product) % parallelism.shard:
        yield (
            "parallelism.shard",
            f"{gpus // product} data-parallel GPUs do not divide into shard groups of {parallelism.shard}",
        )


def _over_the_model(context: Context) -> Iterator[tuple[str, str]]:
    parallelism, architecture = context.job.parallelism, context.job.architecture
    if architecture is None:
        return
    heads = architecture.get("num_attention_heads", 0)
    if parallelism.tensor > 1 and isinstance(heads, int) and heads and heads % parallelism.tensor:
        yield "parallelism.tensor", f"{heads} attention heads do not divide by tensor parallelism {parallelism.tensor}"
    if parallelism.pipeline > architecture.num_hidden_layers:
        yield (
            "parallelism.pipeline",
            f"{architecture.num_hidden_layers} layers are fewer than {parallelism.pipeline} pipeline stages",
        )
    experts = next((n for name in _EXPERTS if isinstance(n := architecture.get(name), int) and n > 0), 0)
    if parallelism.expert > 1 and experts and experts % parallelism.expert:
        yield "parallelism.expert", f"{experts} experts do not divide by expert parallelism {parallelism.expert}"


def _combinations(context: Context) -> Iterator[tuple[str, str]]:
    parallelism = context.job.parallelism
    if parallelism.pipeline > 1 and parallelism.strategy in ("zero2", "zero3"):
        stage = parallelism.strategy[-1]
        yield (
            "parallelism.strategy",
            f"ZeRO stage {stage} does not run in a pipeline of {parallelism.pipeline} stages: gradients must stay whole"
            " between micro batches",
        )
    precision = context.job.training.precision
    if parallelism.strategy == "zero0" and precision.gradients not in (None, precision.weights):
        yield (
            "training.precision.gradients",
            f"DeepSpeed does not start: without ZeRO it sums {precision.weights} gradients in {precision.weights} only",
        )
    if parallelism.sequence_parallel and parallelism.tensor == 1 and context.stated("parallelism.sequence_parallel"):
        yield (
            "parallelism.sequence_parallel",
            "sequence parallelism divides what tensor parallelism leaves whole, and there is no tensor parallelism",
        )
