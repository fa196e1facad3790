"""Latent attention in LLM.int8(): a run of it ends in its first forward.

transformers 5.15 made the latents of keys and values four-dimensional (models/deepseek_v3/modeling_deepseek_v3.py
expand_kv gives ``kv_b_proj`` [B, 1, S, rank]); bitsandbytes flattens three dimensions and multiplies two or three
(0.50.2 autograd/_functions.py MatMul8bitLt.forward, backends/cuda/ops.py _int8_linear_matmul_impl).
"""

from __future__ import annotations

from memlint.estimate.flash_refused import OWN_CODE
from memlint.estimate.versions import before
from memlint.job import TrainingJob

LATENT = frozenset(
    (
        "axk1",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "kimi_linear",
        "longcat_flash",
        "minicpm3",
        "mistral4",
        "youtu",
    )
)
"""Types whose ``kv_b_proj`` is given four dimensions (tests/estimate/test_int8_refused.py reads their code)."""


def refused(job: TrainingJob) -> str | None:
    """Why the job does not run as it is, in a sentence; None where it may."""
    a, quantized = job.architecture, job.training.quantization
    if quantized is None or quantized.type != "int8" or a is None or a.model_type not in LATENT:
        return None
    if job.framework.partition(" ")[0] in OWN_CODE or before(job, "transformers", 5, 15):
        return None
    if any("kv_b_proj" in name for name in quantized.skip or ()):
        return None
    return (
        f"LLM.int8() does not run `{a.model_type}` of transformers 5.24, whose `kv_b_proj` is given four dimensions: "
        "the run ends with bitsandbytes' ValueError in its first forward, and the prediction is what it would take; "
        "quantise to 4 bits, or leave `kv_b_proj` out"
    )
