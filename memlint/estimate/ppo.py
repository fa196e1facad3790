"""TRL's PPO: a policy and a value model of its own that train together, a reward model, a reference.

Source: TRL 1.12 ``experimental/ppo/ppo_trainer.py`` (the last release that has it), ``experimental/utils.py``
(get_reward), ``trainer/utils.py`` (selective_log_softmax), and ``trainer/ppo_trainer.py`` of 0.16 to 0.24, whose
tensors are the same.

Only the training forward runs under the mixed precision of ``Accelerator.prepare``; generation, reference, values and
rewards call the models inside it, in the dtype of their weights. The forward asks for hidden states and leaves the
cache on; both live as long as the output, which the loop holds through backward and optimizer step. The logits of all
completions are never deleted: they live until the next update's stand in their place.
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, LOGITS, ROUNDING, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.heads import matrix_of
from memlint.estimate.ops.basic import add, cast, slice_of
from memlint.estimate.ops.fused_loss import summed
from memlint.estimate.ops.logps import divided_in_place, selective_log_softmax
from memlint.estimate.rollout import Decoding, Keeping, Model, batch_of, generate
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.records import replace

WHOLE = {"training.method": "full", "training.lora": None, "training.quantization": None}
"""PPO's value and reward models are loaded by the script, which gives PEFT's adapter to the policy alone."""


def scorer_of(job: TrainingJob, env: Env, body: Any) -> tuple[Architecture, Any, Env]:
    """Shape, body and settings of the reward model, and of a value model of its own: the policy's where the config
    names no other.

    Raises:
        Unsupported: a model of its family is no decoder that PPO is modelled with.
    """
    assert job.architecture is not None
    if job.scorer is None or job.scorer == job.architecture:
        return job.architecture, body, env
    from memlint.estimate.families.registry import decoder_body

    other = decoder_body(job.scorer)
    if other is None:
        raise Unsupported(f"no memory model of PPO with a reward model of type `{job.scorer.model_type}` yet")
    own = Env.of(replace(job, architecture=job.scorer), env.capability)
    own.positions, own.evaluating = env.positions, env.evaluating
    return job.scorer, other, own


class Scorer:
    """A sequence-classification model with one label: body and ``score`` over all positions."""

    def __init__(self, job: TrainingJob, build: Build, env: Env, body: Any, *, trained: bool) -> None:
        assert job.architecture is not None
        a, body, self.env = scorer_of(job, env, body)
        own = Build(replace_fields(replace(job, architecture=a), WHOLE))
        own.sharding, own.root = build.sharding, build.root
        own.run_all_layers = build.run_all_layers
        own.frozen = not trained
        self.body = Keeping(a, body(a, own, self.env))
        self.score = own.linear("score", a.hidden_size, 1)
        for record in own.records:
            record.base = False
        build.records += own.records
        build.leaves += own.leaves
        build.buffer_bytes += own.buffer_bytes


class Ppo:
    """The models beside the policy, and the update they run."""

    def __init__(
        self, job: TrainingJob, build: Build, env: Env, body: Any, policy: Model, reference: Model | None
    ) -> None:
        training = job.training
        assert job.architecture is not None
        self.a, self.job, self.env = job.architecture, job, env
        self.rows, self.length = training.micro_batch_size, training.sequence_length
        self.completion = min(training.completion_length or self.length // 2, self.length - 1)
        self.rollouts = training.rollouts or self.rows * training.gradient_accumulation_steps
        self.again = self.rollouts // training.mini_batches > self.rows
        """Another micro batch of the same mini batch has run: what the loop's variables hold of it is alive."""
        self.padding = training.padding
        self.decoding = Decoding(self.a, build.records)
        env.positions = True
        self.critic = Scorer(job, build, env, body, trained=True)
        if training.reward_model == "copy":
            Scorer(job, build, env, body, trained=False)
        self.policy, self.head = Keeping(self.a, policy[0]), policy[1]
        self.reference = (Keeping(self.a, reference[0]), reference[1]) if reference is not None else None
        """The frozen reference model; None: the policy without its adapter."""
        self.held: list[Any] = []
        """What the loop's variables hold of the micro batch that has just been taken."""
        self.earlier: Callable[[], None] = lambda: None
        """Let go of the micro batch before, as ``output`` is assigned anew."""
        self.softmax: Tensor | None = None
        """``prob_dist`` of the micro batch before."""
        self.kept: list[Any] = []
        """What lives from the rollout to the next one: the logits of all completions."""

    def roll_out(self, f: Tape, phase: Callable[[str], None]) -> None:
        """Generation of all completions, then the reference's forward over a part of them."""
        part = min(self.job.training.rollout_batch_size or self.rows, self.rollouts)
        parts = -(-self.rollouts // part)
        vocabulary = matrix_of(self.head.head).shape[0]
        whole = (parts, part, self.completion, vocabulary)
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        tokens = f.new((self.rollouts, self.length), "int64", INPUTS)
        # The list from which the advantages were stacked: a tensor a position.
        each = f.new((self.completion, -(-4 * self.rollouts // ROUNDING) * ROUNDING), "uint8", INPUTS)
        former = f.new(whole, "fp32", LOGITS)
        prompt, last = self.length - self.completion, self.rollouts - part * (parts - 1)
        done: list[Tensor] = []
        for count, rows in ((parts - 2, part), (parts - 1, last)):
            # The last two parts: those before them have left their logits, and a shorter last one makes fewer.
            if count < 0 or (count == parts - 2 and last == part):
                continue
            done.clear()
            done.append(f.new((count, *whole[1:]), "fp32", LOGITS))
            done.append(
                generate(f, self.policy, self.head, rows, prompt, self.completion, self.decoding, padding=self.padding)
            )
        logits = f.new(whole, "fp32", LOGITS)
        done.clear()
        del former
        phase("generation")
        self._score(f, part, vocabulary)
        phase("scoring")
        f.grad_enabled = grad_enabled
        # Numbers of every completion: log-probabilities, values, rewards, masks.
        shape = (self.rollouts, self.completion)
        numbers = [f.new(shape, "fp32", INPUTS) for _ in range(10)]
        self.kept = [logits, tokens, numbers, each]

    def _score(self, f: Tape, part: int, vocabulary: int) -> None:
        batch = batch_of(f, part, self.length, padding=True)
        selective_log_softmax(f, Tensor((part, self.completion, vocabulary), "fp32", None))
        body, head = self.reference or (self.policy, self.head)
        f.adapters = self.reference is not None
        hidden, cache = body(f, batch, hidden=True, cache=True)
        logits = head.logits(f, hidden)
        f.adapters = True
        scored = slice_of(f, logits, (part, self.completion, vocabulary))
        selective_log_softmax(f, scored)
        body.forget(f)
        del scored, logits, cache, hidden
        f.component = TEMPORARIES

    def batch(self, f: Tape) -> Batch:
        """What ``forward`` makes of a micro batch's rows: ids, positions and a mask; and its old values."""
        if self.again:
            self._earlier(f)
        return self._batch(f)

    def _batch(self, f: Tape) -> Batch:
        batch = batch_of(f, self.rows, self.length, padding=False)
        shape = (self.rows, self.completion)
        numbers = [f.new(shape, "fp32", INPUTS) for _ in range(4)]
        batch.beside = (
            f.new((self.rows, self.length), "int64", INPUTS),  # mb_query_responses
            f.new((self.rows, self.length), "int64", INPUTS),  # position_ids
            f.new((self.rows, self.length), "bool", INPUTS),
            f.new(shape, "int64", INPUTS),
            *numbers,
        )
        return batch

    def forward(self, f: Tape, batch: Batch) -> Any:
        """PolicyAndValueWrapper.forward: the value model, then the policy, whose outputs accelerate casts to fp32."""
        autocast = f.autocast
        critic_hidden, critic_cache = self.critic.body(f, batch, hidden=True, cache=True)
        values = self.critic.score(f, critic_hidden)
        hidden, cache = self.policy(f, batch, hidden=True, cache=True)
        given = self.policy.given()
        # A LayerNorm under autocast gives fp32 whatever the states before it are (GPT-2 in half precision).
        widens = autocast is not None and (hidden if given is None else given).dtype != "fp32"
        del given
        if not widens:
            hidden = self.policy.outliving(f, hidden)
        logits = self.head.logits(f, hidden)
        self.critic.body.forget(f)
        del critic_cache, critic_hidden
        f.cast_cache.clear()
        f.autocast = None
        copies: list[Tensor] = []
        whole, given = logits, values
        if autocast is not None:
            # convert_outputs_to_fp32 around the wrapper's forward (accelerate 1.15 utils/operations.py).
            f.component = LOGITS
            whole, given = cast(f, logits, "fp32"), cast(f, values, "fp32")
            f.component = TEMPORARIES
        if widens:
            copies = [f.new(hidden.shape, "fp32") for _ in range(self.a.num_hidden_layers)]
            copies.append(hidden.detach() if hidden.dtype == "fp32" else f.new(hidden.shape, "fp32"))
            self.policy.forget(f)
        else:
            copies = [hidden.detach()]
        del logits, values, hidden
        self.earlier()
        return [whole, given, [cache, copies]]

    def loss(self, f: Tape, output: list[Any], batch: Batch) -> Tensor:
        """The clipped policy loss over the completions and the values' square loss."""
        logits, values, held = output
        output.clear()
        self.held = [held, logits.detach(), values.detach()]
        vocabulary = logits.shape[-1]
        f.component = LOGITS
        divided = divided_in_place(f, logits, self.completion)
        scored = slice_of(f, divided, (self.rows, self.completion, vocabulary))
        log_probs = selective_log_softmax(f, scored)
        f.component = TEMPORARIES
        part = slice_of(f, values, (self.rows, self.completion, 1))
        del logits, divided, scored, values
        return add(f, summed(f, log_probs), summed(f, cast(f, part, log_probs.dtype)))

    def _earlier(self, f: Tape) -> None:
        """The micro batch before: its output and the softmax of its completions' logits, taken for the entropy, are
        alive until the next ones stand in their places.
        """
        grad_enabled, autocast = f.grad_enabled, f.autocast
        f.autocast = self.job.training.precision.autocast
        batch = self._batch(f)
        loss = self.loss(f, self.forward(f, batch), batch)
        del batch
        root, loss = loss, None  # type: ignore[assignment]
        f.run_backward(root, f.new((), root.dtype))
        del root
        f.release()
        self.env.state.clear()
        f.grad_enabled, f.autocast = grad_enabled, autocast
        logits = self.held[1]
        self.softmax = f.new((self.rows, self.completion, logits.shape[-1]), logits.dtype, LOGITS)
        forget = self.policy.taken(f)

        def earlier() -> None:
            forget()
            self.held = []

        self.earlier = earlier


def build_ppo(job: TrainingJob, build: Build, env: Env, body: Any, policy: Model, reference: Model | None) -> Any:
    """PPO as the job's framework runs it: with a value model of its own, or with a head on the policy."""
    for model in (policy, reference):
        if model is not None:
            model[1].loss_kind = "standard"  # no fused or chunked loss replaces the logits of a policy that is sampled
    if job.training.value_model == "head":
        from memlint.estimate.ppo_head import HeadedPpo

        return HeadedPpo(job, build, env, body, policy, reference)
    return Ppo(job, build, env, body, policy, reference)
