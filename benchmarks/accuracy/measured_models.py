"""Model names as people wrote them beside a measurement -> architecture."""

from __future__ import annotations

import re
from typing import Any

from memlint.models.architecture import Architecture
from memlint.models.catalog import find, near
from memlint.models.config import read_config

IDS = {
    "falcon 7b": "tiiuae/falcon-7b",
    "falcon 40 b": "tiiuae/falcon-40b",
    "llama 2 7 b": "meta-llama/Llama-2-7b-hf",
    "llama 2 13 b": "meta-llama/Llama-2-13b-hf",
    "llama 2-7b": "meta-llama/Llama-2-7b-hf",
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama 3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama3-8b-instruct": "meta-llama/Meta-Llama-3-8B",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama 3.1 8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-8b-instruct": "meta-llama/Llama-3.1-8B",
    "llama-3.3-70b-instruct": "meta-llama/Llama-3.1-70B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B",
    "llama 3.2 3b": "meta-llama/Llama-3.2-3B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "mistral-7b-v0.2": "mistralai/Mistral-7B-Instruct-v0.2",
    "openbuddy-zephyr-7b-chat": "mistralai/Mistral-7B-v0.1",
    "gemma-2b": "google/gemma-2b",
    "gemma-7b": "google/gemma-7b",
    "gemma-2-2b": "google/gemma-2-2b",
    "gemma-2-9b": "google/gemma-2-9b",
    "phi-1.5 1.3 b": "microsoft/phi-1_5",
    "phi-2": "microsoft/phi-2",
    "phi2-3b": "microsoft/phi-2",
    "phi-3-mini-4k-instruct": "microsoft/Phi-3-mini-4k-instruct",
    "phi3-4b-4k-instruct": "microsoft/Phi-3-mini-4k-instruct",
    "stablelm alpha 3 b": "stabilityai/stablelm-base-alpha-3b",
    "stablelm-base-alpha-3b": "stabilityai/stablelm-base-alpha-3b",
    "tiny-llama": "TinyLlama/TinyLlama_v1.1",
    "yi-6b": "01-ai/Yi-6B",
    "yi-6b-chat": "01-ai/Yi-6B",
    "yi-34b-chat": "01-ai/Yi-34B",
    "google-bert/bert-large-uncased (classification)": "google-bert/bert-large-uncased",
    "qwen1half-7b-chat": "Qwen/Qwen1.5-7B",
    "allenai/olmo-3-7b-instruct-sft": "allenai/Olmo-3-7B-Instruct",
    "katanemo/plano-orchestrator-4b": "Qwen/Qwen3-4B",
    "unsloth/phi-4 (llamafied)": "microsoft/phi-4",
    "deepseek-ai/deepseek-r1-0528-qwen3-8b": "Qwen/Qwen3-8B",
}
"""Published name, lower case -> catalog ID of the same shape."""


def _qwen(hidden: int, layers: int, heads: int, width: int, rows: int) -> dict[str, Any]:
    return {
        "model_type": "qwen",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": width,
        "vocab_size": rows,
        "seq_length": 8192,
        "max_position_embeddings": 8192,
    }


def _llama(hidden: int, layers: int, heads: int, kv: int, width: int, rows: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "vocab_size": rows,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        **more,
    }


def _baichuan(hidden: int, layers: int, width: int) -> dict[str, Any]:
    config = {**_llama(hidden, layers, layers, layers, width, 125696), "model_type": "baichuan"}
    positions = config.pop("max_position_embeddings")
    # The 13B's config names them so alone, by which it is known.
    return {**config, "model_max_length" if layers == 40 else "max_position_embeddings": positions}


_CHATGLM_3 = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "num_layers": 28,
    "num_attention_heads": 32,
    "multi_query_group_num": 2,
    "kv_channels": 128,
    "ffn_hidden_size": 13696,
    "padded_vocab_size": 65024,
    "add_qkv_bias": True,
    "seq_length": 8192,
    "tie_word_embeddings": False,
}

SHAPES: tuple[tuple[str, dict[str, Any], str], ...] = (
    (r"qwen[-_ ]?1[._]8b", _qwen(2048, 24, 16, 11008, 151936), "Qwen/Qwen-1_8B config.json"),
    (r"qwen-?7b", _qwen(4096, 32, 32, 22016, 151936), "Qwen/Qwen-7B config.json"),
    (r"(qwen|tongyi-finance)-?14b", _qwen(5120, 40, 40, 27392, 152064), "Qwen/Qwen-14B config.json"),
    (r"qwen-?72b", _qwen(8192, 80, 64, 49152, 152064), "Qwen/Qwen-72B config.json"),
    (r"baichuan2-7b", _baichuan(4096, 32, 11008), "baichuan-inc/Baichuan2-7B-Chat config.json"),
    (r"baichuan2-13b", _baichuan(5120, 40, 13696), "baichuan-inc/Baichuan2-13B-Chat config.json"),
    (r"chatglm3-6b", _CHATGLM_3, "THUDM/chatglm3-6b config.json"),
)
"""Models whose code came with the checkpoint, or that the catalog lacks, as the nearest shape transformers runs."""


def _patterned(name: str) -> dict[str, Any] | None:
    for pattern, config, _ in SHAPES:
        if re.search(pattern, name) and "qwen1half" not in name and "qwen2" not in name and "qwen3" not in name:
            return config
    return None


_SIZE = re.compile(r"\d+(?:\.\d+)?b(?![a-z])|(?<![a-z])(?:small|base|large|xx?l)(?![a-z])")


def _near(name: str) -> str | None:
    """The catalog's ID that is written most like a published name, where both name the same size."""
    found = near(name)
    same = found is not None and set(_SIZE.findall(name.lower())) == set(_SIZE.findall(found.lower()))
    return found if same else None


def architecture_of(name: str, params: str = "") -> Architecture | None:
    """The architecture of a published model name; ``params`` (billions) tells editions of one name apart."""
    key = name.lower().strip()
    if key == "gemma-2b" and params.startswith("2.6"):
        key = "gemma-2-2b"
    config = _patterned(key)
    if config is None:
        wanted = IDS.get(key, name)
        row = find(wanted) or find(_near(wanted) or "")
        config = row.config if row is not None else None
    if config is None:
        return None
    found = read_config({k: v for k, v in config.items() if k != "quantization_config"}, id=name)
    return found if isinstance(found, Architecture) else None
