"""A traced step: what lives when, on a model small enough to count by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memlint.measure.trace.extend import choose_depths, layer_kinds
from memlint.measure.trace.recorder import rounded
from memlint.measure.trace.result import TraceResult
from tests.measure.trace.shapes import TINY, tiny, traced

pytestmark = [pytest.mark.measure, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

H, MLP, HEADS, V, S = 64, 160, 4, 1024, 256
PER_LAYER = 4 * H * H + 3 * H * MLP + 2 * H
"""Parameters of one layer of the tiny model: q, k, v, o; gate, up, down; two norms."""


@pytest.fixture(scope="module")
def plain() -> TraceResult:
    return traced()


def test_components_sum_to_the_peak_of_every_phase(plain: TraceResult) -> None:
    assert {phase: sum(parts.values()) for phase, parts in plain.phase_breakdowns.items()} == plain.phase_peaks


def test_static_parts_are_those_of_pure_bf16_adamw(plain: TraceResult) -> None:
    assert plain.parameters == 2 * V * H + 2 * PER_LAYER + H
    assert plain.param_bytes == 2 * plain.parameters + padding_of_norms(5)
    assert plain.grad_bytes == plain.param_bytes
    assert plain.optim_bytes == 2 * plain.param_bytes


def padding_of_norms(count: int) -> int:
    return count * (rounded(2 * H) - 2 * H)


def test_a_layer_keeps_24_hidden_and_8_mlp_widths_a_token(plain: TraceResult) -> None:
    """shared/oracle/FACTS.md: 24H + 8I, log-sum-exp 4 for each head, 8 for the two rsqrt."""
    layer = [storage for storage in plain.saved if storage.module.startswith("model.layers.1.")]
    # Two random-state words of the attention kernel take a block of 512 each.
    assert sum(s.bytes for s in layer) == S * (24 * H + 8 * MLP + 4 * HEADS + 8) + 2 * 512


def test_everything_ends_when_the_trace_ends(plain: TraceResult) -> None:
    recorder = plain.recorder
    assert recorder.live == 0
    assert not recorder.storages
    assert sum(event.sign * event.storage.bytes for event in recorder.events) == 0


def test_without_clipping_there_is_no_scratch_for_norms() -> None:
    clipped, free = traced(optimizer="sgd"), traced(optimizer="sgd", max_grad_norm=None)
    assert clipped.phase_peaks["clip"] > clipped.phase_peaks["optimizer"]
    assert free.phase_peaks["clip"] == free.phase_peaks["optimizer"]
    assert free.optim_bytes == 0


def test_accumulation_runs_forward_over_living_gradients(plain: TraceResult) -> None:
    accumulated = traced(accumulation=4)
    assert accumulated.phase_peaks["forward"] == plain.phase_peaks["forward"] + plain.grad_bytes
    assert accumulated.saved_activation_bytes == plain.saved_activation_bytes


@pytest.mark.parametrize("kind", ["nonreentrant", "reentrant"])
def test_checkpointing_keeps_one_hidden_state_a_layer(kind: str, plain: TraceResult) -> None:
    checkpointed = traced(checkpointing=kind)
    kept = [s for s in checkpointed.saved if s.shape == (1, S, H) and s.dtype == "bfloat16"]
    assert len(kept) <= 2 + 3  # an input for each layer; around the final norm
    assert checkpointed.saved_activation_bytes < plain.saved_activation_bytes / 2


def test_both_kinds_of_checkpointing_have_the_same_peak() -> None:
    one, other = traced(checkpointing="nonreentrant"), traced(checkpointing="reentrant")
    assert one.peak_bytes == other.peak_bytes


def test_autocast_keeps_half_copies_of_the_weights() -> None:
    mixed = traced(precision="bf16-autocast")
    # Every matrix but the embedding (looked up, not multiplied).
    assert mixed.saved_cast_weight_bytes == 2 * (V * H + 2 * (4 * H * H + 3 * H * MLP))


def test_eight_bit_states_take_a_byte_and_a_scale_for_256() -> None:
    quantised = traced(optimizer="adam8bit")
    large = [V * H, V * H] + 2 * (4 * [H * H] + 3 * [H * MLP])
    norms = 5 * 2 * rounded(4 * H)
    maps = 2 * 1024
    assert quantised.optim_bytes == sum(2 * (rounded(n) + rounded(n // 256 * 4)) for n in large) + norms + maps


def test_vocabulary_wide_tensors_make_the_loss_peak(plain: TraceResult) -> None:
    """FACTS.md: saved 4 bytes a token and word, 12 in backward: log-softmax, nll gradient, log-softmax gradient."""
    assert plain.saved_logits_loss_bytes == 4 * S * V
    wide = traced(tiny(vocab_size=32768), optimizer="sgd")
    assert wide.peak_op == "aten::_log_softmax_backward_data"
    assert wide.breakdown["logits_loss"] == 12 * S * 32768


def test_a_model_without_layers_of_its_own_kind_is_traced_whole() -> None:
    assert choose_depths(("a",) * 4) is None
    assert choose_depths(("a", "b", "c", "d", "e", "f", "g", "h")) is None


@pytest.mark.parametrize(
    ("kinds", "edge", "depths"),
    [
        (("a",) * 32, 1, (2, 4)),
        (("a",) * 31, 1, (3, 5)),
        (("a",) * 32, 2, (4, 6)),
        (("a", "b") * 13, 1, (4, 6)),
        (("d", *("e",) * 27), 1, (4, 6)),
        (("l", "l", "l", "l", "l", "g") * 8, 1, (12, 18)),
    ],
)
def test_depths_differ_by_whole_periods(kinds: tuple[str, ...], edge: int, depths: tuple[int, int]) -> None:
    chosen = choose_depths(kinds, edge)
    assert chosen is not None
    assert ((chosen.low, chosen.high), chosen.full) == (depths, len(kinds))
    assert (chosen.full - chosen.high) % (chosen.high - chosen.low) == 0


def test_kinds_tell_sliding_from_full_and_dense_from_expert_layers() -> None:
    class Config:
        num_hidden_layers = 4
        layer_types = ("sliding", "full", "sliding", "full")
        first_k_dense_replace = 1

    kinds = layer_kinds(Config)
    assert len(set(kinds)) == 3
    assert kinds[1] == kinds[3]
    assert len(set(layer_kinds(Config, every=2))) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"checkpointing": "nonreentrant", "seq": 1024},
        {"precision": "bf16-autocast", "optimizer": "sgd", "batch": 4},
        {"precision": "fp32", "attention": "eager", "seq": 512},
    ],
    ids=str,
)
def test_a_deep_trace_carried_on_from_a_few_layers_equals_the_whole(settings: dict[str, object]) -> None:
    deep = tiny(num_hidden_layers=8)
    whole, carried = traced(deep, **settings), traced(deep, every_layer=False, **settings)
    assert carried.extended_from == (2, 4)
    assert carried.peak_phase == whole.peak_phase
    assert carried.peak_bytes == whole.peak_bytes
    assert carried.breakdown == whole.breakdown
    for phase, peak in whole.phase_peaks.items():
        # A stack of norms is one block of 512 at any of these depths.
        assert carried.phase_peaks[phase] == pytest.approx(peak, abs=1024)


def test_the_peak_moves_to_another_phase_with_depth() -> None:
    """The shallow traces peak in backward, the deep model in the optimizer step; carried on it does, too."""
    settings = {"seq": 256, "precision": "fp32", "checkpointing": "nonreentrant"}
    deep = tiny(num_hidden_layers=12)
    assert traced(tiny(num_hidden_layers=4), **settings).peak_phase == "backward"
    whole, carried = traced(deep, **settings), traced(deep, every_layer=False, **settings)
    assert carried.extended_from == (2, 4)
    assert whole.peak_phase == carried.peak_phase == "optimizer"
    assert carried.peak_bytes == whole.peak_bytes
    assert carried.parameters == whole.parameters == 2 * V * H + 12 * PER_LAYER + H


def test_the_config_given_is_left_as_it_is() -> None:
    before = dict(TINY)
    traced()
    assert before == TINY
