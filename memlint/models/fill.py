"""A config as transformers' class would hold it: class defaults, computed fields, standard names, sub-configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from memlint.models.defaults import class_defaults
from memlint.models.derive import apply_rule
from memlint.models.fields import FIELDS
from memlint.models.special import AFTER, BEFORE, LEGACY_LAYER_TYPES

if TYPE_CHECKING:
    from memlint.models.remote import Remote

QUANTIZATION = "quantization_config"

UNREADABLE = (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError, OverflowError, IndexError)
"""What a rule raises when a config lacks a field it needs or holds nonsense in one that the schema does not know."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "dim", "n_embed", "embed_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "encoder_layers", "depth"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "intermediate_size": ("n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "encoder_ffn_dim", "hidden_dim"),
    "hidden_act": ("activation_function", "hidden_activation", "activation", "mlp_hidden_act"),
    "max_position_embeddings": (
        "n_positions",
        "max_seq_len",
        "seq_length",
        "max_target_positions",
        "max_sequence_length",
    ),
    "vocab_size": ("padded_vocab_size",),
}
"""Standard name -> names that classes use for it without an attribute_map entry."""

QUADRUPLE = frozenset(("gpt2", "gpt_neo", "gptj", "gpt_bigcode", "bloom", "codegen", "falcon", "gpt-sw3", "openai-gpt"))
"""Types whose feed-forward is four times as wide as the model when nothing states it (their modeling files)."""

FLAT = frozenset(("qwen2_vl", "qwen2_5_vl"))
"""Types whose checkpoints of before transformers 4.52 hold the text part's fields at the top level."""


def fill(stated: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Return ``stated`` with everything that transformers' class for ``model_type`` adds, in standard names too.

    Names that the config itself uses are kept. For a remote-code type the class it resembles serves; for a type
    nobody knows only standard names are added. Raises one of :data:`UNREADABLE` on values no rule can use.
    """
    remote = remote_of(model_type)
    like = remote.like if remote is not None else model_type
    entry: Mapping[str, Any] = class_defaults(like) or {}
    if remote is not None:
        stated = _renamed(stated if "parts" in entry else _language_part(stated), remote)
    names: Mapping[str, str] = entry.get("names", {})
    values: dict[str, Any] = {**entry.get("defaults", {}), **(remote.values if remote is not None else {})}
    own = {}
    for key, value in stated.items():
        own[names.get(key, key)] = _whole(key, value)
    values.update(own)
    for kind in (model_type, like):
        if kind in BEFORE:
            BEFORE[kind](values, stated)
            break
    _parts(values, stated, entry, like)
    rules = entry.get("rules", {})
    for _ in range(2 if rules else 0):
        for name, rule in rules.items():
            _derive(values, name, rule)
    for standard, name in names.items():
        if name in values:
            values[standard] = values[name]
    if like in AFTER:
        AFTER[like](values, stated)
        for standard, name in names.items():
            if name in values:
                values[standard] = values[name]
            elif standard in values:
                values[name] = values[standard]
    values["model_type"] = like
    if remote is not None:
        values["remote_model_type"] = model_type
    _standard_names(values, like)
    _common(values, stated)
    return values


def remote_of(model_type: str) -> Remote | None:
    """Return what a type that only exists as code on the hub is computed as; None for a type of transformers."""
    if class_defaults(model_type) is not None:
        return None
    from memlint.models.remote import REMOTE

    return REMOTE.get(model_type)


def _language_part(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Lift the language model of a wrapper that is computed without its image tower to the top."""
    for name in ("text_config", "language_config", "llm_config"):
        inner = stated.get(name)
        if isinstance(inner, Mapping):
            rest = {
                key: value for key, value in stated.items() if not isinstance(value, Mapping) or key == QUANTIZATION
            }
            return {**rest, **inner}
    return stated


def _renamed(stated: Mapping[str, Any], remote: Remote) -> dict[str, Any]:
    result = dict(stated)
    for old, new in remote.names.items():
        if stated.get(old) is not None:
            result[new] = stated[old]
    return result


def _whole(name: str, value: Any) -> Any:
    """4096.0 -> 4096 where a whole number belongs (JSON does not tell them apart)."""
    kind = FIELDS.get(name) if isinstance(value, float) else None
    return int(value) if kind is not None and kind.type == "integer" else value


def _derive(values: dict[str, Any], name: str, rule: list[Any]) -> None:
    if rule[0] == "keep-if":
        if not values.get(rule[1]):
            values[name] = None
        return
    if rule[0] != "always" and values.get(name) not in (None, "auto"):
        return
    try:
        values[name] = apply_rule(rule, values)
    except (KeyError, TypeError):
        values.setdefault(name, None)  # an input that another rule still has to compute, or that is null


def _parts(values: dict[str, Any], stated: Mapping[str, Any], entry: Mapping[str, Any], model_type: str) -> None:
    declared: Mapping[str, Any] = entry.get("parts", {})
    for key, part in declared.items():
        inner = stated.get(key)
        if inner is None and key == "text_config" and model_type in FLAT and "hidden_size" in stated:
            inner = {k: v for k, v in stated.items() if k not in declared and not isinstance(v, Mapping)}
            inner.pop("model_type", None)
        if inner is None:
            if part.get("optional"):
                continue
            inner = part.get("init", {})
        if not isinstance(inner, Mapping):
            continue
        kind = part["type"]
        if part.get("auto") and isinstance(inner.get("model_type"), str):
            kind = inner["model_type"]
        values[key] = fill(inner, kind)
    for key in ("text_config", "vision_config", "language_config", "llm_config"):
        inner = stated.get(key)
        if key not in declared and isinstance(inner, Mapping):
            kind = inner.get("model_type")
            values[key] = fill(inner, kind if isinstance(kind, str) else "")


def _standard_names(values: dict[str, Any], model_type: str) -> None:
    for standard, others in SYNONYMS.items():
        if values.get(standard) is None:
            found = next((values[other] for other in others if values.get(other) is not None), None)
            if found is not None:
                values[standard] = found
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if values.get("intermediate_size") is None and isinstance(width, int) and model_type in QUADRUPLE:
        values["intermediate_size"] = 4 * width
    if values.get("num_key_value_heads") is None and heads is not None:
        values["num_key_value_heads"] = heads
    if values.get("head_dim") is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        values["head_dim"] = width // heads


def _common(values: dict[str, Any], stated: Mapping[str, Any]) -> None:
    for name in ("layer_types", "layers_block_type", "mtp_layers_block_type"):
        kinds = values.get(name)
        if isinstance(kinds, list) and values.get("model_type") != "jamba":
            values[name] = [LEGACY_LAYER_TYPES.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    for name in ("rope_parameters", "rope_scaling"):
        rope = stated.get(name)
        share = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
        if isinstance(share, (int, float)):
            values["partial_rotary_factor"] = share
    for old in ("rotary_pct", "rope_pct"):
        if isinstance(stated.get(old), (int, float)):
            values["partial_rotary_factor"] = stated[old]
    labels = stated.get("id2label")
    if isinstance(labels, Mapping):
        values["num_labels"] = len(labels)
    values.setdefault("num_labels", 2)
