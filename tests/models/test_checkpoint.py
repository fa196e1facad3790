"""A checkpoint that is stored quantised is loaded so, whether or not the job asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.simulate import simulate
from memlint.job import Lora, Origin, Quantization, Training, TrainingJob, replace_fields
from memlint.models.catalog import QUANTIZATIONS
from memlint.models.checkpoint import as_stored, stored_quantization
from memlint.models.resolve import resolve_model
from memlint.records import replace

PLAIN, PACKED = "meta-llama/Llama-3.1-8B", "unsloth/Meta-Llama-3.1-8B-bnb-4bit"


def job(model: str, **changes: Any) -> TrainingJob:
    asked = TrainingJob(model=model, training=Training(method="lora", lora=Lora()))
    asked = replace_fields(asked, changes)
    found = resolve_model(model, base_dir="/", settings_models={}, search_root="/", offline=True).architecture
    assert found is not None
    return as_stored(replace(asked, architecture=found), found)


def test_lora_on_a_4_bit_checkpoint_is_qlora() -> None:
    found = job(PACKED)
    assert found.training.method == "qlora"
    assert found.training.quantization is not None and found.training.quantization.type == "nf4"
    assert any("stored in nf4" in sentence for sentence in found.assumptions)
    packed, plain = simulate(found), simulate(job(PLAIN))
    assert packed.static["parameters"] < plain.static["parameters"] / 3


def test_a_job_that_says_the_same_is_left_as_it_is() -> None:
    own = Quantization(kbit_preparation=False)
    asked = job(PACKED, **{"training.method": "qlora", "training.quantization": own})
    assert asked.training.quantization == own
    assert not asked.assumptions


def test_the_checkpoints_format_wins_over_another_one() -> None:
    """transformers quantizers/auto.py, merge_quantization_configs."""
    own = Quantization(bits=8, type="int8", kbit_preparation=False)
    found = job(PACKED, **{"training.quantization": own}).training.quantization
    assert found is not None
    assert (found.type, found.bits, found.kbit_preparation) == ("nf4", 4, False)


def test_full_finetuning_is_left_alone() -> None:
    found = job(PACKED, **{"training.method": "full"})
    assert found.training.quantization is None
    assert any("refuses to train" in sentence for sentence in found.assumptions)


def test_llama_factory_prepares_nothing_and_a_script_of_ones_own_does() -> None:
    for framework, prepared in (("llamafactory 0.9.6", False), ("native", True)):
        found = job(PACKED, framework=framework).training.quantization
        assert found is not None and found.kbit_preparation is prepared


@pytest.mark.parametrize(("name", "kind"), [("nf4", "nf4"), ("gptq", "gptq"), ("awq", "awq"), ("nvfp4", "nvfp4")])
def test_every_format_of_the_catalog_is_known(name: str, kind: str) -> None:
    found = stored_quantization(QUANTIZATIONS[name])
    assert found is not None and found.type == kind


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "mxfp4"},
        {"quant_method": 7},
        {"quant_method": ["gptq"], "bits": {}},
        {"llm_int8_skip_modules": 3},
    ],
)
def test_what_training_dequantises_or_nobody_knows_is_not_packed(config: dict[str, Any]) -> None:
    assert stored_quantization(config) is None


def test_nonsense_in_a_known_format_is_passed_over() -> None:
    found = stored_quantization({"quant_method": "gptq", "bits": "four", "modules_to_not_convert": [1, "gate"]})
    assert found is not None
    assert (found.bits, found.skip) == (4, ("lm_head", "gate"))


def test_an_unknown_shape_settles_the_dtype_alone() -> None:
    asked = replace_fields(TrainingJob(model="m"), {"training.precision.weights": "auto"})
    assert as_stored(asked, None).training.precision.weights == "bf16"


@pytest.mark.parametrize(
    ("model", "objective", "length"),
    [
        ("google-bert/bert-base-uncased", "masked-lm", 512),
        ("google/flan-t5-large", "seq2seq-lm", 2048),
        ("facebook/bart-large", "seq2seq-lm", 1024),
        ("openai/whisper-large-v3", "seq2seq-lm", 448),
        ("gpt2", "causal-lm", 2048),
    ],
)
def test_a_model_is_trained_for_what_it_can_do_where_nothing_is_stated(model: str, objective: str, length: int) -> None:
    found = job(model)
    assert (found.training.objective, found.training.sequence_length) == (objective, length)
    assert simulate(found).allocated_bytes > 0


def test_what_the_file_states_stands() -> None:
    stated = {"training.objective": Origin(file="a.yaml"), "training.sequence_length": Origin(file="a.yaml")}
    found = job("google-bert/bert-base-uncased", origins=stated)
    assert (found.training.objective, found.training.sequence_length) == ("causal-lm", 2048)


@pytest.mark.parametrize(("stated", "group"), [(32, 32), (-1, -1), (None, 128), ("128", 128), (0, 128)])
def test_a_packed_checkpoint_says_how_many_inputs_share_a_scale(stated: Any, group: int) -> None:
    found = stored_quantization({"quant_method": "gptq", "bits": 4, "group_size": stated})
    assert found is not None and found.group_size == group
