"""A HF config mapping -> :class:`Architecture`, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.models.architecture import Architecture
from memlint.models.consistency import contradictions
from memlint.models.defaults import class_defaults
from memlint.models.families import NEAREST_WORDS, family_of, nearest_family
from memlint.models.fill import UNREADABLE, fill, remote_of
from memlint.models.validate import ConfigProblem, accepts, explain

DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "float64": "fp64",
}
"""Names of torch dtypes in configs (with or without ``torch.``) -> memlint's."""

TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config", "decoder")
"""Where a model of several parts keeps its language model, in the order of transformers' get_text_config."""


def read_config(
    config: Mapping[str, Any], id: str | None = None, source: str = "inline"
) -> Architecture | list[ConfigProblem]:
    """Return the architecture of a HF config, with class defaults filled in; a list of problems when it is not sound.

    ``id`` is the Hugging Face ID or path for messages; ``source`` as in :attr:`Architecture.source`. A config that is
    sound but has no transformer shape gives one problem with code MEM004.
    """
    if not accepts(config):
        problems = explain(config)
        if problems:
            return problems
    model_type: str = config["model_type"]
    try:
        values = fill({k: v for k, v in config.items() if isinstance(k, str)}, model_type)
        problems = contradictions(config, values)
        if problems:
            return problems
        return _architecture(model_type, values, config, id, source)
    except UNREADABLE as error:
        return [
            ConfigProblem(
                (), f"this `{model_type}` config has a field with a value that cannot be used ({error!r:.80})"
            )
        ]


def part(architecture: Architecture, name: str) -> Architecture | None:
    """Return a sub-config (``text_config``, ``vision_config``, ...) as an architecture of its own; None if absent.

    Its size fields are 0 where the part has none (a vision tower has no vocabulary).
    """
    values = architecture.config.get(name)
    if not isinstance(values, Mapping):
        return None
    model_type = str(values.get("model_type") or "")
    made = _architecture(model_type, values, values, architecture.id, architecture.source, shapeless=True)
    return made if isinstance(made, Architecture) else None


def _text(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in TEXT_PARTS:
        inner = values.get(name)
        if isinstance(inner, Mapping):
            return _text(inner)
    return values


def _architecture(
    model_type: str,
    values: Mapping[str, Any],
    stated: Mapping[str, Any],
    id: str | None,
    source: str,
    *,
    shapeless: bool = False,
) -> Architecture | list[ConfigProblem]:
    known_as = str(values.get("model_type") or model_type)
    family, approximate = family_of(known_as)
    remote = remote_of(model_type) if known_as != model_type else None
    traits: frozenset[str] = frozenset()
    if remote is not None:
        from memlint.models.remote import traits_of

        traits = traits_of(model_type, remote, stated)
        if remote.approximate is not None:
            approximate = f"`{model_type}` is code on the hub: {remote.approximate}"
    text = _text(values)
    sizes = [text.get(name) for name in ("hidden_size", "num_hidden_layers", "vocab_size")]
    width, depth, vocabulary = (size if isinstance(size, int) else _largest(size) for size in sizes)
    if not (width and depth) and not shapeless:
        message = (
            f"`model_type: {model_type}` has no transformer shape that memlint can use"
            " (no hidden size and number of layers)"
        )
        return [ConfigProblem(("model_type",), message, "MEM004")]
    near = None
    if family == "unknown":
        near = nearest_family(values, of_transformers=class_defaults(known_as) is not None)
    if near is not None:
        values = {**values, "nearest_family": near}
        approximate = f"{approximate}: computed as {NEAREST_WORDS[near]} of its fields, with a wide interval"
    positions = text.get("max_position_embeddings")
    quantization = values.get("quantization_config") or text.get("quantization_config")
    return Architecture(
        id=id,
        model_type=known_as,
        family=family,
        hidden_size=width,
        num_hidden_layers=depth,
        vocab_size=vocabulary,
        config=values,
        dtype=_dtype(values) or _dtype(text),
        max_position_embeddings=positions if isinstance(positions, int) and positions > 0 else None,
        tie_word_embeddings=bool(values.get("tie_word_embeddings", text.get("tie_word_embeddings"))),
        source=source,
        approximate=approximate,
        traits=traits,
        modules=remote.modules if remote is not None else {},
        quantization=quantization if isinstance(quantization, Mapping) else None,
    )


def _largest(size: Any) -> int:
    """A size that differs by layer is taken at its largest; anything else counts as absent."""
    numbers = [n for n in size if isinstance(n, int)] if isinstance(size, list) else []
    return max(numbers, default=0)


def _dtype(values: Mapping[str, Any]) -> str | None:
    for name in ("dtype", "torch_dtype"):
        stated = values.get(name)
        if isinstance(stated, str):
            found = DTYPES.get(stated.removeprefix("torch."))
            if found is not None:
                return found
    return None
