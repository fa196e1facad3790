"""How the allocator and the driver are read, against a fake of both: baselines, resets, peaks by phase."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the measure extra is not installed")

from memlint.measure.verify import driver as drivers  # noqa: E402
from memlint.measure.verify import step  # noqa: E402
from memlint.measure.verify.meter import CudaMeter  # noqa: E402
from memlint.measure.verify.out_of_memory import describe, is_out_of_memory  # noqa: E402

pytestmark = pytest.mark.measure

MIB = 2**20


class Allocator:
    """torch.cuda's counters, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = self.held = self.held_peak = 0
        for name in (
            "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
            "reset_peak_memory_stats", "empty_cache", "synchronize",
        ):  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def memory_allocated(self) -> int:
        return self.now

    def max_memory_allocated(self) -> int:
        return self.peak

    def memory_reserved(self) -> int:
        return self.held

    def max_memory_reserved(self) -> int:
        return self.held_peak

    def reset_peak_memory_stats(self) -> None:
        self.peak, self.held_peak = self.now, self.held

    def empty_cache(self) -> None:
        self.held = self.now

    def synchronize(self) -> None:
        pass

    def take(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)
        self.held = max(self.held, self.now)
        self.held_peak = max(self.held_peak, self.held)


def test_every_phase_has_its_own_peak_above_the_baseline(monkeypatch):
    cuda = Allocator(monkeypatch)
    cuda.take(100)  # somebody else's tensors in this process
    meter = CudaMeter()
    cuda.take(1000)  # the model; building it took more for a moment
    cuda.take(500)
    cuda.take(-500)
    meter.settle()
    for number in (1, 2):
        meter.begin(number)
        meter.enter("forward")
        cuda.take(300)
        meter.enter("loss")
        cuda.take(50)
        cuda.take(-50)
        meter.enter("backward")
        cuda.take(400)
        cuda.take(-700)
        meter.enter("optimizer")
        if number == 1:
            cuda.take(2000)  # states come into being
        meter.enter("between")
    meter.enter("end")
    assert {phase: meter.peaks[phase] for phase in ("forward", "loss", "backward", "optimizer")} == {
        "forward": 3300,
        "loss": 3350,
        "backward": 3700,
        "optimizer": 3000,
    }
    assert meter.ends["loss"] == 3300
    assert meter.step_peaks == {1: 3000, 2: 3700}
    assert meter.reserved == 3800


def test_only_the_last_micro_batch_counts_but_the_step_s_peak_is_kept(monkeypatch):
    cuda = Allocator(monkeypatch)
    meter = CudaMeter()
    meter.settle()
    meter.begin(1)
    meter.enter("forward")
    cuda.take(900)
    cuda.take(-800)
    meter.again()
    meter.enter("forward")
    cuda.take(200)
    meter.enter("end")
    assert meter.peaks["forward"] == 300
    assert meter.step_peaks[1] == 900


def test_workspaces_are_what_is_freed_with_them(monkeypatch):
    cuda = Allocator(monkeypatch)
    meter = CudaMeter()
    cuda.take(64)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: cuda.take(-64), raising=False)
    assert meter.workspace() == 64


class FakeNvml:
    def __init__(self, own: int | None, used: int) -> None:
        self.own, self.used = own, used

    def process_bytes(self, uuid: str, pids: frozenset[int]) -> int | None:
        return self.own

    def used_bytes(self) -> dict[str, int]:
        return {"GPU-1": self.used}


@pytest.mark.parametrize(
    ("driver", "size", "how"),
    [
        (drivers.Driver(nvml=FakeNvml(700, 900), before={"GPU-1": 100}), 700, "figure for this process"),
        (drivers.Driver(nvml=FakeNvml(None, 900), before={"GPU-1": 100}), 800, "growth"),
        (drivers.Driver(nvml=FakeNvml(None, 900), before=None), None, "unknown"),
        (drivers.Driver(nvml=None, before=None), None, "unknown"),
    ],
    ids=["process", "growth", "no baseline", "no NVML"],
)
def test_the_driver_s_figure_is_this_process_s_or_unknown(monkeypatch, driver, size, how):
    monkeypatch.setattr(drivers, "gpu_uuid", lambda: "GPU-1")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100, 1000))
    found, said = drivers.device_bytes(driver)
    assert found == size
    assert how in said


def test_what_an_out_of_memory_error_says_is_read():
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 11.81 MiB is"
        " free. Process 1 has 23.62 GiB memory in use."
    )
    found = describe(error, name=str, phase="backward", step=2, allocated=5)
    assert (found["requested_bytes"], found["free_bytes"]) == (20 * MIB, int(11.81 * MIB))
    assert found["capacity_bytes"] == int(23.64 * 2**30)
    assert (found["phase"], found["step"], found["module"], found["allocated_bytes"]) == ("backward", 2, None, 5)
    cpu = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to"
                       " allocate 4096 bytes. Error code 12")  # fmt: skip
    assert is_out_of_memory(cpu)
    assert describe(cpu, name=str, phase="build", step=0, allocated=0)["requested_bytes"] == 4096
    assert not is_out_of_memory(RuntimeError("shape mismatch"))


def test_phases_are_those_of_the_estimator():
    from memlint.estimate.result import PHASES

    assert step.PHASES == PHASES
