"""What a job says about ZeRO, with DeepSpeed's defaults filled in. Sizes are elements.

Source: DeepSpeed 0.19.8 runtime/zero/config.py and runtime/engine.py; transformers 5.24 integrations/deepspeed.py for
``auto``.
"""

from __future__ import annotations

from memlint.estimate.zero_gather import Limits
from memlint.job import Parallelism, TrainingJob
from memlint.records import dataclass
from memlint.units import DTYPE_BYTES

BUCKET_ELEMENTS = 500_000_000
"""reduce_bucket_size: runtime/zero/config.py, DeepSpeed 0.19.8."""
PERSISTENT_ELEMENTS = 100_000
"""stage3_param_persistence_threshold, same file."""
SUB_GROUP_ELEMENTS = 1_000_000_000
"""sub_group_size, same file."""


@dataclass(frozen=True, slots=True)
class Forms:
    """The dtypes that a gradient goes through in one stage of ZeRO."""

    bucket: str
    """Of the buckets (_gradient_reduction_buffer_dtype; in stage 3 that of the messages)."""
    wire: str
    """Of the messages between ranks: communication_data_type."""
    summed: str
    """Of the gradients that a rank keeps: grad_accum_dtype."""
    whole: bool = False
    """Every rank keeps all gradients: stage 0, and BF16_Optimizer, which stage 1 is where bf16 is summed in fp32."""
    leaves: bool = False
    """A parameter's own gradient is in ``summed`` as soon as it is there (use_grad_accum_attribute)."""

    @property
    def compact(self) -> bool:
        """A rank adds up just its own part, in one flat tensor of fp32 (_use_compact_grad_partition_buffer)."""
        return self.summed == "fp32" and not self.whole and (self.leaves or self.bucket != "fp32")

    @property
    def wire_bytes(self) -> int:
        """Bytes an element of the copy that goes over the wire; 0: the bucket's own dtype does."""
        return DTYPE_BYTES[self.wire] if self.wire != self.bucket else 0

    @property
    def summed_bytes(self) -> int:
        """Bytes an element of what is added to a compact part, where it came in another dtype."""
        return DTYPE_BYTES[self.summed] if self.compact and self.wire != self.summed else 0


def forms_of(job: TrainingJob, stage: int, weights: str) -> Forms:
    """The forms of a job's gradients; ``weights``: dtype of what trains.

    engine.py _do_optimizer_sanity_check, get_data_types and communication_data_type; stage_1_and_2.py
    allreduce_bucket, which reduces in fp32 between the parts of one sequence.
    """
    parallelism, summed = job.parallelism, job.training.precision.gradients or weights
    offloads = parallelism.offload in ("optimizer", "all")
    wire = parallelism.communication_dtype or weights
    if stage == 0 or (stage == 1 and weights == "bf16" and summed == "fp32" and not offloads):
        return Forms(summed, wire, summed, whole=True)
    if stage == 3:
        return Forms(wire, wire, summed)
    leaves = stage == 1 and summed != weights
    if parallelism.context > 1:
        wire = "fp32"
    return Forms(summed if leaves else weights, wire, summed, leaves=leaves)


def elements_of(stated: int | None, automatic: int, default: int) -> int:
    """A size in elements; ``auto`` (-1) is what the Hugging Face integration makes of the hidden size.

    transformers 5.24 integrations/deepspeed.py trainer_config_finalize.
    """
    if stated == -1 and automatic:
        return automatic
    return default if stated is None or stated < 0 else stated


def limits_of(parallelism: Parallelism, hidden: int) -> Limits:
    """How much stage 3 gathers."""
    default = Limits()
    return Limits(
        elements_of(parallelism.prefetch_bucket_elements, int(0.9 * hidden * hidden), default.prefetch),
        elements_of(parallelism.max_live_elements, 0, default.live),
        elements_of(parallelism.max_reuse_elements, 0, default.reuse),
    )
