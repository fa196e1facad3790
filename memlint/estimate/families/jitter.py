"""Noise that routers of experts multiply their tokens with in training, in place.

Source: transformers 5.24 models/{mixtral,minimax,minimax_m2,phimoe,dbrx}/modeling_*.py; torch 2.13 for what autograd
does of it.
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.models.architecture import Architecture


def jitter_of(a: Architecture) -> int:
    """How many times a block of experts multiplies its input with noise."""
    if a.model_type == "phimoe":
        # The block, and its router once more.
        return 2 if float(a.get("input_jitter_noise") or 0) > 0 else 0
    return 1 if a.model_type in JITTERED and float(a.get("router_jitter_noise") or 0) > 0 else 0


JITTERED = ("mixtral", "minimax", "minimax_m2")
"""Types whose blocks read ``router_jitter_noise``."""


def _noise_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # MulBackward0: the gradient times the noise.
    return (f.like(grad),)


def _slices_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # CopySlices (autograd/functions/tensor.cpp): the base's gradient is copied, a clone of the view's part goes
    # through MulBackward0, and what comes back is copied into its place.
    whole, clone = f.like(grad), f.like(grad)
    part = f.like(clone)
    del clone, part
    return (whole,)


def _strided_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # as_strided_backward: into zeros of the base's size.
    return (f.like(grad),)


def jittered(f: Tape, x: Tensor, times: int = 1) -> Tensor:
    """``x *= torch.empty_like(x).uniform_(...)``, once or twice: its storage, and each noise saved.

    The second time x is a view, whose history its base then takes over (CopySlices, AsStridedBackward0).
    """
    for again in range(times):
        noise = f.like(x)
        if f.needs(x):
            out = Tensor(x.shape, x.dtype, x.storage)
            x = f.record(out, _slices_backward if again else _noise_backward, (x,), f.save(noise))
            if again:
                x = f.record(Tensor(x.shape, x.dtype, x.storage), _strided_backward, (x,))
        del noise
    return x
