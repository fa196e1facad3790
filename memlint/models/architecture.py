"""The shape of a model: everything the estimator needs to know of a Hugging Face config."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model's shape, read from its HF config with transformers' class defaults filled in.

    ``config`` keeps the full resolved mapping (standard attribute names: ``hidden_size`` also where the class calls
    it ``n_embd``); the typed fields are those every family has. Family code in ``memlint/estimate/families`` reads
    its own fields from ``config`` through :meth:`get`.
    """

    id: str | None
    """Hugging Face ID or path, for messages."""
    model_type: str
    """``model_type`` of the HF config."""
    family: str
    """Key into the family registry (``memlint.estimate.families``); ``unknown`` where only the nearest shape serves."""
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    config: Mapping[str, Any]
    dtype: str | None = None
    """Checkpoint dtype stated by the config (fp32, bf16, fp16), None when it says nothing."""
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = False
    source: str = "inline"
    """inline, path, settings, project, cache, catalog or hub."""
    approximate: str | None = None
    """Why this shape is only the nearest one (unknown model_type); None when exact."""
    traits: frozenset[str] = frozenset()
    """What the model's own code on the hub does unlike the class it is computed as; names in ``models/traits.py``."""
    quantization: Mapping[str, Any] | None = None
    """``quantization_config`` of the checkpoint."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field of the HF config, or ``default`` when absent or null."""
        value = self.config.get(name)
        return default if value is None else value
