"""LLaMA-Factory's PPO on fake tensors: its own generation and forwards, in the classic step of TRL 0.9.6.

Neither can be imported beside transformers 5, so that methods are read out of the sources that ``llamafactory`` 0.9.5 and
``trl`` 0.9.6 have on the path (two unpacked wheels suffice), as :mod:`benchmarks.objectives.llamafactory` reads the
others. Stood in for: the data collator, the rewards (numbers), and what is logged after the update.
"""

from __future__ import annotations

import contextlib
import math
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from types import MethodType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses import FakeTensorMode

from benchmarks.objectives.declared import prepare
from benchmarks.objectives.llamafactory import WithValueHead, functions_of
from benchmarks.objectives.ppo import PAD, UPDATES, GeneratingMode, PPOSetup, PPOTrace, counting_lengths, kept_cache
from memlint.measure.trace.adapters import add_lora, checkpoint_layers
from memlint.measure.trace.build import DTYPES, make_config
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.optimizers import OPTIMIZERS
from memlint.measure.trace.phases import label, module_paths
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.run import _no_collection
from memlint.measure.trace.settings import TraceSettings

OWN = ("get_inputs", "batched_forward_pass")
CLASSIC = (
    *("step", "_step_safety_checker", "prepare_model_inputs", "train_minibatch", "loss", "compute_rewards"),
    *("_kl_penalty", "compute_advantages"),
)
CORE = (
    *("logprobs_from_logits", "entropy_from_logits", "masked_mean", "masked_var", "masked_whiten", "clip_by_value"),
    *("flatten_dict", "stack_dicts"),
)


def traced_classic(hf_config: Mapping[str, Any], setup: PPOSetup, *, reward: str, buffer: int = 1) -> PPOTrace:
    """The account of the second update. ``reward``: copy, adapter or none (a server)."""
    install_idle_cuda()
    recorder = Recorder()
    config = make_config({**hf_config, "pad_token_id": PAD, "eos_token_id": None, "bos_token_id": None})
    autocast = DTYPES[setup.autocast] if setup.autocast else None
    trace = PPOTrace(recorder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_choices(recorder, padding=setup.padding))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        mode = GeneratingMode(recorder, padding=setup.padding)
        mode.scored, mode.rejected = {}, set()
        stack.enter_context(mode)
        recorder.enter("build", 0)

        def one() -> Any:
            return kept_cache(config, "causal", setup)

        base = one()
        base.train()
        trace.parameters = sum(p.numel() for p in base.parameters())
        if setup.checkpointing != "none":
            checkpoint_layers(base, TraceSettings(checkpointing=setup.checkpointing))
        policy, reference = base, None
        if setup.lora is None:
            reference = WithValueHead(one()).requires_grad_(False).eval()
            prepare(reference, autocast)
        else:
            policy = add_lora(base, setup.lora)
            if setup.checkpointing != "none":
                policy.enable_input_require_grads()
        model = WithValueHead(policy)
        second = WithValueHead(one()).requires_grad_(False).eval() if reward == "copy" else None
        trained = [p for p in model.parameters() if p.requires_grad]
        if reward == "adapter":
            second = torch.nn.ParameterList([p.detach().clone() for p in trained])
        prepare(model, autocast)
        everything = [p for m in (model, reference, second) if m is not None for p in m.parameters()]
        recorder.note_parameters(everything)
        label(recorder, everything, "params")
        trace.trained = sum(p.numel() for p in trained)
        driver = OPTIMIZERS[setup.optimizer](trained)
        trainer = _trainer(recorder, setup, model, reference, driver, buffer)
        stack.enter_context(module_paths(recorder, model))
        stack.enter_context(counting_lengths(mode))
        stack.enter_context(_stand_in_for_trl(recorder, trainer))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_no_collection())
        for update in range(1, UPDATES + 1):
            _update(recorder, trainer, mode, setup, update)
        recorder.enter("end", 0)
    trace.finish()
    return trace


def _update(recorder: Recorder, trainer: Any, mode: GeneratingMode, setup: PPOSetup, number: int) -> None:
    """``ppo_train`` between two batches of the data loader."""
    prompt = setup.seq - setup.completion
    recorder.enter("generation", number)
    trainer.model.eval()
    queries: list[Any] = []
    responses: list[Any] = []
    for _ in range(0, trainer.config.batch_size, setup.batch):
        mode.done = False
        given = {
            name: torch.empty(setup.batch, prompt, dtype=torch.long, device="cuda")
            for name in ("input_ids", "attention_mask")
        }
        with torch.no_grad():
            trainer.model.generate(generation_config=trainer.generation_config, **given)
        queries += [torch.empty(prompt, dtype=torch.long) for _ in range(setup.batch)]
        responses += [torch.empty(setup.completion, dtype=torch.long) for _ in range(setup.batch)]
        del given
    rewards = [torch.empty((), dtype=torch.float32) for _ in queries]
    recorder.enter("scoring")
    trainer.model.train()
    trainer.step(queries, responses, rewards)


