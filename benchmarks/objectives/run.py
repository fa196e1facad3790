"""One step of a real trainer on fake CUDA tensors."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode

from benchmarks.objectives import liger, llamafactory
from benchmarks.objectives.declared import DeclaringMode, prepare, trainer_class
from benchmarks.objectives.marks import micro_batch, update
from benchmarks.objectives.trainers import DROPS, KINDS, VERSION, Setup, add_head, make_batch, make_trainer
from memlint.measure.trace.adapters import add_lora, checkpoint_layers
from memlint.measure.trace.build import DTYPES, make_config, make_model
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.optimizers import OPTIMIZERS
from memlint.measure.trace.phases import label, loss_phase, module_paths
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.result import TraceResult, summarise
from memlint.measure.trace.run import _no_collection
from memlint.measure.trace.settings import LoraSettings, TraceSettings

CHUNK = 256
"""_CHUNKED_LM_HEAD_CHUNK_SIZE of TRL 1.9 trainer/sft_trainer.py."""


def traced(hf_config: Mapping[str, Any], setup: Setup, settings: TraceSettings, framework: str = "trl") -> TraceResult:
    """The account of the second step of the trainer of TRL or of LLaMA-Factory (``llamafactory``). Raises ImportError
    where it is not installed.
    """
    own = framework == "llamafactory"
    if not own:
        make_trainer_class_known(setup)
    install_idle_cuda()
    recorder = Recorder()
    classifier = {"num_labels": 1, "pad_token_id": 0} if setup.objective == "reward" and not own else {}
    config = make_config({**hf_config, **classifier})
    autocast = DTYPES[settings.autocast] if settings.autocast else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_choices(recorder, padding=settings.padding))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        mode = DeclaringMode(recorder, padding=settings.padding)
        mode.scored, mode.rejected = {}, set()
        mode.number = -(-setup.batch * (setup.seq - 1) // CHUNK) * CHUNK if setup.objective == "sft" else 1
        if setup.completion:
            mode.scored[(setup.batch, setup.seq - 1)] = setup.batch * setup.completion
        stack.enter_context(mode)
        stack.enter_context(_log_softmax_phase(recorder) if own else _fused_loss_phase(recorder, setup))
        recorder.enter("build", 0)
        model, base, reference = _models(config, setup, settings, own)
        elements = sum(p.numel() for p in base.parameters())
        if settings.lora is not None:
            elements -= sum(p.numel() for name, p in base.named_parameters() if "lora_" in name)
        stack.enter_context(loss_phase(recorder, base))
        prepare(model, autocast)
        if reference is not None:
            reference.eval()
            if own:
                reference.requires_grad_(False)
            prepare(reference, autocast)
        if own:
            trainer = llamafactory.make_trainer(setup, model, reference)
        else:
            trainer = make_trainer(setup, model, reference, autocast)
            # After the reference's forward TRL switches checkpointing on again, with these (disable_gradient_checkpointing).
            trainer.args.gradient_checkpointing_kwargs = {"use_reentrant": settings.checkpointing == "reentrant"}
            if setup.options.get("use_liger_kernel"):
                liger.use_liger(trainer, setup.objective, recorder)
                stack.enter_context(liger.compiled())
        parameters = [p for p in model.parameters() if p.requires_grad]
        everything = [*model.parameters(), *(reference.parameters() if reference is not None else ())]
        recorder.note_parameters(everything)
        label(recorder, everything, "params")
        label(recorder, [*model.buffers(), *(reference.buffers() if reference is not None else ())], "buffers")
        driver = OPTIMIZERS[settings.optimizer](parameters)
        stack.enter_context(module_paths(recorder, model))
        stack.enter_context(_no_collection())
        marks: dict[str, int] = {}
        for number in range(1, settings.steps + 1):
            inputs = llamafactory.make_batch(setup) if own else make_batch(setup)
            marks = micro_batch(recorder, partial(trainer.compute_loss, model), parameters, inputs, number)
            update(recorder, parameters, driver, settings.max_grad_norm)
            for values in trainer._metrics.values():
                values.clear()
            del inputs
        recorder.enter("end")
        trained = sum(p.numel() for p in parameters)
        vocabulary = int(getattr(config.get_text_config(), "vocab_size", 0))
        return summarise(recorder, (elements, trained), settings.steps, marks, vocabulary)


def make_trainer_class_known(setup: Setup) -> None:
    """Import the trainer before fake tensors rule: packages make real ones while they load."""
    module, name, config = KINDS[setup.objective]
    trainer_class(module, name)
    trainer_class(module.replace("_trainer", "_config"), config)


def _models(config: Any, setup: Setup, settings: TraceSettings, own: bool) -> tuple[Any, Any, Any]:
    """The model as it trains, the transformers model inside it, and the reference model or None."""
    head = "seqcls" if setup.objective == "reward" and not own else "causal"

    def one() -> Any:
        return make_model(
            copy.deepcopy(config), head=head, dtype=DTYPES[settings.weights], attention=settings.attention
        )

    base = one()
    base.train()
    reference = one() if setup.reference == "copy" else None
    if settings.checkpointing != "none":
        checkpoint_layers(base, settings)
    if settings.lora is None:
        model = base
    else:
        model = add_lora(base, settings.lora) if own else _adapted(base, setup, settings.lora)
    if settings.lora is not None and settings.checkpointing != "none":
        model.enable_input_require_grads()
    if own:
        if setup.objective == "reward":
            return llamafactory.WithValueHead(model), base, None
        if setup.objective == "sft":
            if reference is not None:
                reference.config.use_cache = True  # model/model_utils/kv_cache.py, where nothing is trained
            return model, base, reference
        _without_dropout(model)
        _without_dropout(reference)
        return model, base, reference
    if setup.objective in DROPS:
        trainer_class("trainer.utils", "disable_dropout_in_model")(model)
        if reference is not None:
            trainer_class("trainer.utils", "disable_dropout_in_model")(reference)
    add_head(setup, base, reference)
    return model, base, reference


def _without_dropout(model: Any) -> None:
    for module in model.modules() if model is not None else ():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0


@contextlib.contextmanager
def _log_softmax_phase(recorder: Recorder) -> Iterator[None]:
    inner = torch.Tensor.log_softmax

    def log_softmax(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        if recorder.phase == "forward" and self.requires_grad:
            recorder.enter("loss")
        return inner(self, *args, **options)

    with mock.patch.object(torch.Tensor, "log_softmax", log_softmax):
        yield


def _adapted(base: Any, setup: Setup, lora: LoraSettings) -> Any:
    if setup.objective != "reward":
        return add_lora(base, lora)
    import peft

    # The task type that TRL asks for with a reward model: PEFT trains the scoring layer in full beside the adapter.
    targets = list(lora.targets) if isinstance(lora.targets, tuple) else lora.targets
    return peft.get_peft_model(base, peft.LoraConfig(r=lora.rank, target_modules=targets, task_type="SEQ_CLS"))


@contextlib.contextmanager
def _fused_loss_phase(recorder: Recorder, setup: Setup) -> Iterator[None]:
    """Enter the phase ``loss`` when the policy's fused head, or TRL's log-softmax, is called with gradients."""
    with contextlib.ExitStack() as stack:
        if VERSION >= (1, 15):
            owner = trainer_class("kernels.chunked_logprob", "ChunkedLogProbFunction")
            inner = owner.forward

            def forward(ctx: Any, hidden: torch.Tensor, *args: Any) -> Any:
                entering(hidden)
                return inner(ctx, hidden, *args)

            stack.enter_context(mock.patch.object(owner, "forward", staticmethod(forward)))
        module = importlib.import_module(f"trl.{KINDS[setup.objective][0]}")
        softmax = getattr(module, "selective_log_softmax", None)

        def selective(logits: torch.Tensor, *args: Any, **options: Any) -> Any:
            entering(logits)
            assert softmax is not None
            return softmax(logits, *args, **options)

        def entering(tensor: torch.Tensor) -> None:
            if recorder.phase == "forward" and tensor.requires_grad:
                recorder.enter("loss")

        if softmax is not None:
            stack.enter_context(mock.patch.object(module, "selective_log_softmax", selective))
        yield
