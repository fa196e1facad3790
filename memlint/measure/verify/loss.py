"""Output embedding and cross entropy without the logits: the framework's own where installed, else the same in torch.

Liger-Kernel 0.6 ops/fused_linear_cross_entropy.py makes the gradients of hidden states and weight in forward, a chunk
of tokens at a time. TRL 1.16 kernels/chunked_logprob.py projects in tiles, keeps only statistics, and recomputes each
tile in backward, whose gradients it sums in fp32. What is kept, and what comes and goes, has the same sizes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class _TiledLogProbs(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        tokens, device = len(hidden), hidden.device
        compute = _compute_dtype(hidden)
        largest = torch.full((tokens,), float("-inf"), device=device)
        total, wanted = torch.zeros(tokens, device=device), torch.zeros(tokens, device=device)
        tile = torch.empty((min(tokens, TRL_TOKENS), TRL_VOCABULARY), device=device, dtype=compute)
        for rows, columns in _tiles(tokens, len(weight)):
            part = tile[: rows.stop - rows.start, : columns.stop - columns.start]
            torch.mm(hidden[rows].to(compute), weight[columns].to(compute).t(), out=part)
            place = labels[rows] - columns.start
            inside = (place >= 0) & (place < part.shape[1])
            found = part.gather(1, place.clamp(0, part.shape[1] - 1)[:, None])[:, 0].float()
            wanted[rows] = torch.where(inside, found, wanted[rows])
            higher = torch.maximum(largest[rows], part.amax(-1).float())
            part.sub_(higher.to(compute)[:, None]).exp_()
            total[rows] = total[rows] * torch.exp(largest[rows] - higher) + part.sum(-1, dtype=torch.float32)
            largest[rows] = higher
        log_total = largest + torch.log(total)
        ctx.save_for_backward(hidden, weight, labels, log_total)
        return wanted - log_total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        hidden, weight, labels, log_total = ctx.saved_tensors
        compute, (grad,) = _compute_dtype(hidden), grads
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros(hidden.shape, device=hidden.device) if wants_hidden else None
        grad_weight = torch.zeros(weight.shape, device=weight.device) if wants_weight else None
        tokens = len(hidden)
        tile = torch.empty((min(tokens, TRL_TOKENS), TRL_VOCABULARY), device=hidden.device, dtype=compute)
        for rows, columns in _tiles(tokens, len(weight)):
            part = tile[: rows.stop - rows.start, : columns.stop - columns.start]
            x, w = hidden[rows].to(compute), weight[columns].to(compute)
            torch.mm(x, w.t(), out=part)
            part.sub_(log_total[rows].to(compute)[:, None]).exp_().mul_(-grad[rows].to(compute)[:, None])
            place = labels[rows] - columns.start
            inside = ((place >= 0) & (place < part.shape[1])).to(compute)
            here = place.clamp(0, part.shape[1] - 1)[:, None]
            part.scatter_add_(1, here, (grad[rows].to(compute) * inside)[:, None])
            if grad_hidden is not None:
                _add_product(grad_hidden[rows], part, w)
            if grad_weight is not None:
                _add_product(grad_weight[columns], part.t(), x)
        del tile
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None,
        )


TRL_TOKENS = 4096
"""TOKEN_CHUNK_SIZE: TRL 1.16 kernels/chunked_logprob.py."""
TRL_VOCABULARY = 32768
"""_CHUNKED_LOGPROB_CHUNK_SIZE: TRL 1.16 trainer/utils.py."""
CHUNKS = 8
"""Chunks of a plain chunked loss: torchtune's CEWithChunkedOutputLoss num_output_chunks."""


def _tiles(tokens: int, words: int) -> Iterator[tuple[slice, slice]]:
    for start in range(0, tokens, TRL_TOKENS):
        for column in range(0, words, TRL_VOCABULARY):
            yield (
                slice(start, min(start + TRL_TOKENS, tokens)),
                slice(column, min(column + TRL_VOCABULARY, words)),
            )


def _compute_dtype(hidden: torch.Tensor) -> torch.dtype:
    device = hidden.device.type
    found: torch.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return found


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    if total.is_cuda and a.dtype != torch.float32:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.float(), b.float())


def has_liger() -> bool:
    """Whether Liger's kernels can be imported."""
    from importlib.util import find_spec

    return find_spec("liger_kernel") is not None


@contextmanager
def without_logits(base: Any, kind: str, entered: Callable[[], None]) -> Iterator[None]:
    """Let ``base`` answer with a loss alone under whatever wraps it (adapter, DDP, FSDP), as Liger and TRL patch it.

    kind: fused (Liger), tiled (TRL) or chunked (a checkpointed chunk of tokens at a time). ``entered`` is called where
    the loss begins.
    """
    from transformers.modeling_outputs import CausalLMOutput

    def forward(*args: Any, **given: Any) -> Any:
        inputs = {name: value for name, value in given.items() if value is not None}
        if args:
            inputs["input_ids"] = args[0]
        return CausalLMOutput(loss=substituted_loss(base, inputs, kind, entered))

    base.forward = forward
    try:
        yield
    finally:
        del base.forward


def substituted_loss(base: Any, inputs: dict[str, Any], kind: str, entered: Callable[[], None]) -> torch.Tensor:
    """Run the body of a causal model and a loss that never holds all logits; ``entered`` is called in between."""
    labels = inputs["labels"]
    rest = {name: value for name, value in inputs.items() if name != "labels"}
    hidden = base.base_model(**rest)[0]
    weight = base.get_output_embeddings().weight
    entered()
    device = hidden.device.type
    if kind == "tiled":
        flat, target = hidden[:, :-1].reshape(-1, hidden.shape[-1]).clone(), labels[:, 1:].reshape(-1)
        values: torch.Tensor = _TiledLogProbs.apply(flat, weight, target)
        return -values.sum() / len(target)
    shifted = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].reshape(-1)
    flat = hidden.reshape(-1, hidden.shape[-1])
    if kind == "chunked":
        return _chunked(flat, weight, shifted)
    if torch.is_autocast_enabled(device):
        half = torch.get_autocast_dtype(device)
        flat, weight = flat.to(half), weight.to(half)
    if has_liger() and device == "cuda":
        from importlib import import_module

        liger: Any = import_module("liger_kernel.transformers.functional")
        result: torch.Tensor = liger.liger_fused_linear_cross_entropy(flat, weight, shifted, ignore_index=IGNORED)
        return result
    result = _FusedLoss.apply(flat, weight, shifted)
    return result


def _chunked(flat: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    def one(hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = torch.nn.functional.linear(hidden, weight).float()
        return torch.nn.functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")

    total: Any = 0.0
    for hidden, target in zip(flat.chunk(CHUNKS), labels.chunk(CHUNKS)):
        total = total + checkpoint(one, hidden, target, use_reentrant=False)
    result: torch.Tensor = total / (labels != IGNORED).sum()
    return result
