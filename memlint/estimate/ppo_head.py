"""LLaMA-Factory's PPO: a value head on the policy, trained in TRL's classic step.

Sources: LLaMA-Factory 0.9.5 ``train/ppo/trainer.py`` (get_inputs, get_rewards, batched_forward_pass) and
``train/trainer_utils.py`` (create_ref_model, create_reward_model); TRL 0.9.6, the newest it takes for this stage,
``trainer/ppo_trainer.py`` (step, train_minibatch, loss), ``core.py``, ``models/modeling_value_head.py``.

Generation calls the model inside, in the dtype of its weights; every other forward runs under ``torch.autocast``. The
training forward returns all logits in fp32, concatenates them (a copy, of one tensor too), and the loss takes their
entropy with gradients that nobody asks for. The loop's variable holds that copy until the next micro batch's is there.
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import LASTING, Batch, Env
from memlint.estimate.heads import matrix_of
from memlint.estimate.ops.basic import add, cast, dropout
from memlint.estimate.ops.fused_loss import summed
from memlint.estimate.ops.linear import linear
from memlint.estimate.ops.logps import log_softmax_gather
from memlint.estimate.ppo import scorer_of
from memlint.estimate.records import Record
from memlint.estimate.rollout import Decoding, Keeping, Model, batch_of, cached
from memlint.estimate.value_head import DROPOUT
from memlint.job import TrainingJob
from memlint.records import replace

SAMPLING = 32
"""Bytes an entry of the vocabulary while a token is drawn: scores and their copy without the tail, sorted values and
indices, probabilities and their sums (TopPLogitsWarper and TopKLogitsWarper of transformers 5.24, whose bounds
LLaMA-Factory sets by default)."""


class HeadedPpo:
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
        self.padding = training.padding
        self.decoding = Decoding(self.a, build.records)
        self.weight, self.bias = _value_head(build, self.a.hidden_size, trained=True)
        if reference is not None:
            _value_head(build, self.a.hidden_size, trained=False)
        if training.reward_model == "copy":
            with build.reference_model():
                a, other, own = scorer_of(job, env, body)
                rewarding = other(a, build, own)
                type(policy[1])(a, build, rewarding.embed, bias=getattr(rewarding, "head_bias", False))
            _value_head(build, a.hidden_size, trained=False)
        elif training.reward_model == "adapter":
            build.records += [_second(record) for record in build.records if record.trainable and not record.base]
        self.dropout = float(self.a.get("summary_dropout_prob", DROPOUT))
        embed = policy[0].embed
        self.enters = getattr(embed, "hooked", False) and embed.weight.node is None
        """The layers' input is a leaf that requires gradients (enable_input_require_grads)."""
        self.entered: Tensor | None = None
        self.policy, self.head = Keeping(self.a, policy[0]), policy[1]
        self.held: list[Any] = []
        """The logits that the loop's variable holds, and with their graph its leaf and that one's gradient."""
        self.kept: list[Tensor] = []
        self.lasting = 0
        """Bytes of masks and tables that reentrant checkpoints hold with that graph."""

    def roll_out(self, f: Tape, phase: Callable[[str], None]) -> None:
        """Generation of one micro batch after the other, then log-probabilities and values of all of them."""
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        f.evaluating = True  # ppo_train: model.eval() around get_inputs
        vocabulary = matrix_of(self.head.head).shape[0]
        prompt = self.length - self.completion
        cache = cached(f, self.policy, self.head, self.rows, prompt, self.completion, padding=self.padding)
        f.pool.touch(SAMPLING * self.rows * vocabulary, LOGITS)
        # Logits and probabilities of the token before stand beside the next one's forward.
        f.pool.touch(2 * 4 * self.rows * vocabulary + self.decoding.bytes(self.rows), TEMPORARIES)
        del cache
        f.evaluating = False
        phase("generation")
        shape = (self.rollouts, self.length)
        self.kept = [f.new(shape, "int64", INPUTS) for _ in range(2)]
        f.autocast = self.job.training.precision.autocast
        env = self.env
        past: list[dict[str, Any]] = []
        env.past = past
        logits, values = self.forward(f, batch_of(f, self.rows, self.length, padding=True))
        env.past = None
        if self.enters and env.checkpointing.reentrant:
            self.lasting = lasting_bytes(past[-1])
        past.clear()
        log_softmax_gather(f, logits)
        del logits, values
        phase("scoring")
        f.grad_enabled = grad_enabled
        # Log-probabilities of both models, values, masks, rewards, advantages and returns of all completions.
        self.kept += [f.new(shape, "fp32", INPUTS) for _ in range(8)]

    def batch(self, f: Tape) -> Batch:
        """A micro batch's rows with their mask; the logits of the one before are alive."""
        vocabulary = matrix_of(self.head.head).shape[0]
        self.held = [f.new((self.rows, self.length, vocabulary), "fp32", LOGITS)]
        if self.enters:
            weights = self.job.training.precision.weights
            self.held += [f.new((self.rows, self.length, self.a.hidden_size), weights) for _ in range(2)]
            self.held.append(f.new((self.lasting,), "uint8"))
        batch = batch_of(f, self.rows, self.length, padding=True)
        shape = (self.rows, self.length)
        batch.beside = tuple(f.new(shape, "fp32", INPUTS) for _ in range(5))
        return batch

    def forward(self, f: Tape, batch: Batch) -> list[Any]:
        """AutoModelForCausalLMWithValueHead.forward: all logits in fp32 and a value a position."""
        hidden, _ = self.policy(f, batch, hidden=True, cache=False)
        logits = self.head.logits(f, hidden)
        f.component = TEMPORARIES
        x = cast(f, dropout(f, hidden, self.dropout), "fp32")
        values = linear(f, x, self.weight, self.bias)
        del x
        f.component = LOGITS
        whole = cast(f, logits, "fp32")
        del logits
        f.component = TEMPORARIES
        f.cast_cache.clear()
        f.autocast = None
        self.entered = self.policy.given() if self.enters and f.grad_enabled else None
        self.policy.forget(f)
        del hidden
        return [whole, cast(f, values, "fp32")]

    def loss(self, f: Tape, output: list[Any], batch: Batch) -> Tensor:
        """The clipped policy loss over all positions, the values' square loss, and what the entropy takes."""
        logits, values = output
        output.clear()
        f.component = LOGITS
        log_probs = log_softmax_gather(f, logits)
        copied = f.like(logits)
        del logits
        self.held = [copied] if self.entered is None else [copied, self.entered, self.env.state.get("lasting")]
        rows, length, width = copied.shape
        shape = (rows, length - 1, width)
        size = 4 * rows * (length - 1) * width
        if rows > 1:
            f.pool.touch(size, LOGITS)  # softmax makes the slice of more than one row contiguous
        softmax = f.new(shape, "fp32")
        f.pool.touch(size, LOGITS)  # logsumexp's exponentials, then the product with the softmax
        del softmax
        f.component = TEMPORARIES
        return add(f, summed(f, log_probs), summed(f, values))


def lasting_bytes(state: dict[str, Any]) -> int:
    """What of a forward's shared tensors reentrant checkpoints hold."""
    found: dict[int, int] = {}
    left = [value for name, value in state.items() if name.startswith(LASTING)]
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            if value.storage is not None:
                found[id(value.storage)] = value.storage.size
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
    return sum(found.values())


def _value_head(build: Build, width: int, *, trained: bool) -> tuple[Any, Any]:
    first = len(build.records)
    made = (
        build.parameter("v_head.summary.weight", 1, width, dtype="fp32", trainable=trained),
        build.parameter("v_head.summary.bias", 1, dtype="fp32", trainable=trained),
    )
    for record in build.records[first:]:
        record.base = False
    return made


def _second(record: Record) -> Record:
    """The reward model's adapter: as large as the policy's, frozen while the policy trains."""
    return replace(record, trainable=False)
