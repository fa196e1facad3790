"""TrainingArguments as job fields: what every framework on the HF Trainer shares.

Source: transformers 5.24.0 ``training_args.py``, ``trainer.py``; 4.57.6 where the context pins version 4.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects.base import JobDraft, ReadContext
from memlint.dialects.eight_bit import read_embedding_states
from memlint.dialects.low_rank import read_low_rank
from memlint.dialects.names import HF_OPTIMIZERS, LAYERWISE_OPTIMIZERS
from memlint.dialects.values import Section, as_strings, did_you_mean, major, show, version_tuple
from memlint.records import dataclass

TRANSFORMERS = "5.24.0"
"""Newest release of transformers read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a framework makes of TrainingArguments that a file leaves out."""

    source: str
    """``TRL 1.16: trainer/base_config.py``: where the framework's own defaults stand."""
    checkpointing: bool = False
    reentrant: bool = False
    bf16: bool = False
    """True: bf16 unless fp16 is set (TRL)."""
    liger_loss: bool = True
    """Whether Liger's fused linear cross entropy replaces the loss; TRL keeps its own from 1.15 on."""
    liger_key: tuple[str, ...] = ("use_liger_kernel",)


def trainer_source(context: ReadContext) -> str:
    """Return the name of the transformers release whose defaults hold: ``transformers 5.24: training_args.py``."""
    return f"transformers {'4.57' if is_v4(context) else '5.24'}: training_args.py"


def is_v4(context: ReadContext) -> bool:
    """Whether the project pins transformers below 5."""
    return major(context.versions.get("transformers"), 5) < 5


