"""Plans as text: before and after, the steps in order, how far each reaches, and what else would fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

from memlint.plan.bars import LEGEND, bar, painted, width_for
from memlint.plan.result import HardwareNeed, Limits, Plan, PlanReport
from memlint.report.style import Style
from memlint.report.text import printable
from memlint.units import gib

if TYPE_CHECKING:
    from memlint.engine.source import Source
    from memlint.estimate.result import Estimate

_VERDICTS = {"fits": ("good", "fits"), "tight": ("warning", "tight"), "oom": ("error", "out of memory")}


def plan_text(
    report: PlanReport, source: Source, usable: int | None, style: Style, *, columns: int | None = None
) -> str:
    """Return the report for people; ``columns``: the terminal's, where it is read in one."""
    return "\n".join(_lines(report, source, _Canvas(report, usable, style, columns))) + "\n"


class _Canvas:
    """How bars are drawn: one scale for all of them."""

    def __init__(self, report: PlanReport, usable: int | None, style: Style, columns: int | None) -> None:
        peaks = [report.estimate, *[plan.estimate for plan in report.plans]]
        self.scale = max([usable or 0, *[estimate.device_bytes for estimate in peaks]])
        self.usable = usable
        self.style = style
        self.width = width_for(columns)

    def bar(self, estimate: Estimate) -> str:
        """Return the peak by component, and the figure."""
        letters = bar(estimate, self.scale, self.usable, self.width)
        return f"{painted(letters, color=self.style.color)} {gib(estimate.device_bytes)}"

    def legend(self) -> str:
        """Return what the letters stand for."""
        end = ", | end of the usable memory" if self.usable is not None else ""
        if not self.style.color:
            return LEGEND + end
        parts = [(part[0], part[1:]) for part in LEGEND.split(", ")]
        words = [painted(letter, color=True) + self.style("dim", word) for letter, word in parts]
        return self.style("dim", ", ").join(words) + self.style("dim", end)


def _lines(report: PlanReport, source: Source, canvas: _Canvas) -> Iterator[str]:
    before, usable, style = report.estimate, canvas.usable, canvas.style
    where = ""
    if usable is not None and source.target is not None:
        count = f"{source.target.gpus} x " if source.target.gpus > 1 else ""
        where = f" of {gib(usable)} GiB usable on {count}{source.target.name}: {_verdict(report.verdict, style)}"
        evaluation = before.evaluation
        if report.verdict != "fits" and evaluation is not None and evaluation.low_bytes > before.high_bytes:
            where += " in an evaluation"
    name = style("bold", printable(source.document.path))
    interval = f"{gib(before.low_bytes)}-{gib(before.high_bytes)}"
    yield f"{name} ({source.dialect_name}): predicted peak {gib(before.device_bytes)} GiB ({interval}){where}"
    yield f"  now    {canvas.bar(before)}"
    yield from _evaluation(before)
    if report.limits is not None and report.verdict == "fits":
        yield f"         reaches {_limits(report.limits)}"
    if report.hardware is not None:
        yield from _hardware(report.hardware, source, "as it is")
    for number, plan in enumerate(report.plans, 1):
        yield ""
        yield from _plan(number, plan, canvas)
    if report.hardware_of_best is not None:
        yield ""
        yield from _hardware(report.hardware_of_best, source, "with plan 1")
    if report.floor is not None:
        yield ""
        yield from _floor(report.floor, canvas)
    if report.offers:
        yield ""
        yield "Another method, or other rows (trains something else, so it is your choice):"
        for plan in report.offers:
            yield f"  - {plan.words}: {_predicted(plan, style)}"
            if plan.text:
                yield f"    {printable(plan.text)}"
    if not report.plans and report.floor is None:
        yield ""
        yield "No remedy of this format lowers the peak further."
    yield ""
    yield canvas.legend()


def _verdict(verdict: str, style: Style) -> str:
    kind, words = _VERDICTS.get(verdict, ("dim", verdict))
    return style(kind, words)


def _predicted(plan: Plan, style: Style) -> str:
    estimate = plan.estimate
    words = f"predicted {gib(estimate.device_bytes)} GiB ({gib(estimate.low_bytes)}-{gib(estimate.high_bytes)})"
    return words if plan.verdict == "unknown" else f"{_verdict(plan.verdict, style)}, {words}"


def _plan(number: int, plan: Plan, canvas: _Canvas) -> Iterator[str]:
    style = canvas.style
    title = plan.words[:1].upper() + plan.words[1:]
    yield f"{style('bold', f'{number}. {title}')}: {_predicted(plan, style)}"
    yield f"  after  {canvas.bar(plan.estimate)}"
    for place, step in enumerate(plan.steps, 1):
        size = f"{gib(step.device_bytes):>7} GiB" if step.device_bytes is not None else "           "
        how = printable(step.text) if step.text else step.remedy.words
        if step.evaluation_bytes is not None:
            how += f": an evaluation takes {gib(step.evaluation_bytes)} GiB"
        yield f"  {place:>2}  {size}  {how}"
        yield style("dim", f"                   {step.remedy.words}; {step.remedy.cost.sentence}")
    if plan.estimate.host_bytes:
        yield f"  needs {gib(plan.estimate.host_bytes)} GiB of host memory on each node"
    if plan.limits is not None:
        yield f"  reaches {_limits(plan.limits)}"


def _evaluation(estimate: Estimate) -> Iterator[str]:
    evaluation = estimate.evaluation
    if evaluation is not None:
        interval = f"{gib(evaluation.low_bytes)}-{gib(evaluation.high_bytes)}"
        yield f"         an evaluation of {evaluation.rows} rows takes {gib(evaluation.device_bytes)} GiB ({interval})"


def _limits(limits: Limits) -> str:
    rows = "no micro batch" if limits.micro_batch_size is None else f"micro batch {limits.micro_batch_size}"
    tokens = "no sequence" if limits.sequence_length is None else f"sequence {limits.sequence_length}"
    if limits.batch_capped:
        rows += " and more"
    if limits.sequence_capped:
        tokens += " (all positions of the model)"
    return f"{rows}, or {tokens}, the rest as it is"


def _hardware(need: HardwareNeed, source: Source, how: str) -> Iterator[str]:
    parts = []
    count = source.target.gpus if source.target is not None else 1
    if need.gpu is not None:
        parts.append(f"smallest GPU that fits: {f'{count} x ' if count > 1 else ''}{need.gpu}")
    else:
        parts.append("no GPU that memlint knows fits" + (f" ({count} of a kind)" if count > 1 else ""))
    if need.gpus is not None and source.target is not None:
        divided = f" with {need.strategy}" if need.strategy else ""
        parts.append(f"fewest of {source.target.name}: {need.gpus}{divided}")
    yield f"  {how}: {'; '.join(parts)}"


def _floor(plan: Plan, canvas: _Canvas) -> Iterator[str]:
    estimate, style = plan.estimate, canvas.style
    lowest = gib(estimate.device_bytes)
    yield f"{style('error', 'Nothing fits')}. The lowest that this format's settings reach is {lowest} GiB:"
    yield f"  floor  {canvas.bar(estimate)}"
    parts = [
        (name.replace("_", " "), size)
        for name, size in estimate.components.items()
        if size * 100 > estimate.device_bytes
    ]
    parts.append(("context, libraries and fragmentation", estimate.device_bytes - estimate.allocated_bytes))
    parts.sort(key=lambda part: -part[1])
    yield "  made of " + ", ".join(f"{name} {gib(size)}" for name, size in parts) + " (GiB)"
    if plan.steps:
        yield f"  with {plan.words}"
