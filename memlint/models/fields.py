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
    """integer, number, boolean, string, object, or a list of them: integers, strings."""
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
            "integers": f"a list of at most {MAX_LAYERS} whole numbers from {self.low} to {self.high}",
            "object": "a mapping",
        }
        return words[self.type]


_REQUIRED_WIDTH = Kind("integer", 1, MAX_WIDTH, nullable=False, lists=True)
_WIDTH = Kind("integer", 0, MAX_WIDTH, lists=True)
_INNER = Kind("integer", 0, MAX_INNER, lists=True)
_LAYERS = Kind("integer", 1, MAX_LAYERS, nullable=False)
_MAYBE_LAYERS = Kind("integer", 0, MAX_LAYERS, lists=True)
_HEADS = Kind("integer", 1, MAX_HEADS, nullable=False, lists=True)
_KV_HEADS = Kind("integer", 0, MAX_HEADS, lists=True)
_HEAD_DIM = Kind("integer", 0, MAX_HEADS, lists=True)
_VOCABULARY = Kind("integer", 1, MAX_VOCABULARY)
_POSITIONS = Kind("integer", -1, MAX_POSITIONS)
_EXPERTS = Kind("integer", 0, MAX_HEADS, lists=True)
_RATE = Kind("number", 0, 1)
_FACTOR = Kind("number", 0, MAX_HEADS, lists=True)
_COUNT = Kind("integer", 0, MAX_LAYERS)
_INDEXES = Kind("integers", -MAX_LAYERS, MAX_LAYERS)
_SIZE = Kind("integer", 1, MAX_WIDTH, lists=True)
_WINDOW = Kind("integer", -1, MAX_POSITIONS, lists=True)
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
            " max_source_positions max_target_positions original_max_position_embeddings max_relative_positions"
            " num_position_embeddings position_buckets relative_attention_num_buckets",
        ),
        (_WINDOW, "window_size local_attention"),
        (
            _COUNT,
            "attn_layer_offset attn_layer_period expert_layer_offset expert_layer_period decoder_sparse_step"
            " interleave_moe_layer_step no_rope_layer_interval num_global_layers num_ln_in_parallel_attn"
            " moe_layer_interval moe_layer_start_index cross_attention_interval max_num_tiles",
        ),
        (Kind("integer", -MAX_LAYERS, MAX_LAYERS), "max_window_layers moe_layer_end_index"),
        (
            _INDEXES,
            "attn_layer_indices cross_attention_layers deepstack_visual_indexes full_attn_idxs"
            " fullatt_block_indexes intermediate_layers_indices moe_layers no_rope_layers layers_num_experts",
        ),
        (
            Kind("integer", -1, MAX_INNER, lists=True),
            "chunk_size mamba_chunk_size mamba_d_ssm mamba_d_conv mamba_n_groups n_groups conv_kernel"
            " linear_conv_kernel_dim conv_kernel_size conv_groups attention_head_size rotary_dim moe_latent_size"
            " mm_tokens_per_image out_hidden_size projection_size vision_output_dim num_channels in_channels"
            " num_mel_bins num_labels task_type_vocab_size temporal_patch_size spatial_merge_size",
        ),
        (_SIZE, "image_size patch_size"),
        (_FACTOR, "partial_rotary_factor rotary_pct mlp_ratio expansion_ratio downsample_ratio scale_factor expand"),
        (Kind("number", 0, MAX_HEADS), "mamba_expand attn_logit_softcapping final_logit_softcapping"),
        (
            _EXPERTS,
            "num_experts num_local_experts n_routed_experts num_experts_per_tok n_shared_experts moe_topk"
            " moe_num_experts moe_top_k top_k_experts n_group topk_group",
        ),
        (
            _RATE,
            "attention_dropout hidden_dropout attn_pdrop resid_pdrop embd_pdrop hidden_dropout_prob dropout"
            " attention_probs_dropout_prob activation_dropout dropout_rate embedding_dropout classifier_dropout"
            " pooler_dropout cls_dropout resid_dropout residual_dropout seq_classif_dropout mlp_dropout",
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
