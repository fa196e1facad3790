"""Functions of mamba-ssm's second generation: the chunked scan, alone or with everything around it.

Source: mamba-ssm 2.3.2 mamba_ssm/ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn, MambaChunkScanCombinedFn),
ssd_chunk_state.py, ssd_chunk_scan.py, ssd_state_passing.py, ssd_bmm.py, layernorm_gated.py. No decay matrix is kept:
the backward makes states and products again. Letters: b batch, s positions, h heads, p head_dim, g groups, n state.
"""

from __future__ import annotations

from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.linear import Weight
from memlint.estimate.ops.mamba_kernels import halved, weight_gradient
from memlint.records import dataclass

MULTIPROCESSORS = 132
"""Of an H100: on smaller GPUs heads are divided into fewer parts (ssd_chunk_scan.py, nheads_per_program)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The sizes of one scan."""

    rows: int
    length: int
    heads: int
    head_dim: int
    groups: int
    state: int
    chunk: int

    @property
    def chunks(self) -> int:
        """Chunks of a sequence."""
        return -(-self.length // self.chunk)

    @property
    def inner(self) -> int:
        """Width of the scan's input and output."""
        return self.heads * self.head_dim

    @property
    def parts(self) -> int:
        """Parts in which the gradients of B, C and their product are made before they are summed."""
        each = self.heads // self.groups
        together = max(min(-(-self.rows * self.chunks * self.heads // MULTIPROCESSORS), each), 1)
        return -(-each // together)


def _steps(f: Tape, z: Scan) -> Tensor:
    """dt or its cumulated product with A: [b, h, chunks, chunk] in fp32."""
    return f.new((z.rows, z.heads, z.chunks, z.chunk), "fp32")


def _states(f: Tape, z: Scan, dtype: str) -> Tensor:
    return f.new((z.rows, z.chunks, z.heads, z.head_dim, z.state), dtype)


def _products(f: Tape, z: Scan, parts: int = 1) -> Tensor:
    """C B^T within every chunk, in fp32."""
    return f.new((z.rows, z.chunks, parts, z.groups, z.chunk, z.chunk), "fp32")


def _forward(f: Tape, z: Scan, dtype: str, gated: bool) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """_mamba_chunk_scan_combined_fwd: what it returns beside its output (the cumulated decays first), the output, and
    that before the gate.
    """
    held = [_steps(f, z), _steps(f, z)]
    raw = _states(f, z, "fp32")
    held += [_states(f, z, dtype), f.new((z.rows, z.heads, z.head_dim, z.state), "fp32")]
    del raw
    products = _products(f, z)
    out = f.new((z.rows, z.length, z.inner), dtype)
    before = f.new((z.rows, z.length, z.inner), dtype) if gated else None
    del products
    return held, out, before


def _backward(f: Tape, z: Scan, dtype: str, *, gated: str | None = None, given: bool = False) -> list[Tensor]:
    """_mamba_chunk_scan_combined_bwd: everything its frame holds, the gradients it was not ``given`` room for first.

    ``gated``: the dtype of the gradient that arrives behind the gate, where the scan has one.
    """
    b, s, narrow = z.rows, z.length, (z.rows, z.length, z.groups, z.state)
    made = []
    if not given:
        made = [f.new(narrow, dtype), f.new(narrow, dtype), f.new((b, s, z.heads), dtype)]
    frame = [f.new((b, s, z.heads), dtype), _steps(f, z), _steps(f, z), _products(f, z)]
    raw = _states(f, z, "fp32")
    states = _states(f, z, "fp32")
    frame.append(f.new((b, z.heads, z.head_dim, z.state), "fp32"))
    del raw
    if gated is not None:
        frame += [f.new((b, s, z.inner), dtype), f.new((b, s, z.inner), gated)]
    arriving = _states(f, z, "fp32")
    frame.append(_states(f, z, dtype))
    if dtype != "fp32":
        states = _states(f, z, dtype)
    del arriving
    if not given:
        made.insert(0, f.new((b, s, z.inner), dtype))
    frame += [states, _steps(f, z)]
    for _ in range(2):
        # dB, then dC, with the decay's part.
        decays = _steps(f, z)
        parts = f.new((b, s, z.parts, z.groups, z.state), "fp32")
        frame += [f.new(narrow, "fp32"), decays]
        del parts
    parts = _products(f, z, z.parts)
    frame.append(_products(f, z))
    del parts
    frame += [_steps(f, z)]
    parts = f.new((b, z.heads, z.chunks, -(-z.chunk // 32), z.chunk), "fp32")
    frame += [_steps(f, z)]
    del parts
    return [*made, *frame]


def _combined_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    z, dtype = node.meta
    x, key, query, step, *frame = _backward(f, z, dtype)
    decay, d, bias = f.new((z.heads,), "fp32"), f.new((z.heads,), "fp32"), f.new((z.heads,), "fp32")
    del frame
    return x, step, decay, key, query, d, bias


def chunk_scan_combined(
    f: Tape, z: Scan, x: Tensor, step: Tensor, decay: Tensor, key: Tensor, query: Tensor, d: Tensor, bias: Tensor
) -> Tensor:
    """mamba_chunk_scan_combined: x [b, s, h, p], step [b, s, h], key and query [b, s, g, n] -> [b, s, h * p].

    Saves its inputs, its output and the cumulated decays [b, h, chunks, chunk] in fp32 (ssd_combined.py:603).
    """
    inputs = (x, step, decay, key, query, d, bias)
    recorded = f.needs(*inputs)
    held, out, _ = _forward(f, z, x.dtype, False)
    if not recorded:
        return out
    saved = f.save(out.detach(), x, step, held[0], decay, key, query, d, bias)
    return f.record(out, _combined_backward, inputs, saved, (z, x.dtype))


def _split_backward(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    # The convolution is computed again, and the norm's output for the projection's gradient.
    z, dtype, normed, channels = node.meta
    b, s, wide = z.rows, z.length, (z.rows, z.length, z.inner)
    again = f.new(wide, dtype)
    convolved = f.new((b, s, channels), dtype)
    whole = f.new((b, s, z.inner + channels + z.heads), dtype)
    parts = f.new((b, s, channels), dtype)
    arriving = f.new(wide, grad.dtype)
    norm = None
    if normed:
        behind = f.new(wide, dtype)
        norm = weight_gradient(f, node, 6)
    frame = _backward(f, z, dtype, gated=None if normed else grad.dtype, given=True)
    frame.clear()
    decay, d, bias = f.new((z.heads,), "fp32"), f.new((z.heads,), "fp32"), f.new((z.heads,), "fp32")
    out_weight, out_bias = weight_gradient(f, node, 7, grad.dtype), weight_gradient(f, node, 8, grad.dtype)
    kernel, kernel_bias = weight_gradient(f, node, 1), weight_gradient(f, node, 2)
    if normed:
        del behind
    del again, convolved, parts, arriving
    return whole, kernel, kernel_bias, bias, decay, d, norm, out_weight, out_bias


def split_conv_scan(
    f: Tape,
    z: Scan,
    projected: Tensor,
    conv: Weight,
    conv_bias: Weight | None,
    dt_bias: Tensor,
    decay: Tensor,
    d: Tensor,
    norm: Tensor | None,
    out_proj: Weight,
    out_bias: Weight | None,
) -> Tensor:
    """mamba_split_conv1d_scan_combined: from the input projection [b, s, gate + channels + h] to the output projection.

    Saves the projection, the scan's output, the norm's fp32 value a row and group, and under autocast a half copy of
    the output projection's weight (ssd_combined.py:883).
    """
    b, s, dtype = z.rows, z.length, projected.dtype
    inputs = (projected, conv, conv_bias, dt_bias, decay, d, norm, out_proj, out_bias)
    recorded = f.needs(*inputs)
    channels = conv.shape[0]
    convolved = f.new((b, s, channels), dtype)
    held, scanned, before = _forward(f, z, dtype, norm is None)
    root = None
    given = scanned
    if norm is not None:
        given = f.new((b, s, z.inner), dtype)
        root = f.new((b * s * z.groups,), "fp32")
    weight, offset = halved(f, out_proj), None if out_bias is None else halved(f, out_bias)
    if given.dtype != weight.dtype:
        given = f.new(given.shape, weight.dtype)
    out = f.new((b, s, out_proj.shape[0]), weight.dtype)
    del convolved, held, given
    if not recorded:
        return out
    kept = scanned if before is None else before
    del scanned, before
    saved = f.save(projected, conv, conv_bias, kept, decay, d, dt_bias, norm, root, weight, offset)
    meta = (z, dtype, norm is not None, channels)
    return f.record(out, _split_backward, inputs, saved, meta)
