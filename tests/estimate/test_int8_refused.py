"""LLM.int8() asked of latent attention: said, because the run ends in its first forward."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from memlint.engine.predict import predict
from memlint.estimate.int8_refused import LATENT, refused
from memlint.job import Quantization, TrainingJob, replace_fields
from tests.estimate.exact_jobs import start_of

INT8 = Quantization(bits=8, type="int8")


def job(kind: str = "deepseek_v3", quantization: Quantization = INT8, **changes: object) -> TrainingJob:
    training = {"training.method": "qlora", "training.quantization": quantization}
    return replace_fields(start_of(kind), {**training, **changes})


def test_the_user_is_told() -> None:
    estimate, why = predict(job(), None)
    assert estimate is not None
    assert why is not None and why.startswith("LLM.int8() does not run `deepseek_v3` of transformers 5.24")


@pytest.mark.parametrize(
    "asked",
    [
        job("llama"),
        job(quantization=Quantization()),
        job(quantization=Quantization(bits=8, type="int8", skip=("kv_b_proj",))),
        job(versions={"transformers": "5.14.0"}),
        replace_fields(job(), {"training.quantization": None, "training.method": "full"}),
    ],
    ids=["other attention", "nf4", "left out", "three dimensions", "not quantised"],
)
def test_not_where_it_may_run(asked: TrainingJob) -> None:
    assert refused(asked) is None


@pytest.mark.parametrize("kind", sorted(LATENT))
def test_transformers_gives_the_projection_four_dimensions(kind: str) -> None:
    pytest.importorskip("transformers")
    found = find_spec(f"transformers.models.{kind}.modeling_{kind}")
    assert found is not None and found.origin is not None
    code = Path(found.origin).read_text(encoding="utf-8")
    assert "self.kv_b_proj(kv_nope)" in code
    assert "shape [batch_size, 1, seqlen, self.kv_lora_rank]" in code
