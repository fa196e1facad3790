"""bitsandbytes' 4-bit linear layers as far as memory goes: packed weights, statistics, one dequantised temporary.

bitsandbytes 0.49: functional.py (quantize_4bit, dequantize_4bit), autograd/_functions.py (MatMul4Bit saves the packed
weight alone), nn/modules.py (Linear4bit). bitsandbytes itself needs a GPU to quantise.
"""

from __future__ import annotations

from typing import Any

import torch


class _MatMul4Bit(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: FourBitLinear) -> torch.Tensor:
        ctx.layer = layer
        return torch.nn.functional.linear(x, layer.dequantised(x.dtype), layer.bias_as(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return torch.matmul(grad, ctx.layer.dequantised(grad.dtype)), None, None


class FourBitLinear(torch.nn.Linear):  # type: ignore[misc]
    """A frozen linear layer [out, in] whose weight is stored in 4 bits with one statistic per 64 values."""

    block = 64
    nested = 256

    def __init__(self, plain: torch.nn.Linear, compute: torch.dtype, double_quant: bool) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.compute = compute
        device = plain.weight.device
        count = plain.weight.numel()
        self.stored = plain.weight.dtype
        self.weight = torch.nn.Parameter(torch.empty((count + 1) // 2, 1, dtype=torch.uint8, device=device), False)
        self.bias = plain.bias
        blocks = -(-count // self.block)
        # QuantState is no module state: its tensors live as long as the weight.
        self.statistics = [torch.empty(16, device=device)]
        if double_quant:
            self.statistics.append(torch.empty(blocks, dtype=torch.uint8, device=device))
            self.statistics.append(torch.empty(-(-blocks // self.nested), device=device))
            self.statistics.append(torch.empty((), device=device))
        else:
            self.statistics.append(torch.empty(blocks, device=device))

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole weight as it is made for one product; with nested statistics their fp32 form exists meanwhile."""
        absmax = self.statistics[1]
        if absmax.dtype == torch.uint8:
            absmax = torch.empty(absmax.shape, dtype=torch.float32, device=absmax.device)
        return torch.empty(self.out_features, self.in_features, dtype=self.stored, device=absmax.device).to(dtype)

    def bias_as(self, dtype: torch.dtype) -> torch.Tensor | None:
        """The bias in the compute dtype."""
        return None if self.bias is None else self.bias.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Linear4bit.forward: compute in the compute dtype, answer in that of the input; PEFT clones the answer."""
        given = x.dtype
        with torch.autocast("cuda", enabled=False):
            out = _MatMul4Bit.apply(x.to(self.compute), self.weight, self)
        return out.to(given).clone()


def quantise(model: Any, *, compute: torch.dtype, double_quant: bool, skip: tuple[str, ...], prepare: bool) -> None:
    """Store every linear layer but the output embedding and ``skip`` in 4 bits and freeze the model.

    prepare: as peft.prepare_model_for_kbit_training, which casts every half-precision parameter left to fp32.
    """
    head = model.get_output_embeddings()
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            path = f"{parent_name}.{name}" if parent_name else name
            if type(child) is torch.nn.Linear and child is not head and not any(part in path for part in skip):
                setattr(parent, name, FourBitLinear(child, compute, double_quant))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if prepare and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.to(torch.float32)
