"""ZeRO beside DeepSpeed's own engine: every phase's peak of every committed point, and some points run anew."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.zero.compare import compared, kept, predicted
from benchmarks.zero.points import points

BOUND = 0.001
ROWS = kept()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUN_ANEW = ("zero1 x4 a2 overlap", "zero2 x4 a1 small", "zero3 x1 a1 small")


WIDER = {
    # Room for a rank's part is made before the layers, not in the layer whose gradient is reduced first.
    "zero2 x1 a1 deep none": 0.015,
    # Another rank than the last has most: 44 to 340 KB.
    "zero2 x4 a1 deep small": 0.004,
    "zero2 x8 a1 small": 0.004,
    "zero2 x8 a1 middle": 0.014,
    # Many thin layers, gathered ahead: the order in which their small parameters are fetched is not the registered one.
    "zero3 x4 a1 deep": 0.012,
    "zero3 x4 a1 deep small": 0.012,
    "zero3 x4 a1 deep none": 0.012,
    # At the end of the backward, where three of the shared embedding's gradients are counted.
    "zero3 x4 a1 tied": 0.004,
    # 42 KB of small tensors in the backward of frozen layers.
    "zero3 x1 a1 lora": 0.0025,
    "zero3 x4 a1 lora": 0.0025,
    "zero3 x1 a2 lora accumulation 2": 0.0025,
    "zero3 x4 a2 lora accumulation 2": 0.0025,
    # What is gathered at a time, to a few parameters more or less: up to 2.5 MB.
    "zero3 x4 a1 reuse": 0.06,
    "zero3 x4 a1 none persist": 0.06,
    "zero3 x4 a1 none ahead": 0.085,
    # The head's gradient is cast for the wire while its weight, let go by then, is counted as gathered.
    "zero3 x4 a1 wire small": 0.056,
    # Stage 1 with fp16 summed in fp32, two buckets smaller than embedding and head: a middle rank keeps both gradients.
    "zero1 x4 a1 fp16 sums overlap": 0.08,
    # Another rank than the last keeps more, 139 and 663 KB.
    "zero2 x4 a1 sums small": 0.004,
    "zero2 x4 a1 sums plain": 0.017,
    # Norms, of 512 bytes a parameter.
    "zero1 x1 a1 sums lora": 0.0012,
    "zero1 x4 a1 sums lora": 0.0012,
}
"""What is not within the bound, and what is known of it."""
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_every_phase_peaks_where_the_engine_does(row: dict[str, Any]) -> None:
    bound = WIDER.get(row["name"], BOUND)
    assert {phase: error for phase, error in _above_a_bucket(row).items() if not -bound <= error <= bound} == {}


def test_all_but_the_backwards_where_one_layer_stands_for_several_are_within_the_bound() -> None:
    """A bucket may be full in any of them: the copy is counted whole, beside all that is gathered."""
    beyond = [(row["name"], phase) for row in ROWS for phase, error in compared(row).items() if abs(error) > BOUND]
    assert {phase for name, phase in beyond if name not in WIDER} <= {"backward"}
    assert not [name for name, _ in beyond if name.startswith(("zero0", "zero1")) and name not in WIDER]
    assert len({name for name, _ in beyond}) <= 0.25 * len(ROWS)


def _above_a_bucket(row: dict[str, Any]) -> dict[str, float]:
    """The errors, less what the copy of one bucket may be too much in a backward of stages 2 and 3."""
    errors, spec = compared(row), row["spec"]
    own = spec.get("config", {})
    # In the bucket's dtype, and cast for the wire or for the sums.
    element = SIZES[spec["precision"]] + sum(
        SIZES["fp32"] for key in ("communication_data_type", "data_types") if key in own
    )
    bucket = spec["zero"].get("reduce_bucket_size", 0) * element
    allowed = bucket / row["peaks"]["backward"] if spec["zero"]["stage"] > 1 else 0.0
    if errors["backward"] > 0:
        errors["backward"] = max(0.0, errors["backward"] - allowed)
    return errors


def test_a_point_is_committed_as_it_is_defined() -> None:
    defined = dict(points())
    assert {row["name"]: row["spec"] for row in ROWS} == {row["name"]: defined[row["name"]] for row in ROWS}
    assert len(ROWS) >= 300


def test_all_stages_and_versions_are_known() -> None:
    assert {row["spec"]["zero"]["stage"] for row in ROWS} == {0, 1, 2, 3}
    assert {row["versions"]["deepspeed"] for row in ROWS} == {"0.19.8"}


@pytest.mark.parametrize("name", ["zero1 x4 a1 deep", "zero2 x1 a1 deep", "zero3 x4 a1 deep small"])
def test_one_layer_stands_for_all(name: str) -> None:
    spec = dict(points())[name]
    assert predicted(spec) == predicted(spec, full=True)


@pytest.mark.parametrize("name", RUN_ANEW)
def test_the_engine_gives_the_committed_peaks_again(name: str, tmp_path: os.PathLike[str]) -> None:
    for package in ("deepspeed", "torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install deepspeed beside the measure extra")
    output = os.path.join(tmp_path, "points.jsonl")
    command = [sys.executable, "-m", "benchmarks.zero", "--only", name, "--exact", "--output", output]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    [again] = kept(output)
    [before] = [row for row in ROWS if row["name"] == name]
    if again["versions"] != before["versions"]:
        pytest.skip(f"the points are of {json.dumps(before['versions'])}")
    assert again["peaks"] == before["peaks"]
