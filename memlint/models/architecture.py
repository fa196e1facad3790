"""The shape of a model: everything the estimator needs to know of a Hugging Face config."""

from __future__ import annotations

from typing import Any, Mapping

from memlint.records import dataclass, field

_COUNTED_FROM_PADDING = frozenset(
    ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "mpnet", "esm")
)
"""Types whose first position is ``padding_idx + 1`` (transformers 5.24 modeling_roberta.py and its like,
create_position_ids_from_input_ids), so that two rows of the table belong to no token: RoBERTa's 514 take 512 tokens."""

_ROWS_OF_NO_TOKEN = 2
"""``padding_idx`` is 1 in every published checkpoint of these types."""


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
    modules: Mapping[str, str] = field(default_factory=dict)
    """What the model's own code on the hub calls the linear layers of the class that it is computed as."""
    quantization: Mapping[str, Any] | None = None
    """``quantization_config`` of the checkpoint."""

    @property
    def longest_sequence(self) -> int | None:
        """Tokens that the model has positions for; None where it states no end."""
        positions = self.max_position_embeddings
        if positions is None or self.model_type not in _COUNTED_FROM_PADDING:
            return positions
        return max(1, positions - _ROWS_OF_NO_TOKEN)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field of the HF config, or ``default`` when absent or null."""
        value = self.config.get(name)
        return default if value is None else value
