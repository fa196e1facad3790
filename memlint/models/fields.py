"""Which values the fields of a HF config may have: the table behind the gate and behind the JSON Schema.

``schemas/hf-config.schema.json`` is written from this table by ``benchmarks/generate/hf_config_schema.py``; a test
keeps them the same. Limits are far beyond any published model; they exist because a config is untrusted input.
"""

from __future__ import annotations

from memlint.records import dataclass

MAX_WIDTH = 2**20
MAX_INNER = 2**22
MAX_LAYERS = 10_000
MAX_HEADS = 2**16
MAX_VOCABULARY = 2**24
MAX_POSITIONS = 2**31 - 1
MAX_DEPTH = 16
"""Nesting of mappings and lists (the deepest published config has 6)."""
MAX_VALUES = 200_000
"""Values in one config (the largest published one, with id2label of ImageNet-21k, has about 45,000)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field may hold."""

    type: str
    """integer, number, boolean, string, strings (a list of them) or object."""
    low: float = 0
    high: float = 0
    nullable: bool = True
    lists: bool = False
    """Whether a list of such numbers, one a layer, is allowed too."""

    def describe(self) -> str:
        """Return the words for a message: ``a whole number from 1 to 1048576``."""
        if self.type == "integer":
            return f"a whole number from {self.low} to {self.high}"
        if self.type == "number":
            return f"a number from {self.low} to {self.high}"
        words = {
            "boolean": "true or false",
            "string": "a text",
            "strings": f"a list of at most {MAX_LAYERS} texts",
            "object": "a mapping",
        }
        return words[self.type]


_REQUIRED_WIDTH = Kind("integer", 1, MAX_WIDTH, nullable=False, lists=True)
_WIDTH = Kind("integer", 1, MAX_WIDTH)
_INNER = Kind("integer", 0, MAX_INNER, lists=True)
_LAYERS = Kind("integer", 1, MAX_LAYERS, nullable=False)
_MAYBE_LAYERS = Kind("integer", 0, MAX_LAYERS)
_HEADS = Kind("integer", 1, MAX_HEADS, nullable=False, lists=True)
_KV_HEADS = Kind("integer", 0, MAX_HEADS, lists=True)
_HEAD_DIM = Kind("integer", 0, MAX_HEADS, lists=True)
_VOCABULARY = Kind("integer", 1, MAX_VOCABULARY, nullable=False)
_POSITIONS = Kind("integer", -1, MAX_POSITIONS)
_EXPERTS = Kind("integer", 0, MAX_HEADS, lists=True)
_RATE = Kind("number", 0, 1)
_FLAG = Kind("boolean")
_TEXT = Kind("string")
_TEXTS = Kind("strings")
_OBJECT = Kind("object")


def _table() -> dict[str, Kind]:
    groups: tuple[tuple[Kind, str], ...] = (
        (_REQUIRED_WIDTH, "hidden_size n_embd d_model"),
        (_WIDTH, "n_embed embedding_size word_embed_proj_dim embed_dim projection_dim lru_width hidden_dim"),
        (
            _INNER,
            "intermediate_size n_inner ffn_dim d_ff ffn_hidden_size encoder_ffn_dim decoder_ffn_dim"
            " moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size"
            " moe_shared_expert_intermediate_size intermediate_size_mlp ff_intermediate_size expert_ffn_hidden_size",
        ),
        (_LAYERS, "num_hidden_layers n_layer n_layers encoder_layers decoder_layers"),
        (_MAYBE_LAYERS, "num_layers num_decoder_layers depth num_nextn_predict_layers first_k_dense_replace"),
        (_HEADS, "num_attention_heads n_head n_heads encoder_attention_heads decoder_attention_heads"),
        (_KV_HEADS, "num_heads num_key_value_heads num_kv_heads multi_query_group_num n_head_kv linear_num_key_heads"),
        (_KV_HEADS, "linear_num_value_heads mamba_n_heads mamba_num_heads"),
        (
            _HEAD_DIM,
            "head_dim d_kv kv_channels qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim kv_lora_rank"
            " q_lora_rank linear_key_head_dim linear_value_head_dim mamba_head_dim mamba_d_state state_size"
            " ssm_state_size",
        ),
        (_VOCABULARY, "vocab_size"),
        (Kind("integer", 1, MAX_VOCABULARY), "padded_vocab_size"),
        (Kind("integer", 0, MAX_VOCABULARY), "type_vocab_size"),  # deberta-v3 states 0
        (
            _POSITIONS,
            "max_position_embeddings n_positions max_seq_len seq_length sliding_window attention_chunk_size"
            " max_source_positions max_target_positions original_max_position_embeddings",
        ),
        (
            _EXPERTS,
            "num_experts num_local_experts n_routed_experts num_experts_per_tok n_shared_experts moe_topk"
            " moe_num_experts moe_top_k n_group topk_group",
        ),
        (
            _RATE,
            "attention_dropout hidden_dropout attn_pdrop resid_pdrop embd_pdrop hidden_dropout_prob dropout"
            " attention_probs_dropout_prob activation_dropout dropout_rate embedding_dropout",
        ),
        (
            _FLAG,
            "tie_word_embeddings mlp_bias use_bias use_qkv_bias use_sliding_window is_encoder_decoder multi_query"
            " new_decoder_architecture parallel_attn alibi use_parallel_residual use_cache use_qk_norm",
        ),
        (_TEXT, "torch_dtype hidden_act hidden_activation activation_function"),
        (_TEXTS, "layer_types layers_block_type architectures mlp_layer_types"),
        (
            _OBJECT,
            "quantization_config rope_scaling rope_parameters text_config vision_config audio_config attn_config"
            " ffn_config thinker_config language_config llm_config",
        ),
    )
    table = {name: kind for kind, names in groups for name in names.split()}
    table["model_type"] = Kind("string", nullable=False)
    return table


FIELDS: dict[str, Kind] = _table()

PARTS = ("text_config", "vision_config", "audio_config", "thinker_config", "language_config", "llm_config")
"""Sub-configs that are read as configs of their own."""
