"""What torch.compile would run on a GPU, found without one: inductor's own CUDA wrapper for a function of fake tensors.

The wrapper's Python allocates every buffer by name and deletes it after its last use, so it can be run over fake CUDA
tensors with kernels that do nothing. Needs Triton (``pip install triton``), whose compiler is never called.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten


class _A100:
    """What inductor asks of a device: torch.cuda.get_device_properties of an A100-80GB."""

    name, gcnArchName, major, minor, multi_processor_count, warp_size = "NVIDIA A100", "", 8, 0, 108, 32
    total_memory, L2_cache_size = 80 << 30, 40 << 20
    regs_per_multiprocessor, max_threads_per_multi_processor, max_threads_per_block = 65536, 2048, 1024
    shared_memory_per_block, shared_memory_per_block_optin = 49152, 166912


def _nothing(*args: Any, **options: Any) -> None:
    return None


@contextlib.contextmanager
def _device() -> Iterator[None]:
    import torch._inductor.config as settings
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.fx_passes import fuse_attention, joint_graph, misc_patterns, pad_mm
    from torch.utils import _triton

    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "get_device_properties", _A100()),
        (torch.cuda, "get_device_capability", (8, 0)),
        (torch.cuda, "current_device", 0),
        (torch.cuda, "device_count", 1),
        (torch.cuda, "is_available", True),
        (_triton, "triton_hash_with_backend", "none"),
    ]
    interface = (
        ("get_device_properties", _A100()),
        ("current_device", 0),
        ("is_available", True),
        ("get_compute_capability", "80"),
    )
    with contextlib.ExitStack() as stack:
        for owner, name, value in answers:
            stack.enter_context(mock.patch.object(owner, name, lambda *a, _value=value, **o: _value))
        for owner in (CudaInterface, CudaInterface.Worker):
            for name, value in interface:
                if hasattr(owner, name):
                    given = staticmethod(lambda *a, _value=value, **o: _value)
                    stack.enter_context(mock.patch.object(owner, name, given))
        # Patterns (attention, padding of products) that are found by running real tensors on the device.
        for owner in (fuse_attention, joint_graph, misc_patterns, pad_mm):
            for name in ("_sfdp_init", "_pad_mm_init", "_misc_patterns_init"):
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, _nothing))
        stack.enter_context(settings.patch(joint_graph_constant_folding=False))
        yield


def compiled_source(function: Callable[..., Any], tensors: list[torch.Tensor]) -> tuple[str, list[str], Any]:
    """The wrapper's source, its inputs' names in order, and the structure of what ``function`` gives back."""
    from torch._inductor import compile_fx, decomposition
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    structure: list[Any] = []

    def flat(*given: torch.Tensor) -> list[Any]:
        leaves, form = tree_flatten(function(*given))
        structure.append(form)
        return list(leaves)

    with _disable_current_modes(), _device():
        mode = FakeTensorMode()
        with mode:
            fakes = [torch.empty(t.shape, dtype=t.dtype, device="cuda") for t in tensors]
            graph = make_fx(flat, decomposition_table=decomposition.select_decomp_table(), tracing_mode="fake")(*fakes)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        with V.set_fake_mode(mode):
            compile_fx._recursive_joint_graph_passes(graph)
            compile_fx.view_to_reshape(graph)
            compile_fx.fake_tensor_prop(graph, fakes, force_allow_non_fake_inputs=True)
            compile_fx._recursive_post_grad_passes(graph, is_inference=True)
            lowering = GraphLowering(graph, example_inputs=fakes, is_inference=True)
            handlers = (V.set_debug_handler(mock.MagicMock()), V.set_graph_handler(lowering))
            with DebugContext(), handlers[0], handlers[1], V.set_extern_kernel_nodes([]):
                lowering.run(*fakes)
                code, _ = lowering.codegen()
        names = list(lowering.graph_input_names)
    return str(getattr(code, "value", code)), names, structure[-1]


class _Kernel:
    """``triton_...run(...)`` and ``extern_kernels.mm(..., out=...)``, which write into tensors they are given, and
    checks of tensors' sizes.
    """

    def __call__(self, *args: Any, **options: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


class _Names(dict[str, Any]):
    """The wrapper's globals: kernels that it names have run when they are called."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, _Kernel())


def _allocated(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _strided(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return tensor.as_strided(size, stride, offset)


class Compiled:
    """A function as inductor's wrapper runs it: the same buffers, for the same time."""

    def __init__(self, function: Callable[..., Any], tensors: list[torch.Tensor]) -> None:
        source, self.inputs, self.structure = compiled_source(function, tensors)
        called = next(node for node in ast.walk(ast.parse(source)) if _is_call(node))
        assert isinstance(called, ast.FunctionDef)
        body = [line for line in called.body if not _unpacks(line)]
        # ``with torch.cuda._DeviceGuard(0):`` around all of it.
        lines = [part for line in body for part in (line.body if isinstance(line, ast.With) else [line])]
        made = ast.FunctionDef(
            name="run",
            args=ast.arguments(
                posonlyargs=[], args=[ast.arg(arg=name) for name in self.inputs], kwonlyargs=[], kw_defaults=[],
                defaults=[],
            ),
            body=[line for line in lines if not _on_device(line)],
            decorator_list=[],
        )  # fmt: skip
        names = _Names(empty_strided_cuda=_allocated, reinterpret_tensor=_strided, torch=torch)
        exec(compile(ast.fix_missing_locations(ast.Module([made], [])), "wrapper", "exec"), names)
        self.run = names["run"]

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        """Run it over tensors of the shapes that it was made for."""
        return tree_unflatten(list(self.run(*tensors)), self.structure)


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "call"


def _unpacks(line: ast.stmt) -> bool:
    """``arg0_1, ... = args``, ``args.clear()`` and checks of sizes."""
    text = ast.unparse(line)
    return text.endswith("= args") or text.startswith(("args.", "assert_size_stride"))


def _on_device(line: ast.stmt) -> bool:
    return ast.unparse(line).startswith(("torch.cuda.", "raw_stream0"))
