"""The jobs of the GPU suite: each holds everything equal but one source of error, named by `separates`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job in native form."""

    name: str
    separates: str
    """The source of error that this job, beside its neighbours, shows."""
    model: str
    training: dict[str, Any] = field(default_factory=dict)
    layers: int | None = None
    """Run no more than so many layers and carry on; None: all that fit."""

    def native(self) -> dict[str, Any]:
        """Return the native job file."""
        return {"memlint": 1, "model": self.model, "training": dict(self.training)}


_LLAMA_1B = "meta-llama/Llama-3.2-1B"
_HALF_B = "Qwen/Qwen2.5-0.5B"
_BASE: dict[str, Any] = {"micro_batch_size": 2, "sequence_length": 2048, "precision": "bf16-mixed"}


def _llama(name: str, separates: str, **training: Any) -> Case:
    return Case(name=name, separates=separates, model=_LLAMA_1B, training={**_BASE, **training})


def _case(name: str, separates: str, model: str, *, layers: int | None = None, **training: Any) -> Case:
    return Case(name=name, separates=separates, model=model, layers=layers, training={**_BASE, **training})


CASES: tuple[Case, ...] = (
    # The first job of a process pays for context, kernels and libraries; a tiny model shows little else.
    _case("gpt2-tiny-batch", "context", "openai-community/gpt2", micro_batch_size=1, sequence_length=128),
    _case("qwen-fp32", "workspace", _HALF_B, precision="fp32", micro_batch_size=1, sequence_length=512),
    _case("qwen-bf16", "workspace", _HALF_B, precision="bf16", micro_batch_size=1, sequence_length=512),
    _llama("llama-base", "slack"),
    _llama("llama-large-batch", "slack", micro_batch_size=6),
    _llama("llama-odd-length", "slack", micro_batch_size=3, sequence_length=1999),
    _llama("llama-accumulation", "slack", gradient_accumulation_steps=4),
    _llama("llama-bf16", "optimizer step", precision="bf16"),
    _llama("llama-fused-adamw", "optimizer step", optimizer="adamw-fused"),
    _llama("llama-sgd-momentum", "optimizer step", optimizer="sgd-momentum"),
    _llama("llama-adafactor", "optimizer step", optimizer="adafactor"),
    _llama("llama-in-backward", "optimizer step", precision="bf16", optimizer_in_backward=True, max_grad_norm=None),
    _llama("llama-8bit", "8-bit optimizer", optimizer="adamw-8bit"),
    _llama("llama-paged-8bit", "8-bit optimizer", optimizer="paged-adamw-8bit"),
    _llama("llama-eager", "eager attention", attention="eager", micro_batch_size=1),
    _case("gemma2-eager", "eager attention", "google/gemma-2-2b", precision="bf16", attention="eager",
          micro_batch_size=1, sequence_length=1024, optimizer="adamw-fused"),
    _llama("llama-flash", "attention kernel", attention="flash"),
    _llama("llama-padding", "attention kernel", padding=True),
    _llama("llama-fp16", "precision", precision="fp16-mixed"),
    _case("qwen-wide-vocabulary", "loss", _HALF_B, micro_batch_size=8, activation_checkpointing="full"),
    _case("qwen-fused-loss", "fused loss", _HALF_B, micro_batch_size=8, activation_checkpointing="full", loss="fused"),
    _llama("llama-checkpointing", "checkpointing", activation_checkpointing="full", micro_batch_size=4),
    _llama("llama-reentrant", "checkpointing", micro_batch_size=4,
           activation_checkpointing={"mode": "full", "reentrant": True}),
    _llama("llama-every-second", "checkpointing", micro_batch_size=4,
           activation_checkpointing={"mode": "full", "every": 2}),
    _llama("llama-long", "long sequence", micro_batch_size=1, sequence_length=16384, precision="bf16",
           activation_checkpointing="full"),
    _case("mistral-lora", "LoRA", "mistralai/Mistral-7B-v0.1", method="lora", precision="bf16",
          activation_checkpointing="full"),
    _case("qwen3-lora-dora", "LoRA", "Qwen/Qwen3-1.7B", method="lora", precision="bf16",
          lora={"rank": 64, "targets": "all-linear", "dropout": 0.1, "dora": True}),
    _case("llama-8b-qlora", "QLoRA", "meta-llama/Llama-3.1-8B", method="qlora",
          precision={"weights": "bf16", "autocast": "bf16"}, optimizer="paged-adamw-8bit",
          activation_checkpointing="full"),
    _case("olmoe", "mixture of experts", "allenai/OLMoE-1B-7B-0924", precision="bf16", micro_batch_size=1,
          optimizer="sgd", layers=6),
    _case("mixtral-lora-scaled", "depth", "mistralai/Mixtral-8x7B-v0.1", method="lora", precision="bf16",
          micro_batch_size=1, activation_checkpointing="full", layers=6),
    _case("bert-masked", "encoder", "google-bert/bert-base-uncased", objective="masked-lm", micro_batch_size=16,
          sequence_length=512, padding=True),
    _case("t5", "encoder-decoder", "google-t5/t5-base", objective="seq2seq-lm", micro_batch_size=8,
          sequence_length=512),
    _case("pythia-eager", "family", "EleutherAI/pythia-1.4b", precision="bf16", attention="eager",
          micro_batch_size=1),
    _case("gemma3", "family", "google/gemma-3-1b-pt", precision="bf16", micro_batch_size=1),
)  # fmt: skip
"""In order of worth: a run that ends early has the cheap and telling ones first."""


TINY_SIZES: dict[str, int] = {
    "hidden_size": 64, "n_embd": 64, "d_model": 64, "intermediate_size": 128, "d_ff": 128, "d_kv": 16,
    "num_hidden_layers": 4, "n_layer": 4, "num_layers": 4, "num_decoder_layers": 4, "num_attention_heads": 4,
    "n_head": 4, "num_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16,
    "vocab_size": 512, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "sliding_window": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Fields of a config that shape the model, at sizes for a CPU."""

PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")


def tiny(case: Case, config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return the native job of ``case`` over a tiny model of the same kind; ``config`` is the real model's."""
    small: dict[str, Any] = {
        key: min(value, TINY_SIZES[key]) if isinstance(value, int) and key in TINY_SIZES else value
        for key, value in config.items()
    }
    for name in ("bos_token_id", "eos_token_id"):
        small.setdefault(name, TINY_SIZES[name])  # the class default may lie outside the small vocabulary
    for name in PER_LAYER:
        if isinstance(small.get(name), list):
            small[name] = small[name][:4]
    for name in ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"):
        if name in small:
            small[name] = min(layers, 4)
    training = {**case.training, "sequence_length": 32, "micro_batch_size": min(2, case.training["micro_batch_size"])}
    if "lora" in training:
        training["lora"] = {**training["lora"], "rank": 4}
    return {"memlint": 1, "model": small, "training": training}
