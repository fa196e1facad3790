"""What every part of the axolotl reader shares: the version read, the draft, and where a value came from."""

from __future__ import annotations

from typing import Any

from memlint.dialects.base import JobDraft, Problem, ReadContext
from memlint.dialects.values import Section
from memlint.job import KeyPath
from memlint.records import dataclass, field

VERSION = "0.19.0"
"""Newest release on the package index whose source was read (wheel axolotl-0.19.0)."""

PINS = {"transformers": "5.16.1", "peft": "0.20.0", "trl": "1.9.0", "accelerate": "1.13.0", "liger-kernel": "0.8.1"}
"""Library versions that the wheel's metadata requires, where the user's files state none."""

CLIPPING = f"default of axolotl {VERSION}: TrainingArguments.max_grad_norm of transformers 5.16"


def source(where: str) -> str:
    """Return the text of a default's origin: ``default of axolotl 0.19.0: utils/schemas/config.py``."""
    return f"default of axolotl {VERSION}: {where}"


@dataclass(slots=True, kw_only=True)
class Run:
    """One axolotl file being read. Parts set fields on the draft and leave facts for the parts after them."""

    cfg: Section
    draft: JobDraft
    context: ReadContext
    problems: list[Problem]
    companions: list[str] = field(default_factory=list)

    rl: str | None = None
    adapter: str | None = None
    attention: str | None = None
    """axolotl's own name (``flash_attention_2``); None where the file names none."""
    packing: bool = False
    plugins: tuple[str, ...] = ()
    fsdp_version: int = 0
    """0 without FSDP, else 1 or 2."""
    deepspeed: bool = False

    def put(self, name: str, value: Any, key: str | KeyPath) -> None:
        """Set a field that the file states under ``key``."""
        path = self.cfg.path(key) if isinstance(key, str) else key
        self.draft.set(name, value, key=path)

    def default(self, name: str, value: Any, where: str) -> None:
        """Set a field that axolotl's source at ``where`` decides."""
        self.draft.set(name, value, default=source(where))

    def choose(self, name: str, key: str, value: Any, fallback: Any, where: str) -> Any:
        """Set a field from ``key`` when ``value`` is not None, else the default of ``where``; return what was set."""
        if value is not None:
            self.put(name, value, key)
            return value
        self.default(name, fallback, where)
        return fallback

    def assume(self, sentence: str) -> None:
        """Tell the user something that was taken for granted."""
        self.draft.assumptions.append(sentence)

    def no_effect(self, key: str, message: str) -> None:
        """Report a setting that does nothing (MEM007)."""
        self.cfg.problem("MEM007", key, message, label="has no effect", on_key=True)

    def reject(self, key: str, message: str) -> None:
        """Report a value that axolotl's own validators refuse (MEM003)."""
        self.cfg.problem("MEM003", key, message)

    def plugin(self, name: str) -> bool:
        """Whether a plugin whose dotted name ends with ``name`` is listed."""
        return any(entry.rpartition(".")[2] == name for entry in self.plugins)
