"""Write memlint/models/catalog.jsonl: the shapes of popular models, facts only, each with its source.

Sources, the first that knows a model wins: config.json copies (folder of ORG__NAME.json with SOURCES.csv), litgpt's
config.py, a table of published dimensions (CSV), benchmarks/generate/catalog_hand.py, and mirrors of any of these.

    python -m benchmarks.generate.catalog --configs DIR --facts CSV --litgpt litgpt/config.py
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import sys
import types
from typing import Any, Iterator, Mapping

from benchmarks.generate.catalog_hand import CLASS, MEMORY, SHAPES
from benchmarks.generate.catalog_mirrors import mirrors
from memlint.models.config import read_config
from memlint.models.defaults import class_defaults
from memlint.models.fields import FIELDS, PARTS
from memlint.models.remote import REMOTE

TARGET = os.path.join(os.path.dirname(__file__), "..", "..", "memlint", "models", "catalog.jsonl")

EXTRA = re.compile(
    r"^(hybrid_override_pattern|full_attn_idxs|attn_layer_indices|sliding_window_size|linear_attn_config|attn_config|ffn_config|block_configs|no_rope_layers|mlp_only_layers"
    r"|decoder_sparse_step|kv_channels|padded_vocab_size|multi_query_group_num|add_qkv_bias|no_bias|partial_rotary_factor"
    r"|rotary_pct|model_type|quantization_config|dtype|torch_dtype|mm_hidden_size|moe_layer_freq|cross_attention_layers"
    r"|full_attn_layers|kda_layers|quant_method|bits|group_size|weight_block_size|load_in_4bit|hybrid_layer_pattern"
    r"|feed_forward_proj|attention_types|position_buckets|pos_att_type|relative_attention|share_att_key|norm_rel_ebd)$"
)
IGNORED = re.compile(
    r"_token_ids?$|_token_index$|^use_cache$|^rope_|^transformers_version$|^architectures$|^_name|^auto_map$"
)

STATED = {("dbrx.attn_config", name) for name in ("clip_qkv", "rope_theta")}
"""Parts and their fields that are kept although their class has no default for them: its code fails without."""
WRONG = ("databricks/dbrx-instruct",)
"""Copies of a config.json that are not the published one: 48 layers and 12 key/value heads would be 152 B parameters of
the 132 B that it has. catalog_hand.py has their shape."""

DTYPES: tuple[tuple[str, str], ...] = (
    (r"^meta-llama/Llama-2|^codellama/CodeLlama-(7|13|34)b|^huggyllama/|^openlm-research/|^lmsys/", "float16"),
    (
        r"^codellama/CodeLlama-70b|^meta-llama/|^Qwen/|^mistralai/|^google/(code)?gemma-(2|7)b|^google/gemma-[23]-.*-it$",
        "bfloat16",
    ),
    (
        r"^google/gemma-3|^google/gemma-2-27b$|^tiiuae/|^microsoft/[Pp]hi-[34]|^allenai/OLMoE|^HuggingFaceTB/SmolLM[23]",
        "bfloat16",
    ),
    (r"^EleutherAI/pythia|^facebook/opt|^bigscience/|^EleutherAI/gpt-neox|^microsoft/phi-[12]", "float16"),
    (
        r"^deepseek-ai/|^01-ai/|^internlm/|^nvidia/|^ibm-granite/|^baichuan-inc/|^moonshotai/|^unsloth/|^BSC-LT/",
        "bfloat16",
    ),
    (
        r"^google-t5/|^google/flan|^google-bert/|^FacebookAI/|^distilbert/|^openai-community/|^sentence-transformers/",
        "float32",
    ),
    (r"^openai/whisper-large-v3|^CohereForAI/", "float16"),
    (r"^openai/whisper-(tiny|base|small)|^allenai/OLMo-(1B|7B|2)|^google/vit|^TinyLlama/.*3T", "float32"),
    (r"^TinyLlama/.*Chat|^stabilityai/|^bigcode/starcoder2-15b", "bfloat16"),
)
"""Checkpoint dtype by ID where the source does not state it: as published, from memory; the first pattern decides."""


def trim(config: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Keep what decides about memory and differs from the class default."""
    remote = REMOTE.get(model_type)
    entry = (
        class_defaults(remote.like if remote is not None and class_defaults(model_type) is None else model_type) or {}
    )
    defaults, names, parts = entry.get("defaults", {}), entry.get("names", {}), entry.get("parts", {})
    kept: dict[str, Any] = {}
    if isinstance(config.get("id2label"), Mapping):
        kept["num_labels"] = len(config["id2label"])
    for name, value in config.items():
        if isinstance(value, Mapping):
            if name in parts or name in PARTS:
                fixed = parts.get(name, {}).get("type", "")
                if not parts.get(name, {}).get("auto") and fixed:
                    # The class decides, whatever the config calls it (Qwen3-VL's vision part says `qwen3_vl`).
                    inner_type = fixed
                else:
                    inner_type = value.get("model_type") if isinstance(value.get("model_type"), str) else fixed
                inner = trim(value, str(inner_type))
                if name in parts and not parts[name].get("auto"):
                    inner.pop("model_type", None)
                kept[name] = inner
            elif EXTRA.match(name):
                kept[name] = {k: v for k, v in value.items() if name != "quantization_config" or EXTRA.match(k)}
            continue
        if (model_type, name) in STATED:
            kept[name] = value
            continue
        if IGNORED.search(name) or (value is None and defaults.get(names.get(name, name)) is None):
            continue
        relevant = name in FIELDS or names.get(name, name) in defaults or EXTRA.match(name) is not None
        relevant = relevant or (remote is not None and name in remote.names)
        same = name != "model_type" and names.get(name, name) in defaults and defaults[names.get(name, name)] == value
        if relevant and not same:
            kept[name] = value
    return kept


