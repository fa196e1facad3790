"""Parts of Gemma 3n's layers: alternating updates of streams, learned augmented residuals, magnitudes.

Source: transformers 5.24 models/gemma3n/modeling_gemma3n.py.
"""

from __future__ import annotations

from typing import Any, Hashable

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.engine.whole import Part, describe, whole
from memlint.estimate.families.gemma4_parts import Norm
from memlint.estimate.families.products import Product
from memlint.estimate.ops.basic import add, cast, copy, mean_last, mul, saving_output, scale, shift, slice_of
from memlint.estimate.ops.gather import clamp, subtract
from memlint.estimate.ops.linear import Weight, linear, matmul
from memlint.estimate.ops.views import add_in_place
from memlint.models.architecture import Architecture


def _pow2_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # pow_backward: grad * (exponent * self): one C++ expression.
    scaled = f.like(grad)
    out = f.like(grad)
    del scaled
    return (out,)


def _power(f: Tape, x: Tensor) -> Tensor:
    """``x ** 2`` or ``x ** 0.5``: saves its input; on autocast's fp32 list."""
    if f.autocast is not None:
        x = cast(f, x, "fp32")
    saved = f.save(x) if f.needs(x) else ()
    out = f.like(x)
    return f.record(out, _pow2_backward, (x,), saved) if f.needs(x) else out


def magnitude(f: Tape, x: Tensor, *, clamped: bool = False) -> Tensor:
    """Root of the mean square over the last dimension."""
    mean = mean_last(f, _power(f, x))
    if clamped:
        return saving_output(f, clamp(f, mean))
    return _power(f, mean)


def _stack_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    # StackBackward0: views of the gradient.
    return tuple([Tensor(shape, grad.dtype, grad.storage) for shape, _ in node.shapes])


def stack(f: Tape, parts: list[Tensor]) -> Tensor:
    """``torch.stack``: [N, ...], a copy."""
    recorded = f.needs(*parts)
    out = f.new((len(parts), *parts[0].shape), parts[0].dtype)
    return f.record(out, _stack_backward, tuple(parts)) if recorded else out


def _mean_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def mean_first(f: Tape, x: Tensor) -> Tensor:
    """``x.mean(dim=0)``: its gradient is a new tensor of x's size."""
    recorded = f.needs(x)
    out = f.new(x.shape[1:], x.dtype)
    return f.record(out, _mean_backward, (x,), (), x.shape) if recorded else out


def _std_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    # std_backward, var_backward: (2 / n) * grad * (self - self.mean(-1)), grad expanded.
    centred = f.new(node.meta, grad.dtype)
    out = f.new(node.meta, grad.dtype)
    del centred
    return (out,)


