"""``python -m benchmarks.accuracy --oracle`` on any file of the form: each point is compared, or says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.oracle import Comparison, compare, compare_all
from benchmarks.accuracy.skipped import Skipped, spans
from benchmarks.accuracy.tables import oracle_tables

POINT: dict[str, Any] = {
    "id": "own-1",
    "model": "a small llama",
    "model_type": "llama",
    "head": "causal",
    "config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256},
    "batch": 1,
    "seq": 32,
    "ckpt": "none",
    "precision": "bf16",
    "optim": "adamw",
    "attn": "sdpa",
    "peak_bytes": 10_000_000,
    "peak_phase": "backward",
    "param_bytes": 1_000_000,
    "grad_bytes": 1_000_000,
    "optim_bytes": 2_000_000,
    "fwd_end_bytes": 5_000_000,
    "static_before_fwd_bytes": 4_000_000,
}


def test_a_point_is_compared() -> None:
    found = compare(POINT)
    assert isinstance(found, Comparison)
    assert found.error == found.predicted / 10_000_000 - 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"model_type": "no-such-type"}, "`no-such-type`", id="an unknown type"),
        pytest.param({"model_type": None}, "`model_type` must be", id="no type"),
        pytest.param({"config": {"hidden_size": -1}}, "`hidden_size` must be", id="an impossible config"),
        pytest.param({"config": [1]}, "config is no mapping", id="no config"),
        pytest.param({"head": "dpo"}, "head dpo", id="an unknown head"),
        pytest.param({"precision": "int3"}, "precision int3", id="an unknown precision"),
        pytest.param({"precision": ["bf16"]}, "precision ['bf16']", id="a list for a name"),
        pytest.param({"optim": "magic"}, "optim magic", id="an unknown optimizer"),
        pytest.param({"ckpt": "now and then"}, "ckpt now and then", id="unknown checkpointing"),
        pytest.param({"attn": "mostly"}, "attn mostly", id="unknown attention"),
        pytest.param({"batch": "4"}, "batch 4 is no count", id="text for a count"),
        pytest.param({"seq": 10**12}, "is no count", id="a length beyond all bounds"),
        pytest.param({"peak_bytes": 0}, "a model of no bytes", id="no peak"),
        pytest.param({"grad_bytes": None}, "grad_bytes is no size", id="no figure"),
    ],
)
def test_a_point_that_cannot_be_compared_says_why(changes: dict[str, Any], reason: str) -> None:
    found = compare({**POINT, **changes})
    assert isinstance(found, Skipped) and found.id == "own-1"
    assert reason in found.reason


def test_a_missing_column_is_named() -> None:
    point = {name: value for name, value in POINT.items() if name != "seq"}
    assert compare(point) == Skipped("own-1", "seq is not stated")


def test_one_bad_line_leaves_the_others_their_tables(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    lines = [json.dumps(POINT), "no JSON", "[1]", "", json.dumps({**POINT, "optim": "magic", "id": "own-2"})]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    compared, skipped = compare_all(str(path))
    assert [c.point["id"] for c in compared] == ["own-1"]
    text = "\n".join(oracle_tables(compared, skipped, 5))
    assert "| the line is no JSON object | 2 | line 2, line 3 |" in text
    assert "| optim magic | 1 | own-2 |" in text


def test_a_file_without_points_says_so(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text("", encoding="utf-8")
    assert oracle_tables(*compare_all(str(path)), 5) == ["The file holds no point.", ""]


def test_neighbours_are_named_by_the_first_and_the_last() -> None:
    names = ["run-001", "run-002", "run-003", "run-005", "other-1", "other-2", "plain", "plain"]
    assert spans(names) == ["run-001 to 003", "run-005", "other-1", "other-2", "plain", "plain"]
