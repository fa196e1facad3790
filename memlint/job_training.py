"""The training section of a job: precision, adapters, quantisation, checkpointing, and the settings of the step.

Names, values and defaults are those of the native job file; import these records from :mod:`memlint.job`.
"""

from __future__ import annotations

from memlint.records import dataclass, field


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
    fp8_recipe: str | None = None
    """torchao's scaling (tensorwise, rowwise, rowwise_with_gw_hp), or transformer-engine; None: the framework's own."""
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
    block_size: int | None = None
    """OFT and BOFT: features that are turned together; None: PEFT's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Storage of quantised base weights."""

    bits: int = 4
    type: str = "nf4"
    """nf4 fp4 int8 gptq awq aqlm hqq fp8 nvfp4."""
    double_quant: bool = True
    block_size: int = 64
    group_size: int = 128
    """GPTQ, AWQ: inputs of an output that share a scale; -1: all of them."""
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
    virtual_tokens: int = 20
    """Methods prompt, p-tuning and prefix: trained tokens (peft has no default; its examples use 20)."""
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
    optimizer_rank: int | None = None
    """GaLore and APOLLO: rank of the space they step in; None: 128, transformers' default."""
    optimizer_targets: tuple[str, ...] = ()
    """GaLore and APOLLO: fragments of the names of the linear layers they step so; none: all but the head;
    ``all-linear``: the head as well."""
    optimizer_in_backward: bool = False
    fp32_embedding_states: bool = False
    """8-bit optimizers of bitsandbytes keep states of 32 bits for embeddings, as HF's Trainer asks them to."""
    max_grad_norm: float | None = 1.0
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    attention: str = "sdpa"
    loss: str = "standard"
    """standard, chunked (a chunk of logits at a time), fused (never whole: Liger) or cut-cross-entropy (in kernels);
    token-weighted (its v1), dft, eaft and asft are what LLaMA-Factory's trainers make of all logits themselves."""
    liger: tuple[str, ...] = ()
    """Liger kernels in use beside the loss: rms_norm swiglu rope layer_norm."""
    compile: bool = False
    freeze: tuple[str, ...] = ()
    """Name fragments of frozen modules (vision towers, embeddings, first layers)."""
    trainable_layers: int | None = None
    """method freeze: how many last layers train, numbered as the config counts (by an encoder-decoder's encoder); None:
    all.
    """
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
    reward_model: str = "none"
    """PPO: none (rewards come from elsewhere), copy (a second frozen model), adapter (another one on the policy)."""
    value_model: str = "copy"
    """PPO: copy (a model of its own, trained whole), head (one linear layer on the policy)."""
    reward_model_name: str | None = None
    """PPO: the model whose shape the reward model has, and a value model of its own; None: the policy's."""
    rollouts: int | None = None
    """PPO: completions that one GPU gathers before it trains on them; None: micro_batch_size times accumulation."""
    rollout_batch_size: int | None = None
    """PPO: completions generated and scored at a time; None: micro_batch_size."""
    mini_batches: int = 1
    """PPO: parts into which the gathered completions are divided (TRL's num_mini_batches)."""
    columns: int = 2
    """contrastive: texts of a row that are embedded (2: a pair, 3: with a hard negative)."""
    pooling: str = "mean"
    """contrastive: what of a text's token embeddings makes its embedding (mean, cls, last-token)."""
    embedding_mini_batch: int | None = None
    """contrastive: rows embedded at a time with gradients cached (GradCache); None: all rows of a column at once."""
    vllm_memory_share: float = 0.0
    """Share of the GPU that a colocated vLLM engine takes."""
    images: int = 0
    """Images per sequence (vision-language models), or clips of 30 seconds (Qwen2-Audio, Voxtral)."""
    image_pixels: int | None = None
    """Pixels of one image after the processor's resize; None: the processor's default."""
    eval_micro_batch_size: int | None = None
    """Rows of one evaluation forward; None: no evaluation."""
