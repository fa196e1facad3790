"""What distinguishes the model types of the Llama shape from one another: a row of flags each.

Sources: transformers 5.24 models/<type>/modeling_<type>.py.
"""

from __future__ import annotations

from memlint.models.architecture import Architecture
from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What distinguishes one model type of this family from Llama."""

    norm: str = "llama"
    """llama, gemma (1 + weight, fp32), olmo2 (fp32 product), layer (nn.LayerNorm), plain (no weight), bare (LN, no
    bias), unit (RMS norm in fp32, no weight).
    """
    norms: str = "pre"
    """pre, post (olmo2: after each branch only), both (gemma2: before and after), parallel (cohere: one norm, two
    branches).
    """
    qkv_bias: bool | str = "attention_bias"
    """A constant, or the config field that says so."""
    o_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    qk_norm: str | None = None
    """head (per head_dim), heads (a weight for each head and feature), each (a layer norm for each head), full (over
    the whole projection), None."""
    fused_qkv: bool = False
    fused_gate: bool = False
    gated: bool = True
    embed_scale: bool = False
    branch_scale: bool = False
    """granite: residual + branch * multiplier."""
    softcap: bool = False
    """gemma2: tanh soft-capping of attention weights under eager."""
    rope_fp32: bool = False
    """olmo2: rotary tables stay fp32, so q and k are rotated in fp32 and cast back."""
    rope_upcast: bool = False
    """cohere: q and k are cast to fp32, rotated, cast back."""
    rope_cat: bool = False
    """phi3: rotated and passed-on parts are concatenated even when nothing is passed on."""
    rope_apart: bool = False
    """stablelm: the attention itself cuts queries and keys, and its names hold the parts until it returns."""
    rope_pairs: bool = False
    """glm, helium: neighbours are rotated together; each layer makes tables of its own from half of the shared ones."""
    rope_float: bool = False
    """ernie4_5: both factors of each product are cast to fp32, the result is cast back."""
    local_rope: bool = False
    """gemma3, olmo3: a second pair of rotary tables for local layers."""
    rope_rows: bool = False
    """qwen2_vl and later: each sequence has positions, and so rotary tables, of its own."""
    rope_only_local: bool = False
    """cohere2, exaone4: layers that see everything have no positions (exaone4: where there is a window at all)."""
    query_scale: bool = False
    """ministral3: queries are multiplied by a factor of their position after they are rotated."""
    norm_after_rope: bool = False
    """hunyuan: queries and keys are normed after they are rotated."""
    norm_names: tuple[str, ...] | None = None
    """Names of a block's norms where they are not those that ``norms`` usually has."""
    qk_names: tuple[str, str] = ("q_norm", "k_norm")
    out_name: str = "o_proj"
    inner_norms: bool = False
    """bitnet: a norm before the last projection of each branch."""
    mlp_names: tuple[str, str] = ("up_proj", "down_proj")
    """Projections of a feed-forward without gate."""
    residual_dropout: bool = False
    """Dropout after each branch (config field ``residual_dropout``)."""
    normed_embeddings: bool = False
    """nanochat: the last norm is applied before the first layer, too."""


