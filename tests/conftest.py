"""What the whole suite shares."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A shared machine stalls for seconds; how long an example takes is measured in benchmarks/, never here.
settings.register_profile("memlint", deadline=None)
settings.load_profile("memlint")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Give autograd its idle CUDA device before any test runs backward.

    PyTorch's engine makes its queues for the devices it knows at the first backward of a process; a trace on fake CUDA
    tensors must not come after one on the CPU (torch/csrc/autograd/engine.cpp, start_device_threads).
    """
    if not any(item.get_closest_marker("measure") for item in session.items):
        return
    try:
        from memlint.errors import UserError
        from memlint.measure.trace.guard import install_idle_cuda
    except ImportError:
        return
    try:
        install_idle_cuda()
    except UserError:
        return  # no compiler: the tests that need it say so
