"""What the command line asks of one run of `check`."""

from __future__ import annotations

from memlint.findings import Severity
from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Command-line choices; None and empty mean "as the settings say"."""

    paths: tuple[str, ...] = (".",)
    target: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: Severity | None = None
    force_exclude: bool = False
    """Excludes of the settings also apply to files that are named one by one."""
    isolated: bool = False
    """Read no settings file."""
    offline: bool = False
    use_cache: bool = True
    """Take models' configs from this machine's Hugging Face cache."""
    baseline: str | None = None
    use_baseline: bool = True
    """False while a new baseline is written: everything counts."""
    stdin_filename: str | None = None
    details: bool = False
    """Build the whole estimate for machine formats; text needs its peak only."""
    workers: int = 1
    verify: bool = False
    """Run a real training step of each job beside its prediction."""
    verify_device: str = "cuda"
    """cuda, or cpu for a run whose memory is not compared."""
