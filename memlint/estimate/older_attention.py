"""What older versions of transformers do around a fused attention kernel that today's do not.

Read in transformers 4.36.2, 4.45.2, 4.48.3, 4.52.4 to 4.55.4, 4.56.2 and 4.57.1 (models/*/modeling_*.py and
integrations/sdpa_attention.py).
"""

from __future__ import annotations

from memlint.estimate.versions import before
from memlint.job import TrainingJob

OWN = frozenset(("dbrx", "jamba", "nemotron", "olmoe", "phimoe", "qwen2_moe", "recurrent_gemma", "stablelm"))
"""Types with attention classes of their own until version 5; the others have shared functions since 4.48."""
QWEN2_VL = frozenset(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"))
"""Types with attention classes of their own until 4.53."""
REPEATING: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("mistral", "mixtral", "phi3", "qwen2", "starcoder2"), (4, 48)),
    **dict.fromkeys(QWEN2_VL, (4, 53)),
    **dict.fromkeys(("jamba", "phimoe", "qwen2_moe"), (5, 0)),
}
"""model_type -> the first version whose flash_attention_2 takes grouped heads as they are (``repeat_kv`` in
``<Type>FlashAttention2`` before).
"""


def repeats_heads(job: TrainingJob) -> bool:
    """Whether keys and values of grouped heads are repeated in Python, so that the kernel saves them at full width.

    With sdpa they were in every type before 4.54 (use_gqa_in_sdpa, which asks for torch 2.5), in those of OWN until 5;
    eager attention repeats them to this day.
    """
    architecture, attention = job.architecture, job.training.attention
    if architecture is None or not job.versions:
        return False
    if attention == "sdpa":
        first = (5, 0) if architecture.model_type in OWN else (4, 54)
        return before(job, "transformers", *first) or before(job, "torch", 2, 5)
    until = REPEATING.get(architecture.model_type)
    return attention == "flash" and until is not None and before(job, "transformers", *until)


def copies_queries(job: TrainingJob) -> bool:
    """Whether sdpa gets q, k and v as contiguous copies, from 4.48 to 4.55: flash then lays its output out as they are,
    and what the output projection gets is a copy (``transpose(1, 2).contiguous()``).
    """
    architecture = job.architecture
    if architecture is None or not job.versions or job.training.attention != "sdpa" or architecture.model_type in OWN:
        return False
    first = (4, 53) if architecture.model_type in QWEN2_VL else (4, 48)
    return before(job, "transformers", 4, 56) and not before(job, "transformers", *first)
