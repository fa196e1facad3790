"""Whether this machine can run a step at all; nothing here imports torch before it must."""

from __future__ import annotations

from memlint.errors import UserError

PACKAGES = ("torch", "transformers", "accelerate", "peft")
"""The extra ``measure``."""


def require_extra(command: str) -> None:
    """Raise UserError, with the cure for a shell and the one for a hook, where the extra `measure` is missing."""
    from importlib.util import find_spec

    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{command} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed here:"
            " run `pip install 'memlint-gpu[measure]'`, or, for the pre-commit hook, add"
            ' `additional_dependencies: [".[measure]"]` under `id: memlint-verify`'
        )


def require_device(device: str, command: str) -> None:
    """Raise UserError where ``device`` is ``cuda`` and there is none."""
    if device != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"{command} runs a real training step, and there is no GPU that torch {torch.__version__} can use here;"
            " run it on a machine with one, or use `memlint verify --device cpu` to run the step without comparing"
            " memory, or `memlint trace`, which needs none"
        )
