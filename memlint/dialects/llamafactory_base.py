"""What every part of the LLaMA-Factory reader shares: the version read, the draft, and where a value came from."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.dialects.base import JobDraft, Problem, ReadContext
from memlint.dialects.values import Section
from memlint.document.model import Document
from memlint.job import KeyPath
from memlint.records import dataclass, field

VERSION = "0.9.5"
"""Newest release on the package index whose source was read (wheel llamafactory-0.9.5)."""

PINS = {"transformers": "5.6.0", "peft": "0.18.1", "trl": "0.24.0", "accelerate": "1.11.0"}
"""Newest library versions that the wheel's metadata allows, where the user's files state none."""

TRAINER = "transformers 5.6: training_args.py"
"""LLaMA-Factory 0.9.5 allows transformers up to 5.6.0, whose TrainingArguments give the other defaults."""

_DEPTH = 8


def source(where: str) -> str:
    """Return the text of a default's origin: ``default of LLaMA-Factory 0.9.5: hparams/model_args.py``."""
    return f"default of LLaMA-Factory {VERSION}: {where}"


@dataclass(slots=True, kw_only=True)
class Run:
    """One LLaMA-Factory file being read. Parts set fields on the draft and leave facts for the parts after them."""

    cfg: Section
    draft: JobDraft
    context: ReadContext
    problems: list[Problem]
    companions: list[str] = field(default_factory=list)

    stage: str = "sft"
    method: str = "lora"
    """``finetuning_type``."""
    bits: int | None = None
    """``quantization_bit``."""
    zero3: bool = False
    fsdp_version: int = 0

    def put(self, name: str, value: Any, key: str | KeyPath) -> None:
        """Set a field that the file states under ``key``."""
        path = self.cfg.path(key) if isinstance(key, str) else key
        self.draft.set(name, value, key=path)

    def default(self, name: str, value: Any, where: str) -> None:
        """Set a field that LLaMA-Factory's source at ``where`` decides."""
        self.draft.set(name, value, default=source(where))

    def choose(self, name: str, key: str, value: Any, fallback: Any, where: str | None) -> Any:
        """Set a field from ``key`` when ``value`` is not None, else the default (of the Trainer without ``where``)."""
        if value is not None:
            self.put(name, value, key)
            return value
        self.draft.set(name, fallback, default=source(where) if where else f"default of {TRAINER}")
        return fallback

    def assume(self, sentence: str) -> None:
        """Tell the user something that was taken for granted."""
        self.draft.assumptions.append(sentence)

    def no_effect(self, key: str, message: str) -> None:
        """Report a setting that does nothing (MEM007)."""
        self.cfg.problem("MEM007", key, message, label="has no effect", on_key=True)

    def reject(self, key: str, message: str) -> None:
        """Report a value that LLaMA-Factory refuses (MEM003)."""
        self.cfg.problem("MEM003", key, message)


def interpolated(document: Document, problems: list[Problem]) -> Mapping[str, Any]:
    """Return the mapping with ``${key}`` references followed, and say that LLaMA-Factory itself does not follow them.

    ``read_args`` (hparams/parser.py) loads with OmegaConf but converts without ``resolve=True``, so a reference reaches
    the arguments as text. Environment references (``${oc.env:X}``) are never followed: a config must not be able to
    print the environment.
    """
    data = document.mapping
    if "${" not in document.text:
        return data
    result = dict(data)
    for key, value in data.items():
        if not (isinstance(value, str) and "${" in value):
            continue
        problems.append(
            Problem(
                code="MEM003",
                key=(key,),
                message=f"`{key}` holds `${{...}}`, which LLaMA-Factory {VERSION} passes on as plain text",
            )
        )
        result[key] = _follow(value, data, _DEPTH)
    return result


def _follow(value: Any, data: Mapping[str, Any], depth: int) -> Any:
    if not (isinstance(value, str) and "${" in value) or depth == 0:
        return value
    head, _, rest = value.partition("${")
    name, closed, tail = rest.partition("}")
    if not closed or name not in data:
        return None
    inner = _follow(data[name], data, depth - 1)
    if not head and not tail:
        return inner
    return _follow(f"{head}{inner}{tail}", data, depth - 1) if len(value) < 4096 else None
