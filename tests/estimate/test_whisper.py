"""Whisper under checkpoints: native job files against traces of the same jobs in transformers' code.

``traces_whisper.jsonl``: lines like those of :mod:`tests.estimate.real_points`, traced with mel features as input and
every parameter trained before an adapter stands there, as ``from_pretrained`` leaves them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.estimate.simulate import run_step
from tests.estimate.real_points import opened, points, title
from tests.estimate.traced import peak, phases_of


@pytest.mark.parametrize("point", points(Path(__file__).parent / "traces_whisper.jsonl"), ids=title)
def test_adapters_train_behind_a_hooked_convolution_and_reentrant_gradients_are_copied(
    point: dict[str, Any], tmp_path: Path
) -> None:
    found = phases_of(run_step(opened(point, tmp_path).job, (8, 0)))
    assert peak(found)[0] == peak(point["phase_peaks"])[0]
    for name, peak_bytes in found.items():
        assert peak_bytes == pytest.approx(point["phase_peaks"][name], rel=0.0005), name
