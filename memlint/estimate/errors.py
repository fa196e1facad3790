"""What the estimator cannot do."""

from __future__ import annotations


class Unsupported(Exception):
    """The simulated method has no model for this architecture or setup; the message says which, in a sentence."""
