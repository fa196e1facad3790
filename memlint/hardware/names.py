"""The form in which names of GPUs and instances are compared."""

from __future__ import annotations

_MAKERS = (
    "nvidia",
    "geforce",
    "tesla",
    "amd",
    "instinct",
    "intel",
    "habana",
    "gpu",
    "graphics",
    "generation",
    "edition",
    "tensorcore",
)
"""Words of the makers' product names that do not tell GPUs apart."""


def key(text: str) -> str:
    """Return ``text`` in lower case, letters and digits alone, without the makers' words; ``GiB`` reads as ``GB``."""
    squeezed = "".join(character for character in text.lower() if character.isalnum() and character.isascii())
    for word in _MAKERS:
        squeezed = squeezed.replace(word, "")
    return squeezed.replace("gib", "gb")
