"""One steady training step through the shape-only autograd, of a model that is made once for several runs.

The step is the second or later one: optimizer states exist. With accumulation it is the last micro batch, whose forward
runs with gradients alive.
"""

from __future__ import annotations

from typing import Any, Callable

from memlint.estimate import orthogonality
from memlint.estimate.build import Build
from memlint.estimate.engine.change import Peak
from memlint.estimate.engine.gradients import await_all
from memlint.estimate.engine.pool import (
    COMMUNICATION,
    DECOMPOSED,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    TEMPORARIES,
    rounded,
)
from memlint.estimate.engine.tape import Leaf, Shape, Tape, Tensor
from memlint.estimate.env import Env
from memlint.estimate.families import registry
from memlint.estimate.objectives import without_dropout
from memlint.estimate.optimizer import (
    BLOCK_8BIT,
    OLD_BLOCK_8BIT,
    clip_temporary_bytes,
    paged_bytes,
    state_bytes,
    step_temporary_bytes,
)
from memlint.estimate.packing import flattened
from memlint.estimate.peft_prompts import with_prompt
from memlint.estimate.records import slots_of, whole_bytes
from memlint.estimate.result import COMPONENTS, PhasePeak
from memlint.estimate.rollout import roll_out
from memlint.estimate.versions import before
from memlint.job import TrainingJob
from memlint.records import dataclass, field, replace


@dataclass(slots=True)
class Step:
    """What one simulated step left behind, before overheads are added."""

    build: Build
    timeline: list[PhasePeak]
    static: dict[str, int]
    forward_end_bytes: int
    """Live when forward and loss are done, beyond parameters, states and inputs."""
    host_bytes: int = 0
    """What one GPU's process keeps in host memory."""
    host_once: int = 0
    """What one process keeps there for all (experts on the CPU)."""
    one_kernel: list[PhasePeak] = field(default_factory=list)
    """The phases without the temporaries that only a trace on fake tensors has (silu's backward, zeros of a gather)."""
    asked: frozenset[str] = frozenset()
    """Optional packages that layers of the model use where they are installed (estimate/kernels.py)."""
    missing: frozenset[str] = frozenset()
    """Those of them that the step ran without."""
    paged: int = 0
    """Bytes of the optimizer's states that move to the host where the GPU is full."""


def _phase(tape: Tape, name: str, timeline: list[PhasePeak], one_kernel: list[PhasePeak]) -> None:
    pool = tape.pool
    own = phase_of(name, (pool.peak, pool.peak_components), pool.live)
    one_kernel.append(own)
    timeline.append(own if pool.traced[0] <= pool.peak else phase_of(name, pool.traced, pool.live))
    pool.begin()


def phase_of(name: str, peak: Peak, live: int) -> PhasePeak:
    """A phase that ends with ``live`` bytes."""
    components = dict(zip(COMPONENTS, peak[1]))
    components["temporaries"] += peak[1][DECOMPOSED]
    return PhasePeak(phase=name, peak_bytes=peak[0], end_bytes=live, components=components)