def _trainer(recorder: Recorder, setup: PPOSetup, model: Any, reference: Any, driver: Any, buffer: int) -> Any:
    from transformers import GenerationConfig

    scope: dict[str, Any] = {"torch": _Torch(), "F": torch.nn.functional, "np": np, "math": math, "warnings": warnings}
    scope.update({"WANDB_PADDING": -1, "time": SimpleNamespace(time=lambda: 0.0), "torch_gc": lambda: None})
    scope.update({"Mapping": Mapping, "pad_sequence": torch.nn.utils.rnn.pad_sequence})
    scope["stats_to_np"] = scope["convert_to_scalar"] = lambda stats: stats
    core = functions_of("core.py", CORE, scope, "trl")
    methods = {
        **functions_of("trainer/ppo_trainer.py", CLASSIC, scope, "trl"),
        **functions_of("train/ppo/trainer.py", OWN, scope),
    }
    batch = setup.batch * setup.accumulation
    trainer = SimpleNamespace(
        model=model, ref_model=reference, optimizer=driver, is_distributed=False, is_encoder_decoder=False,
        is_peft_model=setup.lora is not None, current_device=torch.device("cuda"), lr_scheduler=None,
        amp_context=torch.autocast("cuda"), core=core, data_collator=_collated, model_params=iter(()),
        generation_config=GenerationConfig(
            max_new_tokens=setup.completion, do_sample=True, top_k=50, top_p=0.7, temperature=0.95, pad_token_id=PAD,
        ),
        config=SimpleNamespace(
            batch_size=batch * buffer, backward_batch_size=batch, mini_batch_size=setup.batch, ppo_epochs=2,
            use_score_scaling=False, score_clip=None, kl_penalty="kl", whiten_rewards=False, gamma=1.0, lam=0.95,
            cliprange_value=0.2, cliprange=0.2, vf_coef=0.1, ratio_threshold=10.0, early_stopping=False,
            max_grad_norm=None, log_with=None,
        ),
        kl_ctl=SimpleNamespace(value=0.2, update=lambda *a: None),
        record_step_stats=lambda **data: {"objective/kl": 0.0},
    )  # fmt: skip
    driver.param_groups[0].setdefault("lr", 0.0)
    trainer.optimizer = _Optimizer(recorder, driver, setup.accumulation)
    trainer.accelerator = SimpleNamespace(
        accumulate=lambda model: contextlib.nullcontext(), backward=lambda loss: _backward(recorder, loss),
        sync_gradients=True, num_processes=1,
    )  # fmt: skip
    trainer.optional_peft_ctx = (
        model.pretrained_model.disable_adapter if trainer.is_peft_model else contextlib.nullcontext
    )
    model.generate = lambda **options: model.pretrained_model.generate(**options)
    for name, method in methods.items():
        setattr(trainer, name, MethodType(method, trainer))
    inner = trainer.batched_forward_pass

    def forwards(*args: Any, **options: Any) -> Any:
        recorder.enter("forward" if torch.is_grad_enabled() else "scoring")
        return inner(*args, **options)

    trainer.batched_forward_pass = forwards
    return trainer


def _backward(recorder: Recorder, loss: torch.Tensor) -> None:
    recorder.enter("backward")
    loss.backward()
    recorder.enter("optimizer")


class _Torch:
    """torch, whose ``tensor`` makes numbers of a list without reading the fake ones in it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, values: list[Any], device: Any) -> torch.Tensor:
        return torch.zeros(len(values), device=device)


class _Collated(dict[str, Any]):
    def to(self, device: Any) -> _Collated:
        return self


def _collated(rows: list[dict[str, Any]]) -> _Collated:
    made = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "attention_mask")}
    return _Collated(made)


class _Optimizer:
    def __init__(self, recorder: Recorder, inner: Any, accumulation: int) -> None:
        self.recorder, self.inner, self.accumulation = recorder, inner, accumulation
        self.param_groups = inner.param_groups
        self.count = 0

    def step(self) -> None:
        self.count += 1
        if self.count % self.accumulation == 0:
            self.inner.step()
            label(self.recorder, [v for s in self.inner.state.values() for v in s.values()], "optim")

    def zero_grad(self) -> None:
        if self.count % self.accumulation == 0:
            self.inner.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _stand_in_for_trl(recorder: Recorder, trainer: Any) -> Iterator[None]:
    """``from trl.core import logprobs_from_logits`` finds the function that was read; it begins the phase ``loss``."""
    package, core = types.ModuleType("trl"), types.ModuleType("trl.core")
    vars(core).update(trainer.core)
    inner = trainer.core["logprobs_from_logits"]

    def log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            recorder.enter("loss")
        result: torch.Tensor = inner(logits, labels)
        return result

    vars(core)["logprobs_from_logits"] = log_probs
    with mock.patch.dict(sys.modules, {"trl": package, "trl.core": core}):
        yield
