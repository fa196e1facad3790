"""What one GPU will do in one training step, whatever file said so.

A :class:`TrainingJob` is what every dialect produces and the only thing the estimator reads. Its nested
fields carry the names of the native job file (``schemas/job.schema.json``), so ``training.micro_batch_size``
is at once the field, the key of ``--set`` and the key into :attr:`TrainingJob.origins`.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.job_training import Checkpointing, Lora, Precision, Quantization, Training
from memlint.models.architecture import Architecture
from memlint.records import dataclass, field, fields, replace

__all__ = [
    "REPLICATED",
    "Checkpointing",
    "Hardware",
    "KeyPath",
    "Lora",
    "Origin",
    "Parallelism",
    "Precision",
    "Quantization",
    "Training",
    "TrainingJob",
    "replace_fields",
    "settle_dtype",
]

KeyPath = tuple[str | int, ...]
REPLICATED = ("none", "ddp", "zero0")
"""Strategies under which every GPU holds all weights, gradients and states; zero0 is DeepSpeed without ZeRO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value comes from: exactly one of a place in a file, a framework's default, or an assumption."""

    file: str | None = None
    """Path as the user wrote it, relative where possible."""
    key: KeyPath = ()
    """Key path inside the file; the engine turns it into line and column."""
    line: int | None = None
    column: int | None = None
    default: str | None = None
    """``"default of axolotl 0.18: utils/schemas/config.py"``."""
    assumed: str | None = None
    """Why this value was taken although nothing states it; printed to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How the run is divided over GPUs."""

    strategy: str = "none"
    """none ddp zero0 (DeepSpeed without ZeRO) zero1 zero2 zero3 fsdp (= fsdp2) fsdp1 hsdp device-map."""
    gpus: int | None = None
    """World size where the config states it; None: the target's GPU count."""
    shard: int | None = None
    """Data-parallel shard size (hsdp); None: all data-parallel ranks."""
    reshard_after_forward: bool = True
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    offload: str = "none"
    """none optimizer parameters all experts (routed experts and their adapters live and compute on the CPU)."""
    expert_format: str = "bf16"
    """Frozen experts in host memory with ``offload: experts``: bf16 int8 fp8 rawint4 mxfp4."""
    reduce_bucket_elements: int | None = None
    """DeepSpeed reduce_bucket_size in elements; None: the framework's default; -1 (here and in the next three): the
    Hugging Face filler's ``auto``: hidden_size^2, and 0.9 hidden_size^2 to prefetch, 10 hidden_size to persist
    (transformers 5.24 integrations/deepspeed.py)."""
    allgather_bucket_elements: int | None = None
    """Without an effect on memory: see memlint/estimate/zero.py."""
    prefetch_bucket_elements: int | None = None
    persistence_threshold_elements: int | None = None
    max_live_elements: int | None = None
    """DeepSpeed stage3_max_live_parameters; None (here and in the next three): its default."""
    max_reuse_elements: int | None = None
    """DeepSpeed stage3_max_reuse_distance."""
    sub_group_elements: int | None = None
    """DeepSpeed sub_group_size: what one call of the optimizer updates in stage 3."""
    contiguous_gradients: bool | None = None
    overlap_comm: bool | None = None
    communication_dtype: str | None = None
    """DeepSpeed communication_data_type: dtype in which gradients go from rank to rank; None: that of the weights."""
    immediate_gradients: bool = False
    """DeepSpeed bf16.immediate_grad_update: stage 1 with bf16 gradients summed in fp32 adds each when it is there."""
    gradient_as_bucket_view: bool = False
    wrap: str = "layer"
    """FSDP unit: layer, none (whole model one unit), size."""
    state_dict: str | None = None
    """FSDP checkpoint form: full or sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The declared machine; ``target`` is parsed by :mod:`memlint.hardware`."""

    target: str | None = None
    reserve: int = 0
    """Bytes per GPU that other processes or engines hold."""
    host_memory: int | None = None
    """Bytes of main memory of one node; None: the target's where it is a known machine, else unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One training run: model, settings, and where each setting came from."""

    model: str | Mapping[str, Any]
    """What the config names: a Hugging Face ID, a path, or an inline HF config."""
    architecture: Architecture | None = None
    """Filled by :func:`memlint.engine.models.resolve`; None until then or when unknown."""
    scorer: Architecture | None = None
    """What ``training.reward_model_name`` names; None: as the policy."""
    training: Training = field(default_factory=Training)
    parallelism: Parallelism = field(default_factory=Parallelism)
    hardware: Hardware = field(default_factory=Hardware)
    framework: str = "native"
    """Dialect that produced the job, with the version whose defaults were used: ``axolotl 0.18``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library versions that change the answer (transformers, torch, trl, peft), as pinned or assumed."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Dotted native field name -> where its value came from."""
    assumptions: tuple[str, ...] = ()
    """Sentences for the user: what was taken for granted."""

    @property
    def pages(self) -> bool:
        """Whether what counts as host memory may as well stay on the GPU: a paged optimizer moves its states to the
        host only where the GPU is full (bitsandbytes functional.py get_paged).
        """
        return self.training.optimizer.startswith("paged-") and self.parallelism.offload == "none"

    def origin(self, name: str) -> Origin | None:
        """Return the origin of a dotted field, or of the nearest enclosing field that has one."""
        while name:
            found = self.origins.get(name)
            if found is not None:
                return found
            name, _, _ = name.rpartition(".")
        return None


def settle_dtype(job: TrainingJob, checkpoint: str | None) -> TrainingJob:
    """Replace ``training.precision.weights: auto`` by the checkpoint's dtype; bf16, said so, where that is unknown.

    Called once the model is resolved: ``from_pretrained(dtype="auto")`` takes the dtype that config.json states.
    """
    if job.training.precision.weights != "auto":
        return job
    settled = replace_fields(job, {"training.precision.weights": checkpoint or "bf16"})
    if checkpoint is not None:
        return settled
    sentence = "the model is loaded in the dtype of its checkpoint, which is not known here: bf16 assumed"
    return replace(settled, assumptions=(*job.assumptions, sentence))


_NESTED: dict[str, type] = {
    "training": Training,
    "training.precision": Precision,
    "training.lora": Lora,
    "training.quantization": Quantization,
    "training.checkpointing": Checkpointing,
    "parallelism": Parallelism,
    "hardware": Hardware,
}


def replace_fields(job: TrainingJob, changes: Mapping[str, Any]) -> TrainingJob:
    """Return ``job`` with dotted native fields replaced: ``{"training.micro_batch_size": 2}``.

    An optional section (``training.lora``) that is absent comes into being with its defaults when one of its fields is
    set. Raises AttributeError for a field that does not exist.
    """
    tree: dict[str, Any] = {}
    for name, value in changes.items():
        node = tree
        *heads, last = name.split(".")
        for head in heads:
            following = node.setdefault(head, {})
            if not isinstance(following, dict):
                following = node[head] = {"": following}
            node = following
        if isinstance(node.get(last), dict):
            node[last][""] = value
        else:
            node[last] = value
    result: TrainingJob = _replace_tree(job, tree, "")
    return result


def _replace_tree(current: Any, tree: dict[str, Any], prefix: str) -> Any:
    names = {f.name for f in fields(current)}
    changes: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "":
            continue
        path = f"{prefix}.{name}" if prefix else name
        if name not in names:
            raise AttributeError(path)
        if isinstance(value, dict) and path in _NESTED:
            inner = value.get("", getattr(current, name))
            changes[name] = _replace_tree(_NESTED[path]() if inner is None else inner, value, path)
        else:
            changes[name] = value
    return replace(current, **changes)
