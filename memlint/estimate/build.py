"""Parameters of a model under a job: which exist, in which dtype, which train, and the modules that hold them.

A family asks for ``build.linear(...)`` as its model's constructor asks for ``nn.Linear``; the job decides what comes
back: a plain linear, a frozen base with a LoRA branch, or a quantised one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from typing import Any

from memlint.estimate.adapters import LoraLinear, matches, names_tables
from memlint.estimate.embeddings import Embedding as Embedding
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.float8 import Float8
from memlint.estimate.ops.linear import Weight, linear
from memlint.estimate.optimizer_projected import Targets
from memlint.estimate.peft_kinds import KINDS
from memlint.estimate.peft_prompts import OUTSIDE, PROMPTS, Prefix, prompted
from memlint.estimate.peft_targets import default_targets, tuned_norms
from memlint.estimate.quantized import QuantizedWeight
from memlint.estimate.records import Record
from memlint.estimate.sharding import Sharding
from memlint.job import Lora, TrainingJob
from memlint.units import DTYPE_BYTES

LORA_METHODS = ("lora", "qlora", "dora")
"""Methods that put a low-rank branch beside linear layers."""

KBIT_TYPES = ("nf4", "fp4", "int8")
"""Quantised bases that k-bit preparation upcasts around (not GPTQ, AQLM, HQQ: prepare_model_for_kbit_training)."""


class Linear:
    """nn.Linear."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Weight, bias: Weight | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return linear(f, x, self.weight, self.bias)


