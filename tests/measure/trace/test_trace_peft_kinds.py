"""The simulation against traces of peft's own code, for its methods other than LoRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from memlint.estimate.simulate import run_step
from memlint.job import Lora, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

torch = pytest.importorskip("torch", reason="needs the measure extra")
peft = pytest.importorskip("peft", reason="needs the measure extra")

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}
PRECISIONS = {"bf16": ("bf16", None), "autocast": ("fp32", "bf16"), "frozen half": ("bf16", "bf16")}
TARGETS = ["q_proj", "v_proj"]
PAIR = ("q_proj", "v_proj")
KINDS: dict[str, tuple[Callable[[], Any], Lora | None, float]] = {
    "ia3": (lambda: peft.IA3Config(), Lora(targets="default"), 0.001),
    "oft": (lambda: peft.OFTConfig(target_modules="all-linear"), Lora(targets="all-linear"), 0.001),
    "vera": (lambda: peft.VeraConfig(target_modules=TARGETS), Lora(targets=PAIR, rank=256), 0.001),
    "loha": (lambda: peft.LoHaConfig(target_modules=TARGETS), Lora(targets=PAIR, rank=8), 0.015),
    "lokr": (lambda: peft.LoKrConfig(target_modules=TARGETS), Lora(targets=PAIR, rank=8), 0.001),
    "adalora": (
        lambda: peft.AdaLoraConfig(target_modules=TARGETS, total_step=100),
        Lora(targets=PAIR, rank=12),
        0.02,
    ),
    "prompt": (lambda: peft.PromptTuningConfig(num_virtual_tokens=20), None, 0.015),
    "prefix": (lambda: peft.PrefixTuningConfig(num_virtual_tokens=20), None, 0.01),
}
"""Method -> peft's config, the job's, and how far the peak may be off (what is not followed: AdaLoRA's orthogonal
regularisation, the gradient of a prefix, a prompt's masks)."""
CASES = [
    *[(kind, "bf16", "none") for kind in KINDS],
    ("ia3", "autocast", "none"),
    ("oft", "autocast", "reentrant"),
    ("oft", "frozen half", "nonreentrant"),
    ("vera", "frozen half", "reentrant"),
    ("lokr", "autocast", "none"),
    ("loha", "frozen half", "nonreentrant"),
    ("prompt", "frozen half", "nonreentrant"),
]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft 0.21 under transformers 5.24
@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
@pytest.mark.parametrize(("kind", "precision", "checkpointing"), CASES)
def test_peak_is_that_of_pefts_own_code(kind: str, precision: str, checkpointing: str) -> None:
    from memlint.measure.trace import run
    from memlint.measure.trace.settings import LoraSettings, TraceSettings

    make, lora, bound = KINDS[kind]
    weights, autocast = PRECISIONS[precision]

    def add(model: Any, lora: Any) -> Any:
        config = make()
        config.task_type = "CAUSAL_LM"
        return peft.get_peft_model(model, config)

    settings = TraceSettings(
        batch=2, seq=128, weights=weights, autocast=autocast, lora=LoraSettings(), checkpointing=checkpointing
    )
    with mock.patch.object(run, "add_lora", add):
        traced = run.trace(CONFIG, settings, every_layer=True)
    architecture = read_config(CONFIG)
    assert isinstance(architecture, Architecture)
    job = replace_fields(
        TrainingJob(model="tiny", architecture=architecture),
        {
            "training.precision.weights": weights,
            "training.precision.autocast": autocast,
            "training.method": kind,
            "training.lora": lora,
            "training.sequence_length": 128,
            "training.micro_batch_size": 2,
            "training.checkpointing.mode": "none" if checkpointing == "none" else "full",
            "training.checkpointing.reentrant": checkpointing == "reentrant",
        },
    )
    step = run_step(job)
    assert sum(r.count * r.numel for r in step.build.records if r.trainable) == traced.trainable_parameters
    peak = max(phase.peak_bytes for phase in step.timeline)
    assert peak == pytest.approx(traced.peak_bytes, rel=bound)
