"""Sizes that contradict each other: what transformers refuses when the model is built (MEM003)."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.models.validate import ConfigProblem, KeyPath

_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "num_experts_per_token", "moe_k")
_HEAD_DIMS = ("head_dim", "d_kv", "qk_nope_head_dim", "kv_channels", "attention_head_dim")

MOST_BLOCKS = 1000
"""Blocks of all stages of an image network together (`depths`), each of which is run by itself: twenty times those of
the deepest in use (SegFormer B5 52, ResNet-152 50, ConvNeXt XL 36, Swin L 24, by their config.json)."""

_HEADS_OF_THEIR_OWN = frozenset(
    (
        "mamba",
        "mamba2",
        "falcon_mamba",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
        "recurrent_gemma",
        "swin",
        "swinv2",
        "donut-swin",
        "openelm",
        "nemotron-nas",
        "decilm",
        "perceiver",
        "funnel",
        "reformer",
        "transfo-xl",
        "qwen2_audio_encoder",
    )
)
"""Types whose attention is as wide as something else than the hidden size."""


def contradictions(stated: Mapping[Any, Any], values: Mapping[str, Any], path: KeyPath = ()) -> list[ConfigProblem]:
    """Return the contradictions in a filled config, each placed on the key that the config itself states."""
    problems = _heads(stated, values, path)
    problems += _experts(stated, values, path)
    problems += _no_choice(values, path)
    problems += _layer_types(stated, values, path)
    problems += _stages(stated, path)
    for name, inner in values.items():
        if name.endswith("_config") and isinstance(inner, Mapping) and isinstance(stated.get(name), Mapping):
            problems += contradictions(stated[name], inner, (*path, name))
    return problems


def _stated(stated: Mapping[Any, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if stated.get(name) is not None), None)


def _number(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _heads(stated: Mapping[Any, Any], values: Mapping[str, Any], path: KeyPath) -> list[ConfigProblem]:
    width, heads = _number(values, "hidden_size"), _number(values, "num_attention_heads")
    kind = str(values.get("model_type"))
    if (
        not width
        or not heads
        or kind in _HEADS_OF_THEIR_OWN
        or str(values.get("remote_model_type")) in _HEADS_OF_THEIR_OWN
    ):
        return []
    from memlint.models.defaults import class_defaults

    usual = (class_defaults(kind) or {}).get("defaults", {})
    free_width = any(stated.get(name) is not None or usual.get(name) is not None for name in _HEAD_DIMS)
    problems = []
    head_key, width_key = _stated(stated, _HEADS), _stated(stated, _WIDTHS)
    if not free_width and width % heads and (head_key or width_key):
        wide, many = width_key or "hidden_size", head_key or "num_attention_heads"
        problems.append(
            ConfigProblem((*path, head_key or wide), f"`{many}: {heads}` does not divide `{wide}: {width}`")
        )
    groups, group_key = _number(values, "num_key_value_heads"), _stated(stated, _KV_HEADS)
    if groups and heads % groups and (group_key or head_key) and not _latent(values):
        few, many = group_key or "num_key_value_heads", head_key or "num_attention_heads"
        problems.append(
            ConfigProblem((*path, group_key or many), f"`{few}: {groups}` does not divide `{many}: {heads}`")
        )
    return problems


def _latent(values: Mapping[str, Any]) -> bool:
    """Whether keys and values come from a latent vector (MLA), which has no groups."""
    return values.get("kv_lora_rank") is not None


def _experts(stated: Mapping[Any, Any], values: Mapping[str, Any], path: KeyPath) -> list[ConfigProblem]:
    experts_key, chosen_key = _stated(stated, _EXPERTS), _stated(stated, _PER_TOKEN)
    if experts_key is None and chosen_key is None:
        return []
    experts = next((n for n in (_number(values, name) for name in _EXPERTS) if n), None)
    chosen = next((n for n in (_number(values, name) for name in _PER_TOKEN) if n), None)
    if experts is None or chosen is None or chosen <= experts or experts == 1:
        return []
    few, many = chosen_key or "num_experts_per_tok", experts_key or "num_experts"
    return [ConfigProblem((*path, few if chosen_key else many), f"`{few}: {chosen}` exceeds `{many}: {experts}`")]


def _no_choice(values: Mapping[str, Any], path: KeyPath) -> list[ConfigProblem]:
    """Some classes have no default for the number of experts a token takes; their forward fails without."""
    kind = values.get("remote_model_type") or values.get("model_type")
    if kind not in ("deepseek", "deepseek_v2", "dots1") or _number(values, "num_experts_per_tok"):
        return []
    if not _number(values, "n_routed_experts"):
        return []
    return [ConfigProblem(path, f"`num_experts_per_tok` is missing: `{kind}` has no default for it")]


def _layer_types(stated: Mapping[Any, Any], values: Mapping[str, Any], path: KeyPath) -> list[ConfigProblem]:
    kinds, depth = stated.get("layer_types"), _number(values, "num_hidden_layers")
    if not isinstance(kinds, list) or depth is None or len(kinds) == depth:
        return []
    message = f"`layer_types` is of length {len(kinds)} where `num_hidden_layers` is {depth}"
    return [ConfigProblem((*path, "layer_types"), message)]


def _stages(stated: Mapping[Any, Any], path: KeyPath) -> list[ConfigProblem]:
    depths = stated.get("depths")
    if not isinstance(depths, list):
        return []
    numbers = [depth for depth in depths if isinstance(depth, int) and depth > 0]
    if len(depths) <= MOST_BLOCKS and sum(numbers) <= MOST_BLOCKS:
        return []
    message = (
        f"`depths` are {sum(numbers)} blocks in {len(depths)} stages; more than {MOST_BLOCKS} are no image network"
    )
    return [ConfigProblem((*path, "depths"), message)]
