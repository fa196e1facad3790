"""Parameters counted from the catalog's shapes equal the published totals."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from memlint.models.architecture import Architecture
from memlint.models.catalog import find
from memlint.models.config import read_config

FACTS = Path(__file__).parents[3] / "shared" / "model-facts.csv"

OTHERWISE: dict[str, tuple[int, str]] = {
    "Qwen/Qwen3-0.6B": (155_582_464, "the hub counts a stored lm_head although it is tied: 151936 x 1024 twice"),
    "Qwen/Qwen3-1.7B": (311_164_928, "the hub counts a stored lm_head although it is tied: 151936 x 2048 twice"),
    "Qwen/Qwen3-Embedding-8B": (-621_219_840, "an embedding model is stored without its lm_head: 151665 x 4096"),
    "deepseek-ai/DeepSeek-V3": (13_504_981_648, "the file holds the next-token module and the scales of fp8 blocks"),
    "moonshotai/Kimi-K2-Instruct": (26_456, "the file holds buffers too, router biases of 384 x 60 among them"),
    "MiniMaxAI/MiniMax-M2.7": (15_872, "the file holds router biases too, which are buffers: 256 x 62"),
}
"""ID -> (published minus counted, reason): the published total is of the file, not of the model.

For the last three, transformers 5.24 itself, built on the meta device, counts the total less this difference.
"""


OTHER_HEAD = {
    "sentence-transformers/all-MiniLM-L6-v2": "the file is of the encoder with its pooler and 512 position ids",
}
"""Published totals of a model without the head that training adds; not compared."""


def published() -> list[tuple[str, int]]:
    if not FACTS.is_file():
        return []
    with FACTS.open(encoding="utf-8") as stream:
        rows = [(row["hf_id"], row["total_params_published"]) for row in csv.DictReader(stream)]
    return [(model_id, int(float(total))) for model_id, total in rows if total and model_id not in OTHER_HEAD]


@pytest.mark.corpus
@pytest.mark.skipif(not FACTS.is_file(), reason="the collected facts are not beside the checkout")
@pytest.mark.parametrize(("model_id", "total"), published(), ids=str)
def test_the_count_is_exact(model_id: str, total: int) -> None:
    from memlint.estimate.errors import Unsupported
    from memlint.estimate.simulate import count_parameters

    row = find(model_id)
    assert row is not None, "every model with a published total is in the catalog"
    architecture = read_config(row.config, id=model_id, source="catalog")
    assert isinstance(architecture, Architecture)
    try:
        counted = count_parameters(architecture)
    except Unsupported as reason:
        pytest.skip(str(reason))
    difference, _ = OTHERWISE.get(model_id, (0, ""))
    assert counted + difference == total