def deviation(f: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the last dimension; the latter saves x and its result."""
    mean = mean_last(f, x)
    recorded = f.needs(x)
    saved = f.save(x) if recorded else ()
    spread = f.new((*x.shape[:-1], 1), x.dtype)
    if recorded:
        f.record(spread, _std_backward, (x,), saved + f.save(spread), x.shape)
    return mean, spread


def _behind_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    # ``x[1:] += y`` is an addition in place on a view and a copy of that view onto itself: two CopySlices, each of
    # which copies the whole gradient and clones the part's; what goes through the copy comes back as zeros with the
    # part filled in, which are added.
    shape, dtype = node.shapes[0]
    part = (shape[0] - 1, *shape[1:])
    whole = f.new(shape, dtype)
    cloned = f.new(part, dtype)
    zeros = f.new(shape, dtype)
    del cloned
    whole = add_grads(f, whole, zeros)
    del zeros
    again = f.like(whole)
    cloned = f.new(part, dtype)
    # The call holds the gradient that came in until it returns.
    summed = f.new(node.shapes[1][0], dtype)
    del cloned, whole
    return again, summed


def add_grads(f: Tape, first: Tensor, second: Tensor) -> Tensor:
    """InputBuffer::accumulate in place."""
    return first


def add_behind(f: Tape, x: Tensor, y: Tensor) -> Tensor:
    """``x[1:] += y`` of x [N, ...] and y [...]."""
    if not f.needs(x, y):
        return x
    return f.record(Tensor(x.shape, x.dtype, x.storage), _behind_backward, (x, y))


def _repeat_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
    return (f.new(node.meta, grad.dtype),)


def repeat_first(f: Tape, x: Tensor, times: int) -> Tensor:
    """``x.repeat(n, 1, 1, 1)``: a copy, summed in backward."""
    recorded = f.needs(x)
    out = f.new((times, *x.shape), x.dtype)
    return f.record(out, _repeat_backward, (x,), (), x.shape) if recorded else out


class AltUp:
    """Gemma3nTextAltUp over streams [N, B, S, H]."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, self.count = a.hidden_size, int(a.get("altup_num_inputs", 4))
        self.clips = a.get("altup_coef_clip") is not None
        self.scale = b.parameter(f"{name}.correct_output_scale", h)
        # In training the weight is clamped and multiplied past its module: an adapter there gets no gradients.
        b.idle, idle = b.idle or (self.clips and b.adapter), b.idle
        self.correction = b.linear(f"{name}.correction_coefs", self.count, self.count)
        b.idle = idle
        self.prediction = Product(b.linear(f"{name}.prediction_coefs", self.count, self.count**2))
        self.router = b.linear(f"{name}.modality_router", h, self.count)
        self.norm = Norm(b, f"{name}.router_norm", h)
        router, correction = Product(self.router), Product(self.correction)
        self.predicting = Part("predict", self.norm, router, self.prediction)
        self.correcting = Part(("correct", self.clips), self.norm, router, correction)
        b.buffer(4)

    def describe(self, weights: list[Any]) -> Hashable:
        """See :class:`Layer`: its scale alone."""
        return describe(self.scale, weights)

    def active(self, f: Tape, streams: Tensor) -> Tensor:
        """``streams[altup_active_idx]``."""
        return slice_of(f, streams, streams.shape[1:])

    def modalities(self, f: Tape, x: Tensor) -> Tensor:
        """compute_router_modalities: [B, S, H] -> [B, S, N]."""
        inputs = scale(f, self.norm(f, x))
        routed = self.router(f, inputs)
        return cast(f, saving_output(f, cast(f, routed, "fp32")), x.dtype)

    def predict(self, f: Tape, x: Tensor) -> Tensor:
        """A linear mix of the streams for each token, added to them."""
        return whole(f, self.predicting, self.mixed, x)

    def mixed(self, f: Tape, x: Tensor) -> Tensor:
        """The same, operation by operation."""
        rows, length, h = x.shape[1:]
        modalities = self.modalities(f, self.active(f, x))
        mix = self.prediction(f, modalities).view(rows, length, self.count, self.count)
        predictions = matmul(f, x.view(rows, length, h, self.count), mix, self.count)
        predictions = add_in_place(f, predictions, x.view(rows, length, h, self.count))
        return self._laid_out(f, predictions, x)

    def _laid_out(self, f: Tape, predictions: Tensor, x: Tensor) -> Tensor:
        return cast(f, copy(f, predictions, x.shape), x.dtype)

    def correct(self, f: Tape, predictions: Tensor, activated: Tensor) -> Tensor:
        """Each stream corrected by what the layer found beyond the prediction."""
        return whole(f, self.correcting, self.moved, predictions, activated)

    def moved(self, f: Tape, predictions: Tensor, activated: Tensor) -> Tensor:
        """The same, operation by operation."""
        modalities = self.modalities(f, activated)
        innovation = subtract(f, activated, self.active(f, predictions))
        innovation = repeat_first(f, innovation, self.count)
        weight = getattr(getattr(self.correction, "base", self.correction), "weight", None)
        if self.clips and isinstance(weight, Weight):
            mix = linear(f, modalities, clamp(f, weight))
        else:
            mix = self.correction(f, modalities)
        mix = shift(f, mix).view(self.count, *activated.shape[:-1], 1)
        corrected = mul(f, innovation, mix)
        corrected = add_in_place(f, corrected, predictions)
        return cast(f, corrected, activated.dtype)

    def scaled(self, f: Tape, x: Tensor) -> Tensor:
        """``(corrected.type_as(scale) * scale).type_as(corrected)``."""
        return cast(f, mul(f, cast(f, x, self.scale.dtype), self.scale), x.dtype)


class Laurel:
    """Gemma3nTextLaurelBlock: a low-rank branch beside its input."""

    def __init__(self, a: Architecture, b: Build, name: str) -> None:
        h, rank = a.hidden_size, int(a.get("laurel_rank", 64))
        self.left = Product(b.linear(f"{name}.linear_left", h, rank))
        self.right = Product(b.linear(f"{name}.linear_right", rank, h))
        self.norm = Norm(b, f"{name}.post_laurel_norm", h)
        self.part = Part("laurel", self.left, self.right, self.norm)

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        return whole(f, self.part, self.added, x)

    def added(self, f: Tape, x: Tensor) -> Tensor:
        """The same, operation by operation."""
        out = self.left(f, x)
        out = self.right(f, out)
        normed = self.norm(f, out)
        return add(f, x, normed)
