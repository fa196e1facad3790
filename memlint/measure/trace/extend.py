"""A deep model's trace from two shallow ones.

Between two depths everything but the middle layers is the same sequence of operators, and the level at each of them
grows by the same number of bytes with every layer put in the middle: the layer's parameters, gradients, states and
saved tensors. So the operators of the shallow trace are paired with those of the deeper one, from the front and from
the back, and each level is carried on in a straight line. The highest of them is the phase's peak; which one it is may
change with depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memlint.measure.trace.recorder import Op, Peak, Recorder
from memlint.measure.trace.result import TraceResult, breakdown_at

SAVING = 0.8
"""Two shallow traces are worth it when they have fewer layers than this share of the full model."""


@dataclass(frozen=True, slots=True)
class Depths:
    """Layers of the two shallow models and of the one asked for."""

    low: int
    high: int
    full: int


def layer_kinds(config: Any, every: int = 1) -> tuple[str, ...]:
    """What kind each layer is, as far as the config says (attention type, dense or expert MLP).

    every: one layer in so many is checkpointed.
    """
    count = int(config.num_hidden_layers)
    kinds = [""] * count
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers"):
        values = getattr(config, name, None)
        if isinstance(values, (list, tuple)) and len(values) == count:
            kinds = [f"{kind} {value}" for kind, value in zip(kinds, values)]
    dense = getattr(config, "first_k_dense_replace", None)
    if isinstance(dense, int):
        kinds = [f"{kind} {'dense' if index < dense else 'experts'}" for index, kind in enumerate(kinds)]
    only = getattr(config, "mlp_only_layers", None) or ()
    step = getattr(config, "decoder_sparse_step", None) or 1
    plain = [index in only or (index + 1) % step != 0 for index in range(count)]
    return tuple(f"{kind} {index % every} {'dense' * plain[index]}" for index, kind in enumerate(kinds))


def choose_depths(kinds: tuple[str, ...], edge: int = 1) -> Depths | None:
    """Two depths from which the model's own can be reached by repeating whole periods; None when it is not worth it.

    edge: how many periods at each end differ from the middle (2 where the first or last layer is special).
    """
    full = len(kinds)
    for period in range(1, full // 2 + 1):
        # The layers before the last one that differs from its counterpart a period later are not part of the pattern.
        start = max((i + 1 for i in range(full - period) if kinds[i] != kinds[i + period]), default=0)
        if start >= full - 2 * period:
            continue
        low = start + 2 * edge * period
        low += (full - low) % period
        stride = period
        if period == 1:
            low, stride = low + (full - low) % 2, 2
        if low + stride < full and 2 * low + stride <= SAVING * full:
            return Depths(low, low + stride, full)
    return None


def shallow(source: Mapping[str, Any], config: Any, depth: int) -> dict[str, Any]:
    """The config mapping of the same model with ``depth`` layers, lists of one value a layer cut to match."""
    full = int(config.num_hidden_layers)
    names = {"num_hidden_layers", getattr(config, "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers")}
    values = {key: value for key, value in source.items() if key not in names}
    values[sorted(names - {"num_hidden_layers"})[0] if len(names) > 1 else "num_hidden_layers"] = depth
    if getattr(config, "num_decoder_layers", None) == full:
        values["num_decoder_layers"] = depth
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers", "no_rope_layers"):
        per_layer = getattr(config, name, None)
        if isinstance(per_layer, (list, tuple)) and len(per_layer) == full:
            values[name] = list(per_layer[:depth])
    if "attention_layers" in values and getattr(config, "attention_types", None):
        # GPT-Neo states kinds and how often they are repeated.
        values["attention_types"] = [[values["attention_layers"], 1]]
    return values


def extend(low: TraceResult, high: TraceResult, depths: Depths) -> TraceResult | None:
    """Carry two traces on to the full depth; None when their operators do not pair up."""
    steps = low.steps
    times = (depths.full - depths.high) // (depths.high - depths.low)

    def line(a: int, b: int) -> int:
        return b + times * (b - a)

    peaks: dict[int, dict[str, Peak]] = {}
    shares: dict[str, dict[str, int]] = {}
    lowest: dict[str, int] = {}
    for step in (1, steps):
        peaks[step] = {}
        for phase in low.phase_peaks:
            pairs = _pairs(_ops(low.recorder, step, phase), _ops(high.recorder, step, phase), depths)
            if pairs is None:
                return None
            a, b = max(pairs, key=lambda pair: line(pair[0].live, pair[1].live))
            peaks[step][phase] = Peak(line(a.live, b.live), line(a.workspace, b.workspace), b.name, b.module, b.event)
            if step == steps:
                lowest[phase] = max(line(c.live - c.decomposed, d.live - d.decomposed) for c, d in pairs)
                first = breakdown_at(low, a.event, a.workspace)
                second = breakdown_at(high, b.event, b.workspace)
                shares[phase] = {name: line(first.get(name, 0), second.get(name, 0)) for name in {**first, **second}}
    top = max(peaks[steps], key=lambda phase: peaks[steps][phase].bytes)
    begin = max(peaks[1], key=lambda phase: peaks[1][phase].bytes)
    numbers: dict[str, Any] = {name: line(getattr(low, name), getattr(high, name)) for name in _LINEAR}
    return replace(
        high,
        **numbers,
        peak_bytes=peaks[steps][top].bytes,
        peak_phase=top,
        peak_op=peaks[steps][top].op,
        peak_module=peaks[steps][top].module,
        breakdown=shares[top],
        peaks=peaks[steps],
        phase_peaks={phase: peak.bytes for phase, peak in peaks[steps].items()},
        phase_breakdowns=shares,
        phase_decomposed={phase: peaks[steps][phase].bytes - low_end for phase, low_end in lowest.items()},
        phase_ends={phase: line(low.phase_ends[phase], high.phase_ends[phase]) for phase in low.phase_ends},
        first_step_peak_bytes=peaks[1][begin].bytes,
        first_step_peak_phase=begin,
        sdpa_backend={
            name: line(low.sdpa_backend.get(name, 0), high.sdpa_backend.get(name, 0)) for name in high.sdpa_backend
        },
        extended_from=(depths.low, depths.high),
    )


_LINEAR = (
    "parameters", "trainable_parameters", "param_bytes", "buffer_bytes", "grad_bytes", "optim_bytes",
    "static_before_fwd_bytes", "fwd_end_bytes", "saved_activation_bytes", "saved_logits_loss_bytes",
    "saved_cast_weight_bytes", "bwd_end_bytes",
)  # fmt: skip


def _ops(recorder: Recorder, step: int, phase: str) -> list[Op]:
    mark = recorder.mark(step, phase)
    event = mark.start_event
    level = recorder.events[event - 1].live if event else 0
    return [Op(step, phase, "", "", level, 0, event)] + [
        op for op in recorder.ops if op.step == step and op.phase == phase
    ]


def _pairs(low: list[Op], high: list[Op], depths: Depths) -> list[tuple[Op, Op]] | None:
    """Pair the operators of two depths by place: in a layer counted from either end, or outside the layers."""
    if len(low) == len(high):
        pairs = list(zip(low, high))
        return pairs if all(a.name == b.name for a, b in pairs) else None
    ours, theirs = _places(low, depths.low, depths.low), _places(high, depths.high, depths.low)
    pairs = []
    for place, ops in ours.items():
        others = theirs.get(place, [])
        if len(ops) == len(others):
            pairs += zip(ops, others)
        elif len(ops) < len(others) and place.startswith("|"):
            # A loop over parameters, outside every module: paired from both ends.
            half = len(ops) // 2
            pairs += [*zip(ops[:half], others), *zip(ops[half:], others[half - len(ops) :])]
        else:
            return None
    return pairs if all(a.name == b.name for a, b in pairs) else None


def _places(ops: list[Op], depth: int, shallow_depth: int) -> dict[str, list[Op]]:
    front = shallow_depth // 2
    back = shallow_depth - front
    places: dict[str, list[Op]] = {}
    for op in ops:
        parts = op.module.split(".")
        for index, part in enumerate(parts):
            if part.isdigit():
                layer = int(part)
                if front <= layer < depth - back:
                    break
                parts[index] = f"+{layer}" if layer < front else f"-{depth - layer}"
                places.setdefault(".".join(parts), []).append(op)
                break
        else:
            places.setdefault(op.module or f"|{op.name}", []).append(op)
    return places
