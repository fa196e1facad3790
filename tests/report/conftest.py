"""One result that holds everything a report can show."""

from __future__ import annotations

import pytest

from memlint.engine.result import CheckResult, FileReport, Prediction, summarise
from memlint.findings import Finding, Fix, Help, KeyEdit, Severity
from memlint.units import GIB

TEXT = "base_model: Qwen/Qwen3-8B\nsequence_len: 2048\n\nmicro_batch_size: 4\n"


def make_finding(**changes):
    values = {
        "code": "MEM101",
        "name": "out-of-memory",
        "severity": Severity.ERROR,
        "message": "predicted peak 91.4 GiB (90.0-93.0) exceeds 79.2 GiB usable on A100-80GB",
        "key": ("micro_batch_size",),
        "line": 4,
        "column": 19,
        "end_line": 4,
        "end_column": 20,
        "label": "activations, 44.9 GiB, grow with this value",
        "breakdown": "weights 16.1, gradients 16.1, other 6.3 (GiB per GPU)",
        "helps": (
            Help(
                text="`micro_batch_size: 2` with `gradient_accumulation_steps: 2` fits, predicted 68.9 GiB",
                saves_bytes=22 * GIB,
                fits_after=True,
                fix=Fix(safe=True, edits=(KeyEdit(path=("micro_batch_size",), value=2),)),
            ),
        ),
        "saves_bytes": 22 * GIB,
        "fits_after": True,
        "fix": Fix(safe=True, edits=(KeyEdit(path=("micro_batch_size",), value=2),)),
    }
    values.update(changes)
    return Finding(**values)


def make_result(*reports, crashes=()):
    reports = [*reports, *(FileReport(path=path, crash=crash) for path, crash in crashes)]
    return CheckResult(reports=list(reports), summary=summarise(list(reports)))


@pytest.fixture
def finding():
    """Makes a finding; keywords replace its fields."""
    return make_finding


@pytest.fixture
def result_of():
    """Makes a result of reports and crashes."""
    return make_result


@pytest.fixture
def result():
    bad = FileReport(
        path="configs/train.yaml",
        dialect="axolotl",
        prediction=Prediction(
            device_bytes=int(91.4 * GIB),
            low_bytes=90 * GIB,
            high_bytes=93 * GIB,
            method="simulated",
            verdict="oom",
            target_name="A100-80GB",
            usable_bytes=int(79.2 * GIB),
        ),
        findings=[
            make_finding(),
            make_finding(
                code="MEM301",
                name="checkpointing-off",
                severity=Severity.WARNING,
                message="activation checkpointing is off; 100% of it, saves 3.0 GiB",
                line=1,
                column=13,
                end_line=1,
                end_column=26,
                label=None,
                breakdown=None,
                helps=(),
                saves_bytes=None,
                fits_after=None,
                fix=None,
            ),
        ],
        ignored=1,
        sources={"configs/train.yaml": TEXT},
    )
    good = FileReport(
        path="configs/good.yaml",
        dialect="axolotl",
        prediction=Prediction(
            device_bytes=int(68.9 * GIB),
            low_bytes=int(67.1 * GIB),
            high_bytes=71 * GIB,
            method="simulated",
            verdict="fits",
            target_name="A100-80GB",
            usable_bytes=int(79.2 * GIB),
        ),
    )
    return make_result(good, bad, FileReport(path="deploy.yaml", skipped="no training config"))


@pytest.fixture
def clean():
    return make_result(FileReport(path="deploy.yaml", skipped="no training config"))