class Build:
    """Makes a model's parameters under a job and keeps a record of each."""

    asks = False
    """Some layer may use an optional package (estimate/kernels.py)."""

    def __init__(self, job: TrainingJob, world: int = 1) -> None:
        self.job = job
        self.sharding = Sharding.of(job, world)
        self.root = self.sharding.unit()
        """Parameters outside all layers: embedding, final norm, head."""
        self.training = job.training
        self.records: list[Record] = []
        self.count = 1
        """How many equal layers the layer under construction stands for."""
        self.run_all_layers = False
        """Run every layer instead of extending equal ones (the proof of the shortcut)."""
        self.leaves: list[Leaf] = []
        self.tables: set[Leaf] = set()
        """Those of embeddings, whose gradients are no views."""
        self.made_again: list[Leaf] = []
        """Those of layers that are made once more to run in other conditions."""
        self.buffer_bytes = 0
        self.frozen = False
        """The part under construction is frozen whatever its name (a reference model, a frozen tower)."""
        self.reference = False
        """The model under construction is a frozen copy that only gives reference log-probabilities."""
        self.reference_requires_grad = not job.framework.lower().startswith("llama")
        """TRL 1.16 only calls eval() on its reference (dpo_trainer.py, prepare_model's evaluation_mode); LLaMA-Factory
        0.9.5 loads it with ``is_trainable=False``, which freezes it (model/loader.py)."""
        self.layer_frozen = job.training.trainable_layers is not None
        self.scope = ""
        """What stands for ``model.`` in the names of the part under construction (``model.language_model.``)."""
        self.idle = False
        """The part under construction takes no part in the step: it gets neither gradients nor optimizer states."""
        self.layers = self.first_layer = 0
        """Layers made so far, and the number of the next stack's first one where every n-th is checkpointed."""
        self.depth: int | None = None
        """So many layers a framework counts where it trains the last ones, if not a stack's own number."""
        self.apart = 0
        """So many first layers of a stack are each unlike any other: something follows them."""
        method = job.training.method
        self.adapter = method not in ("full", "freeze")
        self.lora = job.training.lora
        if self.lora is None and (method in LORA_METHODS):
            self.lora = Lora()
        if method == "ln-tuning":
            self.lora = Lora(targets=(), modules_to_save=tuned_norms(job.architecture))
        self.nearest = self.adapter and method not in LORA_METHODS and method not in KINDS and method not in PROMPTS
        """There is no model of the method: LoRA stands for it."""
        if self.nearest and self.lora is None:
            self.lora = Lora(targets="default")
        self.projects = Targets.of(job.training)
        """What the optimizer steps in a low-rank space."""
        self.shared: dict[str, int] = {}
        """Buffers that all layers share, and their bytes."""
        self.widest = 0, 0
        """The most outputs and inputs of what RandLoRA adapts."""
        self.orthogonal: list[Any] = []
        """Leaves of the factors whose products AdaLoRA's forward holds to the identity."""
        self.prefix: Prefix | None = None
        """Method prefix: what stands before the keys and values of every layer."""
        self.held: list[Tensor] = []
        """What a model around this one holds until its forward has returned."""
        self.float8 = Float8.of(job)
        """Which linear layers compute in float8."""
        self._packed: dict[tuple[int, int], tuple[QuantizedWeight, tuple[int, ...]]] = {}
        """Quantised matrices by their shape, with the bytes of their storages."""

    def all_leaves(self) -> list[Leaf]:
        """Everything that gets a gradient in a step."""
        return self.leaves + self.made_again

    @contextmanager
    def reference_model(self) -> Iterator[None]:
        """While a frozen copy of the model is made: it has no adapters, neither of layers nor of parameters."""
        lora, self.lora, self.reference = self.lora, None, True
        yield
        self.lora, self.reference = lora, False

    def _scoped(self, name: str) -> str:
        if self.scope and name.startswith("model.") and not name.startswith(self.scope):
            return self.scope + name[len("model.") :]
        return name

    def _trainable(self, name: str, *, adapter: bool = False) -> bool:
        training = self.training
        if self.frozen or self.reference:
            return False
        if adapter:
            return True
        if self.adapter:
            saved = self.lora.modules_to_save if self.lora else ()
            return bool(saved) and any(fragment in name.split(".") for fragment in saved)
        if training.freeze and any_named(training.freeze, name):
            return False
        if training.trainable_patterns and (training.trainable_layers is None or self.layer_frozen):
            return any_named(training.trainable_patterns, name)
        return not self.layer_frozen

    def trains(self, name: str, *, adapter: bool = False) -> bool:
        """Whether a parameter of this name trains."""
        return self._trainable(self._scoped(name), adapter=adapter)

    def _dtype(self, name: str, trainable: bool) -> str:
        precision = self.training.precision
        if precision.fp32_modules and any_named(precision.fp32_modules, name):
            return "fp32"
        if trainable and precision.trainable_weights is not None:
            return precision.trainable_weights
        quantization = self.training.quantization
        if quantization is not None and quantization.kbit_preparation and quantization.type in KBIT_TYPES:
            # peft 0.21 utils/other.py prepare_model_for_kbit_training: every half parameter that is not 4-bit becomes
            # fp32.
            return "fp32"
        return precision.weights

    def parameter(
        self, name: str, *shape: int, dtype: str | None = None, adapter: bool = False, trainable: bool | None = None
    ) -> Weight:
        """A parameter of the given shape; dtype and trainability follow from the job unless given."""
        # Hundreds are made for an estimate, most of them in no scope and not sharded.
        if self.scope:
            name = self._scoped(name)
        if trainable is None:
            trainable = self._trainable(name, adapter=adapter)
        if dtype is None:
            dtype = self._dtype(name, trainable)
        sharding = self.sharding
        grad_dtype = (sharding.gradient or dtype) if trainable else dtype
        size = prod(shape) * DTYPE_BYTES[dtype]
        base = not (adapter or self.reference)
        self.records.append(Record(name, shape, dtype, trainable, grad_dtype, self.count, (size,), base, self.idle))
        if trainable and self.adapter and not adapter:
            # PEFT's ModulesToSaveWrapper trains a copy and keeps the original beside it (peft 0.21 utils/other.py).
            self.records.append(Record(f"{name}.original", shape, dtype, False, dtype, self.count, (size,), base=False))
        computed = dtype
        if sharding.kind == "fsdp" and dtype == "fp32" and not (adapter and self.training.precision.autocast is None):
            # MixedPrecisionPolicy(param_dtype=...): gathered and used in half precision, stored in fp32.
            computed = sharding.compute
        weight = Weight(name, shape, computed, trainable, grad_dtype if computed == dtype else computed)
        if self.reference and self.reference_requires_grad:
            weight.cached = True
        leaf = weight.node if isinstance(weight.node, Leaf) else None
        if leaf is not None:
            self.leaves.append(leaf)
        if sharding.kind == "none":
            return weight
        sharding.adopt(
            leaf,
            shape,
            prod(shape) * DTYPE_BYTES[computed],
            grad_dtype,
            # A reference model's last unit stays gathered from one step to the next, as the root does in this one.
            "" if self.reference else name,
            self.count,
        )
        return weight

    def buffer(self, size: int) -> None:
        """A registered buffer of ``size`` bytes (rotary frequencies)."""
        self.buffer_bytes += ((size + 511) & ~511) * self.count

    def shared_buffer(self, name: str, elements: int, dtype: str) -> None:
        """One buffer of the whole model, as large as its largest user asks."""
        size = (elements * DTYPE_BYTES[dtype] + 511) & ~511
        self.shared[name] = max(size, self.shared.get(name, 0))

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = False, *, subclass: bool = False) -> Any:
        """nn.Linear(inputs, outputs, bias), or what the job's method puts in its place; ``subclass``: its class is one
        of nn.Linear's.
        """
        name = self._scoped(name)
        quantization = self.training.quantization
        plain = self.frozen or self.reference
        bare = plain or any_named(self.training.freeze, name)
        spared = quantization is None or plain or any_named(quantization.skip, name)
        if quantization is not None and not spared and not QuantizedWeight.spares(self.job, name, bias, subclass):
            weight: Weight | QuantizedWeight = self.packed(name, outputs, inputs)
        else:
            weight = self.parameter(f"{name}.weight", outputs, inputs)
            if self.projects is not None:
                self.records[-1].rank = self.projects.rank_of(name)
        stored = weight.bias_dtype if isinstance(weight, QuantizedWeight) else None
        offset = self.parameter(f"{name}.bias", outputs, dtype=stored) if bias else None
        base: Any = Linear(weight, offset) if isinstance(weight, Weight) else weight.module(offset)
        if self.float8 is not None and not self.reference and self.float8.takes(name, inputs, outputs):
            base = self.float8.linear(base)
        return base if bare else self.adapted(name, base, inputs, outputs)

    def adapted(self, name: str, base: Any, inputs: int, outputs: int) -> Any:
        """The linear layer ``base`` with the adapter that the job's method puts beside it, if any."""
        lora = self.lora
        kind = KINDS.get(self.training.method)
        if kind is not None:
            lora = lora or kind[1]
            own = default_targets(self.training.method, self.job.architecture) if lora.targets == "default" else None
            if matches(own or lora.targets, name, self.job.architecture):
                return kind[0](self, name, base, inputs, outputs, lora)
            return base
        if lora is None or not matches(lora.targets, name, self.job.architecture):
            return base
        return LoraLinear.build(self, name, base, inputs, outputs, lora)

    def packed(self, name: str, outputs: int, inputs: int) -> QuantizedWeight:
        """A matrix in the job's quantised format."""
        shape = outputs, inputs
        known = self._packed.get(shape)
        if known is None:
            weight = QuantizedWeight.of(self.job, outputs, inputs)
            known = self._packed[shape] = weight, tuple(weight.storages())
        weight, blocks = known
        name = f"{name}.weight"
        self.sharding.adopt(None, shape, sum(blocks), "", name, self.count)
        self.records.append(Record(name, shape, weight.quantization.type, False, "", self.count, blocks))
        return weight

    def embedding(self, name: str, rows: int, width: int, *, entry: bool = False, scaled: bool = False) -> Any:
        """nn.Embedding(rows, width). ``entry``: get_input_embeddings names it, so checkpointing makes its output
        require gradients (enable_input_require_grads in modeling_utils.py), and a prompt stands in front of what it
        gives. ``scaled``: it multiplies its output.
        """
        hooked = entry and self.training.checkpointing.mode != "none"
        weight = self.parameter(f"{name}.weight", rows, width)
        if isinstance(weight.node, Leaf):
            self.tables.add(weight.node)
        made = Embedding(weight, hooked, scaled)
        if entry and self.training.method in OUTSIDE:
            return prompted(self, made, width)
        lora = self.lora
        plain = weight.trainable or self.frozen or self.reference or self.training.method not in LORA_METHODS
        if lora is None or plain or not names_tables(lora):
            return made
        if not matches(lora.targets, self._scoped(name), self.job.architecture):
            return made
        from memlint.estimate.adapted_embedding import LoraEmbedding

        return LoraEmbedding(self, name, made, rows, width, lora)


def any_named(fragments: tuple[str, ...], name: str) -> bool:
    """Whether one of the fragments (dotted words, or a regular expression) names a parameter."""
    for fragment in fragments:  # noqa: SIM110 (asked for every parameter: a generator takes twice as long)
        if _named(fragment, name):
            return True
    return False


@lru_cache(256)
def _is_words(fragment: str) -> bool:
    return re.fullmatch(r"[\w.]+", fragment) is not None


def _named(fragment: str, name: str) -> bool:
    """Whether a name fragment (dotted words, or a regular expression) names this parameter."""
    if _is_words(fragment):
        return f".{fragment}." in f".{name}."
    try:
        return re.search(fragment, name) is not None
    except re.error:
        return False
