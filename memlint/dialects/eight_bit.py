"""What HF's Trainer tells bitsandbytes' 8-bit optimizers: embeddings keep states of 32 bits."""

from __future__ import annotations

from memlint.dialects.base import JobDraft
from memlint.dialects.values import version_tuple

EIGHT_BIT = frozenset(
    (
        "adamw_bnb_8bit", "adamw_8bit", "ademamix_8bit", "lion_8bit", "paged_adamw_8bit", "paged_ademamix_8bit",
        "paged_lion_8bit", "rmsprop_bnb_8bit",
    )
)  # fmt: skip
"""OptimizerNames of transformers 5.24 that are bitsandbytes' with ``optim_bits`` 8 (trainer_optimizer.py)."""
SINCE = (4, 52)
"""Up to 4.51 the Trainer looked for a class called ``Adam8bit``, which none of these was."""


def read_embedding_states(draft: JobDraft, name: str | None, transformers: str | None) -> None:
    """Set ``training.fp32_embedding_states`` for the optimizer ``name`` (OptimizerNames) of the Trainer.

    transformers 5.24 trainer.py create_optimizer: register_module_override(module, "weight", {"optim_bits": 32}) for
    every ``nn.Embedding``.
    """
    version = version_tuple(transformers)
    if name in EIGHT_BIT and (not version or version >= SINCE):
        source = "transformers 5.24: trainer.py create_optimizer"
        draft.set("training.fp32_embedding_states", True, default=source)
