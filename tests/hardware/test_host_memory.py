"""Main memory of cloud instances: which are known, and that no name stands twice."""

from __future__ import annotations

from collections import Counter

import pytest

from memlint.hardware.host_memory import _GIB, host_bytes_of
from memlint.hardware.instances import INSTANCES
from memlint.hardware.names import key
from memlint.hardware.parse import parse_target

UNKNOWN = {"a4-highgpu-8g"}
"""Known as targets; their memory is to be declared."""


def test_no_instance_has_two_memories() -> None:
    names = Counter(key(name) for provider in _GIB for names in provider.values() for name in names.split())
    assert [name for name, count in names.items() if count > 1] == []


def test_every_instance_is_a_known_target() -> None:
    targets = {key(name) for names, *_ in INSTANCES for name in names}
    known = {key(name) for provider in _GIB for names in provider.values() for name in names.split()}
    assert known <= targets
    assert {name for names, *_ in INSTANCES for name in names if host_bytes_of(name) is None} == UNKNOWN


@pytest.mark.parametrize(
    ("instance", "gib"),
    [("p4d.24xlarge", 1152), ("p6-b300.48xlarge", 4096), ("a3-ultragpu-8g", 2952), ("Standard_ND96amsr_A100_v4", 1800)],
)
def test_a_target_carries_it(instance: str, gib: int) -> None:
    target = parse_target(instance)
    assert target.host_bytes == gib * 2**30
