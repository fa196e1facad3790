"""Remedies of kernels and numbers: when each exists for a job, what it changes, what it costs and who says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.plan.remedy import Cost, Remedy

if TYPE_CHECKING:
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob

_FULL_STATES = frozenset(
    {
        *("adamw", "adamw-fused", "adamw-foreach", "adamw-bnb", "paged-adamw", "adam", "adamw-anyprecision"),
        *("adamw-optimi", "stable-adamw", "grokadamw", "lion", "lion-bnb", "muon", "rmsprop", "rmsprop-bnb", "adagrad"),
    }
)
"""Optimizers with at least one state of the parameter's size and dtype."""

_FOREACH = frozenset({"adamw", "adamw-foreach", "adam"})
"""What torch 2.13 steps with a parameter-sized list of temporaries on CUDA (optim/adam.py _multi_tensor_adam)."""


def half_dtype(target: Target | None) -> str:
    """The half precision that the target computes in: bf16 from Ampere on (compute capability 8.0), else fp16."""
    return "fp16" if target is not None and target.bf16 is False else "bf16"


def mixed_precision(job: TrainingJob, target: Target | None) -> tuple[Remedy, ...]:
    """Autocast where the forward runs in fp32."""
    precision = job.training.precision
    if precision.weights != "fp32" or precision.autocast is not None or precision.fp8:
        return ()
    half = half_dtype(target)
    return (
        Remedy(
            name=f"mixed-precision-{half}",
            dimension="precision",
            words="mixed precision",
            changes={"training.precision.autocast": half, "training.precision.grad_scaler": half == "fp16"},
            cost=Cost(
                convergence="none",
                sentence="free: matrix multiplications run on tensor cores",
                source="Micikevicius et al. 2018, arXiv:1710.03740: same accuracy, fp32 weights kept",
            ),
            rank={"free": -1},
        ),
    )


def half_frozen_weights(job: TrainingJob, target: Target | None) -> tuple[Remedy, ...]:
    """Half-precision base weights where the base is frozen and not quantised."""
    training = job.training
    if training.method in ("full", "qlora") or training.precision.weights != "fp32":
        return ()
    if training.quantization is not None:
        return ()
    half = half_dtype(target)
    return (
        Remedy(
            name=f"frozen-weights-{half}",
            dimension="frozen-weights",
            words="half-precision frozen weights",
            changes={"training.precision.weights": half},
            cost=Cost(
                convergence="none",
                sentence="free: frozen weights get no update",
                source="peft tuners/tuners_utils.py autocast_adapter_dtype: adapters stay in fp32 on a half base",
            ),
            rank={"free": -1},
        ),
    )


def fused_attention(job: TrainingJob) -> tuple[Remedy, ...]:
    """Fused attention instead of eager."""
    if job.training.attention != "eager":
        return ()
    return (
        Remedy(
            name="attention-sdpa",
            dimension="attention",
            words="fused attention",
            changes={"training.attention": "sdpa"},
            cost=Cost(
                sentence="free: faster, same result within numerics",
                source="Dao et al. 2022, arXiv:2205.14135: exact attention without the score matrix",
            ),
            rank={"free": -1},
            needs={"transformers": "4.36"},  # release notes of 4.36: sdpa for most models
            safe=True,
        ),
    )


def fused_loss(job: TrainingJob) -> tuple[Remedy, ...]:
    """A loss that never holds all logits."""
    if job.training.loss != "standard" or job.training.objective == "contrastive":
        return ()
    return (
        Remedy(
            name="loss-fused",
            dimension="loss",
            words="a fused loss",
            changes={"training.loss": "fused"},
            cost=Cost(
                complexity="package",
                sentence="no more compute; needs the kernel's package",
                source="Hsu et al. 2024, arXiv:2410.10989 (Liger); Wijmans et al. 2024, arXiv:2411.09009 (CCE)",
            ),
            rank={"kernel": 1},
            needs={"transformers": "4.45"},  # release notes of 4.45: Liger in the Trainer
        ),
    )


