"""Float8 layers: what the committed figures say is what torchao's own code does."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs the measure extra: torch")
pytest.importorskip("torchao", reason="needs torchao, which is not in the dev extra: it warns of what it cannot load")

from tests.estimate.float8_setups import POINTS, SETUPS, traced

pytestmark = [
    pytest.mark.measure,
    pytest.mark.filterwarnings("ignore:.*get_autocast_gpu_dtype.*:DeprecationWarning"),  # torchao 0.18 under torch 2.13
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft 0.21, transformers 5.24
]


@pytest.mark.parametrize("name", SETUPS)
def test_the_committed_figures_are_torchaos(name: str) -> None:
    with open(POINTS, encoding="utf-8") as lines:
        peaks = {point["setup"]: point["peaks"] for point in map(json.loads, lines)}
    assert traced(name) == peaks[name]