class Prepared:
    """A job's model on one GPU of ``world``, and what each of its steps begins with. Sizes in bytes."""

    def __init__(
        self, job: TrainingJob, capability: tuple[int, int] | None = None, *, world: int = 1, full: bool = False
    ) -> None:
        """``full``: every layer runs, instead of extending equal ones.

        Raises:
            Unsupported: there is no model of this architecture.
        """
        self.given, self.world = (job, capability), world
        job = with_prompt(without_dropout(flattened(job)))
        training = job.training
        self.job, self.full = job, full
        build = self.build = Build(job, world)
        self.env = Env.of(job, capability)
        build.run_all_layers = full or self.env.prefix is not None
        self.kernels = self.env.kernels
        self.model: Any = registry.build_model(job, build, self.env)
        build.buffer_bytes += sum(build.shared.values())
        sharding = build.sharding
        self.parameters = build.buffer_bytes + (
            sum([r.count * sharding.parameter_bytes(r) for r in build.records])
            if sharding.gathers
            else whole_bytes(build.records)
        )
        self.trained = slots_of(build.records, fp32_embedding_states=training.fp32_embedding_states)
        self.master = training.precision.master_weights
        self.slots = sharding.slots(self.trained, master=self.master)
        block = OLD_BLOCK_8BIT if before(job, "bitsandbytes", 0, 44) else BLOCK_8BIT
        states = state_bytes(training.optimizer, self.slots, training.precision.optimizer, block=block)
        if self.master:
            states += sum([s.count * rounded(4 * s.numel) for s in self.slots])
        elif sharding.deepspeed and sharding.kind != "zero0":
            # single_partition_of_fp32_groups and fp32_partitioned_groups_flat are copies whatever their dtype.
            states += sum([s.count * s.bytes for s in self.slots])
        self.paged = 0 if sharding.host_states else paged_bytes(training.optimizer, self.slots)
        """States in unified memory: evicted under pressure, and counted on the device until then."""
        self.host = states if sharding.host_states else self.paged
        self.states = 0 if sharding.host_states else states
        self.host += sharding.host_bytes(build.records, self.trained)
        self.host_once = 0
        if job.parallelism.offload == "experts":
            from memlint.estimate.host_experts import host_expert_bytes

            self.host_once = host_expert_bytes(build.records, training)
        self.communication = sharding.static_communication(self.trained)
        self.gradients = sharding.gradient_bytes(self.trained)
        zero = sharding.zero
        always = zero.whole_gradients.always if zero is not None and zero.whole_gradients is not None else 0
        self.sums = always
        """Of DeepSpeed's own sums of gradients, which are there through the whole step."""
        # Stage 3 makes the tensor of its part of the gradients once (stage3.py grad_partitions_flat_buffer).
        rest = training.gradient_accumulation_steps > 1 or (zero is not None and zero.stage == 3)
        self.gradients_rest = rest and not training.optimizer_in_backward
        """Gradients are there from one micro batch to the next."""

    def again(self) -> Prepared:
        """What another step of the job begins with, once one has run.

        That is the same model where :meth:`run` clears all that a step leaves behind. It does not clear DeepSpeed's
        engine, nor what a PPO update keeps from its rollout.
        """
        if self.build.sharding.zero is None and self.job.training.objective != "ppo":
            return self
        return Prepared(*self.given, world=self.world, full=self.full)

    def run(
        self, *, tape: Tape | None = None, one_kernel_silu: bool = False, kernels: frozenset[str] | None = None
    ) -> Step:
        """Simulate one step. ``kernels`` are optional packages taken instead of the job's own; ``tape`` is one that
        watches what is allocated.

        Raises:
            Unsupported: there is no model of this objective.
        """
        job, build, env, model = self.job, self.build, self.env, self.model
        training, sharding = job.training, build.sharding
        tape = tape or Tape()
        tape.one_kernel_silu = one_kernel_silu
        tape.counts_twice = tape.counts_twice and not self.full
        pool = tape.pool
        env.begin(self.kernels if kernels is None else kernels)
        for leaf in build.all_leaves():
            leaf.begin()
        pool.add(self.parameters, PARAMETERS)
        pool.add(self.states, OPTIMIZER)
        pool.add(self.communication, COMMUNICATION)
        pool.add(self.sums, GRADIENTS)
        timeline: list[PhasePeak] = []
        one_kernel: list[PhasePeak] = []
        if training.objective == "ppo":
            roll_out(model, tape, lambda name: _phase(tape, name, timeline, one_kernel))
        zero = sharding.zero
        if self.gradients_rest:
            pool.add(self.gradients, GRADIENTS)
            for leaf in build.all_leaves():
                leaf.grad = True
        elif training.optimizer_in_backward:
            at_once = self._steps_at_once()
            for leaf in build.all_leaves():
                leaf.sink = at_once
        batch = model.batch(tape)
        static_live = pool.live

        pool.begin()
        # FSDP2 computes in its policy's dtype: accelerate 1.15 _prepare_fsdp2 puts no autocast around the model.
        tape.autocast = training.precision.autocast if sharding.fully is None else None
        sharding.begin(tape, build.root)
        output = model.forward(tape, batch)
        _phase(tape, "forward", timeline, one_kernel)
        loss = model.loss(tape, output, batch)
        del output
        build.held.clear()
        if sharding.fully is not None:
            sharding.fully.end_forward()
        tape.component = TEMPORARIES
        tape.autocast = None
        tape.cast_cache.clear()
        products = orthogonality.products(tape, build) if build.orthogonal else None
        _phase(tape, "loss", timeline, one_kernel)
        forward_end = pool.live - static_live
        seed = tape.new((), loss.dtype)
        root, loss = loss, None
        if self.gradients_rest:
            await_all(tape.nodes)
        elif build.orthogonal and sharding.kind == "none" and not training.optimizer_in_backward:
            orthogonality.regularise(pool, build)
        del products
        tape.run_backward(root, seed)
        del root, seed
        tape.release()
        for leaf in build.all_leaves():
            leaf.held = None
        env.state.clear()
        sharding.finish(tape, build.leaves, self.gradients if self.gradients_rest else 0)
        _phase(tape, "backward", timeline, one_kernel)
        if zero is not None:
            zero.norm(pool)
        if training.max_grad_norm is not None and self.trained:
            if zero is None:
                pool.touch(clip_temporary_bytes(sharding.slots(self.trained, master=False)), TEMPORARIES)
            _phase(tape, "clip", timeline, one_kernel)
        temporary = self._optimizer_temporary()
        if zero is not None:
            zero.step(pool, self.slots, temporary, master=self.master)
        else:
            pool.touch(temporary, TEMPORARIES)
        _phase(tape, "optimizer", timeline, one_kernel)
        gradients = self.gradients + self.sums
        static = {"parameters": self.parameters, "gradients": gradients, "optimizer_states": self.states}
        host, asked = self.host + tape.host_bytes, frozenset(env.asked)
        missing = asked - env.kernels
        return Step(build, timeline, static, forward_end, host, self.host_once, one_kernel, asked, missing, self.paged)

    def _optimizer_temporary(self) -> int:
        """What the optimizer's step needs beside states and gradients."""
        training, sharding, slots = self.job.training, self.build.sharding, self.slots
        forced, old = training.precision.optimizer, before(self.job, "torch", 2, 1)
        if sharding.host_states or training.optimizer_in_backward:
            return 0
        updated = slots if sharding.zero is None else sharding.zero.updated(slots)
        return step_temporary_bytes(training.optimizer, updated, forced, two_lists=old)

    def _steps_at_once(self) -> Callable[[Tape, Leaf, Tensor], None]:
        """Optimizer in backward: a gradient is used and freed as soon as it is there, by an optimizer for each
        parameter, whose step makes temporaries of that parameter alone.
        """
        training, old = self.job.training, before(self.job, "torch", 2, 1)
        name, forced = training.optimizer, training.precision.optimizer
        sizes: dict[Shape, int] = {}
        for slot in self.trained:
            size = step_temporary_bytes(name, [replace(slot, count=1, after=0)], forced, two_lists=old)
            sizes[slot.shape] = max(size, sizes.get(slot.shape, 0))

        def step(tape: Tape, leaf: Leaf, grad: Tensor) -> None:
            tape.pool.touch(sizes.get(leaf.shape, 0), TEMPORARIES)

        return step


def run_step(
    job: TrainingJob,
    capability: tuple[int, int] | None = None,
    *,
    world: int = 1,
    full: bool = False,
    one_kernel_silu: bool = False,
    kernels: frozenset[str] | None = None,
    tape: Tape | None = None,
) -> Step:
    """Simulate one step of a job on one GPU of ``world``, see :class:`Prepared`.

    Raises:
        Unsupported: there is no model of this architecture.
    """
    prepared = Prepared(job, capability, world=world, full=full)
    return prepared.run(tape=tape, one_kernel_silu=one_kernel_silu, kernels=kernels)
