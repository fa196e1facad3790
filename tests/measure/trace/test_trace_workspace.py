"""What CUDA kernels take inside one operator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from memlint.measure.trace.workspace import workspace_bytes  # noqa: E402

pytestmark = pytest.mark.measure


@pytest.mark.parametrize("name", ["aten::_softmax", "aten::_log_softmax"])
def test_softmax_copies_a_strided_input(name):
    whole = torch.empty(2, 5, 8, device="meta")
    assert workspace_bytes(name, (whole, -1, False), {}, None) == 0
    assert workspace_bytes(name, (whole[:, :-1], -1, False), {}, None) == 2 * 4 * 8 * 4
    assert workspace_bytes(name, (whole[:1, :-1], -1, False), {}, None) == 0


def test_logsumexp_holds_the_exponentials():
    assert workspace_bytes("aten::logsumexp", (torch.empty(3, 8, dtype=torch.bfloat16), [-1]), {}, None) == 3 * 8 * 2
