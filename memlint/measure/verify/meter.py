"""Memory of a step by phase, as CUDA's caching allocator counts it; on a CPU the phases alone."""

from __future__ import annotations

import gc
from typing import Any

import torch


class Meter:
    """Knows the phase a run is in. ``enter`` has the form of the trace's recorder, so that its hooks serve here too."""

    def __init__(self) -> None:
        """Start before the build."""
        self.phase = "build"
        self.step = 0
        self.peaks: dict[str, int] = {}
        """Highest allocated bytes of each phase of the last step, beyond the baseline."""
        self.ends: dict[str, int] = {}
        self.step_peaks: dict[int, int] = {}
        self.reserved = 0
        self.marks: list[str] = []
        """Phases of the last step in order."""

    def begin(self, step: int) -> None:
        """Forget the phases of the step before."""
        self.enter("between")
        self.step = step
        self.peaks, self.ends, self.marks = {}, {}, []

    def again(self) -> None:
        """Forget the phases so far: the next micro batch is the one that counts; the step's peak is kept."""
        self.enter("between")
        self.peaks, self.ends, self.marks = {}, {}, []

    def enter(self, phase: str) -> None:
        """End the current phase and start ``phase``."""
        self._close()
        self.phase = phase
        self.marks.append(phase)

    def settle(self) -> None:
        """Return what is not needed to the device and start counting."""

    def allocated(self) -> int:
        """Bytes allocated now, beyond the baseline."""
        return 0

    def workspace(self) -> int:
        """Bytes of the cuBLAS workspaces, which are freed."""
        return 0

    def _close(self) -> None:
        pass


class CudaMeter(Meter):
    """Reads the allocator at every change of phase; the device is idle then, and the peak starts anew."""

    def __init__(self) -> None:
        """Take what is allocated already as the baseline."""
        super().__init__()
        gc.collect()
        torch.cuda.empty_cache()
        self.baseline = torch.cuda.memory_allocated()

    def settle(self) -> None:
        """Return cached blocks to the device, and forget the peaks of the build."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.reserved = torch.cuda.memory_reserved()

    def allocated(self) -> int:
        """Bytes allocated now, beyond the baseline."""
        return int(torch.cuda.memory_allocated() - self.baseline)

    def workspace(self) -> int:
        """Bytes of the cuBLAS workspaces, which are freed."""
        before = torch.cuda.memory_allocated()
        clear: Any = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is None:
            return 0
        clear()
        return int(before - torch.cuda.memory_allocated())

    def _close(self) -> None:
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - self.baseline
        if self.phase != "build":
            self.step_peaks[self.step] = max(self.step_peaks.get(self.step, 0), peak)
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), peak)
        self.ends[self.phase] = self.allocated()
        self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()


def make_meter(device: str) -> Meter:
    """Return the meter of a device."""
    return CudaMeter() if device == "cuda" else Meter()