SHAPES: dict[str, Shape] = {
    "llama": Shape(),
    "mistral": Shape(qkv_bias=False, o_bias=False, mlp_bias=False),
    "ministral": Shape(qkv_bias=False, o_bias=False, mlp_bias=False),
    "ministral3": Shape(qkv_bias=False, o_bias=False, mlp_bias=False, query_scale=True),
    "qwen2": Shape(qkv_bias=True, o_bias=False, mlp_bias=False),
    "qwen3": Shape(qk_norm="head", mlp_bias=False),
    "gemma": Shape(norm="gemma", mlp_bias=False, embed_scale=True),
    "gemma2": Shape(norm="gemma", norms="both", mlp_bias=False, embed_scale=True, softcap=True),
    "gemma3_text": Shape(norm="gemma", norms="both", qk_norm="head", mlp_bias=False, embed_scale=True, local_rope=True),
    "phi3": Shape(qkv_bias=False, o_bias=False, mlp_bias=False, fused_qkv=True, fused_gate=True, rope_cat=True),
    "olmo": Shape(norm="plain", mlp_bias=False, rope_fp32=True),
    "olmo2": Shape(norm="olmo2", norms="post", qk_norm="full", mlp_bias=False, rope_fp32=True),
    "granite": Shape(branch_scale=True, embed_scale=True),
    "granite_swa": Shape(branch_scale=True, embed_scale=True),
    "smollm3": Shape(),
    "starcoder2": Shape(
        norm="layer",
        qkv_bias="use_bias",
        o_bias="use_bias",
        mlp_bias="use_bias",
        gated=False,
        mlp_names=("c_fc", "c_proj"),
        residual_dropout=True,
    ),
    "cohere": Shape(norm="cohere", norms="parallel", mlp_bias=False, rope_upcast=True),
    "cohere:normed": Shape(norm="cohere", norms="parallel", qk_norm="heads", mlp_bias=False, rope_upcast=True),
    "olmo3": Shape(norm="olmo2", norms="post", qk_norm="full", mlp_bias=False, rope_fp32=True, local_rope=True),
    "cohere2": Shape(norm="cohere", norms="parallel", mlp_bias=False, rope_upcast=True, rope_only_local=True),
    "glm": Shape(o_bias=False, mlp_bias=False, fused_gate=True, rope_pairs=True, rope_cat=True),
    "glm4": Shape(
        o_bias=False,
        mlp_bias=False,
        fused_gate=True,
        rope_pairs=True,
        rope_cat=True,
        norms="both",
        norm_names=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    ),
    "glm4v_text": Shape(
        qkv_bias=True,
        o_bias=False,
        mlp_bias=False,
        fused_gate=True,
        rope_cat=True,
        rope_rows=True,
        norms="both",
        norm_names=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    ),
    "glm_ocr_text": Shape(
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        fused_gate=True,
        rope_cat=True,
        rope_rows=True,
        norms="both",
        norm_names=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    ),
    "exaone4": Shape(qkv_bias=False, o_bias=False, mlp_bias=False, norms="post", qk_norm="head", rope_only_local=True),
    "nemotron": Shape(norm="layer1p", gated=False, rope_cat=True),
    "seed_oss": Shape(o_bias="attention_out_bias", residual_dropout=True),
    "arcee": Shape(gated=False),
    "hunyuan_v1_dense": Shape(
        mlp_bias=False, qk_norm="head", norm_after_rope=True, qk_names=("query_layernorm", "key_layernorm")
    ),
    "ernie4_5": Shape(
        qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", rope_fp32=True, rope_pairs=True, rope_float=True
    ),
    "helium": Shape(norm="helium", o_bias=False, rope_pairs=True),
    "bitnet": Shape(mlp_bias=False, inner_norms=True),
    "apertus": Shape(
        mlp_bias=False, qk_norm="head", gated=False, norm_names=("attention_layernorm", "feedforward_layernorm")
    ),
    "cwm": Shape(qkv_bias=False, o_bias=False),
    "vaultgemma": Shape(
        norm="gemma",
        mlp_bias=False,
        embed_scale=True,
        softcap=True,
        norm_names=("input_layernorm", "pre_feedforward_layernorm"),
    ),
    "qwen2_vl_text": Shape(qkv_bias=True, o_bias=False, mlp_bias=False, rope_rows=True),
    "qwen2_5_vl_text": Shape(qkv_bias=True, o_bias=False, mlp_bias=False, rope_rows=True),
    "qwen2_5_omni_text": Shape(qkv_bias=True, o_bias=False, mlp_bias=False, rope_rows=True),
    "qwen3_vl_text": Shape(qk_norm="head", mlp_bias=False, rope_rows=True),
    "mllama_text_model": Shape(qkv_bias=False, o_bias=False, mlp_bias=False),
    "stablelm": Shape(norm="layer", rope_apart=True, qkv_bias="use_qkv_bias", o_bias=False, mlp_bias=False),
    "stablelm:parallel": Shape(
        norm="layer", rope_apart=True, norms="parallel", qkv_bias="use_qkv_bias", o_bias=False, mlp_bias=False
    ),
    "stablelm:normed": Shape(
        norm="layer", rope_apart=True, qk_norm="each", qkv_bias="use_qkv_bias", o_bias=False, mlp_bias=False
    ),
    "stablelm:parallel normed": Shape(
        norm="layer",
        rope_apart=True,
        norms="parallel",
        qk_norm="each",
        qkv_bias="use_qkv_bias",
        o_bias=False,
        mlp_bias=False,
    ),
    "hyperclovax": Shape(
        branch_scale=True,
        embed_scale=True,
        norms="both",
        norm_names=("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2"),
    ),
    "hyperclovax:plain": Shape(branch_scale=True, embed_scale=True),
    "diffllama": Shape(mlp_bias=False),
    "jais2": Shape(norm="layer", gated=False),
    "nanochat": Shape(
        norm="unit",
        qk_norm="head",
        norm_after_rope=True,
        gated=False,
        mlp_bias=False,
        mlp_names=("fc1", "fc2"),
        normed_embeddings=True,
    ),
}
"""model_type -> shape. A type missing here runs as Llama and is called approximate."""


_STABLELM = {
    (False, False): "stablelm",
    (True, False): "stablelm:parallel",
    (False, True): "stablelm:normed",
    (True, True): "stablelm:parallel normed",
}
"""StableLM 2 12B runs attention and feed-forward side by side and normalises each head."""


def shape_of(a: Architecture) -> Shape:
    """The row of a model type; Llama's where there is none."""
    if a.model_type == "hyperclovax" and not a.get("use_post_norm", False):
        return SHAPES["hyperclovax:plain"]
    if a.model_type == "cohere" and a.get("use_qk_norm", False):
        return SHAPES["cohere:normed"]
    if a.model_type == "stablelm":
        return SHAPES[_STABLELM[bool(a.get("use_parallel_residual", False)), bool(a.get("qk_layernorm", False))]]
    return SHAPES.get(a.model_type, SHAPES["llama"])


def scaled_inside(a: Architecture, s: Shape) -> bool:
    """Whether the embedding module itself scales its output (Gemma's, minicpm3's; not granite's)."""
    return s.embed_scale and ("gemma" in a.model_type or a.model_type == "minicpm3")


def flag(a: Architecture, setting: bool | str) -> bool:
    """Resolve a flag that is a constant or the name of a config field."""
    return bool(a.get(setting, False)) if isinstance(setting, str) else setting
