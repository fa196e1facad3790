"""A model's parameters come in the order of the real module's, which optimizers step over.

Adafactor keeps the update of the parameter before, CAME the matrix before: what stands before the largest one counts.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest

from benchmarks.accuracy.grid_models import HEADED, TYPES
from memlint.estimate.build import Build
from memlint.estimate.env import Env
from memlint.estimate.families import registry
from memlint.job import Training, TrainingJob
from memlint.models.families import FAMILIES
from tests.estimate.traced import architecture, points

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.24")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

SMALL_ELSEWHERE = frozenset(
    {
        "albert", "bert", "codegen", "convbert", "ctrl", "data2vec-text", "deberta", "deberta-v2", "diffllama",
        "electra", "ernie", "esm", "gemma3n_text", "gemma4", "gte", "jina_embeddings_v3", "layoutlm",
        "megatron-bert", "mobilebert", "mpnet", "nomic_bert", "nystromformer", "persimmon", "phi", "phi3",
        "rembert", "roberta", "roberta-prelayernorm", "roformer", "squeezebert", "t5gemma", "xlm-roberta",
        "xlm-roberta-xl", "zamba2",
    }
)  # fmt: skip
"""Types whose norms, biases and small tables, or matrices of one size, stand elsewhere among their neighbours."""


HEADS = {
    "causal-lm": "causal",
    "masked-lm": "mlm",
    "sequence-classification": "seqcls",
    "token-classification": "tokcls",
    "seq2seq-lm": "seq2seq",
}


def models() -> list[tuple[str, str, dict[str, Any]]]:
    """Model type, objective and a small config of every type that the grid of comparisons or a traced run has."""
    causal = [(kind, "causal-lm", fields) for kind, fields in TYPES.items()]
    found = causal + [(kind, objective, fields) for kind, (objective, fields) in HEADED.items()]
    known = {kind for kind, _, _ in found}
    for name in ("experts", "hybrid", "further", "recent", "text", "decoders", "encoders", "seq2seq"):
        for run in points(f"traces_{name}.jsonl"):
            kind, head = run["config"]["model_type"], run.get("head", "causal")
            if kind not in known | {"whisper"} and head in HEADS.values() and kind in CONFIG_MAPPING:
                known.add(kind)
                objective = next(key for key, value in HEADS.items() if value == head)
                found.append((kind, objective, {**run["config"]}))
    return found


def ours(config: dict[str, Any], objective: Any) -> list[int]:
    """Elements of each parameter of the model here."""
    training = Training(objective=objective, sequence_length=32, target_sequence_length=16)
    job = TrainingJob(model="ordered", architecture=architecture(config), training=training)
    build = Build(job)
    build.run_all_layers = True
    registry.build_model(job, build, Env.of(job, (8, 0)))
    return [record.numel for record in build.records for _ in range(record.count)]


def theirs(config: dict[str, Any], head: str) -> list[int]:
    """Elements of each parameter of transformers' module."""
    from memlint.measure.trace.build import make_config, make_model

    made = make_config(config)
    model = make_model(made, head=head, dtype=torch.float32, attention="eager", device="meta")
    return [prod(parameter.shape) for parameter in model.parameters()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "objective", "fields"), models(), ids=[f"{m[0]} {m[1]}" for m in models()])
def test_parameters_come_in_the_order_of_the_real_module(kind: str, objective: str, fields: dict[str, Any]) -> None:
    config = {**fields, "model_type": kind}
    found, real = ours(config, objective), theirs(config, HEADS[objective])
    assert Counter(found) == Counter(real)
    if kind not in SMALL_ELSEWHERE:
        assert found == real


def test_mixtures_stand_in_order() -> None:
    assert not SMALL_ELSEWHERE & {*FAMILIES["moe"], *FAMILIES["mla"]}


def test_a_pattern_of_layers_makes_the_layers_that_it_names() -> None:
    """Nemotron-H computes ``hybrid_override_pattern``, yet makes its kinds of layers of what is given as such."""
    from memlint.measure.trace.build import make_config

    made = make_config({"model_type": "nemotron_h", "hybrid_override_pattern": "M-*-"})
    assert made.layer_types == ["linear_attention", "mlp", "full_attention", "mlp"]
