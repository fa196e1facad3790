"""Flash attention asked of a type that has none: said, because the run ends before its first step."""

from __future__ import annotations

import pytest

from memlint.engine.predict import predict
from memlint.estimate.flash_refused import REFUSED, refused
from memlint.job import replace_fields
from tests.estimate.exact_jobs import start_of


def test_the_user_is_told() -> None:
    job = replace_fields(start_of("mt5"), {"training.objective": "seq2seq-lm", "training.attention": "flash"})
    estimate, why = predict(job, None)
    assert estimate is not None
    assert why is not None and why.startswith("transformers 5.24 has no flash attention for `mt5`")


@pytest.mark.parametrize(
    "changes",
    [
        {"training.attention": "sdpa"},
        {"framework": "torchtune"},
        {"versions": {"transformers": "4.57.1"}},
    ],
)
def test_not_where_it_may_run(changes: dict[str, object]) -> None:
    assert refused(replace_fields(start_of("mt5"), {"training.attention": "flash", **changes})) is None


@pytest.mark.parametrize("kind", [*sorted(REFUSED), "llama", "bert", "gpt2", "bart", "opt", "modernbert"])
def test_transformers_says_the_same(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    names = pytest.importorskip("transformers.models.auto.modeling_auto")
    name = names.MODEL_MAPPING_NAMES[kind]
    assert getattr(transformers, name)._supports_flash_attn is (kind not in REFUSED)
