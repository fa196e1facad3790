"""Output embedding and cross entropy without the logits: Liger's where it is installed, else the same in torch.

Liger-Kernel 0.6 ops/fused_linear_cross_entropy.py makes the gradients of hidden states and weight in forward, a chunk
of tokens at a time; what is kept, and what comes and goes, has the same sizes here.
"""

from __future__ import annotations

from typing import Any

import torch

IGNORED = -100


class _FusedLoss(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        tokens, width = hidden.shape
        rows = weight.shape[0]
        factor = -(-rows // width)
        chunk = min(tokens, 1 << max(0, (-(-tokens // factor) - 1).bit_length()))
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        for start in range(0, tokens, chunk):
            part = hidden[start : start + chunk]
            wanted = labels[start : start + chunk].clamp_min(0)
            scores = part @ weight.t()
            places = torch.arange(len(part), device=part.device)
            losses[start : start + chunk] = scores[places, wanted].float()
            # In place, as Liger's kernel: the scores become their own gradient.
            largest = scores.amax(dim=-1, keepdim=True)
            scores.sub_(largest).exp_()
            total = scores.sum(dim=-1, keepdim=True, dtype=torch.float32)
            losses[start : start + chunk] -= (total.log() + largest)[:, 0].float()
            scores.div_(total.to(scores.dtype))
            scores[places, wanted] -= 1
            scores.div_(tokens)
            grad_hidden[start : start + chunk] = scores @ weight
            if grad_weight is not None:
                grad_weight += scores.t() @ part
            del scores, part
        ctx.kept = (grad_hidden, grad_weight)
        return -losses.mean()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        grad_hidden, grad_weight = ctx.kept
        ctx.kept = None
        grad_hidden.mul_(grads[0])
        if grad_weight is not None:
            grad_weight.mul_(grads[0])
        return grad_hidden, grad_weight, None


def has_liger() -> bool:
    """Whether Liger's kernels can be imported."""
    from importlib.util import find_spec

    return find_spec("liger_kernel") is not None


def fused_loss(base: Any, inputs: dict[str, Any], entered: Any) -> torch.Tensor:
    """Run the body of a causal model and the fused loss; ``entered`` is called in between."""
    labels = inputs["labels"]
    rest = {name: value for name, value in inputs.items() if name != "labels"}
    hidden = base.base_model(**rest)[0]
    weight = base.get_output_embeddings().weight
    entered()
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        half = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(half), weight.to(half)
    shifted = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].reshape(-1)
    flat = hidden.reshape(-1, hidden.shape[-1])
    if has_liger() and device == "cuda":
        from importlib import import_module

        liger: Any = import_module("liger_kernel.transformers.functional")
        result: torch.Tensor = liger.liger_fused_linear_cross_entropy(flat, weight, shifted, ignore_index=IGNORED)
        return result
    result = _FusedLoss.apply(flat, weight, shifted)
    return result
