"""Float8 has no memory model of its own: the estimate says so, and its high end allows for it."""

from __future__ import annotations

from memlint.engine.predict import predict
from memlint.estimate.result import Estimate
from tests.estimate.jobs import job


def estimate(**changes: object) -> Estimate:
    found, _ = predict(job({f"training.{name}": value for name, value in changes.items()}), None)
    assert found is not None
    return found


def test_a_job_in_float8_says_what_is_not_counted() -> None:
    plain, float8 = estimate(), estimate(**{"precision.fp8": True})
    assert not any("float8" in sentence for sentence in plain.assumptions)
    assert any("float8 products are computed as bf16" in sentence for sentence in float8.assumptions)
    assert float8.allocated_bytes == plain.allocated_bytes


def test_without_the_compiler_its_high_end_allows_for_the_copies() -> None:
    plain, float8 = estimate(), estimate(**{"precision.fp8": True})
    assert float8.high_bytes > plain.high_bytes + plain.allocated_bytes // 2
    assert float8.low_bytes == plain.low_bytes


def test_with_the_compiler_the_interval_is_bf16s() -> None:
    plain, float8 = estimate(compile=True), estimate(**{"precision.fp8": True, "compile": True})
    assert float8.high_bytes == plain.high_bytes