def optimizers(job: TrainingJob) -> tuple[Remedy, ...]:
    """A fused step, 8-bit AdamW, Adafactor, then 8-bit Lion, in place of an optimizer with full-size states."""
    now = job.training.optimizer
    if now not in _FULL_STATES:
        return ()
    found: list[Remedy] = []
    if now in _FOREACH:
        found.append(
            Remedy(
                name="optimizer-adamw-fused",
                dimension="optimizer",
                words="the fused AdamW step",
                changes={"training.optimizer": "adamw-fused"},
                cost=Cost(
                    sentence="free: faster, same result within numerics",
                    source="torch 2.13 optim/adamw.py: fused against foreach, which holds a list of temporaries",
                ),
                rank={"free": 1},
                needs={"torch": "2.0"},  # release notes of 2.0: fused Adam and AdamW on CUDA
                safe=True,
            )
        )
    found.append(
        Remedy(
            name="optimizer-adamw-8bit",
            dimension="optimizer",
            words="8-bit AdamW",
            changes={"training.optimizer": "adamw-8bit"},
            cost=Cost(
                convergence="small",
                complexity="package",
                sentence="no more compute; 8-bit states match 32-bit ones in published runs; needs bitsandbytes",
                source="Dettmers et al. 2022, arXiv:2110.02861, table 1",
            ),
            rank={"optimizer": 1},
        )
    )
    found.append(
        Remedy(
            name="optimizer-adafactor",
            dimension="optimizer",
            words="Adafactor",
            changes={"training.optimizer": "adafactor"},
            cost=Cost(
                convergence="risk",
                sentence="no more compute; second moments factored and no momentum, so the recipe may need tuning",
                source="Shazeer and Stern 2018, arXiv:1804.04235",
            ),
            rank={"optimizer": 2},
        )
    )
    found.append(
        Remedy(
            name="optimizer-lion-8bit",
            dimension="optimizer",
            words="8-bit Lion",
            changes={"training.optimizer": "lion-8bit"},
            cost=Cost(
                convergence="risk",
                complexity="package",
                sentence="no more compute; one state, in 8 bits; needs bitsandbytes and a smaller learning rate",
                source="Chen et al. 2023, arXiv:2302.06675, section 5",
            ),
            rank={"optimizer": 3},
        )
    )
    return tuple(found)


def paged_states(job: TrainingJob) -> Remedy | None:
    """8-bit states that move to the host where the GPU is full.

    They are counted on the GPU until then, so they never make a job surely fit, and no search looks at them: they are
    what is left where nothing else brings even the low end below the limit.
    """
    if job.training.optimizer not in (*_FULL_STATES, "adamw-8bit"):
        return None
    return Remedy(
        name="optimizer-paged-adamw-8bit",
        dimension="optimizer",
        words="paged 8-bit AdamW",
        changes={"training.optimizer": "paged-adamw-8bit"},
        cost=Cost(
            convergence="small",
            complexity="package",
            sentence="states move to the host where the GPU is full, and back for each step; needs bitsandbytes",
            source="bitsandbytes 0.49 docs, explanations/optimizers: paged; Dettmers et al. 2023, arXiv:2305.14314",
        ),
        rank={"optimizer": 1, "offload": 1},
    )


def step_in_backward(job: TrainingJob) -> tuple[Remedy, ...]:
    """Step each parameter as its gradient arrives, where nothing needs all gradients at once."""
    training = job.training
    if training.objective == "contrastive":
        # Gradients of several forwards wait for each other (estimate/contrastive.py).
        return ()
    if training.optimizer_in_backward or training.method != "full" or training.max_grad_norm is not None:
        return ()
    if training.gradient_accumulation_steps > 1 or job.parallelism.strategy not in ("none",):
        return ()
    return (
        Remedy(
            name="optimizer-in-backward",
            dimension="step-in-backward",
            words="the optimizer step inside backward",
            changes={"training.optimizer_in_backward": True},
            cost=Cost(
                convergence="none",
                complexity="package",
                sentence="no more compute; no clipping and no accumulation from then on",
                source="torch tutorial `optimizer step in backward`; Lv et al. 2023, arXiv:2306.09782 (LOMO)",
            ),
            rank={"optimizer": 1},
        ),
    )
