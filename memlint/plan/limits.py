"""The largest micro batch and the longest sequence of a job that fit, and the smallest hardware that does.

Peaks grow with rows and tokens, nearly in a straight line, so a secant finds the limit in a few predictions where
bisection needs a dozen; the answer is exact because the limit and the value above it are both predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from memlint.plan.result import HardwareNeed, Limits
from memlint.records import replace

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target
    from memlint.job import TrainingJob

MOST_ROWS = 4096
"""Above this a micro batch is no longer limited by memory for any purpose."""

TOKEN_STEP = 64
"""Sequence lengths are reported in steps of 64 tokens, as kernels and packing want them."""

MOST_TOKENS = 1 << 22
"""Where the model states no positions."""

MOST_GPUS = 1024

LADDER = (
    "T4",
    "RTX-3060-12GB",
    "RTX-4080",
    "A10G",
    "L4",
    "RTX-4090",
    "V100-32GB",
    "RTX-5090",
    "A100-40GB",
    "L40S",
    "A100-80GB",
    "H100-80GB",
    "H200",
    "B200",
    "B300",
)
"""GPUs that are rented or bought for training, one or two for each size of memory."""

EQUAL = 1.02
"""GPUs within 2 % of usable memory count as of one size."""

Predict = Callable[["TrainingJob", "Target | None"], "Estimate | None"]


def largest(fits: Callable[[int], bool], size: Callable[[int], int], room: int, start: int, most: int) -> int | None:
    """Return the largest n in 1..most with ``fits(n)``; None where 1 does not fit.

    ``size(n)`` is what grows with n and is compared with ``room``, as a guide only; ``fits`` decides.
    """
    if not fits(1):
        return None
    low, high = 1, most + 1
    guess, creep = max(2, start), 1
    # Upward from what is known to fit: a prediction of far more rows than ever fit may itself take long (vision towers
    # are run image by image).
    while low < most and high > most:
        guess = min(guess, most)
        if fits(guess):
            slope = (size(guess) - size(1)) / (guess - 1)
            low, beyond = guess, guess + int((room - size(guess)) / slope) + 1 if slope > 0 else 8 * guess
            if beyond <= low + creep:
                # What decides is not the size alone, or the size bends: feel the way in steps that double.
                beyond, creep = low + creep, 2 * creep
            guess = min(beyond, 8 * low)
        else:
            high = guess
    stalled = 0
    while high - low > 1:
        width = high - low
        slope = (size(high) - size(low)) / (high - low) if high <= most else 0
        # Both neighbours of the crossing are wanted: try it, then the one above it. Two tries that leave more than half
        # of the range are followed by one in its middle.
        aim = low + int((room - size(low)) / slope) if slope > 0 and stalled < 2 else (low + high) // 2
        guess = min(max(aim, low + 1), high - 1)
        if fits(guess):
            low = guess
        else:
            high = guess
        stalled = stalled % 2 + 1 if 2 * (high - low) > width else 0
    return low


def limits_of(
    job: TrainingJob, target: Target | None, *, predict: Predict, judge: Callable[[Estimate], str], room: int
) -> Limits:
    """Return how far a job that keeps its other settings reaches; ``room`` is what the high end may take."""
    from memlint.job import replace_fields

    known: dict[tuple[str, int], Estimate | None] = {}

    def at(name: str, value: int) -> Estimate | None:
        if (name, value) not in known:
            known[name, value] = predict(replace_fields(job, {name: value}), target)
        return known[name, value]

    def search(name: str, step: int, start: int, most: int) -> int | None:
        def fits(n: int) -> bool:
            estimate = at(name, n * step)
            return estimate is not None and judge(estimate) == "fits"

        def size(n: int) -> int:
            estimate = at(name, n * step)
            return estimate.high_bytes if estimate is not None else 0

        found = largest(fits, size, room, max(1, start // step), max(1, most // step))
        return None if found is None else found * step

    architecture = job.architecture
    positions = architecture.longest_sequence if architecture is not None else None
    most_tokens = max(positions or MOST_TOKENS, TOKEN_STEP)
    training = job.training
    rows = search("training.micro_batch_size", 1, training.micro_batch_size * 2, MOST_ROWS)
    tokens = search("training.sequence_length", TOKEN_STEP, training.sequence_length * 2, most_tokens)
    return Limits(
        micro_batch_size=rows,
        sequence_length=tokens,
        sequence_capped=tokens is not None and tokens + TOKEN_STEP > most_tokens,
        batch_capped=rows == MOST_ROWS,
    )


def hardware_of(
    job: TrainingJob, target: Target | None, *, predict: Predict, judge: Callable[[Estimate, Target], str]
) -> HardwareNeed:
    """Return the smallest known GPU that fits the job, and the fewest of the declared kind."""
    gpu = _smallest_gpu(job, target, predict, judge)
    gpus, strategy = _fewest_gpus(job, target, predict, judge) if target is not None else (None, None)
    return HardwareNeed(
        gpu=gpu.name if gpu is not None else None,
        usable_bytes=gpu.usable_bytes if gpu is not None else None,
        gpus=gpus,
        strategy=strategy,
    )


def _half(job: TrainingJob) -> str | None:
    precision = job.training.precision
    return "bf16" if "bf16" in (precision.weights, precision.autocast) else None


def _smallest_gpu(
    job: TrainingJob, target: Target | None, predict: Predict, judge: Callable[[Estimate, Target], str]
) -> Target | None:
    candidates = _known_gpus(bf16=_half(job) == "bf16", fp8=job.training.precision.fp8)
    if target is not None:
        candidates = [replace(one, gpus=target.gpus, nodes=target.nodes) for one in candidates]

    def fits(candidate: Target) -> bool:
        estimate = predict(job, candidate)
        return estimate is not None and judge(estimate, candidate) == "fits"

    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if fits(candidates[middle]):
            high = middle
        else:
            low = middle + 1
    if low == len(candidates):
        return None
    # An A100 and an H100 of 80 GB differ by what the driver keeps: of equals, the declared one, else the plainer.
    equal = [one for one in candidates[low:] if one.usable_bytes <= candidates[low].usable_bytes * EQUAL]
    own = [one for one in equal if target is not None and one.name == target.name]
    return next(one for one in [*own, *sorted(equal, key=_plainness)] if fits(one))


def _plainness(gpu: Target) -> int:
    return LADDER.index(gpu.name)


def _known_gpus(*, bf16: bool, fp8: bool) -> list[Target]:
    """The GPUs of :data:`LADDER` that compute in what the job asks for, smallest first."""
    from memlint.hardware.parse import parse_target

    known = [parse_target(name) for name in LADDER]
    able = [one for one in known if (one.bf16 or not bf16) and (one.fp8 or not fp8)]
    return sorted(able, key=lambda one: one.usable_bytes)


def _fewest_gpus(
    job: TrainingJob, target: Target, predict: Predict, judge: Callable[[Estimate, Target], str]
) -> tuple[int | None, str | None]:
    from memlint.job import REPLICATED, replace_fields

    parallelism = job.parallelism
    if parallelism.tensor > 1 or parallelism.pipeline > 1 or parallelism.context > 1:
        return None, None
    strategy = parallelism.strategy
    single = replace_fields(job, {"parallelism.gpus": 1})
    alone = predict(single, replace(target, gpus=1, nodes=1))
    if alone is not None and judge(alone, target) == "fits":
        return 1, None
    if strategy in REPLICATED:
        if job.training.quantization is not None:
            return None, None
        strategy = "fsdp"
    per_node = max(target.gpus // target.nodes, 1)
    count = 2
    while count <= MOST_GPUS:
        changed = replace_fields(job, {"parallelism.strategy": strategy, "parallelism.gpus": count})
        nodes = max(1, -(-count // max(per_node, 8)))
        estimate = predict(changed, replace(target, gpus=count, nodes=nodes))
        if estimate is not None and judge(estimate, target) == "fits":
            return count, strategy
        count *= 2
    return None, None
