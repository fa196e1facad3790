"""FSDP2 on one machine: PyTorch's own ``fully_shard`` over a process group of ranks that do not exist.

The ``fake`` backend answers every collective at once, so this process is rank 0 of any world size and its buffers are
the real ones: sharded parameters, all-gather outputs, reduce-scatter inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from memlint.measure.trace.build import DTYPES
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.settings import TraceSettings


class _Idle:
    """A CUDA stream, event or context that does nothing and is always done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self


@contextlib.contextmanager
def fake_ranks(recorder: Recorder, world: int) -> Iterator[Any]:
    """Be rank 0 of ``world`` ranks; yields their device mesh. Storage that FSDP2 empties and refills is followed."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def following(inner: Any) -> Any:
        def resize(tensor: torch.Tensor, *args: Any) -> None:
            inner(tensor, *args)
            recorder.resized(tensor)

        return resize

    def flagged(inner: Any, flag: str) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            before = getattr(recorder, flag)
            setattr(recorder, flag, True)
            try:
                return inner(*args, **kwargs)
            finally:
                setattr(recorder, flag, before)

        return run

    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for name in ("Stream", "Event", "stream"):
            put(torch.cuda, name, _Idle)
        for name in ("current_stream", "default_stream"):
            put(torch.cuda, name, lambda *args: _Idle())
        # finalize_backward waits through torch.accelerator for a unit that was prefetched in vain.
        put(torch.accelerator, "current_stream", lambda *args: _Idle())
        put(torch.cuda, "set_device", lambda device: None)
        put(torch.cuda, "device_count", lambda: 1)
        put(torch.cuda, "is_initialized", lambda: True)
        put(torch.cuda, "synchronize", lambda *args: None)
        for name in ("alloc_storage", "free_storage"):
            put(_fsdp_param, name, following(getattr(_fsdp_param, name)))
        for name in ("foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce"):
            put(_fsdp_param_group, name, flagged(getattr(_fsdp_param_group, name), "communicating"))
        # DTensor finds out an operator's output by running it once on fake tensors of the global shape.
        for name in [name for name in vars(ShardingPropagator) if name.startswith("_propagate_tensor_meta")]:
            put(ShardingPropagator, name, flagged(getattr(ShardingPropagator, name), "silent"))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        try:
            yield init_device_mesh("cuda", (world,))
        finally:
            dist.destroy_process_group()


def shard(model: Any, base: Any, mesh: Any, settings: TraceSettings) -> None:
    """Divide a model into the units that accelerate makes; ``base`` is the transformers model without an adapter.

    accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model: each layer that transformers does not split; the input
    embedding; the final norm with the output head (and a tied embedding), which stays gathered between forward and
    backward; the rest.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    half = DTYPES[settings.autocast] if settings.autocast else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half, output_dtype=half)
    whole = set(getattr(base, "_no_split_modules", None) or ())
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    reshard = settings.reshard_after_forward
    for module in model.modules():
        if type(module).__name__ in whole:
            fully_shard(module, reshard_after_forward=reshard, **options)
    first, last = base.get_input_embeddings(), base.get_output_embeddings()
    tied = last is not None and first.weight is last.weight
    if not tied:
        fully_shard(first, reshard_after_forward=reshard, **options)
    tail = [_final_norm(base), *([first] if tied else []), last]
    tail = [module for module in tail if module is not None and not isinstance(module, FSDPModule)]
    if tail:
        fully_shard(tail, reshard_after_forward=False, **options)
    if not isinstance(model, FSDPModule):
        fully_shard(model, **options)


def _final_norm(base: Any) -> Any:
    """The last direct child of the body that is a norm (accelerate: _find_final_norm)."""
    body = getattr(base, getattr(base, "base_model_prefix", "") or "", base)
    norms = [child for child in body.children() if "Norm" in type(child).__name__]
    return norms[-1] if norms else None
