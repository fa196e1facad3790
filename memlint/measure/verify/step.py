"""Two training steps of a job on a real device. The second has optimizer states, and is the one that counts."""

from __future__ import annotations

import contextlib
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from memlint.errors import SettingError
from memlint.estimate.result import PHASES
from memlint.measure.trace.adapters import trained_parameters
from memlint.measure.trace.build import DTYPES, make_inputs
from memlint.measure.trace.phases import loss_phase
from memlint.measure.verify.loss import without_logits
from memlint.measure.verify.meter import Meter, make_meter
from memlint.measure.verify.model import Built, build, by_name, tensors_bytes, weights_of
from memlint.measure.verify.optimizers import keep_embeddings_in_32_bits, make_optimizer
from memlint.measure.verify.out_of_memory import describe, is_out_of_memory
from memlint.measure.verify.request import BITSANDBYTES, Plan

STEPS = 2
_LARGE = 2**27
"""Bytes of parameters from which on collecting garbage on a CPU is worth its time."""


@dataclass(slots=True, kw_only=True)
class Run:
    """What one process saw. Sizes in bytes; those that only an allocator knows are None on a CPU."""

    elements: int = 0
    trained: int = 0
    static: dict[str, int] = field(default_factory=dict)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    allocated: int | None = None
    reserved: int | None = None
    reserved_at_end: int | None = None
    workspace: int | None = None
    forward_end: int | None = None
    first_step_peak: int | None = None
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    out_of_memory: dict[str, Any] | None = None


def run_steps(
    plan: Plan, mesh: Any, *, sample: Callable[[], Any], progress: Callable[[str], None] = lambda text: None
) -> tuple[Run, Any]:
    """Build the model, run two steps, and return the account and what ``sample`` gave when the steps were done.

    ``sample`` reads the driver while everything that the steps allocated is still held. Running out of memory is part
    of the answer (``out_of_memory``), any other error is raised as it is.
    """
    run = Run()
    meter = make_meter(plan.device)
    sampled = None
    holder: dict[str, Any] = {}
    try:
        with warnings.catch_warnings(), contextlib.ExitStack() as cleanup:
            warnings.simplefilter("ignore")  # deprecations inside transformers, peft and torch are not the user's
            progress("building the model")
            holder["built"] = built = _built(plan, mesh)
            _train(plan, built, meter, run, holder, cleanup, progress)
        sampled = sample()
        if plan.device == "cuda":
            run.reserved_at_end = torch.cuda.memory_reserved()
            run.workspace = meter.workspace()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        name = by_name(holder["built"].base) if "built" in holder else str
        run.out_of_memory = describe(error, name=name, phase=meter.phase, step=meter.step, allocated=meter.allocated())
        error.__traceback__ = None
    finally:
        # Nothing may outlive the run: the next one starts from the same baseline.
        holder.clear()
        built = None  # type: ignore[assignment]
        if plan.device != "cuda" and run.static.get("parameters", 0) > _LARGE:
            gc.collect()
        meter.settle()
    return run, sampled


def _built(plan: Plan, mesh: Any) -> Built:
    try:
        return build(plan, mesh)
    except (ValueError, ImportError, NotImplementedError) as error:
        # What transformers and peft answer to a setting that a model's class does not offer.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SettingError(f"the model cannot be built as the job says: {reason}", "model") from None


