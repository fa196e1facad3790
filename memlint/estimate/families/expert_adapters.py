"""LoRA on fused expert weights and routers, as PEFT does it with transformers 5.

Source: peft 0.21 utils/transformers_weight_conversion.py (_convert_peft_config_moe: the names of the checkpoint's
linear layers, and ``all-linear``, are turned into parameters of the fused experts and of the router) and
tuners/lora/layer.py (ParamWrapper: the weight is folded, ``W + scaling * B A``, as a new tensor of W's size in every
forward).

So an adapter on experts costs a second copy of all expert weights, kept for backward, and a whole gradient of it: as
much memory as training them. PEFT refuses dropout there.
"""

from __future__ import annotations

import re
from typing import Any

from memlint.estimate.adapters import factor_dtype
from memlint.estimate.build import LORA_METHODS, Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.basic import add, cast, scale
from memlint.estimate.ops.linear import Weight
from memlint.estimate.packed_experts import PackedExperts
from memlint.job import Lora
from memlint.models.architecture import Architecture
from memlint.records import dataclass

MIXTRAL = frozenset(("mixtral", "minimax", "minimax_m2"))
"""Types whose checkpoints call the experts' matrices w1, w3 and w2."""
QWEN = frozenset((
    "afmoe", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe",
    "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm4v_moe_text", "glm_moe_dsa", "hunyuan_v1_moe",
    "longcat_flash", "mellum", "olmoe", "qwen3_moe", "qwen3_next", "sarvam_mla", "solar_open",
))  # fmt: skip
"""Types converted as qwen2_moe's pattern, gate_proj, up_proj and down_proj (qwen2_moe itself is not in PEFT's
table).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTargets:
    """Which of a sparse block's parameters get an adapter, and by what factor their rank is multiplied."""

    gate_up: int = 0
    down: int = 0
    router: int = 0
    claimed: frozenset[str] = frozenset()
    """Names of linear layers that PEFT has turned into parameters: plain layers of that name get no adapter."""


def claimed_names(model_type: str) -> frozenset[str]:
    """Checkpoint names that PEFT turns into parameters of the experts and the router."""
    if model_type in MIXTRAL:
        return frozenset(("gate", "w1", "w2", "w3"))
    if model_type in QWEN:
        return frozenset(("gate", "gate_proj", "up_proj", "down_proj"))
    return frozenset()


def converted(b: Build) -> Lora | None:
    """The adapter whose names PEFT turns into parameters: LoRA's, no other method's (``peft_type != PeftType.LORA`` in
    convert_peft_config_for_transformers), which leave fused experts and routers alone.
    """
    return b.lora if b.training.method in LORA_METHODS else None


def expert_targets(a: Architecture, lora: Lora | None, name: str) -> ExpertTargets:
    """Resolve a job's targets for the sparse block ``name`` (its experts are ``name.experts``)."""
    if lora is None:
        return ExpertTargets()
    claimed = claimed_names(a.model_type)
    first, second, third = ("w1", "w3", "w2") if a.model_type in MIXTRAL else ("gate_proj", "up_proj", "down_proj")
    found = {old for old in claimed if _targets(lora.targets, name, old)}
    explicit = [
        [f".{name}.{leaf}".endswith(f".{parameter}") for parameter in lora.target_parameters]
        for leaf in ("experts.gate_up_proj", "experts.down_proj", "gate.weight")
    ]
    return ExpertTargets(
        gate_up=2 if {first, second} <= found else int(any(explicit[0])),
        down=1 if third in found else int(any(explicit[1])),
        router=1 if "gate" in found else int(any(explicit[2])),
        claimed=claimed,
    )


def parameter_targets(lora: Lora | None, *names: str) -> ExpertTargets:
    """Which of the up and the down projection ``names`` an adapter's ``target_parameters`` name (PEFT's
    ``_inject_parameters``: the whole name or its end).
    """
    wanted = () if lora is None else lora.target_parameters
    up, down = (any(f".{name}".endswith(f".{parameter}") for parameter in wanted) for name in names)
    return ExpertTargets(gate_up=int(up), down=int(down))


