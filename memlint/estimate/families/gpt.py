"""Which module models which type of the family ``gpt2``."""

from __future__ import annotations

from memlint.estimate.build import Build
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.decoder import Body, DecoderModel
from memlint.job import TrainingJob

MODULES = {
    "gpt2": "gpt2",
    "gpt-sw3": "gpt2",
    "bert-generation": "bert_generation",
    "gpt_neox": "gpt_neox",
    "phi": "gpt_neox",
    "opt": "opt",
    "bloom": "bloom",
    "falcon": "falcon",
    "gptj": "gptj",
    "codegen": "gptj",
    "gpt_neo": "gpt_neo",
    "gpt_bigcode": "gpt_bigcode",
    "mpt": "mpt",
    "xglm": "fairseq_decoders",
    "biogpt": "fairseq_decoders",
    "openai-gpt": "early_gpt",
    "ctrl": "early_gpt",
    "modernbert-decoder": "modernbert_decoder",
    "persimmon": "persimmon",
}
"""model_type -> module of this package that holds its ``Model``; modules load on first use."""


def build(job: TrainingJob, b: Build, env: Env) -> DecoderModel:
    """Build a model of the GPT-2 family. Raises Unsupported for a type that has no module."""
    assert job.architecture is not None
    module = MODULES.get(job.architecture.model_type)
    if module is None:
        raise Unsupported(f"no memory model for `{job.architecture.model_type}` yet")
    from importlib import import_module

    body: Body = import_module(f"memlint.estimate.families.{module}").Model
    return DecoderModel(job, b, env, body)
