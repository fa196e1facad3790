"""What one GPU will do in one training step, whatever file said so.

A :class:`TrainingJob` is what every dialect produces and the only thing the estimator reads. Its nested
fields carry the names of the native job file (``schemas/job.schema.json``), so ``training.micro_batch_size``
is at once the field, the key of ``--set`` and the key into :attr:`TrainingJob.origins`.
"""

from __future__ import annotations

from typing import Any, Mapping

from memlint.models.architecture import Architecture
from memlint.records import dataclass, field, fields, replace

KeyPath = tuple[str | int, ...]


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
class Precision:
    """Data types of one run. ``None`` means "follows": see each field."""

    weights: str = "fp32"
    """dtype in which the model is loaded (fp32, bf16, fp16); ``auto``: the checkpoint's, see :func:`settle_dtype`."""
    trainable_weights: str | None = None
    """dtype of trainable base parameters; None: as ``weights`` (LLaMA-Factory casts them to fp32)."""
    autocast: str | None = "bf16"
    """torch.autocast dtype of forward and loss; None: compute in the dtype of the weights."""
    gradients: str | None = None
    """dtype of ``.grad``; None: as the parameter."""
    optimizer: str | None = None
    """dtype of optimizer states; None: as the (master) parameter."""
    master_weights: bool = False
    """A separate fp32 copy of half-precision trainable parameters (DeepSpeed, Megatron, apex O2)."""
    fp32_modules: tuple[str, ...] = ()
    """Name fragments of modules kept in fp32 although ``weights`` is half (axolotl's embeddings, k-bit norms)."""
    fp8: bool = False
    """Linear layers compute in float8 (torchao / Transformer Engine recipe)."""
    grad_scaler: bool = False
    """fp16 autocast with GradScaler (its ``_amp_foreach`` unscale works in place)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A PEFT LoRA-family adapter."""

    rank: int = 16
    alpha: float | None = None
    targets: str | tuple[str, ...] = "all-linear"
    """``all-linear``, ``default`` (PEFT's table for the model type), a regular expression, or module name endings."""
    dropout: float = 0.0
    dora: bool = False
    modules_to_save: tuple[str, ...] = ()
    """Modules trained in full beside the adapter (embed_tokens, lm_head, score)."""
    dtype: str = "fp32"
    """dtype of adapter weights: PEFT keeps them in fp32 (autocast_adapter_dtype)."""
    kernels: bool = False
    """Fused LoRA autograd functions (axolotl's lora_mlp_kernel and friends, unsloth)."""
    target_parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Storage of quantised base weights."""

    bits: int = 4
    type: str = "nf4"
    """nf4 fp4 int8 gptq awq aqlm hqq fp8."""
    double_quant: bool = True
    block_size: int = 64
    skip: tuple[str, ...] = ("lm_head",)
    """Linear modules left unquantised (transformers skips the output embedding)."""
    storage: str = "uint8"
    """bnb_4bit_quant_storage."""
    kbit_preparation: bool = True
    """peft.prepare_model_for_kbit_training ran: every non-4-bit half-precision parameter is fp32."""
    experts: str = "loaded"
    """Three-dimensional expert parameters: loaded (as they are), fused (packed, dequantised whole), linear (a linear
    module an expert)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Activation checkpointing."""

    mode: str = "none"
    """none full selective offload."""
    every: int = 1
    """Checkpoint every n-th layer."""
    reentrant: bool = False
    offload: bool = False
    """Checkpoint inputs go to pinned host memory."""
    save: tuple[str, ...] = ()
    """Selective: what is kept (attention, mm, ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The training section of a job; names, values and defaults as in the native job file."""

    objective: str = "causal-lm"
    method: str = "full"
    lora: Lora | None = None
    quantization: Quantization | None = None
    micro_batch_size: int = 1
    """Sequences on one GPU in one forward."""
    sequence_length: int = 2048
    """Tokens of one sequence after padding or packing."""
    target_sequence_length: int | None = None
    """Decoder length of an encoder-decoder; None: as sequence_length."""
    packing: bool = False
    """Rows are full: samples are packed to sequence_length."""
    varlen: bool = False
    """Packed rows run as one flat row with cumulative lengths (flash varlen, padding-free)."""
    padding: bool = False
    """The batch carries a padding mask."""
    longest_once: bool = False
    """Only the longest sample reaches sequence_length (nothing is cut to it), so no two full micro batches follow.
    False: what a training loop still holds of the micro batch before is as long."""
    length_mean: int | None = None
    """Mean tokens of a sample before cutting, where the data's lengths vary and are known: the caching allocator is
    then replayed over lengths drawn from it. None: every micro batch is as long as sequence_length."""
    length_deviation: int | None = None
    """Standard deviation of those tokens."""
    drops_long: bool = False
    """Samples longer than sequence_length are left out (ms-swift's default), not cut."""
    gradient_accumulation_steps: int = 1
    precision: Precision = field(default_factory=Precision)
    optimizer: str = "adamw"
    optimizer_in_backward: bool = False
    max_grad_norm: float | None = 1.0
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    attention: str = "sdpa"
    loss: str = "standard"
    """standard, chunked (logits of a chunk at a time), fused (never materialised: Liger, cut cross entropy)."""
    liger: tuple[str, ...] = ()
    """Liger kernels in use beside the loss: rms_norm swiglu rope layer_norm."""
    compile: bool = False
    freeze: tuple[str, ...] = ()
    """Name fragments of frozen modules (vision towers, embeddings, first layers)."""
    trainable_layers: int | None = None
    """method freeze: how many last layers train; None: all."""
    trainable_patterns: tuple[str, ...] = ()
    """method freeze: name fragments that stay trainable (axolotl unfrozen_parameters)."""
    reference_model: str = "none"
    """none, copy (a second full model), adapter (the policy with its adapter switched off), precomputed."""
    vocab_size: int | None = None
    """Embedding rows when tokens are added and the matrix is resized; None: as the config says."""
    num_generations: int = 8
    """GRPO: completions of one prompt."""
    completion_length: int | None = None
    """GRPO/PPO: tokens generated per completion."""
    vllm_memory_share: float = 0.0
    """Share of the GPU that a colocated vLLM engine takes."""
    images: int = 0
    """Images per sequence (vision-language models)."""
    image_pixels: int | None = None
    """Pixels of one image after the processor's resize; None: the processor's default."""
    eval_micro_batch_size: int | None = None
    """Rows of one evaluation forward; None: no evaluation."""
    lr_scheduler_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How the run is divided over GPUs."""

    strategy: str = "none"
    """none ddp zero1 zero2 zero3 fsdp (= fsdp2) fsdp1 hsdp device-map."""
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
    """none optimizer parameters all."""
    reduce_bucket_elements: int | None = None
    """DeepSpeed reduce_bucket_size in elements; None: the framework's default; -1 (here and in the next three): the
    Hugging Face filler's ``auto``: hidden_size^2, and 0.9 hidden_size^2 to prefetch, 10 hidden_size to persist
    (transformers 5.24 integrations/deepspeed.py)."""
    allgather_bucket_elements: int | None = None
    prefetch_bucket_elements: int | None = None
    persistence_threshold_elements: int | None = None
    overlap_comm: bool | None = None
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
    """Filled by :func:`memlint.models.resolve.resolve_job`; None until then or when unknown."""
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