def _targets(targets: str | tuple[str, ...], name: str, old: str) -> bool:
    if targets == "all-linear":
        return True
    if targets == "default":
        return False
    full = f"{name}.{old}" if old == "gate" else f"{name}.experts.{old}"
    if isinstance(targets, str):
        try:
            return re.fullmatch(targets, full) is not None
        except re.error:
            return False
    return any(target == old or target.endswith(f".{old}") for target in targets)


def plain_linear(a: Architecture, b: Build, name: str, inputs: int, outputs: int, bias: bool = False) -> Any:
    """``nn.Linear``, without an adapter where PEFT has turned its name into a parameter of the experts."""
    if converted(b) is None or name.rpartition(".")[2] not in claimed_names(a.model_type):
        return b.linear(name, inputs, outputs, bias)
    lora, b.lora = b.lora, None
    layer = b.linear(name, inputs, outputs, bias)
    b.lora = lora
    return layer


def _fold_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, Tensor]:
    # baddbmm_backward: grad @ rhs^T and lhs^T @ grad.
    return f.new(node.shapes[0][0], grad.dtype), f.new(node.shapes[1][0], grad.dtype)


def _view_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def _factor(f: Tape, weight: Weight, dtype: str) -> Tensor:
    """``weight.reshape(...).to(dtype)``: a view where nothing is cast, whose gradient waits for its turn as well."""
    if weight.dtype != dtype or not f.needs(weight):
        return cast(f, weight, dtype)
    return f.record(Tensor(weight.shape, dtype, weight.storage), _view_backward, (weight,))


class Folded:
    """A frozen weight [E, out, in] with low-rank factors, folded in each forward."""

    __slots__ = ("a", "b", "weight")

    def __init__(
        self,
        build: Build,
        name: str,
        weight: Weight | PackedExperts,
        experts: int,
        outputs: int,
        inputs: int,
        lora: Lora,
        factor: int,
    ) -> None:
        self.weight = weight
        rank = lora.rank * factor * experts
        self.a = build.parameter(f"{name}.lora_A", rank, inputs, dtype=lora.dtype, adapter=True)
        self.b = build.parameter(f"{name}.lora_B", outputs, rank, dtype=lora.dtype, adapter=True)

    def factors(self, f: Tape) -> tuple[Tensor, Tensor]:
        """get_delta_factors in the weight's dtype; registering the parametrization folds once to check the shape."""
        dtype = self.weight.dtype
        pair = _factor(f, self.b, dtype), _factor(f, self.a, dtype)
        check = f.new(self.weight.shape, dtype)
        del check
        return pair

    def fold(self, f: Tape, factors: tuple[Tensor, Tensor]) -> Tensor:
        """``torch.baddbmm(W, lhs, rhs)``: a new tensor of W's size."""
        recorded = f.needs(*factors)
        saved = f.save(*factors) if recorded else ()
        out = f.new(self.weight.shape, self.weight.dtype)
        return f.record(out, _fold_backward, factors, saved) if recorded else out


class FoldedRouter:
    """A router's weight [E, H] with an adapter: ``W + (B A) * scaling``."""

    __slots__ = ("a", "b", "weight")

    def __init__(self, build: Build, name: str, weight: Weight, lora: Lora) -> None:
        self.weight = weight
        experts, hidden = weight.shape
        dtype = factor_dtype(build, weight, lora)
        self.a = build.parameter(f"{name}.lora_A", lora.rank, hidden, dtype=dtype, adapter=True)
        self.b = build.parameter(f"{name}.lora_B", experts, lora.rank, dtype=dtype, adapter=True)

    def __call__(self, f: Tape) -> Tensor:
        """The folded weight."""
        recorded = f.needs(self.a, self.b)
        delta = f.new(self.weight.shape, f.autocast or self.a.dtype)
        if recorded:
            delta = f.record(delta, _fold_backward, (self.b, self.a), f.save(self.b, self.a))
        delta = cast(f, scale(f, delta), self.weight.dtype)
        return add(f, self.weight, delta)


def folded_router(f: Tape, router: Any) -> Tensor:
    """A router's weight, folded where it has an adapter that is on."""
    adapter: FoldedRouter | None = router.adapter
    weight: Tensor = router.weight
    return weight if adapter is None or not f.adapters else adapter(f)
