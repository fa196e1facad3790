"""What home-made files say beside TrainingArguments: model, dtype, LoRA, quantisation, length. Best effort, said so.

There is no common form; the names below are those found in files that wrap TrainingArguments.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from memlint.dialects.base import JobDraft, Problem
from memlint.dialects.names import attention_name, dtype_name
from memlint.dialects.values import Section, as_bool, as_int, is_auto
from memlint.job import KeyPath

_MODEL = (
    "model_name_or_path",
    "model_name",
    "base_model",
    "model_id",
    "model_path",
    "pretrained_model_name_or_path",
    "base_model_name_or_path",
    "name_or_path",
    "base_model_id",
    "model",
)
_MODEL_SECTIONS = ("model", "model_args", "model_config", "base_model")
_LENGTH = (
    "max_seq_length",
    "max_length",
    "max_seq_len",
    "model_max_length",
    "cutoff_len",
    "block_size",
    "sequence_length",
    "seq_length",
    "max_source_length",
    "data_max_length",
)
_LORA_SECTIONS = ("lora", "lora_config", "peft", "peft_config", "lora_args", "peft_args", "adapter")
_RANK = ("r", "lora_r", "rank", "lora_rank")
_TARGETS = ("target_modules", "lora_target_modules", "targets")
_BITS = (("load_in_4bit", 4), ("use_4bit", 4), ("load_in_8bit", 8), ("use_8bit", 8))
_CHECKPOINTING = ("use_gradient_checkpointing", "gradient_checkpointing", "enable_gradient_checkpointing")
"""Of PEFT's ``prepare_model_for_kbit_training`` and Unsloth's ``get_peft_model``, TrainingArguments, and scripts."""
_MAX_SECTIONS = 200


class HomeMade:
    """Looks for a few well-known names in a file, at top level first, then in its mappings."""

    def __init__(self, draft: JobDraft, data: Mapping[str, Any], arguments: KeyPath, problems: list[Problem]) -> None:
        """Search ``data``; ``arguments`` is the path of the TrainingArguments in it."""
        self.draft = draft
        self.problems = problems
        self.sections = [Section(inner, problems, prefix=path) for path, inner in _mappings(data)]
        self.arguments = arguments

    def _first(self, names: tuple[str, ...]) -> tuple[Section, str] | None:
        for name in names:
            for section in self.sections:
                if section.has(name):
                    return section, name
        return None

    def _put(self, field: str, value: Any, section: Section, name: str) -> None:
        self.draft.set(field, value, key=section.path(name))

    def model(self) -> bool:
        """Find the model's ID or path; False when the file names none."""
        for section in self.sections:
            for name in _MODEL:
                value = section.raw(name)
                if isinstance(value, str) and value.strip():
                    self.draft.model = value
                    self.draft.origins["model"] = _origin(self.draft, section.path(name))
                    return True
            if section.prefix and section.prefix[-1] in _MODEL_SECTIONS:
                for name in ("name", "id", "path", "pretrained"):
                    value = section.raw(name)
                    if isinstance(value, str) and value.strip():
                        self.draft.model = value
                        self.draft.origins["model"] = _origin(self.draft, section.path(name))
                        return True
        return False

    def objective(self) -> None:
        """The script decides; a causal language model is assumed."""
        self.draft.set(
            "training.objective",
            "causal-lm",
            assumed="the script decides what is trained: causal language model assumed",
        )

    def sequence_length(self) -> None:
        """Find the token limit; 2048 assumed where the file states none."""
        for name in _LENGTH:
            for section in self.sections:
                value = as_int(section.raw(name))
                if value is not None and value > 0:
                    self._put("training.sequence_length", value, section, name)
                    return
        self.draft.set(
            "training.sequence_length", 2048, assumed="the file states no sequence length: 2048 tokens assumed"
        )

    def method(self) -> None:
        """Find LoRA and quantisation."""
        bits = self._bits()
        lora = self._lora()
        if lora is None:
            self.draft.set("training.method", "full", assumed="the file names no adapter: full training assumed")
            return
        section, name = lora
        self._put("training.method", "qlora" if bits else "lora", section, name)
        rank = as_int(section.raw(name))
        self._put("training.lora.rank", rank if rank is not None and rank > 0 else 16, section, name)
        for key in _TARGETS:
            value = section.raw(key)
            if isinstance(value, str):
                self._put("training.lora.targets", value, section, key)
                break
            if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
                self._put("training.lora.targets", tuple(value), section, key)
                break
        else:
            default = "default of PEFT 0.21: utils/constants.py, the table by model type"
            self.draft.set("training.lora.targets", "default", default=default)
        dropout = section.has("lora_dropout", "dropout")
        value = section.number(dropout, minimum=0) if dropout is not None else None
        if dropout is not None and value is not None:
            self._put("training.lora.dropout", value, section, dropout)
        self.draft.set("training.lora.dtype", "fp32", default="default of PEFT 0.21: autocast_adapter_dtype")
        if bits:
            where, key, number = bits
            self._put("training.quantization.bits", number, where, key)
            if number == 8:
                self._put("training.quantization.type", "int8", where, key)
            else:
                kind = self._first(("bnb_4bit_quant_type",))
                named = kind[0].text(kind[1], ("nf4", "fp4")) if kind is not None else None
                if kind is not None and named is not None:
                    self._put("training.quantization.type", named, *kind)
                double = self._first(("bnb_4bit_use_double_quant", "use_double_quant", "use_nested_quant"))
                flag = double[0].flag(double[1]) if double is not None else None
                if double is not None and flag is not None:
                    self._put("training.quantization.double_quant", flag, *double)
                else:
                    default = "default of transformers 5.24: utils/quantization_config.py"
                    self.draft.set("training.quantization.double_quant", False, default=default)

    def _bits(self) -> tuple[Section, str, int] | None:
        for name, bits in _BITS:
            for section in self.sections:
                if section.has(name) and as_bool(section.raw(name)):
                    return section, name, bits
        return None

    def _lora(self) -> tuple[Section, str] | None:
        """Return the section and key of the rank of an adapter that is not switched off."""
        for section in self.sections:
            inside = bool(section.prefix) and section.prefix[-1] in _LORA_SECTIONS
            if inside and as_bool(section.raw("enabled", True)) is False:
                continue
            names = _RANK if inside else ("lora_r", "lora_rank")
            name = section.has(*names)
            switch = section.has("use_peft", "use_lora", "peft")
            if switch is not None and as_bool(section.raw(switch)) is False:
                continue
            if name is not None and as_int(section.raw(name)) is not None:
                return section, name
        return None

    def dtype(self, old: bool) -> None:
        """Find the load dtype; else what ``from_pretrained`` does: fp32 in transformers 4, the checkpoint's in 5."""
        found = self._first(("torch_dtype", "dtype", "model_dtype"))
        if found is not None:
            value = found[0].raw(found[1])
            dtype = "auto" if is_auto(value) else dtype_name(value)
            if dtype is not None:
                self._put("training.precision.weights", dtype, *found)
                return
        where = f"default of transformers {'4.57' if old else '5.24'}: modeling_utils.py"
        self.draft.set("training.precision.weights", "fp32" if old else "auto", default=where)

    def checkpointing(self) -> None:
        """Find activation checkpointing that stands outside of the arguments, where these do not switch it on.

        ``unsloth`` keeps the layers' inputs on the host, with reentry (unsloth_zoo gradient_checkpointing.py).
        """
        if self.draft.get("training.checkpointing.mode") != "none":
            return
        for name in _CHECKPOINTING:
            for section in self.sections:
                if section.prefix == self.arguments or not section.has(name):
                    continue
                value = section.raw(name)
                own = isinstance(value, str) and value.strip().lower() == "unsloth"
                if own or as_bool(value):
                    self._put("training.checkpointing.mode", "offload" if own else "full", section, name)
                    if own:
                        self._put("training.checkpointing.offload", True, section, name)
                        self._put("training.checkpointing.reentrant", True, section, name)
                        self.draft.assumptions.append(
                            "Unsloth's own kernels are not modelled, but its checkpointing is"
                        )
                    return

    def attention(self) -> None:
        """Find the attention kernel; sdpa is what transformers takes."""
        found = self._first(("attn_implementation", "attention_implementation"))
        native = attention_name(str(found[0].raw(found[1]))) if found is not None else None
        if found is not None and native is not None:
            self._put("training.attention", native, *found)
            return
        self.draft.set("training.attention", "sdpa", default="default of transformers 5.24: modeling_utils.py")


def _origin(draft: JobDraft, path: KeyPath) -> Any:
    from memlint.job import Origin

    return Origin(file=draft.document.path, key=path)


def _mappings(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Yield the mappings of a file, outermost first, a bounded number."""
    waiting: list[tuple[KeyPath, Mapping[str, Any]]] = [((), data)]
    for count in range(_MAX_SECTIONS):
        if count >= len(waiting):
            return
        path, current = waiting[count]
        yield path, current
        for key, value in current.items():
            if isinstance(value, dict) and isinstance(key, str) and len(path) < 4:
                waiting.append(((*path, key), value))