class Arguments:
    """One set of training arguments on its way into a draft."""

    def __init__(self, draft: JobDraft, section: Section, context: ReadContext, defaults: Defaults) -> None:
        """Read ``section`` into ``draft``; nothing happens before :meth:`apply`."""
        self.draft = draft
        self.section = section
        self.context = context
        self.defaults = defaults
        self.source = trainer_source(context)

    def put(self, name: str, value: Any, key: str) -> None:
        """Set a field from ``key`` of the section."""
        self.draft.set(name, value, key=self.section.path(key), file=self.section.file)

    def default(self, name: str, value: Any, source: str | None = None) -> None:
        """Set a field from a framework's default."""
        self.draft.set(name, value, default=f"default of {source or self.source}")

    def choose(self, name: str, key: str | None, value: Any, fallback: Any, source: str | None = None) -> Any:
        """Set a field from ``key`` when it gave a value, else the default; return what was set."""
        if key is not None and value is not None:
            self.put(name, value, key)
            return value
        self.default(name, fallback, source)
        return fallback

    def apply(self) -> None:
        """Set batch, precision, optimizer, checkpointing, kernels, clipping and evaluation."""
        self._batch()
        self._precision()
        self._optimizer()
        self._checkpointing()
        self._kernels()
        self._evaluation()
        for library, newest in (("transformers", TRANSFORMERS),):
            self.draft.versions.setdefault(library, self.context.versions.get(library, newest))

    def _batch(self) -> None:
        section = self.section
        key = section.has("per_device_train_batch_size", "per_gpu_train_batch_size")
        value = section.integer(key, minimum=1) if key is not None else None
        self.choose("training.micro_batch_size", key, value, 8)
        if section.flag("auto_find_batch_size"):
            self.draft.assumptions.append(
                "`auto_find_batch_size` may lower the batch at run time; the first try is judged"
            )
        steps = section.integer("gradient_accumulation_steps", minimum=1)
        self.choose("training.gradient_accumulation_steps", "gradient_accumulation_steps", steps, 1)
        norm_key = section.has("max_grad_norm")
        norm = section.number("max_grad_norm", minimum=0)
        if norm_key is not None and norm is not None:
            self.put("training.max_grad_norm", norm if norm > 0 else None, norm_key)
        else:
            self.default("training.max_grad_norm", 1.0)

    def _half(self, name: str) -> bool | None:
        value = self.section.raw(name)
        if isinstance(value, str) and value.lower().startswith("auto"):
            # Home-made wrappers fill the switch from torch.cuda.is_bf16_supported().
            self.draft.assumptions.append(f"`{name}: {show(value)}` is decided at run time; bf16 assumed")
            return name == "bf16"
        return self.section.flag(name)

    def _precision(self) -> None:
        fp16, bf16 = self._half("fp16"), self._half("bf16")
        if fp16 and bf16:
            self.section.problem("MEM003", "fp16", "`fp16` and `bf16` cannot both be true; keep `bf16`")
            fp16 = None
        if fp16:
            self.put("training.precision.autocast", "fp16", "fp16")
            self.put("training.precision.grad_scaler", True, "fp16")
        elif bf16 is not None:
            self.put("training.precision.autocast", "bf16" if bf16 else None, "bf16")
        elif self.defaults.bf16:
            self.default("training.precision.autocast", "bf16", self.defaults.source)
        else:
            self.default("training.precision.autocast", None)

    def _optimizer(self) -> None:
        section = self.section
        name = section.text("optim")
        key = "optim"
        if name is None and section.flag("adafactor"):
            name, key = "adafactor", "adafactor"
        torch = version_tuple(self.context.versions.get("torch"))
        if name is None:
            old = bool(torch) and torch < (2, 8)
            self.default("training.optimizer", "adamw" if old else "adamw-fused")
            return
        word = name.strip().lower().rpartition(".")[2]
        native = HF_OPTIMIZERS.get(word)
        if native is None:
            section.problem("MEM003", key, f"unknown optimizer `{show(name)}`{did_you_mean(word, HF_OPTIMIZERS)}")
            self.default("training.optimizer", "adamw-fused")
            return
        self.put("training.optimizer", native, key)
        read_embedding_states(self.draft, word, self.context.versions.get("transformers"))
        read_low_rank(native, section.raw, self.put)
        if word in LAYERWISE_OPTIMIZERS:
            self.put("training.optimizer_in_backward", True, key)

    def _checkpointing(self) -> None:
        section = self.section
        key = section.has("activation_checkpointing", "gradient_checkpointing")
        value = section.raw(key) if key is not None else None
        if isinstance(value, str) and value.lower() == "unsloth" and key is not None:
            # A function of its own with reentry (unsloth_zoo gradient_checkpointing.py).
            self.put("training.checkpointing.mode", "offload", key)
            self.put("training.checkpointing.offload", True, key)
            self.put("training.checkpointing.reentrant", True, key)
            return
        flag = section.flag(key) if key is not None else None
        source = self.defaults.source if self.defaults.checkpointing else None
        on = self.choose(
            "training.checkpointing.mode",
            key,
            None if flag is None else "full" if flag else "none",
            "full" if self.defaults.checkpointing else "none",
            source,
        )
        kwargs_key = section.has("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
        part = section.section(kwargs_key) if kwargs_key is not None else None
        if on == "none":
            return
        reentrant = part.flag("use_reentrant") if part is not None else None
        if part is not None and reentrant is not None:
            self.draft.set(
                "training.checkpointing.reentrant", reentrant, key=part.path("use_reentrant"), file=part.file
            )
        else:
            self.default(
                "training.checkpointing.reentrant",
                self.defaults.reentrant,
                f"transformers {'4.57' if is_v4(self.context) else '5.24'}: modeling_utils.py",
            )
        if part is None:
            return
        every = part.integer("every_n_layers", minimum=1)
        if every is not None:
            self.draft.set("training.checkpointing.every", every, key=part.path("every_n_layers"), file=part.file)
        if part.flag("offload"):
            self.draft.set("training.checkpointing.offload", True, key=part.path("offload"), file=part.file)
        if part.flag("selective"):
            self.draft.set("training.checkpointing.mode", "selective", key=part.path("selective"), file=part.file)

    def _kernels(self) -> None:
        section = self.section
        key = section.has(*self.defaults.liger_key)
        if key is not None and section.flag(key):
            part = section.section("liger_kernel_config")
            wanted = {} if part is None else part.data
            kernels = tuple(name for name in ("rms_norm", "swiglu", "rope") if wanted.get(name, True) is not False)
            self.put("training.liger", kernels, key)
            if self.defaults.liger_loss and wanted.get("fused_linear_cross_entropy", True) is not False:
                self.put("training.loss", "fused", key)
        compiling = section.has("torch_compile", "torch_compile_backend", "torch_compile_mode")
        if compiling is not None:
            on = section.flag("torch_compile") if compiling == "torch_compile" else True
            if on:
                self.put("training.compile", True, compiling)

    def _evaluation(self) -> None:
        section = self.section
        key = section.has("eval_strategy", "evaluation_strategy")
        if key is None:
            return
        value = section.raw(key)
        if value is False or str(value).lower() in ("no", "false"):
            return
        size_key = section.has("per_device_eval_batch_size", "per_gpu_eval_batch_size")
        size = section.integer(size_key, minimum=1) if size_key is not None else None
        self.choose("training.eval_micro_batch_size", size_key, size, 8)


def apply_sharding(
    draft: JobDraft, section: Section, context: ReadContext, companions: list[str], *, framework: str
) -> None:
    """Set sharding from ``deepspeed``, ``fsdp`` and the world size. Call it last."""
    deepspeed = section.raw("deepspeed")
    options, fsdp_on = _fsdp_options(section)
    if deepspeed and fsdp_on:
        section.problem(
            "MEM003",
            "fsdp",
            "`fsdp` and `deepspeed` cannot be used together; keep one",
            label="the Trainer refuses both",
        )
    if deepspeed:
        from memlint.dialects.deepspeed import join_deepspeed

        join_deepspeed(draft, section, "deepspeed", context, companions, framework=framework)
    elif fsdp_on:
        from memlint.dialects.accelerate_fsdp import apply_fsdp

        part = _fsdp_section(draft, section, context, companions)
        old = is_v4(context)
        wrapped = not old or "auto_wrap" in options or part.has("transformer_layer_cls_to_wrap", "auto_wrap_policy")
        apply_fsdp(
            draft,
            part,
            version=1 if old else 2,
            wrap="layer" if wrapped else "none",
            source=trainer_source(context),
            options=options,
            options_key="fsdp" if options else None,
            outer=section,
        )
    gpus = draft.get("parallelism.gpus") or context.gpus
    if draft.get("parallelism.strategy") is None and gpus is not None and gpus > 1:
        draft.set("parallelism.strategy", "ddp", default=f"default of {trainer_source(context)} on {gpus} GPUs")


def _fsdp_options(section: Section) -> tuple[tuple[str, ...], bool]:
    value = section.raw("fsdp")
    if value is None or value is False or value == "" or value == []:
        return (), False
    if value is True or str(value).lower() == "true":
        return (), True
    listed = as_strings(value)
    if listed is None:
        section.bad("fsdp", "true, or words such as `full_shard auto_wrap`")
        return (), False
    words = tuple(word.lower() for text in listed for word in text.split())
    known = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")
    for word in words:
        if word not in known:
            section.problem("MEM003", "fsdp", f"unknown `fsdp` option `{show(word)}`{did_you_mean(word, known)}")
    return words, bool(words)


def _fsdp_section(draft: JobDraft, section: Section, context: ReadContext, companions: list[str]) -> Section:
    value = section.raw("fsdp_config")
    if isinstance(value, str) and value and not value.lstrip().startswith("{"):
        found = context.companion(value, beside=draft.document)
        if found is None or not isinstance(found.data, dict):
            section.problem("MEM008", "fsdp_config", f"FSDP file `{show(value)}` does not exist", label="not found")
            return Section({}, section.problems, file=section.file)
        companions.append(found.path)
        return Section(found.data, section.problems, file=found.path)
    return section.section("fsdp_config") or Section({}, section.problems, file=section.file)
