"""Model types that transformers gives no flash attention: a run that asks for it ends where it loads its model.

Source: ``_supports_flash_attn`` of the types' classes and ``_flash_attn_can_dispatch`` in modeling_utils.py, which
raises ValueError, of transformers 5.24 (tests/estimate/test_flash_refused.py asks them).
"""

from __future__ import annotations

from memlint.estimate.versions import before
from memlint.job import TrainingJob

REFUSED = frozenset(
    (
        "bloom",
        "convbert",
        "deberta",
        "deberta-v2",
        "deepseek_v32",
        "glm_moe_dsa",
        "layoutlm",
        "llama4",
        "llama4_text",
        "longt5",
        "megatron-bert",
        "mpnet",
        "mpt",
        "mt5",
        "mvp",
        "nystromformer",
        "openai-gpt",
        "rembert",
        "roformer",
        "squeezebert",
        "switch_transformers",
        "t5",
        "umt5",
        "xglm",
    )
)
"""Types of text. Images' are left out: frameworks bring code of their own for some."""

OWN_CODE = ("litgpt", "torchtune")
"""Frameworks that run their own models."""


def refused(job: TrainingJob) -> str | None:
    """Why the job does not run as it is, in a sentence; None where it may."""
    a = job.architecture
    if job.training.attention != "flash" or a is None or a.model_type not in REFUSED:
        return None
    if job.framework.partition(" ")[0] in OWN_CODE or before(job, "transformers", 5):
        return None
    return (
        f"transformers 5.24 has no flash attention for `{a.model_type}`: the run ends with a ValueError where it loads "
        "the model, and the prediction is what its code would take with one; choose `sdpa` or `eager`"
    )
