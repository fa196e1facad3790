"""memlint: peak GPU memory of a training run, predicted from its config."""

__version__ = "0.1.0"
