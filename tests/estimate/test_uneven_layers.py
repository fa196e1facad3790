"""Models of the Llama shape whose layers differ: what each has is read from the config, the rest is Llama's."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import count_parameters, run_step
from memlint.job import TrainingJob, replace_fields
from memlint.models import catalog
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

H, HEADS, VOCABULARY = 512, 8, 8192
COMMON = {"hidden_size": H, "num_attention_heads": HEADS, "vocab_size": VOCABULARY, "num_hidden_layers": 3}


def block(attention: dict[str, Any], ffn: dict[str, Any]) -> dict[str, Any]:
    return {"attention": attention, "ffn": ffn}


WHOLE = block({"n_heads_in_group": 2}, {"ffn_mult": 4.125})
"""Four key/value heads; int(2 * 4.125 * 512 / 3) is 1408 wide, a multiple of 256 upwards 1536."""
WITHOUT_ATTENTION = block({"no_op": True}, {"ffn_mult": 1.5})
LINEAR = block({"replace_with_linear": True}, {"no_op": True})


def job(config: dict[str, Any], **changes: Any) -> TrainingJob:
    architecture = read_config(config)
    assert isinstance(architecture, Architecture)
    return replace_fields(TrainingJob(model="own", architecture=architecture), changes)


def nas(blocks: Any, **changes: Any) -> TrainingJob:
    return job({"model_type": "nemotron-nas", **COMMON, "block_configs": blocks}, **changes)


def llama(**fields: Any) -> TrainingJob:
    return job({"model_type": "llama", **COMMON, **fields})


def phases(a: TrainingJob) -> list[tuple[str, int]]:
    return [(p.phase, p.peak_bytes) for p in run_step(a, (8, 0)).timeline]


def parameters(a: TrainingJob) -> int:
    assert a.architecture is not None
    return count_parameters(a.architecture)


def test_layers_that_are_all_whole_are_a_llama() -> None:
    same = llama(num_key_value_heads=4, intermediate_size=1536)
    assert phases(nas([WHOLE] * 3)) == phases(same)
    deci = {**COMMON, "model_type": "deci", "intermediate_size": 1536, "num_key_value_heads_per_layer": [4] * 3}
    assert phases(job(deci)) == phases(same)


def test_a_part_that_is_left_out_has_no_parameters_and_no_norm() -> None:
    def weights(kv: int, width: int) -> int:
        attention = 2 * H * H + 2 * H * (kv * H // HEADS) + H if kv else 0
        return attention + (3 * H * width + H if width else 0)

    counted = parameters(nas([WHOLE, WITHOUT_ATTENTION, LINEAR]))
    assert counted == 2 * VOCABULARY * H + H + weights(4, 1536) + weights(0, 512) + (H * H + H)


def test_lighter_layers_need_less() -> None:
    whole, mixed = (dict(phases(nas(b))) for b in ([WHOLE] * 3, [WHOLE, WITHOUT_ATTENTION, LINEAR]))
    assert all(mixed[phase] < whole[phase] for phase in whole)


def test_one_layer_stands_for_all_equal_ones() -> None:
    blocks = [WHOLE, WHOLE, LINEAR, WITHOUT_ATTENTION, WITHOUT_ATTENTION, WHOLE]
    for mode in ("none", "full"):
        deep = {**COMMON, "num_hidden_layers": 6, "model_type": "nemotron-nas", "block_configs": blocks}
        one = job(deep, **{"training.checkpointing.mode": mode})
        short, full = run_step(one, (8, 0)), run_step(one, (8, 0), full=True)
        assert [(p.phase, p.peak_bytes) for p in short.timeline] == [(p.phase, p.peak_bytes) for p in full.timeline]


def test_nemotron_super_has_the_parameters_that_its_name_says() -> None:
    row = catalog.find("nvidia/Llama-3_3-Nemotron-Super-49B-v1")
    assert row is not None
    assert parameters(job(row.config)) == pytest.approx(49.87e9, rel=0.001)


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ([WHOLE], "does not say how for each"),
        ("all", "does not say how for each"),
        ([WHOLE, WHOLE, {}], "no `attention`"),
        ([WHOLE, WHOLE, block({"n_heads_in_group": 3}, {"ffn_mult": 1})], "does not divide 8 heads"),
        ([WHOLE, WHOLE, block({"n_heads_in_group": 0}, {"ffn_mult": 1})], "does not divide 8 heads"),
        ([WHOLE, WHOLE, block({"no_op": True}, {"ffn_mult": float("nan")})], "neither `ffn_mult`"),
        ([WHOLE, WHOLE, block({"no_op": True}, {"ffn_mult": "wide"})], "neither `ffn_mult`"),
        ([WHOLE, WHOLE, {"attention": {"no_op": True}, "ffn": None}], "no `ffn`"),
    ],
)
def test_what_is_not_stated_is_said(blocks: Any, sentence: str) -> None:
    with pytest.raises(Unsupported, match=sentence):
        run_step(nas(blocks), (8, 0))
