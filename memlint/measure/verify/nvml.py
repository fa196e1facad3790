"""What the driver says about a GPU's memory, through NVML itself (no package needed).

NVML creates no CUDA context, so it can say what other processes hold before this one touches the GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")
_SUCCESS = 0
_INSUFFICIENT_SIZE = 7
"""NVML_ERROR_INSUFFICIENT_SIZE: more processes than room for them."""
_UNKNOWN = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: the driver does not say (Windows WDDM, some containers)."""


class _Memory(ctypes.Structure):
    # nvmlMemory_t
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    # nvmlProcessInfo_v2_t, of nvmlDeviceGetComputeRunningProcesses_v3
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """An open NVML library; :func:`open_nvml` makes one."""

    def __init__(self, library: Any) -> None:
        """Use ``library``, already initialised."""
        self._library = library

    def used_bytes(self) -> dict[str, int]:
        """Return what is in use on every GPU, all processes together, by the GPU's UUID."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return {}
        used: dict[str, int] = {}
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != _SUCCESS:
                continue
            text = ctypes.create_string_buffer(96)
            memory = _Memory()
            if self._library.nvmlDeviceGetUUID(handle, text, 96) != _SUCCESS:
                continue
            if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _SUCCESS:
                used[text.value.decode("ascii", "replace")] = int(memory.used)
        return used

    def process_bytes(self, uuid: str, pids: frozenset[int]) -> int | None:
        """Return what the process with one of ``pids`` holds on a GPU; None where the driver does not know it."""
        handle = ctypes.c_void_p()
        if self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != _SUCCESS:
            return None
        count = ctypes.c_uint(0)
        ask = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        if ask(handle, ctypes.byref(count), None) not in (_SUCCESS, _INSUFFICIENT_SIZE):
            return None
        room = count.value + 8
        count = ctypes.c_uint(room)
        processes = (_Process * room)()
        if ask(handle, ctypes.byref(count), processes) != _SUCCESS:
            return None
        for process in processes[: count.value]:
            if process.pid in pids and process.used != _UNKNOWN:
                return int(process.used)
        return None


def open_nvml() -> Nvml | None:
    """Return NVML, or None on a machine without the NVIDIA driver's library."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            if library.nvmlInit_v2() == _SUCCESS:
                return Nvml(library)
        except (OSError, AttributeError):
            continue
    return None


def own_pids() -> frozenset[int]:
    """Return this process's number in every PID namespace it is in: the driver counts in the host's."""
    import os

    pids = {os.getpid()}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as handle:
            for line in handle:
                if line.startswith("NSpid:"):
                    pids.update(int(word) for word in line.split()[1:])
    except (OSError, ValueError):
        pass
    return frozenset(pids)
