"""litgpt's own model settings (litgpt/config.py) for a Hugging Face architecture.

litgpt runs one GPT class for every checkpoint; what transformers calls a family is a set of flags here.
"""

from __future__ import annotations

from memlint.estimate.versions import version_of
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.records import dataclass

OTHERS = ("gpt_neox", "falcon", "phi")
"""Model types that litgpt runs with LayerNorm and GptNeoxMLP, modelled here."""
GATED = ("llama", "mistral", "ministral", "qwen2", "gemma", "gemma2", "phi3", "smollm3")
"""Model types that litgpt runs with RMSNorm and a gated MLP (LLaMAMLP, GemmaMLP)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The fields of litgpt.config.Config that decide on memory."""

    n_layer: int
    n_embd: int
    n_head: int
    n_query_groups: int
    head_size: int
    intermediate_size: int
    padded_vocab_size: int
    rope_n_elem: int
    rms_norm: bool
    gated: bool
    bias: bool = False
    attention_bias: bool = False
    lm_head_bias: bool = False
    parallel_residual: bool = False
    shared_attention_norm: bool = False
    scale_embeddings: bool = False
    post_norms: bool = False
    attention_softcap: bool = False
    final_softcap: bool = False
    sliding_window: bool = False
    norm_in_fp32: bool = True
    """RMSNorm multiplies by the weight in fp32 and casts the product (lit-gpt of 2023 and litgpt from 0.4.4 on; 0.3 to
    0.4.3 cast first)."""
    softcaps_chunks: bool = True
    """lora.py up to 0.5.3 forgets the final soft-cap where lm_head is applied in pieces."""
    unit_offset: bool = False
    old_zero_pad: bool = False
    """LoRAQKVLinear.zero_pad of 2023: index_copy out of place, over a transposed copy."""
    stable_embedding: bool = False
    """From 0.5.0 on a quantised run replaces the embedding by bitsandbytes' StableEmbedding, which is trainable, after
    the optimizer was made (finetune/lora.py)."""
    keeps_inputs: bool = True
    """bitsandbytes up to 0.43 keeps the input of every 4-bit product in ``ctx.tensors`` (autograd/_functions.py)."""


def config_of(job: TrainingJob) -> Config:
    """Read litgpt's settings from a job; versions of litgpt and bitsandbytes decide on the differences above."""
    a = job.architecture
    assert a is not None
    kind = a.model_type
    heads = int(a.get("num_attention_heads"))
    head_size = int(a.get("head_dim") or a.hidden_size // heads)
    litgpt, bnb = version_of(job, "litgpt"), version_of(job, "bitsandbytes")
    gated = kind in GATED
    dated = bool(litgpt) and litgpt[0] > 2000
    return Config(
        n_layer=a.num_hidden_layers,
        n_embd=a.hidden_size,
        n_head=heads,
        n_query_groups=_query_groups(a, heads),
        head_size=head_size,
        intermediate_size=int(a.get("intermediate_size") or a.get("ffn_hidden_size") or 4 * a.hidden_size),
        padded_vocab_size=job.training.vocab_size or a.vocab_size,
        rope_n_elem=int(_rotary_share(a) * head_size),
        rms_norm=gated,
        gated=gated,
        bias=kind in ("gpt_neox", "phi"),
        attention_bias=kind in ("gpt_neox", "phi", "qwen2"),
        lm_head_bias=kind == "phi",
        parallel_residual=kind in ("falcon", "phi")
        or (kind == "gpt_neox" and bool(a.get("use_parallel_residual", True))),
        shared_attention_norm=kind == "phi" or (kind == "falcon" and not a.get("new_decoder_architecture", False)),
        scale_embeddings=kind.startswith("gemma"),
        post_norms=kind in ("gemma2", "gemma3_text"),
        attention_softcap=kind == "gemma2",
        final_softcap=kind == "gemma2",
        sliding_window=kind == "gemma2",
        norm_in_fp32=dated or not litgpt or litgpt >= (0, 4, 4),
        softcaps_chunks=not litgpt or litgpt > (0, 5, 3),
        unit_offset=kind.startswith("gemma"),
        old_zero_pad=dated,
        stable_embedding=job.training.quantization is not None and not dated and (not litgpt or litgpt >= (0, 5)),
        keeps_inputs=not bnb or bnb < (0, 44),
    )


def _query_groups(a: Architecture, heads: int) -> int:
    if a.model_type == "falcon":
        if a.get("new_decoder_architecture", False):
            return int(a.get("num_kv_heads", heads))
        return 1 if a.get("multi_query", True) else heads
    return int(a.get("num_key_value_heads", heads))


def _rotary_share(a: Architecture) -> float:
    rope = a.get("rope_parameters")
    inner = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    share = inner or a.get("partial_rotary_factor") or a.get("rotary_pct")
    if share is None:
        share = {"phi": 0.5, "gpt_neox": 0.25}.get(a.model_type, 1.0)
    return float(share)
