"""A HF config becomes an architecture as transformers' own class would read it."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import simulate
from memlint.job import Training, TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.config import part, read_config
from memlint.models.traits import ALIBI_MASK, CHATGLM, LOSS_IN_OWN_DTYPE, MASK_PER_LAYER, NORMED_HEAD, PACKED, SPLIT
from memlint.records import replace


def read(**config: Any) -> Architecture:
    found = read_config(config)
    assert isinstance(found, Architecture), found
    return found


def peak(architecture: Architecture) -> int:
    job = TrainingJob(model="m", architecture=architecture, training=Training(sequence_length=32))
    return simulate(job).allocated_bytes


TINY: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100}

VISION_LANGUAGE = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "llava",
    "llava_next",
    "idefics3",
    "paligemma",
    "gemma3",
    "mllama",
    "internvl",
    "mistral3",
    "llama4",
)

FAMILIES = {
    "llama": (
        "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi3 olmo olmo2 granite smollm3 starcoder2 cohere"
        " stablelm ernie4_5"
    ),
    "moe": "mixtral qwen2_moe qwen3_moe olmoe gpt_oss llama4_text glm4_moe phimoe minimax_m2",
    "mla": "deepseek_v2 deepseek_v3 minicpm3",
    "hybrid": "qwen3_next jamba granitemoehybrid bamba falcon_h1 qwen3_5_text qwen3_5_moe_text lfm2",
    "encoder": "bert roberta xlm-roberta deberta-v2 modernbert electra",
}


@pytest.mark.parametrize(
    ("family", "model_type"), [(family, name) for family, names in FAMILIES.items() for name in names.split()]
)
def test_every_family_reads_a_small_config(family: str, model_type: str) -> None:
    more = {"num_experts_per_tok": 2} if model_type == "deepseek_v2" else {}
    found = read(model_type=model_type, **TINY, **more, num_key_value_heads=4)
    assert found.family == family
    assert found.approximate is None
    assert (found.hidden_size, found.num_hidden_layers, found.vocab_size) == (64, 3, 100)
    assert found.get("num_attention_heads") == 4
    assert found.get("num_key_value_heads") == 4


@pytest.mark.parametrize(
    ("family", "model_type"),
    [
        (family, name)
        for family, names in {
            "gpt2": "gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom falcon phi mpt",
            "mamba": "mamba falcon_mamba mamba2",
            "encoder": "distilbert",
            "encoder-decoder": "t5 mt5 bart whisper",
            "vision": "vit clip_vision_model siglip_vision_model dinov2",
            "moe": "dbrx",
        }.items()
        for name in names.split()
    ],
)
def test_families_with_names_of_their_own_read_standard_names_too(family: str, model_type: str) -> None:
    found = read(model_type=model_type, **TINY)
    assert (found.family, found.approximate) == (family, None)
    assert (found.hidden_size, found.num_hidden_layers) == (64, 3)


@pytest.mark.parametrize(
    "model_type",
    VISION_LANGUAGE,
)
def test_models_of_text_and_vision_have_both_parts_without_any_statement(model_type: str) -> None:
    found = read(model_type=model_type)
    assert found.family == "vision-language"
    for name in ("text_config", "vision_config"):
        inner = part(found, name)
        assert inner is not None
        assert inner.hidden_size > 0
    assert found.hidden_size == found.config["text_config"]["hidden_size"]


@pytest.mark.parametrize("model_type", ["jetmoe", "step3p5"])
def test_a_type_that_is_only_near_says_what_is_not_modelled(model_type: str) -> None:
    found = read(model_type=model_type, **TINY, num_key_value_heads=4)
    assert found.family == "moe"
    assert found.approximate is not None
    assert found.approximate.startswith(f"`{model_type}` is computed as the nearest known shape: ")


def test_an_absent_field_takes_the_default_of_the_class() -> None:
    found = read(model_type="llama")
    assert (found.hidden_size, found.num_hidden_layers, found.vocab_size) == (4096, 32, 32000)
    assert found.get("intermediate_size") == 11008
    assert found.get("head_dim") == 128
    assert found.get("num_key_value_heads") == 32
    assert found.max_position_embeddings == 2048
    assert not found.tie_word_embeddings


def test_gemma_ties_its_head_and_has_heads_wider_than_its_model() -> None:
    found = read(model_type="gemma")
    assert found.tie_word_embeddings
    assert (found.hidden_size, found.get("num_attention_heads"), found.get("head_dim")) == (3072, 16, 256)


def test_a_stated_null_is_kept_and_is_not_the_default() -> None:
    assert read(model_type="mistral").get("sliding_window") == 4096
    assert read(model_type="mistral", sliding_window=None).get("sliding_window") is None


def test_the_names_of_gpt2_become_the_standard_names_and_stay_beside_them() -> None:
    found = read(model_type="gpt2", n_embd=1280, n_layer=36, n_head=20)
    assert (found.hidden_size, found.num_hidden_layers) == (1280, 36)
    assert found.get("hidden_size") == found.get("n_embd") == 1280
    assert found.get("intermediate_size") == 5120
    assert found.get("hidden_act") == "gelu_new"
    assert found.max_position_embeddings == 1024


def test_standard_names_are_understood_by_a_class_that_has_its_own() -> None:
    found = read(model_type="gpt2", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)
    assert (found.get("n_embd"), found.get("n_layer"), found.get("n_head")) == (1024, 24, 16)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "opt", "ffn_dim": 128}, {"intermediate_size": 128, "hidden_act": "relu"}),
        ({"model_type": "bloom", "n_embed": 64, "n_head": 8}, {"hidden_size": 64, "intermediate_size": 256}),
        ({"model_type": "gptj"}, {"intermediate_size": 16384, "num_attention_heads": 16}),
        ({"model_type": "gpt_neo"}, {"intermediate_size": 8192, "attention_layers": ["global", "local"] * 12}),
        ({"model_type": "gpt_bigcode"}, {"num_key_value_heads": 1, "intermediate_size": 3072}),
        ({"model_type": "gpt_bigcode", "multi_query": False}, {"num_key_value_heads": 12}),
        ({"model_type": "falcon"}, {"num_key_value_heads": 1, "intermediate_size": 18176, "head_dim": 64}),
        (
            {
                "model_type": "falcon",
                "new_decoder_architecture": True,
                "num_kv_heads": 8,
                "num_attention_heads": 128,
                "hidden_size": 8192,
            },
            {"num_key_value_heads": 8},
        ),
        ({"model_type": "mpt", "d_model": 64, "n_heads": 4}, {"hidden_size": 64, "intermediate_size": 256}),
        (
            {"model_type": "t5", "feed_forward_proj": "gated-gelu"},
            {"is_gated_act": True, "dense_act_fn": "gelu_new", "head_dim": 64},
        ),
        ({"model_type": "t5", "num_layers": 5}, {"num_decoder_layers": 5, "is_gated_act": False}),
        ({"model_type": "whisper"}, {"hidden_size": 384, "num_hidden_layers": 4, "intermediate_size": 1536}),
        ({"model_type": "dbrx"}, {"num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 1}),
        ({"model_type": "mamba", "hidden_size": 64}, {"intermediate_size": 128, "time_step_rank": 4}),
        ({"model_type": "deepseek_v3"}, {"qk_head_dim": 192, "num_experts_per_tok": 8, "num_local_experts": 256}),
        ({"model_type": "distilbert"}, {"hidden_size": 768, "num_hidden_layers": 6}),
        ({"model_type": "gpt_neox", "rotary_pct": 0.5}, {"partial_rotary_factor": 0.5}),
        ({"model_type": "stablelm"}, {"partial_rotary_factor": 0.25}),
        ({"model_type": "phi"}, {"partial_rotary_factor": 0.5}),
    ],
    ids=lambda value: value.get("model_type", "") if isinstance(value, dict) else "",
)
def test_computed_fields(config: dict[str, Any], expected: dict[str, Any]) -> None:
    found = read(**config)
    assert {name: found.get(name) for name in expected} == expected


class TestLayerTypes:
    def test_gemma2_alternates(self) -> None:
        kinds = read(model_type="gemma2", num_hidden_layers=4).get("layer_types")
        assert kinds == ["sliding_attention", "full_attention"] * 2

    def test_gemma3_follows_the_old_pattern_number(self) -> None:
        kinds = read(model_type="gemma3_text", num_hidden_layers=6, sliding_window_pattern=3).get("layer_types")
        assert kinds == (["sliding_attention"] * 2 + ["full_attention"]) * 2

    def test_qwen2_has_windows_only_where_they_are_switched_on(self) -> None:
        off = read(model_type="qwen2", num_hidden_layers=4, max_window_layers=2)
        assert off.get("layer_types") == ["full_attention"] * 4
        assert off.get("sliding_window") is None
        on = read(model_type="qwen2", num_hidden_layers=4, max_window_layers=2, use_sliding_window=True)
        assert on.get("layer_types") == ["full_attention"] * 2 + ["sliding_attention"] * 2

    def test_jamba_has_attention_every_eighth_layer(self) -> None:
        found = read(model_type="jamba", num_hidden_layers=8)
        assert found.get("layers_block_type") == ["mamba"] * 4 + ["attention"] + ["mamba"] * 3
        assert found.get("layers_num_experts") == [1, 16] * 4

    def test_nemotron_h_reads_its_pattern(self) -> None:
        found = read(model_type="nemotron_h", hybrid_override_pattern="M-M*E", num_hidden_layers=5)
        assert found.num_hidden_layers == 5
        assert found.get("layers_block_type") == [
            "linear_attention",
            "mlp",
            "linear_attention",
            "full_attention",
            "moe",
        ]

    def test_old_names_of_layer_types_are_renamed(self) -> None:
        found = read(model_type="granitemoehybrid", num_hidden_layers=2, layer_types=["mamba", "attention"])
        assert found.get("layer_types") == ["linear_attention", "full_attention"]

    def test_llama4_has_experts_in_every_nth_layer(self) -> None:
        found = read(model_type="llama4_text", num_hidden_layers=8, interleave_moe_layer_step=2)
        assert found.get("moe_layers") == [1, 3, 5, 7]
        assert found.get("no_rope_layers") == [1, 1, 1, 0] * 2

    def test_an_expert_mixture_of_deepseek_starts_dense(self) -> None:
        assert read(model_type="glm4_moe").get("first_k_dense_replace") == 1


class TestParts:
    """Models of several parts: sizes come from the language model."""

    def test_each_part_takes_the_defaults_of_its_own_class(self) -> None:
        found = read(model_type="gemma3", text_config={"hidden_size": 128, "num_hidden_layers": 2})
        assert found.family == "vision-language"
        assert (found.hidden_size, found.num_hidden_layers, found.vocab_size) == (128, 2, 262208)
        text, vision = part(found, "text_config"), part(found, "vision_config")
        assert text is not None
        assert vision is not None
        assert (text.model_type, text.family) == ("gemma3_text", "llama")
        assert (vision.model_type, vision.family, vision.hidden_size) == ("siglip_vision_model", "vision", 768)

    def test_a_part_names_its_own_type_where_the_class_lets_it(self) -> None:
        found = read(model_type="llava", text_config={"model_type": "mistral", "vocab_size": 32064})
        text = part(found, "text_config")
        assert text is not None
        assert text.model_type == "mistral"
        assert text.get("num_key_value_heads") == 8
        vision = part(found, "vision_config")
        assert vision is not None
        assert vision.get("image_size") == 336

    def test_old_qwen_vl_keeps_the_text_part_at_the_top(self) -> None:
        found = read(
            model_type="qwen2_vl",
            hidden_size=1536,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            vision_config={"hidden_size": 1536},
        )
        text, vision = part(found, "text_config"), part(found, "vision_config")
        assert text is not None
        assert vision is not None
        assert (found.hidden_size, text.hidden_size, vision.get("embed_dim")) == (1536, 1536, 1280)
        assert found.tie_word_embeddings

    def test_a_part_that_is_absent_is_none(self) -> None:
        assert part(read(model_type="llama"), "vision_config") is None


class TestRemoteCode:
    """Types that exist only as code on the hub are computed as what they resemble."""

    def test_internlm2_is_a_llama(self) -> None:
        found = read(model_type="internlm2", bias=False, **TINY)
        assert (found.model_type, found.family, found.approximate) == ("llama", "llama", None)

    def test_first_generation_qwen_counts_both_gated_halves(self) -> None:
        found = read(model_type="qwen", intermediate_size=22016, **TINY)
        assert (found.model_type, found.get("intermediate_size"), found.tie_word_embeddings) == ("qwen2", 11008, False)

    def test_chatglm_runs_as_its_own_code_says(self) -> None:
        found = read(
            model_type="chatglm",
            num_layers=3,
            hidden_size=64,
            num_attention_heads=4,
            padded_vocab_size=100,
            ffn_hidden_size=160,
            multi_query_group_num=2,
            kv_channels=16,
        )
        assert found.num_hidden_layers == 3
        assert found.get("num_key_value_heads") == 2
        assert found.approximate is None
        assert found.traits == {CHATGLM}

    def test_a_wrapper_around_a_language_model_has_its_sizes(self) -> None:
        found = read(
            model_type="deepseek_vl_v2", language_config={"model_type": "deepseek_v2", **TINY, "num_experts_per_tok": 6}
        )
        assert (found.model_type, found.family, found.get("hidden_size")) == ("deepseek_v2", "mla", 64)
        assert found.approximate is not None
        assert "image tower" in found.approximate

    def test_kimi_k2_is_deepseek_v3(self) -> None:
        assert read(model_type="kimi_k2").family == "mla"


class TestUnknown:
    def test_the_nearest_shape_of_the_fields_is_named(self) -> None:
        found = read(model_type="made_up", **TINY, num_local_experts=8, intermediate_size=128)
        assert found.family == "unknown"
        assert found.get("nearest_family") == "moe"
        assert found.approximate is not None

    def test_a_model_without_transformer_shape_is_no_mistake_of_the_user(self) -> None:
        problems = read_config({"model_type": "efficientnet"})
        assert isinstance(problems, list)
        assert [problem.code for problem in problems] == ["MEM004"]


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float16"}, "fp16"),
        ({"torch_dtype": "torch.float32"}, "fp32"),
        ({"torch_dtype": "auto"}, None),
        ({}, None),
    ],
)
def test_the_dtype_of_the_checkpoint(config: dict[str, Any], dtype: str | None) -> None:
    assert read(model_type="llama", **config).dtype == dtype


def test_the_dtype_may_stand_in_the_text_part() -> None:
    assert read(model_type="gemma3", text_config={"dtype": "bfloat16"}).dtype == "bf16"


def test_quantization_of_the_checkpoint_is_kept() -> None:
    found = read(model_type="llama", quantization_config={"quant_method": "awq", "bits": 4})
    assert found.quantization == {"quant_method": "awq", "bits": 4}


def test_labels_are_counted() -> None:
    assert read(model_type="bert").get("num_labels") == 2
    assert read(model_type="bert", id2label={str(i): str(i) for i in range(7)}).get("num_labels") == 7


def test_whole_floats_become_whole_numbers() -> None:
    assert read(model_type="llama", hidden_size=2048.0).hidden_size == 2048


@pytest.mark.parametrize("key", ["traits", "loss_in_own_dtype", "norm_head", "registered_causal_mask"])
def test_what_code_on_the_hub_does_is_no_config_field(key: str) -> None:
    """A config is untrusted: only its model_type says which code runs."""
    found = read(model_type="llama", **TINY, **{key: "abc"})
    assert found.traits == frozenset()
    assert peak(found) == peak(read(model_type="llama", **TINY))


def test_code_on_the_hub_has_traits_of_its_own() -> None:
    assert read(model_type="qwen", **TINY).traits == {LOSS_IN_OWN_DTYPE, SPLIT}
    rotary = {**TINY, "max_position_embeddings": 4096}
    assert read(model_type="baichuan", **rotary).traits == {LOSS_IN_OWN_DTYPE, PACKED}
    second = read(model_type="baichuan", **{**rotary, "vocab_size": 125696})
    assert second.traits == {LOSS_IN_OWN_DTYPE, PACKED, NORMED_HEAD}
    alibi = read(model_type="baichuan", **TINY, model_max_length=4096)
    assert alibi.traits == {LOSS_IN_OWN_DTYPE, PACKED, ALIBI_MASK}
    assert alibi.max_position_embeddings == 4096


def test_qwens_first_code_holds_a_mask_in_every_layer() -> None:
    plain = read(model_type="qwen", **TINY, seq_length=1024)
    masked = replace(plain, traits=plain.traits | {MASK_PER_LAYER})
    assert peak(masked) - peak(plain) == 3 * 1024 * 1024


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"model_type": "roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 1}, 1),
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "bloom"}, None),
    ],
    ids=lambda value: str(value.get("model_type")) if isinstance(value, dict) else "",
)
def test_roberta_and_its_like_give_two_positions_to_no_token(config: dict[str, Any], tokens: int | None) -> None:
    found = read_config(config)
    assert isinstance(found, Architecture)
    assert found.longest_sequence == tokens
