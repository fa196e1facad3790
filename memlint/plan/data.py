"""Plans as JSON. Sizes in bytes per GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.engine.estimate_json import evaluation_object
from memlint.estimate.result import COMPONENTS, Estimate
from memlint.findings import KeyEdit
from memlint.plan.result import HardwareNeed, Limits, Plan, PlanReport, Step

if TYPE_CHECKING:
    from memlint.engine.source import Source

VERSION = 1


def plan_object(report: PlanReport, source: Source, usable: int | None, goal: str) -> dict[str, Any]:
    """Return the report as plain data."""
    target = source.target
    return {
        "version": VERSION,
        "file": source.document.path,
        "dialect": source.dialect_name,
        "for": goal,
        "target": None
        if target is None
        else {"name": target.name, "spec": target.spec, "gpus": target.gpus, "usable_bytes": usable},
        "now": {
            "verdict": report.verdict,
            "peak": peak(report.estimate),
            "limits": _limits(report.limits),
            "hardware": _hardware(report.hardware),
        },
        "plans": [_plan(plan) for plan in report.plans],
        "offers": [_plan(plan) for plan in report.offers],
        "floor": _plan(report.floor) if report.floor is not None else None,
        "hardware_with_first_plan": _hardware(report.hardware_of_best),
    }


def peak(estimate: Estimate) -> dict[str, Any]:
    """Return a prediction's peak."""
    return {
        "device_bytes": estimate.device_bytes,
        "low_bytes": estimate.low_bytes,
        "high_bytes": estimate.high_bytes,
        "allocated_bytes": estimate.allocated_bytes,
        "phase": estimate.phase,
        "components": {name: estimate.components.get(name, 0) for name in COMPONENTS},
        "host_bytes": estimate.host_bytes,
        "evaluation": evaluation_object(estimate.evaluation),
    }


def edit_object(edit: KeyEdit) -> dict[str, Any]:
    """Return one edit: path, value or delete, and the file where it is not the config itself."""
    entry: dict[str, Any] = {"path": list(edit.path)}
    if edit.delete:
        entry["delete"] = True
    else:
        entry["value"] = edit.value
    if edit.file is not None:
        entry["file"] = edit.file
    return entry


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "verdict": plan.verdict,
        "peak": peak(plan.estimate),
        "compute": round(plan.compute, 4),
        "safe": plan.safe,
        "text": plan.text,
        "edits": [edit_object(edit) for edit in plan.edits],
        "changes": dict(plan.changes),
        "steps": [_step(step) for step in plan.steps],
        "limits": _limits(plan.limits),
    }


def _step(step: Step) -> dict[str, Any]:
    cost = step.remedy.cost
    return {
        "name": step.remedy.name,
        "words": step.remedy.words,
        "text": step.text,
        "safe": step.remedy.safe,
        "device_bytes": step.device_bytes,
        "saves_bytes": step.saves_bytes,
        "evaluation_bytes": step.evaluation_bytes,
        "cost": {
            "compute": round(cost.compute, 4),
            "convergence": cost.convergence,
            "complexity": cost.complexity,
            "text": cost.sentence,
            "source": cost.source,
        },
    }


def _limits(limits: Limits | None) -> dict[str, Any] | None:
    if limits is None:
        return None
    return {"micro_batch_size": limits.micro_batch_size, "sequence_length": limits.sequence_length}


def _hardware(need: HardwareNeed | None) -> dict[str, Any] | None:
    if need is None:
        return None
    return {"gpu": need.gpu, "usable_bytes": need.usable_bytes, "gpus": need.gpus, "strategy": need.strategy}
