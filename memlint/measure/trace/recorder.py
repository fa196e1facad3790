"""Follow every CUDA storage from its first appearance to its end.

A :class:`Recorder` is told of each operator below autograd (:mod:`memlint.measure.trace.mode`), notes the storages
among its outputs and learns from a weak reference when the last owner lets go, exactly when eager PyTorch would return
the block to the allocator. Sizes are rounded up to 512 bytes as the caching allocator rounds them
(c10/cuda/CUDACachingAllocator, kMinBlockSize).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from memlint.measure.trace.workspace import workspace_bytes

BLOCK = 512
"""c10/cuda/CUDACachingAllocator: kMinBlockSize."""


ONE_KERNEL = "SiluBackward0"
"""Autograd node whose operator is one kernel on CUDA but, where PyTorch is built without CUDA, arrives in parts
(native_functions.yaml: silu_backward has a CUDA kernel and a composite form)."""


def rounded(size: int) -> int:
    """Return ``size`` bytes rounded up to the allocator's block of 512."""
    return -(-size // BLOCK) * BLOCK


@dataclass(slots=True, eq=False)
class Storage:
    """One CUDA storage: what made it, where, and when it lived. ``bytes`` are rounded to 512."""

    number: int
    bytes: int
    step: int
    phase: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    born: int
    recomputed: bool
    node: str = ""
    cast: bool = False
    communication: bool = False
    component: str = ""
    died: int = -1


@dataclass(slots=True)
class Peak:
    """Highest level of one phase: bytes, the operator, and the number of the event after which it was reached."""

    bytes: int = 0
    workspace: int = 0
    op: str = ""
    module: str = ""
    event: int = -1


@dataclass(slots=True)
class Op:
    """An operator that took memory: level with its outputs and scratch, and the number of events until then."""

    step: int
    phase: str
    name: str
    module: str
    live: int
    workspace: int
    event: int
    decomposed: int = 0
    """Part of the level that one CUDA kernel would not take: see :data:`ONE_KERNEL`."""


@dataclass(slots=True)
class Event:
    """One allocation (``sign`` +1) or free (-1) as it happened; ``live`` is the level after it."""

    sign: int
    storage: Storage
    phase: str
    op: str
    live: int


@dataclass(slots=True)
class Mark:
    """The level when a phase ended."""

    step: int
    phase: str
    peak: Peak
    start_event: int = 0
    end_bytes: int = 0
    end_event: int = 0


@dataclass(slots=True)
class Recorder:
    """The account of one trace: live bytes, events, and a peak for each phase of each step."""

    progress: Callable[[str], None] | None = None
    live: int = 0
    step: int = 0
    phase: str = "build"
    op: str = ""
    events: list[Event] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    storages: dict[int, Storage] = field(default_factory=dict)
    """Live storages by the address of the StorageImpl."""
    count: int = 0
    modules: list[str] = field(default_factory=list)
    """Path of the module whose forward runs, innermost last."""
    paths: dict[int, str] = field(default_factory=dict)
    """Autograd sequence number -> module path, so that a backward operator can be named after its forward."""
    recomputed_paths: dict[int, str] = field(default_factory=dict)
    """The same for nodes made in backward: PyTorch counts them anew in each thread."""
    graph: int = -1
    """Number of the outermost backward; reentrant checkpointing runs others inside it."""
    parameters: set[int] = field(default_factory=set)
    """Addresses of parameter storages; a 16-bit copy of one is a cast weight."""
    kernels: dict[str, int] = field(default_factory=dict)
    """Attention kernel -> number of calls."""
    parts: int = 0
    """Live bytes made by parts of :data:`ONE_KERNEL`."""
    communicating: bool = False
    """Whether a collective's buffers are being made."""
    silent: bool = False
    """Whether operators run that no GPU runs."""
    references: dict[int, Any] = field(default_factory=dict)

    def enter(self, phase: str, step: int | None = None) -> None:
        """Begin a phase: its peak starts at the present level."""
        if self.marks:
            self.marks[-1].end_bytes = self.live
            self.marks[-1].end_event = len(self.events)
        self.phase = phase
        self.graph = -1
        if step is not None:
            self.step = step
        if self.progress is not None:
            self.progress(f"step {abs(self.step)}: {phase}" if self.step else phase)
        self.marks.append(Mark(self.step, phase, Peak(self.live, 0, "", "", len(self.events)), len(self.events)))

    def mark(self, step: int, phase: str) -> Mark:
        """Return the mark of a phase. Raises KeyError when it did not take place."""
        for mark in self.marks:
            if mark.step == step and mark.phase == phase:
                return mark
        raise KeyError(phase)

    def note_parameters(self, parameters: Iterable[torch.Tensor]) -> None:
        """Remember which storages are parameters."""
        for parameter in parameters:
            tensor: Any = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            self.parameters.add(tensor.untyped_storage()._cdata)

    def module(self, backward: bool) -> str:
        """Path of the module that the running operator belongs to."""
        if self.modules:
            return self.modules[-1]
        if backward:
            node = torch._C._current_autograd_node()
            if node is not None:
                number = torch._C._current_graph_task_id()
                if self.graph < 0:
                    self.graph = number
                paths = self.paths if number == self.graph else self.recomputed_paths
                return paths.get(node._sequence_nr(), "")
        return ""

    def observe(self, name: str, outputs: Any, args: Any, kwargs: Any) -> None:
        """Take note of an operator that has just run; its inputs are still alive."""
        if self.silent:
            return
        self.op = name
        module: str | None = None
        for tensor in tensors_of(outputs):
            # Asking a fake tensor for its `device` is an operator of its own; its `fake_device` is an attribute.
            device = getattr(tensor, "fake_device", None) or tensor.device
            if device.type != "cuda":
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self.storages or storage.nbytes() == 0:
                continue
            if module is None:
                module = self.module(self.phase == "backward")
            self.born(name, storage, tensor, module)
            if name == "aten::_to_copy" and tensor.element_size() == 2:
                source = args[0].untyped_storage()._cdata
                self.storages[storage._cdata].cast = source in self.parameters
        extra = workspace_bytes(name, args, kwargs, outputs)
        if module is None and not extra:
            return
        module = self.module(self.phase == "backward") if module is None else module
        level, event = self.live + extra, len(self.events)
        decomposed = 0
        if self.parts and self.events[-1].storage.node == ONE_KERNEL:
            decomposed = self.parts - self.events[-1].storage.bytes
        self.ops.append(Op(self.step, self.phase, name, module, level, extra, event, decomposed))
        if self.marks and level > self.marks[-1].peak.bytes:
            self.marks[-1].peak = Peak(level, extra, name, module, event)

    def born(self, name: str, storage: Any, tensor: torch.Tensor, module: str) -> Storage:
        """Open the account of a storage that is new."""
        size = rounded(storage.nbytes())
        key = storage._cdata
        self.count += 1
        record = Storage(
            number=self.count,
            bytes=size,
            step=self.step,
            phase=self.phase,
            op=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            module=module,
            born=len(self.events),
            recomputed=self.phase == "backward" and torch.is_grad_enabled(),
            communication=self.communicating or name == "storage::resize_",
        )
        if self.phase == "backward" and not record.recomputed:
            node = torch._C._current_autograd_node()
            record.node = node.name() if node is not None else ""
            if record.node == ONE_KERNEL:
                self.parts += size
        self.storages[key] = record
        self.live += size
        self.events.append(Event(1, record, self.phase, name, self.live))
        if key not in self.references:
            self.references[key] = weakref.ref(storage, partial(self.gone, key))
        return record

    def gone(self, key: int, reference: object = None) -> None:
        """The storage object itself has ended."""
        del self.references[key]
        if key in self.storages:
            self.freed(key)

    def resized(self, tensor: torch.Tensor) -> None:
        """Follow a storage that was emptied or refilled in place (FSDP's gathered parameters)."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.storages:
            self.op = "storage::resize_"
            self.freed(storage._cdata)
        if storage.nbytes():
            module = self.module(self.phase == "backward")
            self.born("storage::resize_", storage, tensor, module)
            self.ops.append(Op(self.step, self.phase, "storage::resize_", module, self.live, 0, len(self.events)))
            peak = self.marks[-1].peak
            if self.live > peak.bytes:
                self.marks[-1].peak = Peak(self.live, 0, "storage::resize_", module, len(self.events))

    def freed(self, key: int) -> None:
        """Close the account of a storage."""
        record = self.storages.pop(key)
        record.died = len(self.events)
        self.live -= record.bytes
        if record.node == ONE_KERNEL:
            self.parts -= record.bytes
        self.events.append(Event(-1, record, self.phase, self.op, self.live))

    def alive(self, event: int) -> list[Storage]:
        """Storages alive after the first ``event`` events, oldest first."""
        born: dict[int, Storage] = {}
        for item in self.events[:event]:
            if item.sign > 0:
                born[item.storage.number] = item.storage
            else:
                del born[item.storage.number]
        return list(born.values())


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an operator's result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
