"""The dialects in the order in which they are asked, and which one a document is.

A dialect's module is imported when a file passes its text gate, so that checking an axolotl file loads only axolotl.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Mapping, cast

from memlint.dialects.base import Dialect, ReadContext, Reading
from memlint.dialects.foreign import is_foreign
from memlint.document.model import Document
from memlint.findings import KeyEdit
from memlint.job import TrainingJob

ANYWHERE = ("*",)
"""Keys of a dialect whose marks may stand at any depth."""


class LazyDialect:
    """A dialect that is imported when it is first needed; name and text gate are known before."""

    def __init__(
        self, name: str, module: str, attribute: str, markers: tuple[str, ...], keys: tuple[str, ...] = ()
    ) -> None:
        """Stand for ``attribute`` of ``module``; a test compares ``markers`` with the module's own.

        The module is imported only for a mapping that has one of ``keys`` at top level; by default, of ``markers``.
        """
        self.name = name
        self.module = module
        self.attribute = attribute
        self.markers = markers
        self.keys = keys or markers
        self._loaded: Dialect | None = None

    def load(self) -> Dialect:
        """Import the module and return its dialect."""
        if self._loaded is None:
            self._loaded = cast(Dialect, getattr(import_module(self.module), self.attribute))
        return self._loaded

    @property
    def title(self) -> str:
        """Name for tables."""
        return self.load().title

    @property
    def version(self) -> str:
        """Framework release whose defaults were read."""
        return self.load().version

    @property
    def suffixes(self) -> tuple[str, ...]:
        """File name endings."""
        return self.load().suffixes

    def recognise(self, document: Document) -> bool:
        """Whether the document is of this dialect."""
        if self.keys != ANYWHERE and not any(key in document.mapping for key in self.keys):
            return False
        return self.load().recognise(document)

    def read(self, document: Document, context: ReadContext) -> Reading:
        """Turn the document into jobs."""
        return self.load().read(document, context)

    def express(self, changes: Mapping[str, Any], document: Document, job: TrainingJob) -> tuple[KeyEdit, ...] | None:
        """Write changes in the dialect's own keys."""
        return self.load().express(changes, document, job)


def _lazy(name: str, module: str, attribute: str, *markers: str, keys: tuple[str, ...] = ()) -> Dialect:
    return cast(Dialect, LazyDialect(name, f"memlint.dialects.{module}", attribute, markers, keys))


_FACTORY_KEYS = (
    "finetuning_type",
    "stage",
    "template",
    "model_class",
    "peft_config",
    "train_dataset",
    "dist_config",
    "kernel_config",
    "quant_config",
)
"""Keys without which llamafactory_v0.py and llamafactory_v1.py recognise nothing."""


DIALECTS: tuple[Dialect, ...] = (
    _lazy("native", "native", "NATIVE", "memlint"),
    _lazy("accelerate", "accelerate", "ACCELERATE", "distributed_type", "compute_environment"),
    _lazy(
        "deepspeed",
        "deepspeed",
        "DEEPSPEED",
        "zero_optimization",
        "train_micro_batch_size_per_gpu",
        "train_batch_size",
    ),
    _lazy("axolotl", "axolotl", "AXOLOTL", "base_model"),
    _lazy(
        "llamafactory",
        "llamafactory",
        "LLAMAFACTORY",
        "model_name_or_path",
        "finetuning_type",
        "model_class",
        "peft_config",
        keys=_FACTORY_KEYS,
    ),
    _lazy("trl", "trl", "TRL", "model_name_or_path", "max_prompt_length", "num_generations", "dataset_mixer"),
    _lazy(
        "hf-trainer",
        "hf_trainer",
        "HF_TRAINER",
        "per_device_train_batch_size",
        "per_gpu_train_batch_size",
        "per_device_eval_batch_size",
        "num_train_epochs",
        "backward_prefetch",
        "transformer_layer_cls_to_wrap",
        "cpu_ram_efficient_loading",
        keys=ANYWHERE,
    ),
)
"""Order of recognition; the first that recognises a document has it."""

_MARKERS = tuple(dict.fromkeys(marker for dialect in DIALECTS for marker in dialect.markers))


def may_be_config(text: str) -> bool:
    """Whether a text can be of any dialect: a file that holds none of their marks is never parsed."""
    return any(marker in text for marker in _MARKERS)


def by_name(name: str) -> Dialect | None:
    """Return the dialect called ``name`` (``# memlint: dialect=axolotl``), or None."""
    for dialect in DIALECTS:
        if dialect.name == name:
            return dialect
    return None


def forced_name(document: Document) -> str | None:
    """Return the dialect that a comment ``# memlint: dialect=`` of the document names, known or not."""
    if "memlint:" not in document.text or "dialect" not in document.text:
        return None
    from memlint.document.comments import find_pragmas

    for pragma in find_pragmas(document.text, document.format)[0]:
        if pragma.kind == "dialect":
            return pragma.values[0]
    return None


def recognise(document: Document, path: str | None = None) -> Dialect | None:
    """Return the dialect of a document, or None for a file that is no training config memlint reads.

    A comment that names a known dialect decides; else the content does, whatever the order of its keys. ``path`` is the
    file's name where it is not the document's.
    """
    forced = forced_name(document)
    if forced is not None:
        named = by_name(forced)
        if named is not None:
            return named
    data = document.data
    if not isinstance(data, dict) or not data:
        return None
    if is_foreign(data):
        return None
    text = document.text
    for dialect in DIALECTS:
        if any(marker in text for marker in dialect.markers) and dialect.recognise(document):
            return dialect
    return None