def from_configs(folder: str) -> Iterator[dict[str, Any]]:
    with open(os.path.join(folder, "SOURCES.csv"), encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["hf_id"] in WRONG:
                continue
            path = os.path.join(folder, row["hf_id"].replace("/", "__") + ".json")
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            yield {"id": row["hf_id"], "config": trim(config, config["model_type"]), "source": row["source"]}


def number(row: Mapping[str, str], name: str) -> int | None:
    return int(float(row[name])) if row.get(name) else None


def convert(row: Mapping[str, str]) -> dict[str, Any] | None:
    """A row of dimensions -> config, with what each model_type needs beyond them."""
    kind, model_id = row["model_type"], row["hf_id"]
    width, layers, heads = number(row, "hidden_size"), number(row, "num_layers"), number(row, "num_heads")
    if not kind or not width or not layers or not heads:
        return None
    groups, inner, vocabulary = number(row, "num_kv_heads"), number(row, "intermediate_size"), number(row, "vocab_size")
    tied = {"true": True, "false": False}.get(row["tie_word_embeddings"])
    positions = number(row, "max_position")
    config: dict[str, Any] = {"model_type": kind}
    if vocabulary:
        config["vocab_size"] = vocabulary
    if kind == "t5":
        gated = "flan" in model_id or "v1_1" in model_id
        config.update(d_model=width, d_ff=inner, d_kv=number(row, "head_dim"), num_layers=layers, num_heads=heads)
        config.update(feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=tied)
        return config
    if kind == "whisper":
        decoder = 4 if model_id.endswith("turbo") else layers
        config.update(d_model=width, encoder_layers=layers, decoder_layers=decoder)
        config.update(encoder_attention_heads=heads, decoder_attention_heads=heads)
        config.update(encoder_ffn_dim=inner, decoder_ffn_dim=inner, num_mel_bins=128 if "large-v3" in model_id else 80)
        return config
    config.update(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads)
    if positions and kind != "vit":
        # Baichuan's 13B has no other name for it, which tells it from the 7B.
        alone = kind == "baichuan" and layers == 40
        config["model_max_length" if alone else "max_position_embeddings"] = positions
    if kind == "opt":
        config["ffn_dim"] = inner
        if model_id.endswith("350m"):
            config.update(word_embed_proj_dim=512, do_layer_norm_before=False)
        return config
    if kind == "falcon":
        config.update(new_decoder_architecture=groups != 1, num_kv_heads=groups)
        return config
    if kind in ("gpt2", "bloom", "mpt"):
        config.pop("max_position_embeddings" if kind == "bloom" else "", None)
        if kind == "mpt":
            config["attn_config"] = {"alibi": True}
        return None if "santacoder" in model_id else config
    config["intermediate_size"] = inner
    if kind == "gpt_neo":
        config["attention_types"] = [[["global", "local"], layers // 2]]
        return config
    if kind in ("roberta", "bert", "distilbert", "vit"):
        if kind == "roberta":
            config["type_vocab_size"] = 1
        return config
    if kind == "deberta-v2":
        config.update(type_vocab_size=0, relative_attention=True, position_buckets=256, position_biased_input=False)
        config.update(
            pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True, max_relative_positions=-1
        )
        return config
    if groups is not None and kind not in ("gpt_neox", "phi"):
        config["num_key_value_heads"] = groups
    if tied is not None:
        config["tie_word_embeddings"] = tied
    head = number(row, "head_dim")
    if head and head * heads != width and kind not in ("deepseek_v2",):
        config["head_dim"] = head
    if row["qkv_bias"] == "true" and kind == "llama":
        config["attention_bias"] = True
    if model_id.endswith("c4ai-command-r-plus"):
        config["use_qk_norm"] = True
    if model_id.endswith("starcoder2-15b"):
        config["tie_word_embeddings"] = False  # only the 3B and 7B share it: 15,957,889,024 elements, from memory
    if kind == "stablelm":
        config["partial_rotary_factor"] = 0.25
    if kind in ("qwen2_vl", "qwen2_5_vl"):
        config["vision_config"] = (
            {"hidden_size": width}
            if kind == "qwen2_vl"
            else {
                "hidden_size": 1280,
                "intermediate_size": 3420,
                "out_hidden_size": width,
                "depth": 32,
            }
        )
    if kind == "gemma3":
        text = {k: config.pop(k) for k in list(config) if k not in ("model_type", "tie_word_embeddings")}
        text["vocab_size"] = 262208  # rows of the published checkpoints (config.json of gemma-3-27b-it)
        text["sliding_window"] = 1024
        vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
        config.update(
            text_config=text, vision_config={**vision, "patch_size": 14, "image_size": 896, "vision_use_head": False}
        )
        return config
    experts = number(row, "num_experts")
    if experts:
        inner_expert, shared = number(row, "moe_intermediate"), number(row, "shared_expert_intermediate")
        config["num_experts_per_tok"] = number(row, "experts_per_token")
        if kind == "mixtral":
            config.update(num_local_experts=experts, sliding_window=None)
        elif kind == "deepseek_v2":
            lite = "Lite" in model_id
            config.update(n_routed_experts=experts, moe_intermediate_size=inner_expert, first_k_dense_replace=1)
            config.update(n_shared_experts=2, q_lora_rank=None if lite else 1536, kv_lora_rank=512)
            config.update(n_group=1 if lite else 8, topk_group=1 if lite else 3)
        else:
            config["num_experts"] = experts
            if kind != "olmoe":
                config["moe_intermediate_size"] = inner_expert
            if shared:
                config["shared_expert_intermediate_size"] = shared
    return config


def from_facts(path: str) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            config = convert(row)
            if config is not None and row["hf_id"] not in SHAPES:
                yield {"id": row["hf_id"], "config": trim(config, config["model_type"]), "source": row["source"]}


def litgpt_type(config: Any, model_id: str) -> str | None:
    patterns = (
        ("gemma-3-1b", "gemma3_text"),
        ("gemma-3", "gemma3"),
        ("gemma-2-", "gemma2"),
        ("gemma", "gemma"),
        ("Qwen3-(30B|235B)", "qwen3_moe"),
        ("Qwen3", "qwen3"),
        ("Qwen2|QwQ", "qwen2"),
        ("Mixtral", "mixtral"),
        ("[Mm]istral|mathstral", "mistral"),
        ("[Pp]hi-[34]", "phi3"),
        ("^microsoft/phi-(4|mini)", "phi3"),
        ("phi-[12]", "phi"),
        ("OLMo-2", "olmo2"),
        ("OLMo", "olmo"),
        ("Falcon3", "llama"),
        ("falcon", "falcon"),
        ("pythia|alpha", "gpt_neox"),
        ("stablelm|stable-code", "stablelm"),
    )
    found = next((kind for pattern, kind in patterns if re.search(pattern, model_id)), None)
    return found or ("llama" if config.mlp_class_name == "LLaMAMLP" else None)


TIED = re.compile(
    r"gemma|falcon-|Llama-3\.2-[13]B|SmolLM2|Qwen2\.5-(Coder-|Math-)?(0\.5|1\.5|3)B|Qwen3-(0\.6|1\.7|4)B|OLMo-1B|Phi-4-mini"
)


def from_litgpt(path: str) -> Iterator[dict[str, Any]]:
    """litgpt's own table: padded_vocab_size is the number of embedding rows of the checkpoint."""
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    text = re.sub(r"^(from litgpt.*|import torch)$", "", text, flags=re.MULTILINE)
    module = types.ModuleType("litgpt_config")
    sys.modules["litgpt_config"] = module
    exec(compile(text, path, "exec"), module.__dict__)
    for raw in module.configs:
        config = module.Config(**raw)
        model_id = f"{config.hf_config.get('org')}/{config.hf_config.get('name')}"
        kind = litgpt_type(config, model_id)
        if kind is None or kind == "gemma3":
            continue
        row = {
            "hf_id": model_id,
            "model_type": kind,
            "vocab_size": config.padded_vocab_size,
            "hidden_size": config.n_embd,
            "num_layers": config.n_layer,
            "num_heads": config.n_head,
            "num_kv_heads": config.n_query_groups,
            "head_dim": config.head_size,
            "intermediate_size": config.intermediate_size,
            "max_position": config.block_size,
            "tie_word_embeddings": str(bool(TIED.search(model_id))).lower(),
            "num_experts": config.n_expert or "",
            "experts_per_token": config.n_expert_per_token or "",
            "moe_intermediate": config.moe_intermediate_size or "",
            "shared_expert_intermediate": "",
            "qkv_bias": str(bool(config.attn_bias)).lower(),
        }
        made = convert({k: str(v) for k, v in row.items()})
        if made is not None and kind == "gpt_neox":
            made["rotary_pct"] = config.rotary_percentage
        if made is not None:
            yield {
                "id": model_id,
                "config": trim(made, kind),
                "source": "litgpt 0.5.13 litgpt/config.py (tying and model_type by the name)",
            }


def from_hand() -> Iterator[dict[str, Any]]:
    for model_id, config in SHAPES.items():
        bare = set(config) <= {"model_type", "torch_dtype", "max_position_embeddings"}
        source = CLASS if bare else MEMORY
        if model_id.startswith("google/gemma-4"):
            source = "config.json in sgl-project/ome pkg/hfutil/modelconfig/testdata/gemma4_26b_a4b.json"
        yield {"id": model_id, "config": trim(config, config["model_type"]), "source": source}


def stated_dtype(row: dict[str, Any]) -> None:
    config = row.get("config")
    if config is None or any(k in config for k in ("torch_dtype", "dtype")):
        return
    if any(isinstance(v, dict) and ("dtype" in v or "torch_dtype" in v) for v in config.values()):
        return
    for pattern, dtype in DTYPES:
        if re.search(pattern, row["id"]):
            config["torch_dtype"] = dtype
            row["source"] += "; dtype from memory"
            return


NO_WINDOW = (
    "mistralai/mathstral-7B-v0.1",
    "mistralai/Mistral-7B-Instruct-v0.2",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "mistralai/Mistral-7B-v0.3",
    "mistralai/Mistral-Large-Instruct-2407",
    "mistralai/Mistral-Large-Instruct-2411",
    "mistralai/Mistral-Small-24B-Instruct-2501",
    "unsloth/Mistral-7B-v0.2",
)
"""Config files with ``"sliding_window": null``, of which litgpt says nothing: the class default, 4096, is v0.1's."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", required=True)
    parser.add_argument("--facts", required=True)
    parser.add_argument("--litgpt", required=True)
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for source in (
        from_configs(args.configs),
        from_hand(),
        from_facts(args.facts),
        from_litgpt(args.litgpt),
        mirrors(),
    ):
        for row in source:
            stated_dtype(row)
            if row["id"] in NO_WINDOW:
                row["config"]["sliding_window"] = None
            rows.setdefault(row["id"], row)
    bad = 0
    for row in rows.values():
        if "as" in row and "config" not in rows.get(row["as"], {}):
            print(f"{row['id']}: no row {row['as']}", file=sys.stderr)
            bad += 1
        elif "config" in row:
            read = read_config(row["config"], row["id"])
            if isinstance(read, list):
                print(f"{row['id']}: {read}", file=sys.stderr)
                bad += 1
    lines = [json.dumps(rows[name], separators=(",", ":")) for name in sorted(rows, key=str.lower)]
    if not bad:
        with open(TARGET, "w", encoding="utf-8", newline="\n") as stream:
            stream.write("\n".join(lines) + "\n")
    shapes = sum("config" in row for row in rows.values())
    print(f"{len(lines)} models, {shapes} shapes, {sum(map(len, lines))} bytes, {bad} bad", file=sys.stderr)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
