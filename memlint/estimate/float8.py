"""Float8 training: which linear layers compute in float8, and what an estimate says where that is not followed.

accelerate 1.15 swaps torchao's layers in (accelerator.py _prepare_ao, utils/ao.py convert_model_to_fp8_ao); axolotl
0.19 (core/fp8.py, monkeypatch/accelerate/float8_moe_filter.py) and LLaMA-Factory 0.9.5 (train/fp8_utils.py
create_fp8_kwargs) choose the recipe, and the latter the layers. With torch.compile the casts are fused and inductor's
partitioner chooses what is kept: such a job is computed as in bf16, and so is one over Transformer Engine's layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.estimate.result import Estimate
from memlint.job import TrainingJob
from memlint.records import replace

if TYPE_CHECKING:
    from memlint.estimate.ops.float8_linear import Float8Linear
    from memlint.estimate.ops.linear import Weight

ROUTERS = ("gate", "router")
"""Parts of a name by which axolotl knows a router."""
SKIPPED = ("embed", "lm_head", "output", "classifier")
"""Fragments of names that LLaMA-Factory leaves as they are."""
CONV1D = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Model types of transformers whose blocks hold its own Conv1D in the place of nn.Linear."""
ALIGNED = 16
"""What both dimensions of a layer must divide by, and inner ones are padded to (``torch._scaled_mm``)."""
TRANSFORMER_ENGINE = "transformer-engine"
"""As a recipe: NVIDIA's layers instead of torchao's."""
SHARDED = ("fsdp", "fsdp2", "hsdp")


class Float8:
    """What a job's linear layers do in float8."""

    __slots__ = ("_first", "_framework", "pads", "recipe", "spares_ends")

    def __init__(self, framework: str, recipe: str) -> None:
        self.recipe = recipe
        self._framework = framework
        self.spares_ends = framework != "llama-factory"
        """The first and the last linear layer are left as they are."""
        self._first = self.spares_ends
        """The first one is yet to come."""
        self.pads = framework not in ("axolotl", "llama-factory")
        """accelerate's own configuration pads inner dimensions (utils/dataclasses.py AORecipeKwargs)."""

    @classmethod
    def of(cls, job: TrainingJob) -> Float8 | None:
        """That of a job; None where its products are not followed in float8."""
        precision = job.training.precision
        if not precision.fp8 or job.training.compile or precision.fp8_recipe == TRANSFORMER_ENGINE:
            return None
        if job.architecture is not None and job.architecture.model_type in CONV1D:
            return None
        framework = job.framework.partition(" ")[0].lower()
        recipe = precision.fp8_recipe or ("rowwise" if framework == "llama-factory" else "tensorwise")
        return cls(framework, recipe)

    def linear(self, plain: Any) -> Any:
        """What stands in the place of the linear layer ``plain``."""
        from memlint.estimate.ops.float8_linear import Float8Linear

        return Float8Linear(plain.weight, plain.bias, self)

    def adapted(self, name: str, weight: Weight) -> Float8Linear | None:
        """The layer ``name`` of an adapter where it computes in float8."""
        from memlint.estimate.ops.float8_linear import Float8Linear

        outputs, inputs = weight.shape
        return Float8Linear(weight, None, self) if self.takes(name, inputs, outputs) else None

    @property
    def first_layer(self) -> bool:
        """Whether the next layer holds the first linear one."""
        return self._first

    def takes(self, name: str, inputs: int, outputs: int) -> bool:
        """Whether the linear layer ``name`` computes in float8; they are asked for in the model's order."""
        if self._first:
            self._first = False
            return False
        if inputs % ALIGNED or outputs % ALIGNED:
            return False
        if self._framework == "llama-factory":
            return not any(fragment in name.lower() for fragment in SKIPPED)
        parts = name.split(".")
        if self._framework == "axolotl" and not set(ROUTERS).isdisjoint(parts):
            return False
        from memlint.estimate.adapters import OUTPUT_LAYERS

        return parts[-1] not in OUTPUT_LAYERS  # the last linear layer


def allowed_for(estimate: Estimate, job: TrainingJob) -> Estimate:
    """The estimate of a job in float8 with what is not counted; any other as it is."""
    precision = job.training.precision
    if not precision.fp8:
        return estimate
    low, high = estimate.low_bytes, estimate.high_bytes
    if precision.fp8_recipe == TRANSFORMER_ENGINE:
        # Of an input the backward gets 8 bits instead of 16, of a weight both its codes and their transpose
        # (transformer_engine 2.20 pytorch/module/linear.py, weight_quantizer.set_usage and inputmat.update_usage).
        sentence = (
            "Transformer Engine's products are computed as bf16 ones: the low end allows for inputs kept in 8 bits, "
            "the high end for two copies of the weights in 8 bits"
        )
        low -= estimate.forward_end_activation_bytes // 2
        high += 2 * estimate.parameters
    elif job.training.compile:
        sentence = (
            "float8 products that torch.compile fuses are computed as bf16 ones: their scaled copies are not counted"
        )
    elif job.parallelism.strategy not in SHARDED:
        return estimate
    else:
        sentence = "the float8 all-gather of FSDP2 is not followed: weights are gathered in the dtype they compute in"
    return replace(estimate, low_bytes=low, high_bytes=high, assumptions=(*estimate.assumptions, sentence))
