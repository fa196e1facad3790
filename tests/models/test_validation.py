"""What a HF config may say: the fast gate, the JSON Schema behind the explanations, and sizes that contradict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from benchmarks.generate.hf_config_schema import text as generated_schema
from memlint.models.config import read_config
from memlint.models.fields import FIELDS, MAX_DEPTH
from memlint.models.validate import accepts, explain
from memlint.resources import schema_text

VALIDATOR = Draft202012Validator(json.loads(schema_text("hf-config")))

SOUND: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "llama", "num_key_value_heads": None, "sliding_window": None, "rope_scaling": None},
    {"model_type": "llama", "hidden_size": 4096.0},
    {"model_type": "gemma3n_text", "intermediate_size": [16384, 8192]},
    {"model_type": "llava", "text_config": {"hidden_size": 64}, "vision_config": None},
    {"model_type": "jamba", "layer_types": ["mamba", "attention"]},
    {"model_type": "x", "unknown_field": {"nested": ["anything", -5]}},
]

BROKEN: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({}, (), "`model_type` is missing"),
    ({"model_type": None}, ("model_type",), "a text"),
    ({"model_type": ""}, ("model_type",), "a text"),
    ({"model_type": 7}, ("model_type",), "a text"),
    ({"model_type": "llama", "hidden_size": "4096"}, ("hidden_size",), "a whole number from 1 to 1048576, got '4096'"),
    ({"model_type": "llama", "hidden_size": 4096.5}, ("hidden_size",), "a whole number"),
    ({"model_type": "llama", "hidden_size": True}, ("hidden_size",), "a whole number"),
    ({"model_type": "llama", "hidden_size": None}, ("hidden_size",), "a whole number"),
    ({"model_type": "llama", "hidden_size": -1}, ("hidden_size",), "got -1"),
    ({"model_type": "llama", "hidden_size": 10**30}, ("hidden_size",), "a whole number from 1 to 1048576"),
    ({"model_type": "llama", "num_hidden_layers": 1_000_000}, ("num_hidden_layers",), "from 1 to 10000"),
    ({"model_type": "llama", "num_hidden_layers": 0}, ("num_hidden_layers",), "from 1 to 10000"),
    ({"model_type": "llama", "num_attention_heads": 0}, ("num_attention_heads",), "from 1 to 65536"),
    ({"model_type": "llama", "vocab_size": 2**40}, ("vocab_size",), "from 1 to 16777216"),
    ({"model_type": "llama", "attention_dropout": 1.5}, ("attention_dropout",), "a number from 0 to 1"),
    ({"model_type": "llama", "tie_word_embeddings": "yes"}, ("tie_word_embeddings",), "true or false"),
    ({"model_type": "llama", "rope_scaling": 2.0}, ("rope_scaling",), "a mapping"),
    ({"model_type": "llama", "layer_types": "full"}, ("layer_types",), "a list"),
    ({"model_type": "llava", "text_config": {"hidden_size": -4}}, ("text_config", "hidden_size"), "got -4"),
    ({"model_type": "llava", "vision_config": [1]}, ("vision_config",), "a mapping"),
]


@pytest.mark.parametrize("config", SOUND, ids=json.dumps)
def test_sound_configs_pass_gate_and_schema(config: dict[str, Any]) -> None:
    assert accepts(config)
    assert VALIDATOR.is_valid(config)


@pytest.mark.parametrize(("config", "key", "words"), BROKEN, ids=[json.dumps(case[0]) for case in BROKEN])
def test_broken_configs_are_refused_at_their_key(config: dict[str, Any], key: tuple[str, ...], words: str) -> None:
    assert not accepts(config)
    assert not VALIDATOR.is_valid(config)
    problems = read_config(config)
    assert isinstance(problems, list)
    assert [problem.key for problem in problems] == [key]
    assert words in problems[0].message
    assert problems[0].code == "MEM003"


def test_every_problem_is_reported_at_once() -> None:
    problems = explain({"model_type": "llama", "hidden_size": -1, "vocab_size": "many"})
    assert [problem.key for problem in problems] == [("hidden_size",), ("vocab_size",)]


def test_a_number_that_json_cannot_express_is_refused() -> None:
    config = {"model_type": "llama", "attention_dropout": float("nan")}
    assert not accepts(config)
    assert [problem.key for problem in explain(config)] == [("attention_dropout",)]


def test_deep_nesting_is_refused_without_recursion() -> None:
    config: dict[str, Any] = {"model_type": "llama"}
    node = config
    for _ in range(MAX_DEPTH + 5000):
        node["inner"] = {}
        node = node["inner"]
    problems = read_config(config)
    assert isinstance(problems, list)
    assert "nested deeper" in problems[0].message


def test_an_explosion_of_aliases_is_refused() -> None:
    node: Any = [0] * 10
    for _ in range(9):
        node = [node] * 10
    problems = read_config({"model_type": "llama", "bomb": node})
    assert isinstance(problems, list)
    assert "values" in problems[0].message


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt_neo", "num_layers": 10_000, "attention_types": [[["global"] * 100_000, 10_000]]},
        {
            "model_type": "kimi_linear",
            "num_hidden_layers": 10_000,
            "linear_attn_config": {"full_attn_layers": [10**9] * 100_000},
        },
        {
            "model_type": "lfm2",
            "num_hidden_layers": 10_000,
            "num_attention_heads": 32,
            "full_attn_idxs": [9999] * 10_000,
        },
    ],
    ids=lambda config: str(config["model_type"]),
)
def test_long_lists_of_layers_are_read_in_linear_time_and_room(config: dict[str, Any]) -> None:
    """Products of two bounded sizes are not bounded: 8 GB of layer kinds, 10^9 comparisons."""
    from time import process_time

    start = process_time()
    read = read_config(config)
    assert process_time() - start < 2
    assert not isinstance(read, list), read[0].message


def test_layer_kinds_of_gpt_neo_are_written_out() -> None:
    read = read_config(
        {"model_type": "gpt_neo", "num_layers": 6, "attention_types": [[["global", "local"], 2], [["local"], 2]]}
    )
    assert not isinstance(read, list)
    assert read.get("attention_layers") == ["global", "local", "global", "local", "local", "local"]


@pytest.mark.parametrize("depths", [[10_000] * 4, [1] * 2000, [0] * 5000], ids=["deep", "long", "empty"])
@pytest.mark.parametrize("model_type", ["resnet", "convnext", "swin", "segformer"])
def test_image_networks_end_somewhere(model_type: str, depths: list[int]) -> None:
    """Every block of a stage is run: 40,000 of them take minutes."""
    problems = read_config({"model_type": model_type, "depths": depths, "hidden_sizes": [64] * len(depths)})
    assert isinstance(problems, list)
    assert [problem.key for problem in problems] == [("depths",)]


def test_a_number_too_long_for_a_message_is_refused() -> None:
    problems = read_config(
        {"model_type": "llama", "vision_config": {"x": [1, {"hidden_size": 10**5000}]}, "vocab_size": -1}
    )
    assert isinstance(problems, list)
    assert [(problem.key, problem.message) for problem in problems] == [
        (("vision_config", "x", 1, "hidden_size"), "`hidden_size` is a number of more than 1024 bits")
    ]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 5000),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-5, 10**7), st.text(max_size=3), st.none()), max_size=4),
    st.dictionaries(st.sampled_from(["hidden_size", "num_layers", "x"]), st.integers(-5, 10), max_size=2),
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*FIELDS, "something"]), VALUES, max_size=4))
def test_gate_and_schema_agree(config: dict[str, Any]) -> None:
    config.setdefault("model_type", "llama")  # without it both refuse whatever else there is
    assert accepts(config) == VALIDATOR.is_valid(config)
    assert accepts(config) or explain(config)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(
        [
            "llama",
            "gpt2",
            "gpt_neo",
            "t5",
            "jamba",
            "nemotron_h",
            "dbrx",
            "mpt",
            "kimi_linear",
            "falcon_h1",
            "llama4_text",
            "lfm2",
            "deepseek",
            "qwen",
            "paligemma",
            "unheard_of",
            "recurrent_gemma",
            "zamba",
        ]
    ),
    st.dictionaries(
        st.sampled_from(
            [
                "attention_types",
                "full_attn_idxs",
                "block_types",
                "linear_attn_config",
                "attn_layer_period",
                "n_shared_experts",
                "expert_layer_period",
                "no_rope_layers",
                "attn_config",
                "ffn_config",
                "partial_rotary_factor",
                "id2label",
                "hybrid_override_pattern",
                "sliding_window_pattern",
                "interleave_moe_layer_step",
                "mamba_n_heads",
                "max_window_layers",
                "text_config",
                "vision_config",
                "image_size",
                "patch_size",
                "expansion_ratio",
                "feed_forward_proj",
                "layer_types",
            ]
        ),
        VALUES,
        max_size=4,
    ),
)
def test_nonsense_in_fields_that_the_schema_does_not_know_never_raises(model_type: str, config: dict[str, Any]) -> None:
    read_config({"model_type": model_type, **config})


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        (
            {"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3},
            ("num_attention_heads",),
            "`num_attention_heads: 3` does not divide `hidden_size: 100`",
        ),
        ({"model_type": "gpt2", "n_head": 7}, ("n_head",), "`n_head: 7` does not divide `hidden_size: 768`"),
        (
            {"model_type": "llama", "num_key_value_heads": 5},
            ("num_key_value_heads",),
            "`num_key_value_heads: 5` does not divide `num_attention_heads: 32`",
        ),
        (
            {"model_type": "mixtral", "num_experts_per_tok": 9},
            ("num_experts_per_tok",),
            "`num_experts_per_tok: 9` exceeds `num_experts: 8`",
        ),
        ({"model_type": "deepseek_v2"}, (), "`num_experts_per_tok` is missing: `deepseek_v2` has no default for it"),
        (
            {"model_type": "gemma2", "num_hidden_layers": 3, "layer_types": ["full_attention"]},
            ("layer_types",),
            "`layer_types` is of length 1 where `num_hidden_layers` is 3",
        ),
        (
            {"model_type": "llava", "text_config": {"hidden_size": 100, "num_attention_heads": 3}},
            ("text_config", "num_attention_heads"),
            "`num_attention_heads: 3` does not divide `hidden_size: 100`",
        ),
    ],
)
def test_sizes_that_contradict_are_named(config: dict[str, Any], key: tuple[str, ...], message: str) -> None:
    problems = read_config(config)
    assert isinstance(problems, list)
    assert [(problem.key, problem.message) for problem in problems] == [(key, message)]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gemma", "hidden_size": 3000, "num_attention_heads": 16},
        {"model_type": "qwen3", "hidden_size": 1000, "num_attention_heads": 16, "num_key_value_heads": 8},
        {
            "model_type": "mistral",
            "hidden_size": 5120,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        {"model_type": "t5", "d_model": 500, "num_heads": 6},
        {"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 96},
        {"model_type": "mamba", "hidden_size": 770},
    ],
    ids=lambda config: str(config["model_type"]),
)
def test_heads_of_a_width_of_their_own_need_not_divide(config: dict[str, Any]) -> None:
    assert not isinstance(read_config(config), list)


def test_the_shipped_schema_is_the_one_the_table_gives() -> None:
    assert schema_text("hf-config") == generated_schema()


def test_a_sound_config_does_not_import_jsonschema() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from memlint.models.config import read_config; read_config({'model_type': 'llama'});"
        "from memlint.models.resolve import resolve_model;"
        "resolve_model('Qwen/Qwen3-8B', base_dir='.', settings_models={}, search_root='.', offline=True);"
        "bad = {'jsonschema', 'torch', 'transformers', 'requests', 'httpx', 'huggingface_hub', 'logging', 'difflib'}"
        " & set(sys.modules); print(sorted(bad))"
    )
    out = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[]"
