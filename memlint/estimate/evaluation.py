"""The highest point of an evaluation between two training steps: a forward and its loss, with nothing saved.

transformers 5.24 trainer.py: `_maybe_log_save_evaluate` comes after `model.zero_grad()`, so weights and optimizer
states are alive and gradients are not; `prediction_step` runs the model and its loss under no_grad on
`per_device_eval_batch_size` rows; `evaluate` drops the logits of each batch where the run has no `compute_metrics`
(axolotl's and TRL's own runs). LLaMA-Factory's `compute_accuracy` keeps the token of the highest logit and the label,
16 bytes a token of the whole evaluation (train/sft/metric.py eval_logit_processor): left out. What a script's metrics
keep beyond that is not in its config.

TRL's GRPO and RLOO generate completions first (grpo_trainer.py `prediction_step`, `_prepare_inputs`,
`_generate_and_score_completions`): keys and values of all rows, under the autocast around the model, unless vLLM does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import COMMUNICATION, DECOMPOSED, TEMPORARIES, Pool
from memlint.estimate.engine.tape import Tape
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import registry
from memlint.estimate.kernels import least, ruled_out
from memlint.estimate.overhead import device_interval
from memlint.estimate.parallel import one_gpu
from memlint.estimate.peft_prompts import with_prompt
from memlint.estimate.records import slots_of
from memlint.estimate.result import COMPONENTS, Evaluation
from memlint.estimate.simulate import world_size
from memlint.estimate.versions import before
from memlint.job import Checkpointing, TrainingJob, replace_fields
from memlint.records import dataclass, replace

if TYPE_CHECKING:
    from memlint.estimate.result import Estimate
    from memlint.hardware.target import Target

GENERATES = ("ppo",)
"""Objectives whose evaluation generates text in a way that is not modelled."""


def evaluates(job: TrainingJob) -> bool:
    """Whether the run evaluates, in a way that is modelled."""
    return job.training.eval_micro_batch_size is not None and job.training.objective not in GENERATES


def below_the_step(job: TrainingJob) -> bool:
    """Whether the evaluation surely takes less than the step, so that nothing need be computed.

    The forward of a training step over as many rows and with the same loss holds all that the evaluation holds.
    """
    rows = job.training.eval_micro_batch_size
    if rows is not None and job.training.objective == "grpo":
        return False  # it generates, which the step does not
    return rows is None or (rows <= job.training.micro_batch_size and loss_of(job) == job.training.loss)


def loss_of(job: TrainingJob) -> str:
    """The loss as the evaluation computes it: Liger's fused loss stands aside in eval mode and all logits are made.

    liger-kernel 0.8 transformers/model/llama.py: `skip_logits = self.training and ...`; axolotl 0.18
    integrations/liger/models/base.py alike. transformers passes `skip_logits` itself since 5.15, where nothing asks for
    the logits (trainer.py prediction_step), TRL since its issue 4679 (sft_trainer.py, 1.9); cut cross entropy stays on
    (axolotl's other fused loss). A native job's `fused` never makes them.
    """
    training = job.training
    framework = job.framework.partition(" ")[0].lower()
    stands_aside = framework == "llama-factory" or (framework == "trl" and before(job, "trl", 0, 26))
    if framework == "hf-trainer":
        stands_aside = before(job, "transformers", 5, 15)
    if framework == "axolotl":
        origin = job.origins.get("training.loss")
        stands_aside = origin is not None and "liger" in str(origin.key[-1:])
    whole = stands_aside and training.loss == "fused" and training.objective == "causal-lm"
    return "standard" if whole else training.loss


@dataclass(frozen=True, slots=True)
class _Forward:
    """What an evaluation adds to the weights and states that are there."""

    bytes: int
    low_bytes: int
    """With optional packages whose kernels keep less (estimate/kernels.py)."""
    fixed_bytes: int
    """Part of it that lives through the whole evaluation (communication buffers)."""
    components: tuple[tuple[str, int], ...]


def evaluation_of(
    job: TrainingJob, estimate: Estimate, target: Target | None = None, memo: dict[Any, Any] | None = None
) -> Evaluation | None:
    """Predict the evaluation of a job whose training step is ``estimate``; None where there is none to predict.

    ``memo`` keeps the forward pass of jobs that differ only in what an evaluation does not see (optimizer,
    checkpointing, micro batch).
    """
    rows = job.training.eval_micro_batch_size
    if rows is None or not evaluates(job) or estimate.method != "simulated":
        return None
    key = _key(job, target)
    if memo is None or key not in memo:
        forward = _forward(job, target, rows)
        if memo is not None:
            memo[key] = forward
    else:
        forward = memo[key]
    if forward is None:
        return None
    static = estimate.static
    settled = static["parameters"] + static["optimizer_states"]
    buckets = 0
    if job.parallelism.strategy == "ddp" and job.parallelism.gradient_as_bucket_view:
        buckets = static["gradients"]  # views of DDP's buckets, which stay
    components = dict(forward.components)
    components["parameters"] += static["parameters"]
    components["optimizer_states"] += static["optimizer_states"]
    components["gradients"] += buckets
    peak = settled + buckets + forward.bytes
    interval = device_interval(
        job,
        target,
        world=world_size(job, target) * job.parallelism.tensor * job.parallelism.pipeline,
        allocated=peak,
        allocated_low=settled + buckets + forward.low_bytes,
        allocated_high=peak,
        churn=max(0, forward.bytes - forward.fixed_bytes),
    )
    return Evaluation(
        rows=rows,
        allocated_bytes=peak,
        device_bytes=interval.device,
        low_bytes=interval.low,
        high_bytes=interval.high,
        components=components,
    )


def _key(job: TrainingJob, target: Target | None) -> Any:
    """What decides the forward pass."""
    seen = replace(
        job.training,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        optimizer="",
        optimizer_in_backward=False,
        max_grad_norm=None,
        checkpointing=Checkpointing(),
        loss=loss_of(job),
    )
    return seen, job.parallelism, target.gpus if target is not None else 1


class _Evaluated:
    """The model of an evaluation over ``rows``, in eval mode.

    Raises:
        Unsupported: there is none of this architecture.
    """

    def __init__(self, job: TrainingJob, target: Target | None, rows: int) -> None:
        changes = {
            "training.micro_batch_size": rows,
            "training.loss": loss_of(job),
            "training.checkpointing": Checkpointing(),
        }
        self.given = job, target, rows
        self.job, _ = one_gpu(with_prompt(replace_fields(job, changes)))
        self.build = Build(self.job, world_size(job, target))
        self.env = Env.of(self.job, target.compute_capability if target is not None else None)
        self.env.evaluating = True
        self.model = registry.build_model(self.job, self.build, self.env)
        sharding = self.build.sharding
        self.fixed = 0
        if sharding.kind != "none":
            self.fixed = sharding.static_communication(slots_of(self.build.records))
        self.generates = self.job.training.objective == "grpo" and not self.job.training.vllm_memory_share

    def again(self) -> _Evaluated:
        """What another forward begins with: the same model, where the first one leaves nothing behind."""
        return _Evaluated(*self.given) if self.generates or self.build.sharding.kind != "none" else self

    def forward(self, kernels: frozenset[str]) -> Pool:
        """Run the forward and the loss with these optional packages."""
        tape = Tape()
        tape.grad_enabled, tape.evaluating = False, True
        pool, sharding, model = tape.pool, self.build.sharding, self.model
        self.env.begin(kernels)
        pool.add(self.fixed, COMMUNICATION)
        batch = model.batch(tape)
        pool.begin()
        tape.autocast = self.job.training.precision.autocast if sharding.fully is None else None
        sharding.begin(tape, self.build.root)
        if self.generates:
            _generate(tape, self.job, model, self.given[2])
            sharding.begin(tape, self.build.root)
        output = model.forward(tape, batch)
        loss = model.loss(tape, output, batch)
        del output, loss
        self.build.held.clear()
        return pool


def _forward(job: TrainingJob, target: Target | None, rows: int) -> _Forward | None:
    try:
        evaluated = _Evaluated(job, target, rows)
        env = evaluated.env
        pool = evaluated.forward(env.kernels)
        peak = low = pool.peak
        components = dict(zip(COMPONENTS, pool.peak_components))
        components["temporaries"] += pool.peak_components[DECOMPOSED]
        missing = env.asked - env.kernels - ruled_out(job)
        if missing:
            low = min(peak, evaluated.again().forward(least(job, missing)).peak)
    except Unsupported:
        return None
    return _Forward(peak, low, evaluated.fixed, tuple(components.items()))


def _generate(tape: Tape, job: TrainingJob, model: Any, rows: int) -> None:
    """Run the prompt's forward and keep keys and values of whole completions, where the family has a cache."""
    from memlint.estimate.families.decoder import DecoderModel
    from memlint.estimate.rollout import Decoding, Keeping, cached, gathered_bytes

    training = job.training
    assert job.architecture is not None
    if not isinstance(model, DecoderModel) or type(model).forward is not DecoderModel.forward:
        raise Unsupported(f"no memory model of generation for `{job.architecture.model_type}` yet")
    length = training.sequence_length
    completion = min(training.completion_length or length // 2, length - 1)
    kind, model.head.loss_kind = model.head.loss_kind, "standard"
    policy = Keeping(job.architecture, model.body)
    gathered = gathered_bytes(model.build)
    tape.pool.add(gathered, COMMUNICATION)
    cache = cached(tape, policy, model.head, rows, length - completion, completion, padding=training.padding)
    tape.pool.touch(Decoding(job.architecture, model.build.records).bytes(rows), TEMPORARIES)
    del cache
    tape.pool.add(-gathered, COMMUNICATION)
    model.head.loss_kind = kind
    tape.cast_cache.clear()