def _train(
    plan: Plan,
    built: Built,
    meter: Meter,
    run: Run,
    holder: dict[str, Any],
    cleanup: contextlib.ExitStack,
    progress: Callable[[str], None],
) -> None:
    settings, model = plan.settings, built.model
    run.elements, run.trained = built.elements, built.trained
    parameters = trained_parameters(model)
    optimizer, said = make_optimizer(plan.optimizer, parameters, in_backward=plan.in_backward)
    holder["optimizer"] = optimizer
    if plan.trainer and plan.optimizer in BITSANDBYTES and "8bit" in plan.optimizer:
        cleanup.callback(keep_embeddings_in_32_bits(model))
    run.notes = (*built.notes, *said)
    scaler = torch.amp.GradScaler(plan.device, enabled=plan.grad_scaler)
    run.static["parameters"] = tensors_bytes(weights_of(model), plan.device)
    meter.settle()
    started = time.perf_counter()
    for number in range(1, STEPS + 1):
        progress(f"step {number} of {STEPS}")
        meter.begin(number)
        micros = min(settings.accumulation, 2)
        for micro in range(micros):
            if micro:
                meter.again()
            loss = _forward(plan, built, meter, run)
            meter.enter("backward")
            with _unsynchronised(model, plan, last=micro == micros - 1):
                scaler.scale(loss).backward()
            run.losses.append(float(loss.detach()))
            del loss
        run.static["gradients"] = tensors_bytes([p.grad for p in parameters], plan.device)
        _update(plan, parameters, optimizer, scaler, meter)
        held = [value for state in optimizer.state.values() for value in _tensors(state)]
        run.static["optimizer_states"] = tensors_bytes([*held, *(getattr(optimizer, "maps", None) or ())], plan.device)
        meter.enter("between")
        optimizer.zero_grad(set_to_none=True)
        run.seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
    meter.enter("end")
    run.phases = [phase for phase in dict.fromkeys(meter.marks) if phase in PHASES]
    if plan.device == "cuda":
        run.timeline = [
            {"phase": phase, "peak_bytes": meter.peaks[phase], "end_bytes": meter.ends[phase]} for phase in run.phases
        ]
        run.allocated = max(meter.peaks[phase] for phase in run.phases)
        run.reserved = meter.reserved
        run.first_step_peak = meter.step_peaks.get(1)


def _forward(plan: Plan, built: Built, meter: Meter, run: Run) -> torch.Tensor:
    settings = plan.settings
    inputs = random_inputs(built.base.config, plan)
    before = meter.allocated()
    half = DTYPES[settings.autocast] if settings.autocast and plan.strategy != "fsdp" else None
    with contextlib.ExitStack() as stack:
        if not plan.compile:
            stack.enter_context(_loss_marked(built.base, meter))
        meter.enter("forward")
        if half is not None:
            stack.enter_context(torch.autocast(plan.device, half))
        if plan.loss != "standard":
            stack.enter_context(without_logits(built.base, plan.loss, lambda: meter.enter("loss")))
        outputs = built.model(**inputs)
        loss = outputs.loss
        del outputs
    if meter.phase == "forward" and not plan.compile:
        meter.enter("loss")
    run.forward_end = meter.allocated() - before if plan.device == "cuda" else None
    return loss


@contextlib.contextmanager
def _loss_marked(base: Any, meter: Meter) -> Iterator[None]:
    """Mark where the loss begins; the model's own loss function comes back afterwards."""
    own = base.__dict__.get("_loss_function")
    with loss_phase(meter, base):  # type: ignore[arg-type]  # only `phase` and `enter` of the recorder are used
        yield
    if own is None:
        base.__dict__.pop("_loss_function", None)
    else:
        base._loss_function = own


def _update(plan: Plan, parameters: list[Any], optimizer: Any, scaler: Any, meter: Meter) -> None:
    limit = plan.settings.max_grad_norm
    if limit is not None and not plan.in_backward:
        meter.enter("clip")
        if plan.grad_scaler:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True)
    meter.enter("optimizer")
    if plan.grad_scaler and not plan.in_backward:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def _unsynchronised(model: Any, plan: Plan, *, last: bool) -> Any:
    if plan.strategy == "ddp" and not last:
        return model.no_sync()
    return contextlib.nullcontext()


def _tensors(value: Any) -> Iterator[Any]:
    """Tensors of an optimizer's state; a step counter on the CPU is none of the device's."""
    if isinstance(value, torch.Tensor):
        if value.dim() or value.is_cuda:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def random_inputs(config: Any, plan: Plan) -> dict[str, Any]:
    """A batch of the declared length with random tokens; every row is as long as the job's longest."""
    settings = plan.settings
    inputs = make_inputs(config, settings, plan.device)
    words = int(getattr(config.get_text_config(), "vocab_size", 2))
    classes = max(int(getattr(config, "num_labels", 2)), 1)
    inputs["input_ids"].random_(0, words)
    if settings.head in ("seqcls", "tokcls"):
        inputs["labels"].random_(0, classes)
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0
    else:
        inputs["labels"].random_(0, words)
    if "attention_mask" in inputs:
        mask = inputs["attention_mask"]
        mask.fill_(1)
        # One row fills the length; without a padded place the model would drop the mask.
        mask[-1, -max(1, mask.shape[1] // 8) :] = 0
    return inputs
