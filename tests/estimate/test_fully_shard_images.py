"""FSDP2 around image models: peaks of traces of PyTorch's own fully_shard as one rank of four.

Made like :data:`tests.estimate.vision_configs.PEAKS`, of two rows of 512 tokens with an image each, fp32 weights in
MixedPrecisionPolicy(bf16), AdamW; ``lora`` is rank 8 on every linear layer. torch 2.13, transformers 5.24.
"""

from __future__ import annotations

import pytest

from memlint.estimate.simulate import run_step
from memlint.job import Lora, Precision, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from tests.estimate.traced import phases_of
from tests.estimate.vision_configs import CONFIGS, FIXED, PIXELS

PEAKS = {
    ("llava", "lora"): {"forward": 209243648, "backward": 276968448},
    ("llava", "full"): {"forward": 274054656, "backward": 343482368, "optimizer": 140571648},
    ("qwen2_vl", "lora"): {"forward": 233784320, "loss": 300911104, "backward": 306147840},
    ("qwen2_vl", "full"): {"forward": 301106176, "loss": 368232960, "backward": 376399872, "optimizer": 148704256},
    ("idefics3", "lora"): {"forward": 209052160, "loss": 276178944, "backward": 282506752},
    ("internvl", "lora"): {"loss": 271450624, "backward": 277777408},
    ("mistral3", "lora"): {"backward": 294674944},
}
BOUND = 0.0022
"""CLIP's embeddings are a unit of their own, here counted in the root; elsewhere 0.02 %."""


def job(kind: str, method: str) -> TrainingJob:
    architecture = read_config(CONFIGS[kind])
    assert isinstance(architecture, Architecture), architecture
    fields = {
        "training.micro_batch_size": 2,
        "training.sequence_length": 512,
        "training.images": 1,
        "training.image_pixels": PIXELS.get(kind, FIXED),
        "training.optimizer": "adamw",
        "training.precision": Precision(weights="fp32", autocast="bf16"),
        "parallelism.strategy": "fsdp",
        "parallelism.gpus": 4,
    }
    if method == "lora":
        fields |= {"training.method": "lora", "training.lora": Lora(rank=8, targets="all-linear")}
    return replace_fields(TrainingJob(model=kind, architecture=architecture), fields)


@pytest.mark.parametrize(("kind", "method"), PEAKS)
def test_embedding_and_head_are_gathered_where_they_run(kind: str, method: str) -> None:
    phases = phases_of(run_step(job(kind, method), (8, 0), world=4))
    bound = BOUND if kind == "llava" else 0.0003
    for name, size in PEAKS[kind, method].items():
        assert phases[name] == pytest.approx(size, rel=bound), name


@pytest.mark.parametrize("kind", ["idefics3", "ovis2"])
def test_of_some_towers_the_attention_alone_is_a_unit(kind: str) -> None:
    """The rest of each layer stays gathered in the root: transformers' ``_no_split_modules`` name the attention."""
    build = run_step(job(kind, "lora"), (8, 0), world=4).build
    beside = sum(r.numel * r.count for r in build.records if "encoder.layers" in r.name and "att" not in r.name)
    assert build.sharding.units[0].gathered_bytes >= 2 * beside > 0


def test_ranks_add_nothing_to_a_whole_model() -> None:
    for kind in ("llava", "qwen2_vl"):
        made = job(kind, "lora")
        short, full = (phases_of(run_step(made, (8, 0), world=4, full=full)) for full in (False, True))
        assert short == full
