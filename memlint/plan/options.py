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

_FUSED = {
    "adamw": ("adamw-fused", "the fused AdamW step"),
    "adamw-foreach": ("adamw-fused", "the fused AdamW step"),
    "adam": ("adam-fused", "the fused Adam step"),
}
"""What torch 2.13 steps with a parameter-sized list of temporaries on CUDA (optim/adam.py _multi_tensor_adam), and its
fused form. Adam's weight decay is part of the gradient, so the fused AdamW would be another algorithm."""


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
    changes: dict[str, object] = {"training.precision.weights": half}
    if half == "fp16" and training.precision.autocast == "bf16":
        # The target computes in no bf16; two half formats would meet in every adapter.
        changes.update({"training.precision.autocast": half, "training.precision.grad_scaler": True})
    if training.method == "freeze" and training.precision.trainable_weights is None:
        if training.precision.autocast is None or not _freezes(job):
            return ()
        # What trains would be halved with the rest, and its updates rounded away.
        changes["training.precision.trainable_weights"] = "fp32"
    return (
        Remedy(
            name=f"frozen-weights-{half}",
            dimension="frozen-weights",
            words="half-precision frozen weights",
            changes=changes,
            cost=Cost(
                convergence="none",
                sentence="free: frozen weights get no update",
                source="peft tuners/tuners_utils.py autocast_adapter_dtype: adapters stay in fp32 on a half base",
            ),
            rank={"free": -1},
        ),
    )


def _freezes(job: TrainingJob) -> bool:
    training = job.training
    return training.trainable_layers is not None or bool(training.trainable_patterns or training.freeze)


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


_ALIKE = (
    frozenset(
        {"adamw", "adamw-fused", "adamw-foreach", "adamw-bnb", "paged-adamw", "adamw-anyprecision", "adamw-8bit"}
    ),
    frozenset({"lion", "lion-bnb", "lion-8bit"}),
)
"""Optimizers of one algorithm, which differ in how they store its states."""

_LIGHTER: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "adamw-8bit",
        "8-bit AdamW",
        "package",
        "needs bitsandbytes",
        "Dettmers et al. 2022, arXiv:2110.02861, table 1",
    ),
    (
        "adafactor",
        "Adafactor",
        "key",
        "second moments factored and no momentum, so the recipe may need tuning",
        "Shazeer and Stern 2018, arXiv:1804.04235",
    ),
    (
        "lion-8bit",
        "8-bit Lion",
        "package",
        "one state, in 8 bits; needs bitsandbytes and a smaller learning rate",
        "Chen et al. 2023, arXiv:2302.06675, section 5",
    ),
)
"""Name, words, complexity, what is to know, source; from that which changes least to that which changes most."""


def optimizers(job: TrainingJob) -> tuple[Remedy, ...]:
    """A fused step, the same algorithm with 8-bit states, then others, in place of one with full-size states."""
    now = job.training.optimizer
    if now not in _FULL_STATES:
        return ()
    found: list[Remedy] = []
    if now in _FUSED:
        fused, words = _FUSED[now]
        found.append(
            Remedy(
                name=f"optimizer-{fused}",
                dimension="optimizer",
                words=words,
                changes={"training.optimizer": fused},
                cost=Cost(
                    sentence="free: faster, same result within numerics",
                    source="torch 2.13 optim/adamw.py: fused against foreach, which holds a list of temporaries",
                ),
                rank={"free": 1},
                needs={"torch": "2.0"},  # release notes of 2.0: fused Adam and AdamW on CUDA
                safe=True,
            )
        )
    nearest_first = sorted(_LIGHTER, key=lambda row: not _is_alike(now, row[0]))
    for price, (name, words, complexity, sentence, source) in enumerate(nearest_first, 1):
        found.append(
            Remedy(
                name=f"optimizer-{name}",
                dimension="optimizer",
                words=words,
                changes={"training.optimizer": name},
                cost=Cost(
                    convergence="small" if _is_alike(now, name) else "risk",
                    complexity=complexity,
                    sentence=f"no more compute; {_difference(now, name)}{sentence}",
                    source=source,
                ),
                rank={"optimizer": price},
            )
        )
    return tuple(found)


def _is_alike(now: str, other: str) -> bool:
    return any(now in names and other in names for names in _ALIKE)


def _difference(now: str, other: str) -> str:
    if _is_alike(now, other):
        return "8-bit states match 32-bit ones in published runs; "
    return f"another algorithm than {now}; " if other == "adamw-8bit" else ""


def paged_states(job: TrainingJob) -> Remedy | None:
    """8-bit states that move to the host where the GPU is full.

    They are counted on the GPU until then, so they never make a job surely fit, and no search looks at them: they are
    what is left where nothing else brings even the low end below the limit.
    """
    now = job.training.optimizer
    if now not in (*_FULL_STATES, "adamw-8bit"):
        return None
    other = "" if _is_alike(now, "adamw-8bit") else f"another algorithm than {now}; "
    return Remedy(
        name="optimizer-paged-adamw-8bit",
        dimension="optimizer",
        words="paged 8-bit AdamW",
        changes={"training.optimizer": "paged-adamw-8bit"},
        cost=Cost(
            convergence="risk" if other else "small",
            complexity="package",
            sentence=f"{other}states move to the host where the GPU is full, and back in each step; needs bitsandbytes",
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
