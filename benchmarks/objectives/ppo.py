"""TRL's PPO trainer on fake tensors: its own ``train()``, generation included, over two updates.

TRL 1.12 is the last release with this trainer (``experimental/ppo``); 1.13 has it no more. The second update is the
steady one: the trainer's loop still holds the logits of the first one's completions.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode

from benchmarks.objectives.declared import DeclaringMode
from memlint.measure.trace.adapters import add_lora
from memlint.measure.trace.build import DTYPES, make_config, make_model
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.optimizers import OPTIMIZERS
from memlint.measure.trace.phases import label, module_paths
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.run import _no_collection
from memlint.measure.trace.settings import LoraSettings

UPDATES = 2
PAD = 0
MODULE = "experimental.ppo.ppo_trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOSetup:
    """One run. Lengths in tokens; ``seq`` counts prompt and completion."""

    batch: int
    """per_device_train_batch_size."""
    accumulation: int = 1
    mini_batches: int = 1
    rollout_batch: int = 64
    seq: int
    completion: int
    weights: str = "fp32"
    autocast: str | None = None
    attention: str = "sdpa"
    padding: bool = False
    optimizer: str = "sgd"
    lora: LoraSettings | None = None
    checkpointing: str = "none"
    """Of the classic trainer only: TRL's own never switches it on."""


@dataclass(slots=True)
class PPOTrace:
    """What the last update took: the highest point of each phase, and what lives through it."""

    recorder: Recorder
    parameters: int = 0
    trained: int = 0
    phase_peaks: dict[str, int] = field(default_factory=dict)

    def finish(self) -> None:
        """Take the highest point of each phase of the last update."""
        for mark in self.recorder.marks:
            if mark.step == UPDATES:
                self.phase_peaks[mark.phase] = max(self.phase_peaks.get(mark.phase, 0), mark.peak.bytes)


class GeneratingMode(DeclaringMode):
    """A declaring mode for trainers that generate: a completion ends when it is as long as it may be."""

    done = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer "is every sequence finished?" by the length."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            if self.recorder.modules:
                return not self.padding
            return self.recorder.phase == "generation" and self.done
        if func is torch.ops.aten.nonzero.default:
            return self._made("aten::nonzero", (args[0].numel(), args[0].dim()), torch.long)
        return super().__torch_dispatch__(func, types, args, kwargs)


def traced_ppo(hf_config: Mapping[str, Any], setup: PPOSetup, scorer: Mapping[str, Any] | None = None) -> PPOTrace:
    """The account of the second update; ``scorer`` is the config of value and reward model where they are of another
    shape. Raises ImportError where no TRL with this trainer is installed.
    """
    module = importlib.import_module(f"trl.{MODULE}")
    install_idle_cuda()
    recorder = Recorder()
    config = make_config({**hf_config, "pad_token_id": PAD, "eos_token_id": None, "bos_token_id": None})
    scored = make_config({**(scorer or hf_config), "pad_token_id": PAD, "num_labels": 1})
    autocast = DTYPES[setup.autocast] if setup.autocast else None
    trace = PPOTrace(recorder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_choices(recorder, padding=setup.padding))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        mode = GeneratingMode(recorder, padding=setup.padding)
        mode.scored, mode.rejected = {}, set()
        stack.enter_context(mode)
        recorder.enter("build", 0)

        def one(kind: Any, head: str) -> Any:
            return kept_cache(kind, head, setup)

        policy = one(config, "causal")
        policy.train()
        trace.parameters = sum(p.numel() for p in policy.parameters())
        value, reward = one(scored, "seqcls"), one(scored, "seqcls")
        value.train()
        reward.eval()
        reference = None
        if setup.lora is None:
            reference = one(config, "causal").eval()
        else:
            policy = add_lora(policy, setup.lora)
        trainer = _trainer(module, setup, (policy, reference, value, reward), autocast)
        trained = [p for p in trainer.model.parameters() if p.requires_grad]
        trace.trained = sum(p.numel() for p in trained)
        everything = [p for m in (policy, reference, value, reward) if m is not None for p in m.parameters()]
        recorder.note_parameters(everything)
        label(recorder, everything, "params")
        driver = OPTIMIZERS[setup.optimizer](trained)
        trainer.optimizer = _Optimizer(recorder, driver, setup.accumulation)
        trainer.accelerator.backward = _entering(recorder, "backward", lambda loss: loss.backward())
        stack.enter_context(module_paths(recorder, trainer.model))
        stack.enter_context(_phases(recorder, module, mode, trainer))
        stack.enter_context(_no_collection())
        recorder.enter("before", 1)
        trainer.train()
        recorder.enter("end", 0)
    trace.finish()
    return trace


def kept_cache(config: Any, head: str, setup: PPOSetup) -> Any:
    """A model that caches keys and values unless it is told not to, as a checkpoint's config has it."""
    made = make_model(config, head=head, dtype=DTYPES[setup.weights], attention=setup.attention)
    config.use_cache = made.config.use_cache = True
    if head == "causal":
        made.generation_config.use_cache = True
    return made


def _same(value: Any, *args: Any, **options: Any) -> Any:
    return value


