"""Which GPU a job is held against: the strongest declaration wins (CONTRACT.md, Targets)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.errors import UserError

if TYPE_CHECKING:
    from memlint.hardware.target import Target
    from memlint.settings.model import Override, Settings


class BadTarget(Exception):
    """A target that a config or its comment declares and that no GPU answers to; ``str()`` is the sentence."""


def parse(spec: str, *, source: str) -> Target:
    """Return the target named by ``spec``. Raises UserError with ``source`` in front for an unknown name."""
    from memlint.hardware.parse import parse_target

    try:
        return parse_target(spec)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def declared_in_file(spec: str) -> Target:
    """Return the target named by a config. Raises BadTarget: a mistake in the file is a finding, not a failure."""
    from memlint.hardware.parse import parse_target

    try:
        return parse_target(spec)
    except UserError as error:
        raise BadTarget(str(error)) from None


def from_settings(settings: Settings, overrides: tuple[Override, ...]) -> Target | None:
    """Return the target of the settings: the last matching override, else ``target``."""
    spec = settings.target
    for override in overrides:
        if override.target is not None:
            spec = override.target
    if spec is None:
        return None
    return parse(spec, source=f"target in {settings.source or 'the settings'}")
