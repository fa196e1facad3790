"""A prediction is the same on every Python version, to the byte; and it changes only when somebody means it to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memlint.models.families import FAMILIES
from tests.estimate.exact_jobs import PATH, SETUPS, runs


def kept() -> list[dict[str, Any]]:
    with open(PATH, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_are_those_kept(family: str) -> None:
    stored = {run["job"]: run for run in kept() if run["family"] == family}
    found = {run["job"]: run for run in runs(family)}
    changed = [job for job in {**stored, **found} if stored.get(job) != found.get(job)]
    assert found and not changed, (
        f"{len(changed)} of {len(found)} predictions changed. If that is meant, python tests/estimate/update_exact.py "
        "writes them anew and CHANGELOG.md names them; if it happens on one Python version alone, a function that "
        f"drops or rebinds an argument was called with a tensor made in the call (CONTRIBUTING.md). {changed[:5]}"
    )


def test_every_setup_is_among_them() -> None:
    assert {run["job"].partition(": ")[2] for run in kept()} == set(SETUPS)
