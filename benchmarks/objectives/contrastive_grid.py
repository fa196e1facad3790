"""What is traced of the training of text embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_BERT = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "vocab_size": 8192,
    "max_position_embeddings": 514,
}
_TOKENS = {f"{name}_token_id": 0 for name in ("pad", "eos", "bos", "cls", "sep")}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **_BERT},
    "roberta": {"model_type": "xlm-roberta", **_BERT},
    "mpnet": {"model_type": "mpnet", **_BERT},
    "distilbert": {
        **{"model_type": "distilbert", "dim": 384, "hidden_dim": 1536, "n_layers": 3, "n_heads": 12},
        **{"vocab_size": 8192, "max_position_embeddings": 512},
    },
    "modernbert": {"model_type": "modernbert", **_BERT, "global_attn_every_n_layers": 2, **_TOKENS},
    "electra": {"model_type": "electra", **_BERT, "embedding_size": 128},
    "qwen3": {
        **{"model_type": "qwen3", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 3},
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32768},
        **{"max_position_embeddings": 4096, "tie_word_embeddings": True},
    },
    "mistral": {
        **{"model_type": "mistral", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 3},
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192, "max_position_embeddings": 4096},
        **{"sliding_window": None},
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 512, "n_layer": 3, "n_head": 8, "vocab_size": 8192},
}
LORA: dict[str, Any] = {"rank": 16, "targets": "all-linear"}


def _point(model: str, **fields: Any) -> dict[str, Any]:
    return {
        "config": MODELS[model],
        "precision": "fp32",
        "checkpointing": "none",
        "attention": "eager" if model == "mpnet" else "sdpa",
        "padding": False,
        "optimizer": "adamw",
        "batch": 16,
        "seq": 128,
        "columns": 2,
        **fields,
    }


def points() -> Iterator[dict[str, Any]]:
    """Models, precisions, columns, adapters, checkpointing, padding, poolings, and mini batches."""
    for model in ("bert", "roberta", "mpnet", "qwen3", "modernbert"):
        yield _point(model)
        yield _point(model, precision="bf16-autocast", columns=3, padding=True)
        yield _point(model, precision="bf16", padding=True)
        yield _point(model, precision="bf16-bf16", columns=4, lora=LORA)
        if model != "mpnet":
            yield _point(model, checkpointing="nonreentrant", precision="bf16-autocast", columns=3)
            yield _point(model, checkpointing="reentrant", precision="bf16", padding=True)
            yield _point(model, checkpointing="nonreentrant", lora=LORA, batch=64)
        yield _point(model, batch=64, mini_batch=16)
        yield _point(model, batch=32, mini_batch=8, precision="bf16-autocast", columns=3, padding=True)
    for model in ("bert", "qwen3"):
        yield _point(model, pooling="cls", padding=True)
        yield _point(model, pooling="last-token", padding=True, precision="bf16")
        yield _point(model, batch=64, mini_batch=16, precision="bf16", lora=LORA, checkpointing="reentrant")
        yield _point(model, attention="eager", precision="bf16-autocast")
        yield _point(model, batch=512, seq=16, columns=3)
        yield _point(model, accumulation=2, precision="bf16-autocast")
        yield _point(model, accumulation=2, columns=3, batch=4)
        yield _point(model, accumulation=2, batch=64, mini_batch=16, precision="bf16")
    for model in ("distilbert", "electra", "mistral", "gpt2"):
        yield _point(model, precision="bf16-autocast")
        yield _point(model, columns=3, padding=True, lora=LORA)
        yield _point(model, batch=64, mini_batch=16)
