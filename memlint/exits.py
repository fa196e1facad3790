"""Exit codes of every command, the same for every output format."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the process tells the shell."""

    OK = 0
    """Nothing at or above ``--fail-on``."""
    FINDINGS = 1
    """Something at or above ``--fail-on``; for ``estimate``: the job does not fit the declared target."""
    FAILED = 2
    """memlint could not do its job: bad usage, bad settings, an internal error."""
