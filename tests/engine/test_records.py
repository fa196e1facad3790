"""Records behave as the standard library's dataclasses do, for the options that memlint uses."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest

from memlint import records
from memlint.findings import Finding, Severity
from memlint.job import Training, TrainingJob, replace_fields

OPTIONS = [
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True},
    {"slots": True, "kw_only": True},
    {"slots": True},
    {},
]


def both(options):
    made = []
    for module in (records, dataclasses):

        @module.dataclass(**options)
        class Point:
            """A point."""

            x: int
            y: int = 2
            tags: list[str] = module.field(default_factory=list, compare=False)
            hidden: str = module.field(default="h", repr=False)

            @property
            def total(self) -> int:
                return self.x + self.y

        Point.__qualname__ = "Point"
        made.append(Point)
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_values_equality_and_repr(options):
    ours, theirs = both(options)
    for cls in (ours, theirs):
        assert cls(x=1).total == 3
        assert cls(x=1, tags=["a"]) == cls(x=1)
        assert cls(x=1) != cls(x=2)
        assert cls(x=1).tags is not cls(x=1).tags
        assert cls.__doc__ == "A point."
    assert repr(ours(x=1)) == repr(theirs(x=1))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_refusals(options):
    for cls in both(options):
        for call in (dict(), dict(x=1, z=2)):
            with pytest.raises(TypeError):
                cls(**call)
        if options.get("kw_only"):
            with pytest.raises(TypeError):
                cls(1)
        else:
            assert cls(1, 3).y == 3
            with pytest.raises(TypeError):
                cls(1, x=1)
        if options.get("frozen"):
            with pytest.raises(dataclasses.FrozenInstanceError):
                cls(x=1).x = 2
            assert hash(cls(x=1)) == hash(cls(x=1))
        else:
            with pytest.raises(TypeError):
                hash(cls(x=1))
        if options.get("slots"):
            with pytest.raises((AttributeError, TypeError)):
                cls(x=1).new = 1


def test_standard_library_functions_take_records():
    training = Training(micro_batch_size=3)
    assert dataclasses.is_dataclass(training)
    assert dataclasses.replace(training, optimizer="sgd").optimizer == "sgd"
    assert dataclasses.asdict(training)["precision"]["weights"] == "fp32"
    assert [field.name for field in dataclasses.fields(training)] == [field.name for field in records.fields(Training)]


def test_records_can_be_copied_and_sent_to_other_processes():
    finding = Finding(code="MEM101", name="x", severity=Severity.ERROR, message="m")
    assert pickle.loads(pickle.dumps(finding)) == finding
    assert copy.deepcopy(finding) == finding


def test_replace_keeps_the_rest_and_refuses_unknown_fields():
    job = replace_fields(TrainingJob(model="m"), {"training.micro_batch_size": 4})
    assert records.replace(job, model="n").training.micro_batch_size == 4
    with pytest.raises(TypeError, match="unexpected keyword argument 'modle'"):
        records.replace(job, modle="n")


def test_defining_records_imports_neither_dataclasses_nor_inspect():
    code = "import sys, memlint.job, memlint.findings, memlint.estimate.result;"
    code += "print({'dataclasses', 'inspect'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
