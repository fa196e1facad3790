"""The settings as plain data, with their defaults."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.findings import Severity
from memlint.records import dataclass, field

DEFAULT_MARGIN = 0.05
"""Share of usable memory kept free: CONTRACT.md, Settings."""

DEFAULT_INCLUDE = ("*.yaml", "*.yml", "*.json", "memlint.toml", "pyproject.toml")
"""Files that a folder is searched for. TOML files can only carry jobs in memlint's own settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """``[[tool.memlint.overrides]]``: other settings for the files that match."""

    files: tuple[str, ...]
    target: str | None = None
    margin: float | None = None
    fail_on: Severity | None = None
    ignore: tuple[str, ...] = ()
    training: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One project's settings; a default instance stands for "no settings file"."""

    source: str | None = None
    """The file they come from, None where there is none."""
    root: str = ""
    """Absolute folder of that file, against which every pattern and path is read; empty: the working directory."""
    target: str | None = None
    overrides: tuple[Override, ...] = ()
    select: tuple[str, ...] = ()
    """Rules to run; empty: all."""
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    include: tuple[str, ...] = DEFAULT_INCLUDE
    exclude: tuple[str, ...] = ()
    fail_on: Severity = Severity.ERROR
    margin: float = DEFAULT_MARGIN
    models: Mapping[str, str] = field(default_factory=dict)
    """Model ID -> path of its config, absolute."""
    jobs: tuple[Mapping[str, Any], ...] = ()
    """Native jobs, each as in a native job file."""
    training: Mapping[str, Any] | None = None
    """Training section (native form) for a bare HF config.json; None: such files are validated, not estimated."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> release that runs, where the project's requirements do not say: ``{transformers = "4.57"}``."""
    host_memory: int | None = None
    """Bytes of main memory of one node, for what is offloaded to it; None: as the target says, else unknown."""
    search_root: str | None = None
    """Absolute working directory of the framework; None: the nearest repository root."""
    offline: bool = False
    baseline: str | None = None
    """Absolute path of the baseline file."""

    def overrides_for(self, relative: str) -> tuple[Override, ...]:
        """Overrides that match ``relative`` (slash-separated, against :attr:`root`), in order: the last one wins."""
        if not self.overrides:
            return ()
        from memlint.settings.globs import matches_any

        return tuple(override for override in self.overrides if matches_any(relative, override.files))
