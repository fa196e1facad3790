"""A decoder-only model with its head and loss: causal LM, classification, reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, rounded
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.heads import HEADLESS, OF_TRAINERS, CausalHead, ClassificationHead
from memlint.estimate.policy import PAIRED as PAIRED
from memlint.estimate.policy import POLICY, Policy
from memlint.estimate.value_head import ValueHead
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.traits import MASK_PER_LAYER

if TYPE_CHECKING:
    from memlint.estimate.trainer_loss import TrainerLoss

Body = Callable[[Architecture, Build, Env], Any]


class DecoderModel:
    """Body (embedding, layers, norm) and head, as transformers' ...ForCausalLM runs them, under an objective."""

    one_stack = True
    """Its layers lie between one embedding and one final norm: FSDP2's units are carved around them."""
    head_name = "lm_head"

    def __init__(self, job: TrainingJob, build: Build, env: Env, body: Body) -> None:
        assert job.architecture is not None
        a = job.architecture
        self.job, self.build = job, build
        self.objective = job.training.objective
        self.policy = Policy(job)
        scoring = self.objective in ("causal-lm", "ppo") or self.objective in POLICY
        tied, head = scoring and a.tie_word_embeddings, self.head_name if scoring else None
        build.sharding.carve(tied=tied, head=head, apart=not self.one_stack)
        self.body = body(a, build, env)
        if MASK_PER_LAYER in a.traits:
            build.buffer_bytes += a.num_hidden_layers * rounded((a.max_position_embeddings or 0) ** 2)
        self.head: Any
        if scoring:
            self.head = self._language_head(a, self.body)
        elif self.objective == "reward" and self.policy.whole:
            self.head = ValueHead(a, build, self.body)
        elif self.objective in ("sequence-classification", "token-classification", "reward"):
            per_token = self.objective == "token-classification"
            # TRL 1.16 reward_trainer.py: num_labels=1.
            labels = 1 if self.objective == "reward" else None
            self.head = ClassificationHead(a, build, self.body.embed, per_token=per_token, labels=labels)
        elif self.objective != "contrastive":
            raise Unsupported(f"no memory model for the objective `{self.objective}` yet")
        self.reference: tuple[Any, Any] | None = None
        self.own_loss: TrainerLoss | None = None
        """What the trainer makes of the logits, where it takes the loss itself."""
        if job.training.loss in OF_TRAINERS and self.objective == "causal-lm":
            from memlint.estimate.trainer_loss import TrainerLoss

            self.own_loss = TrainerLoss(job, env)
        asks = self.objective in POLICY or self.objective == "ppo" or job.training.loss == "asft"
        if asks and job.training.reference_model == "copy":
            with build.reference_model():
                copied = body(a, build, env)
                self.reference = (copied, self._language_head(a, copied))
        self.columns: Any = None
        """What runs where texts are embedded; it makes batch, forward and loss."""
        if self.objective == "contrastive":
            if type(self).forward is not DecoderModel.forward:
                raise Unsupported(f"no memory model of contrastive training for `{a.model_type}` yet")
            from memlint.estimate.contrastive import Columns

            self.columns = Columns(job, build, env, self.body, closures=a.family != "gpt2")
        self.ppo: Any = None
        """What PPO runs beside the policy; it makes batch, forward and loss."""
        if self.objective == "ppo":
            if type(self).forward is not DecoderModel.forward:
                raise Unsupported(f"no memory model of PPO for `{a.model_type}` yet")
            from memlint.estimate.ppo import build_ppo

            self.ppo = build_ppo(job, build, env, body, (self.body, self.head), self.reference)

    def _language_head(self, a: Architecture, body: Any) -> CausalHead:
        name = getattr(body, "head_name", "lm_head")
        head = getattr(body, "head_class", CausalHead)
        made: CausalHead = head(a, self.build, body.embed, name=name, bias=getattr(body, "head_bias", False))
        return made

    def batch(self, f: Tape) -> Batch:
        """ids, labels and, with padding, a mask: [B, S] int64 each."""
        own = self.ppo or self.columns
        if own is not None:
            made: Batch = own.batch(f)
            return made
        training = self.job.training
        rows = training.micro_batch_size * (2 if self.objective in PAIRED else 1)
        length = -(-training.sequence_length // self.job.parallelism.context)
        shape = (rows, length)
        labels = shape if self.objective not in ("sequence-classification", "reward") else shape[:1]
        return Batch(
            ids=f.new(shape, "int64", INPUTS),
            labels=f.new(labels, "int64", INPUTS),
            mask=f.new(shape, "int64", INPUTS) if training.padding else None,
        )

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits and last hidden states, which the model's forward holds until its loss is computed."""
        if self.ppo is not None:
            return self.ppo.forward(f, batch)
        if self.columns is not None:
            return self.columns.forward(f, batch)
        if self.policy.liger is not None:
            f.autocast = None  # the trainer calls the body beneath the autocast around the model
        if self.own_loss is not None and self.reference is not None:
            self.own_loss.ask_reference(f, batch, self.reference)
        hidden = self.body(f, batch)
        fully = self.build.sharding.fully
        if fully is not None and fully.apart:
            hidden = fully.before_tail(f, hidden)
        whole = self.job.training.loss not in HEADLESS
        logits = self.head.logits(f, self.policy.kept(f, hidden) if whole else hidden)
        if fully is not None:
            if logits is None:
                hidden = fully.after_head(f, hidden)
            else:
                logits = fully.after_head(f, logits)
        if self.objective in POLICY:
            if fully is not None:
                # The trainer takes the loss after the model's forward has returned.
                fully.end_forward()
            return [logits, hidden]
        if self.policy.supervised or self.own_loss is not None or self._converts(f):
            return [logits, hidden]
        return (logits, hidden)

    def _converts(self, f: Tape) -> bool:
        head = self.head
        return isinstance(head, CausalHead) and type(self).forward is DecoderModel.forward and head.converts(f)

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """The scalar loss; of a policy's ``output`` nothing is left."""
        if self.ppo is not None:
            clipped: Tensor = self.ppo.loss(f, output, batch)
            return clipped
        if self.columns is not None:
            embedded: Tensor = self.columns.loss(f, output)
            return embedded
        if self.own_loss is not None:
            return self.own_loss.loss(f, output if isinstance(output, list) else list(output), batch, self.head)
        if self.objective not in POLICY:
            loss: Tensor = self.head.loss(f, *output, batch)
            if self.policy.supervised:
                self.policy.log_supervised(f, output)
            elif isinstance(output, list):
                output[1] = None  # the model's forward has returned
                self.head.converted(f, output[0], getattr(self.body, "cached", ()))
            return loss
        held = output if isinstance(output, list) else list(output)
        del output
        own = (self.body, self.head)
        return self.policy.loss(f, held, batch, own, self.reference or own)

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves
