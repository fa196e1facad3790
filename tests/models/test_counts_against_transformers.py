"""A type that is not called approximate has exactly the parameters of transformers' own model."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.models.families import FAMILIES

pytestmark = pytest.mark.measure
transformers = pytest.importorskip("transformers", reason="needs the measure extra")
torch = pytest.importorskip("torch", reason="needs the measure extra")

DECODERS = [name for family in ("llama", "gpt2", "moe", "mla", "hybrid", "mamba") for name in FAMILIES[family]]

SIZES: dict[str, dict[str, Any]] = {
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "ministral": {"num_hidden_layers": 2, "head_dim": 128},
    "deepseek_v2": {"num_hidden_layers": 2, "num_experts_per_tok": 6},
    "nemotron_h": {},
    "zamba": {},
    "zamba2": {},
    "longcat_flash": {"num_layers": 1},
}
"""Where two layers of the class's own default size are not a config that the class accepts."""


@pytest.mark.parametrize("model_type", DECODERS)
def test_the_count_equals_that_of_the_real_model(model_type: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from memlint.estimate.errors import Unsupported
    from memlint.estimate.simulate import count_parameters

    if model_type not in CONFIG_MAPPING or model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        pytest.skip("transformers has no causal model of this name")
    config = {"model_type": model_type, **SIZES.get(model_type, {"num_hidden_layers": 2})}
    stated = {name: value for name, value in config.items() if name != "model_type"}
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        try:
            model = transformers.AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**stated))
        except (AttributeError, TypeError) as error:
            pytest.skip(f"transformers cannot build its own default config: {error}")
    architecture = read_config(json.loads(json.dumps(config)))
    assert isinstance(architecture, Architecture), architecture
    try:
        counted = count_parameters(architecture)
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert counted == sum(parameter.numel() for parameter in model.parameters())