def _trainer(module: Any, setup: PPOSetup, models: tuple[Any, ...], autocast: torch.dtype | None) -> Any:
    policy, reference, value, reward = models
    trainer: Any = object.__new__(module.PPOTrainer)
    local = setup.batch * setup.accumulation
    trainer.args = SimpleNamespace(
        response_length=setup.completion, temperature=0.7, num_ppo_epochs=1, num_mini_batches=setup.mini_batches,
        gradient_accumulation_steps=setup.accumulation, num_total_batches=UPDATES, batch_size=local,
        local_batch_size=local, local_mini_batch_size=local // setup.mini_batches, total_episodes=UPDATES * local,
        per_device_train_batch_size=setup.batch, local_rollout_forward_batch_size=setup.rollout_batch,
        ds3_gather_for_generation=True, logging_steps=None, eval_steps=None, save_steps=None, world_size=1,
        missing_eos_penalty=None, kl_estimator="k1", kl_coef=0.05, whiten_rewards=False, gamma=1.0, lam=0.95,
        cliprange=0.2, cliprange_value=0.2, vf_coef=0.1, num_sample_generations=0,
    )  # fmt: skip
    trainer.processing_class = SimpleNamespace(pad_token_id=PAD, eos_token_id=2)
    trainer.stop_token_id = None
    trainer.train_dataset_len = local
    trainer.is_peft_model, trainer.ref_adapter_name, trainer.model_adapter_name = setup.lora is not None, None, None
    trainer.is_deepspeed_enabled = False
    trainer.ref_model, trainer.reward_model = reference, reward
    trainer.state = SimpleNamespace(global_step=0, episode=0)
    trainer.control = SimpleNamespace(should_save=False)
    trainer.lr_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0], step=lambda: None)
    trainer.log = lambda metrics: None
    trainer.callback_handler = SimpleNamespace(
        **dict.fromkeys(("on_train_begin", "on_step_end", "on_train_end"), _kept)
    )
    for one in models:
        if one is not None:
            module.disable_dropout_in_model(one)
    model = module.PolicyAndValueWrapper(policy, value)
    _prepare(model, autocast)
    trainer.model = model
    prompt = setup.seq - setup.completion

    def batches() -> Iterator[Any]:
        while True:
            yield {"input_ids": torch.empty(local, prompt, dtype=torch.long, device="cuda")}

    trainer.dataloader = batches()
    trainer.accelerator = SimpleNamespace(
        device=torch.device("cuda"), unwrap_model=_same, gather_for_metrics=_same, print=lambda *a: None,
        accumulate=lambda model: contextlib.nullcontext(), num_processes=1,
        state=SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=None),
    )  # fmt: skip
    return trainer


def _kept(args: Any, state: Any, control: Any) -> Any:
    return control


def _prepare(model: Any, autocast: torch.dtype | None) -> None:
    if autocast is None:
        return
    from benchmarks.objectives.declared import prepare

    prepare(model, autocast)


def _entering(recorder: Recorder, phase: str, inner: Any) -> Any:
    def run(*args: Any, **options: Any) -> Any:
        recorder.enter(phase)
        return inner(*args, **options)

    return run


class _Optimizer:
    """accelerate's AcceleratedOptimizer: steps and clears gradients with the last micro batch of an accumulation."""

    def __init__(self, recorder: Recorder, inner: Any, accumulation: int) -> None:
        self.recorder, self.inner, self.accumulation = recorder, inner, accumulation
        self.count = 0

    def step(self) -> None:
        self.recorder.enter("optimizer")
        self.count += 1
        if self.count % self.accumulation == 0:
            self.inner.step()
            label(self.recorder, [v for s in self.inner.state.values() for v in s.values()], "optim")

    def zero_grad(self) -> None:
        if self.count % self.accumulation == 0:
            self.inner.zero_grad(set_to_none=True)
        self.recorder.enter("statistics")


@contextlib.contextmanager
def _phases(recorder: Recorder, module: Any, mode: GeneratingMode, trainer: Any) -> Iterator[None]:
    """Enter ``generation``, ``scoring``, ``forward`` and ``loss`` where the trainer begins them."""
    inner_generation, inner_forward = module.batch_generation, module.forward
    inner_softmax = module.selective_log_softmax
    updates = [0]

    def generation(*args: Any, **options: Any) -> Any:
        updates[0] += 1
        recorder.enter("generation", updates[0])
        mode.done = False
        return inner_generation(*args, **options)

    def forward(model: Any, *args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            recorder.enter("forward")
        return inner_forward(model, *args, **options)

    def softmax(*args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            recorder.enter("loss")
        elif recorder.phase == "generation":
            recorder.enter("scoring")
        return inner_softmax(*args, **options)

    patches = {"batch_generation": generation, "forward": forward, "selective_log_softmax": softmax}
    with contextlib.ExitStack() as stack:
        for name, value in patches.items():
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(counting_lengths(mode))
        yield


@contextlib.contextmanager
def counting_lengths(mode: GeneratingMode) -> Iterator[None]:
    """Tell the mode when a completion is as long as it may be."""
    from transformers.generation.stopping_criteria import MaxLengthCriteria

    inner = MaxLengthCriteria.__call__

    def length(self: Any, input_ids: Any, scores: Any, **options: Any) -> Any:
        mode.done = input_ids.shape[1] >= self.max_length
        return inner(self, input_ids, scores, **options)

    with mock.patch.object(MaxLengthCriteria, "__call__", length):
        yield
