"""Remedies of scale: micro batch, sharding, offload; and what changes the training itself: length, LoRA, QLoRA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlint.plan.remedy import Changes, Cost, Remedy
from memlint.plan.rows import are_compared, fewest, why_mixed

if TYPE_CHECKING:
    from memlint.job import TrainingJob


def micro_batches(job: TrainingJob, *, faster: bool = False) -> tuple[Remedy, ...]:
    """Every smaller divisor of the micro batch, accumulation raised so that the global batch stays.

    A contrastive loss compares the rows of a micro batch with each other: there it stays, and texts are embedded by
    parts.
    """
    training = job.training
    if are_compared(job):
        return _mini_batches(job) if training.objective == "contrastive" else ()
    mixed = why_mixed(job)
    rows, steps = training.micro_batch_size, training.gradient_accumulation_steps
    found: list[Remedy] = []
    sizes = [size for size in range(rows // 2, fewest(job) - 1, -1) if rows % size == 0]
    if faster:
        sizes = [rows * k for k in range(steps, 1, -1) if steps % k == 0] + sizes
    larger = sum(size > rows for size in sizes)
    for number, size in enumerate(sizes):
        words, sentence = _SMALLER if size < rows else _LARGER
        found.append(
            Remedy(
                name=f"micro-batch-{size}",
                dimension="batch",
                words=words,
                changes={
                    "training.micro_batch_size": size,
                    "training.gradient_accumulation_steps": rows * steps // size,
                },
                cost=Cost(
                    convergence="small" if mixed else "none",
                    sentence=mixed or sentence,
                    source=_MEAN,
                ),
                rank={"batch": number - larger + (size < rows)},
                safe=not mixed,
            )
        )
    return tuple(found)


_SMALLER = (
    "a smaller micro batch with more accumulation",
    "same optimisation; smaller matrix multiplications use the GPU less well",
)
_LARGER = (
    "a larger micro batch with less accumulation",
    "same optimisation; larger matrix multiplications use the GPU better",
)
_MEAN = "the mean of a global batch is the same however it is divided (but for per-token weighting)"


def _mini_batches(job: TrainingJob) -> tuple[Remedy, ...]:
    """Every smaller divisor of what is embedded at a time, with gradients cached."""
    rows = job.training.micro_batch_size
    now = min(rows, job.training.embedding_mini_batch or rows)
    cached = job.training.embedding_mini_batch is not None
    return tuple(
        Remedy(
            name=f"mini-batch-{size}",
            dimension="batch",
            words="a mini batch embedded at a time, with cached gradients",
            changes={"training.embedding_mini_batch": size},
            cost=Cost(
                compute=0.0 if cached else 1 / 3,
                sentence="same loss" if cached else "same loss; every text is embedded twice: 33% more compute",
                source="Gao et al. 2021, arXiv:2101.06983 (GradCache); sentence-transformers 6.2 Cached...Loss",
            ),
            rank={"batch": number},
            safe=True,
        )
        for number, size in enumerate((size for size in range(now - 1, 0, -1) if rows % size == 0), 1)
    )


def evaluation_batches(job: TrainingJob) -> tuple[Remedy, ...]:
    """Half the rows of an evaluation forward, and half again, down to one."""
    rows = job.training.eval_micro_batch_size
    sizes = []
    while rows is not None and rows > 1:
        rows //= 2
        sizes.append(rows)
    return tuple(
        Remedy(
            name=f"evaluation-batch-{size}",
            dimension="evaluation",
            words="a smaller evaluation batch",
            changes={"training.eval_micro_batch_size": size},
            cost=Cost(
                sentence="free for training; an evaluation takes more forwards",
                source="transformers 5.24 trainer.py evaluation_loop: no gradients, so rows change no weight",
            ),
            rank={"free": number},
            safe=True,
        )
        for number, size in enumerate(sizes, 1)
    )


_GATHERED = "half more communication: weights are gathered for each forward and backward"
_ON_CPU = "the step runs on the CPU; needs host memory"
_OVER_PCIE = "weights cross PCIe for each forward and backward"
_SHARDED: tuple[tuple[str, str, int, int, str, str], ...] = (
    ("zero1", "none", 1, 0, "ZeRO-1", "the volume of plain data parallelism; optimizer states divided"),
    ("zero2", "none", 2, 0, "ZeRO-2", "the volume of plain data parallelism; states and gradients divided"),
    ("fsdp", "none", 3, 0, "FSDP", _GATHERED),
    ("zero3", "none", 4, 0, "ZeRO-3", _GATHERED),
    ("zero2", "optimizer", 2, 1, "ZeRO-2 with the optimizer on the CPU", _ON_CPU),
    ("zero3", "optimizer", 4, 1, "ZeRO-3 with the optimizer on the CPU", _ON_CPU),
    ("fsdp", "all", 3, 2, "FSDP with everything offloaded", _OVER_PCIE),
    ("zero3", "all", 4, 2, "ZeRO-3 with everything offloaded", _OVER_PCIE),
)
"""Strategy, offload, price of sharding, price of offload, words, sentence. Volumes: Rajbhandari et al. 2020,
arXiv:1910.02054, section 7: ZeRO-1 and 2 move as much as data parallelism, ZeRO-3 1.5 times as much."""

_ALREADY = {"none": 0, "ddp": 0, "zero0": 0, "zero1": 1, "zero2": 2, "fsdp": 4, "zero3": 4}
"""How far a job is sharded; FSDP and ZeRO-3 divide the same."""
_REACH = {"zero1": 1, "zero2": 2, "fsdp": 3, "zero3": 4}
_OFFLOADED = {"none": 0, "optimizer": 1, "parameters": 1, "all": 2}


def sharding(job: TrainingJob, gpus: int) -> tuple[Remedy, ...]:
    """Divide states, then gradients, then weights over the run's GPUs; then move them to the host."""
    parallelism = job.parallelism
    now, offload = parallelism.strategy, parallelism.offload
    if now not in _ALREADY or offload == "experts" or parallelism.tensor > 1 or parallelism.pipeline > 1:
        # What else DeepSpeed or FSDP may offload excludes what computes experts on the CPU (LLaMA-Factory 0.9.5
        # hparams/parser.py: KTransformers is incompatible with ZeRO-3).
        return ()
    if job.training.objective == "contrastive":
        # Its memory model has whole parameters and gradients (estimate/contrastive.py).
        return ()
    if job.training.quantization is not None or (job.architecture is not None and job.architecture.quantization):
        # Sharding 4-bit storage needs a storage dtype equal to the compute dtype (peft docs, accelerate/fsdp.md):
        # more than a setting of the sharding.
        return ()
    found = []
    for strategy, offloaded, divided, moved, words, sentence in _SHARDED:
        if gpus < 2 and (
            not moved or strategy == "fsdp" or (strategy != now and strategy + offloaded == "zero3optimizer")
        ):
            continue  # a GPU alone divides nothing: all that offloading of ZeRO-2 and of ZeRO-3's weights can do
        family = "fsdp" if strategy == "fsdp" else "zero"
        if (now.startswith("zero") and family != "zero") or (now == "fsdp" and family != "fsdp"):
            continue
        further = _REACH[strategy] > _ALREADY[now] and moved >= _OFFLOADED[offload]
        moved_on = (strategy == now or _REACH[strategy] > _ALREADY[now]) and moved > _OFFLOADED[offload]
        if not further and not moved_on:
            continue
        changes: Changes = {"parallelism.strategy": strategy}
        if offloaded != offload:
            changes = {**changes, "parallelism.offload": offloaded}
        found.append(
            Remedy(
                name=strategy if offloaded == "none" else f"{strategy}-offload-{offloaded}",
                dimension="sharding",
                words=words,
                changes=changes,
                cost=Cost(
                    complexity="launcher",
                    sentence=sentence,
                    source="Rajbhandari et al. 2020, arXiv:1910.02054, section 7; Ren et al. 2021, arXiv:2101.06840",
                ),
                rank={"sharding": divided, "offload": moved},
            )
        )
    return tuple(found)


