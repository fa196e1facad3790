"""docs/images-and-sound.md says which types have a memory model, and which have none yet."""

from __future__ import annotations

import os
import re

import pytest

from memlint.estimate.build import Build
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import registry
from memlint.estimate.families.vision_language import TOWERS
from memlint.job import TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "images-and-sound.md")
OBJECTIVES = ("causal-lm", "image-classification", "sequence-classification", "seq2seq-lm", "masked-lm")


def sections() -> dict[str, str]:
    with open(PAGE, encoding="utf-8") as file:
        parts = file.read().split("\n## ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def types(text: str) -> list[str]:
    return re.findall(r"`([a-z0-9_-]+)`", text)


MISSING = [kind for text in sections().values() for kind in types(text.partition("ot yet")[2])]


def test_every_tower_is_listed_and_nothing_else() -> None:
    listed = set(types(sections()["A language model with a tower"].partition("predicted.")[2].partition("Not yet")[0]))
    assert listed == {kind.partition(":")[0] for kind in TOWERS}


@pytest.mark.parametrize("kind", MISSING)
def test_what_is_said_to_be_missing_is(kind: str) -> None:
    architecture = read_config({"model_type": kind})
    if not isinstance(architecture, Architecture):
        return
    start = TrainingJob(model=kind, architecture=architecture)
    for objective in OBJECTIVES:
        job = replace_fields(start, {"training.objective": objective, "training.images": 1})
        with pytest.raises(Unsupported):
            registry.build_model(job, Build(job), Env.of(job, None))
