"""Every rule, in order of code.

An entry repeats what the module's ``META`` says (a test holds them together), so that listing, selecting and reporting
rules imports none of them, and a file without problems imports only the rules that could speak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from memlint.findings import Severity

if TYPE_CHECKING:
    from types import ModuleType

Kind = Literal["file", "job", "suggestion"]


class Entry(NamedTuple):
    """One rule of the registry."""

    code: str
    name: str
    severity: Severity
    module: str
    """Module below ``memlint.rules`` whose ``check(context)`` yields findings."""
    kind: Kind
    """file: reads the document; job: reads the prediction; suggestion: speaks only when it matters."""

    def load(self) -> ModuleType:
        """Import the rule's module."""
        from importlib import import_module

        return import_module(f"memlint.rules.{self.module}")

    @property
    def meta(self) -> Any:
        """The module's ``META``."""
        return self.load().META

    @property
    def summary(self) -> str:
        """First line of the rule's docstring, the one text for every list and report."""
        return (self.load().__doc__ or "").strip().splitlines()[0]


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

RULES: tuple[Entry, ...] = (
    Entry("MEM001", "unreadable-file", _ERROR, "unreadable_file", "file"),
    Entry("MEM002", "unknown-key", _WARNING, "unknown_key", "file"),
    Entry("MEM003", "bad-value", _ERROR, "bad_value", "file"),
    Entry("MEM004", "unresolved-model", _WARNING, "unresolved_model", "job"),
    Entry("MEM005", "no-target", _INFO, "no_target", "job"),
    Entry("MEM006", "approximate-architecture", _INFO, "approximate_architecture", "job"),
    Entry("MEM007", "setting-without-effect", _WARNING, "setting_without_effect", "file"),
    Entry("MEM008", "missing-file", _ERROR, "missing_file", "file"),
    Entry("MEM101", "out-of-memory", _ERROR, "out_of_memory", "job"),
    Entry("MEM102", "thin-headroom", _WARNING, "thin_headroom", "job"),
    Entry("MEM103", "host-out-of-memory", _ERROR, "host_out_of_memory", "job"),
    Entry("MEM104", "spike-outside-the-step", _WARNING, "spike_outside_the_step", "job"),
    Entry("MEM201", "full-precision", _WARNING, "full_precision", "suggestion"),
    Entry("MEM202", "precision-unsupported", _ERROR, "precision_unsupported", "job"),
    Entry("MEM203", "frozen-weights-in-fp32", _WARNING, "frozen_weights_in_fp32", "suggestion"),
    Entry("MEM301", "checkpointing-off", _WARNING, "checkpointing_off", "suggestion"),
    Entry("MEM302", "quadratic-attention", _WARNING, "quadratic_attention", "suggestion"),
    Entry("MEM303", "full-logits", _WARNING, "full_logits", "suggestion"),
    Entry("MEM401", "heavy-optimizer", _WARNING, "heavy_optimizer", "suggestion"),
    Entry("MEM501", "replicated-states", _WARNING, "replicated_states", "suggestion"),
    Entry("MEM502", "offload-needed-or-wasted", _WARNING, "offload_needed_or_wasted", "suggestion"),
    Entry("MEM503", "incompatible-sharding", _ERROR, "incompatible_sharding", "job"),
    Entry("MEM504", "large-buffers", _WARNING, "large_buffers", "suggestion"),
    Entry("MEM601", "micro-batch-too-large", _WARNING, "micro_batch_too_large", "suggestion"),
    Entry("MEM602", "sequence-beyond-model", _WARNING, "sequence_beyond_model", "job"),
    Entry("MEM603", "batch-does-not-divide", _ERROR, "batch_does_not_divide", "file"),
    Entry("MEM901", "measured-differs", _ERROR, "measured_differs", "job"),
)

BY_CODE: dict[str, Entry] = {entry.code: entry for entry in RULES}