_TENSOR_SIZES = (2, 4, 8)
"""Within one node, where NVLink joins the GPUs: tensor parallelism communicates twice in every layer."""


def tensor_parallel(job: TrainingJob, gpus: int, gpus_of_node: int) -> tuple[Remedy, ...]:
    """Divide every layer's matrices and activations over GPUs of one node, as far as the heads divide."""
    parallelism, architecture = job.parallelism, job.architecture
    if parallelism.offload == "experts":
        return ()
    if architecture is None or parallelism.tensor > 1 or parallelism.pipeline > 1 or parallelism.context > 1:
        return ()
    if job.training.method != "full" or job.training.quantization is not None or architecture.quantization:
        return ()  # adapters and packed weights are no tensors that transformers' tp_plan divides
    heads = architecture.get("num_attention_heads", 0)
    groups = architecture.get("num_key_value_heads") or heads
    found = []
    for number, size in enumerate(_TENSOR_SIZES, 1):
        if size > gpus_of_node or gpus % size or not heads or heads % size or groups % size:
            continue
        found.append(
            Remedy(
                name=f"tensor-parallel-{size}",
                dimension="tensor",
                words=f"tensor parallelism over {size} GPUs",
                changes={"parallelism.tensor": size},
                cost=Cost(
                    complexity="launcher",
                    sentence="two all-reduces in each layer's forward and two in its backward; fewer replicas",
                    source="Shoeybi et al. 2019, arXiv:1909.08053; transformers 5.24 integrations/tensor_parallel.py",
                ),
                rank={"model-parallel": number},
            )
        )
    return tuple(found)


def packed(job: TrainingJob) -> tuple[Remedy, ...]:
    """Full rows instead of padded ones: it changes which tokens a batch holds, so no plan contains it."""
    training = job.training
    if training.packing or not training.padding or training.objective != "causal-lm":
        return ()
    return (
        Remedy(
            name="packing",
            dimension="data",
            words="packing instead of padding",
            changes={"training.packing": True},
            cost=Cost(
                convergence="small",
                sentence="no padding mask, and fewer steps an epoch; samples share rows",
                source="Krell et al. 2021, arXiv:2107.02027; torch 2.13 sdp_utils.cpp: flash takes no mask",
            ),
        ),
    )


def sequence(length: int) -> Remedy:
    """A sequence of ``length`` tokens: it changes what is trained, so no plan contains it."""
    return Remedy(
        name=f"sequence-{length}",
        dimension="sequence",
        words=f"a sequence of {length}",
        changes={"training.sequence_length": length},
        cost=Cost(convergence="risk", sentence="longer samples are cut or split", source="the trainer's truncation"),
    )


def adapters(job: TrainingJob) -> tuple[Remedy, ...]:
    """LoRA and QLoRA: they change what is trained, so they are offered beside the plans, never in them."""
    training = job.training
    found: list[Remedy] = []
    if training.method in ("full", "freeze"):
        found.append(
            Remedy(
                name="lora",
                dimension="method",
                words="LoRA, rank 16",
                changes={"training.method": "lora", "training.lora.rank": 16},
                cost=Cost(
                    convergence="risk",
                    complexity="package",
                    sentence="trains an adapter in place of the weights: less capacity, another learning rate",
                    source="Hu et al. 2021, arXiv:2106.09685; Biderman et al. 2024, arXiv:2405.09673",
                ),
            )
        )
    quantisable = training.quantization is None and job.parallelism.offload != "experts"
    if training.method in ("full", "freeze", "lora") and quantisable:
        changes: Changes = {"training.method": "qlora", "training.quantization.bits": 4}
        if training.method != "lora":
            changes = {**changes, "training.lora.rank": 16}
        found.append(
            Remedy(
                name="qlora",
                dimension="method",
                words="QLoRA: the same adapter on a 4-bit base",
                changes=changes,
                cost=Cost(
                    convergence="risk",
                    complexity="package",
                    sentence="trains an adapter on 4-bit weights, which are unpacked for each multiplication",
                    source="Dettmers et al. 2023, arXiv:2305.14314",
                ),
            )
        )
    return tuple(found)
