"""What a checkpoint's config.json decides about the job: dtype and quantisation of loading, what it can learn.

Source: transformers 5.24 quantizers/auto.py: a ``quantization_config`` in config.json is loaded whether or not the
caller asks for one, and wins over the caller's (merge_quantization_configs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from memlint.job import Quantization, TrainingJob, replace_fields, settle_dtype
from memlint.records import replace

if TYPE_CHECKING:
    from memlint.models.architecture import Architecture

PREPARED = ("native", "hf-trainer", "peft")
"""Frameworks whose scripts, not they themselves, call PEFT's k-bit preparation: taken as done (PEFT's own guide)."""


def as_stored(job: TrainingJob, architecture: Architecture | None) -> TrainingJob:
    """Return ``job`` as the checkpoint makes it: its dtype where the job says ``auto``, and its quantisation.

    A method that trains the base itself cannot do so on a quantised one (transformers refuses): it is left as it is.
    """
    if architecture is None:
        return settle_dtype(job, None)
    job = fitting_objective(settle_dtype(job, architecture.dtype), architecture)
    if architecture.quantization is None:
        return job
    stored = stored_quantization(architecture.quantization)
    asked = job.training.quantization
    if stored is None or (asked is not None and asked.type == stored.type):
        return job
    if job.training.method in ("full", "freeze"):
        sentence = f"the checkpoint is stored in {stored.type}, which transformers refuses to train: taken as unpacked"
        return replace(job, assumptions=(*job.assumptions, sentence))
    prepared = job.framework.partition(" ")[0] in PREPARED if asked is None else asked.kbit_preparation
    stored = replace(stored, kbit_preparation=prepared)
    sentence = f"the checkpoint is stored in {stored.type} (`quantization_config` of its config.json) and loaded so"
    method = "qlora" if job.training.method == "lora" and stored.type in ("nf4", "fp4") else job.training.method
    job = replace_fields(job, {"training.quantization": stored, "training.method": method})
    return replace(job, assumptions=(*job.assumptions, sentence))


OBJECTIVES = {
    "encoder": ("masked-lm", "is an encoder: masked language modelling"),
    "encoder-decoder": ("seq2seq-lm", "is an encoder-decoder: sequence to sequence"),
}
"""Family -> what it is trained for where the file does not say, and the words for it."""


WITHOUT_TEXT = {
    "speech": "hears a waveform: CTC over frames of 20 ms, which `sequence_length` counts (a classifier with the"
    " objective sequence-classification),",
    "vision": "sees images: an image classifier, or images against texts where it has both towers,",
}
"""Family that has no language model -> what its step is where the file asks for one."""

SPECTROGRAM = "hears mel features of its own length: an audio classifier"

FRAMES = 1000
"""20 seconds: max_duration_in_seconds of transformers' run_speech_recognition_ctc.py (5.24, examples)."""

RELATIVE = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "deberta", "deberta-v2")
"""Types with relative positions, which have no longest length."""


def fitting_objective(job: TrainingJob, architecture: Architecture) -> TrainingJob:
    """Return ``job`` with an objective and length the model can take, where the file states neither.

    An encoder cannot be trained as a causal language model; learned positions end at ``max_position_embeddings``.
    """
    if architecture.family in WITHOUT_TEXT:
        return _without_text(job, architecture)
    if architecture.family not in OBJECTIVES:
        return job
    objective, words = OBJECTIVES[architecture.family]
    changes: dict[str, Any] = {}
    sentences = []
    if job.training.objective == "causal-lm" and not _stated(job, "training.objective"):
        changes["training.objective"] = objective
        sentences.append(f"`{architecture.model_type}` {words} assumed")
    most = architecture.longest_sequence
    learned = architecture.model_type not in RELATIVE
    too_long = most is not None and 0 < most < job.training.sequence_length
    if learned and too_long and not _stated(job, "training.sequence_length"):
        changes["training.sequence_length"] = most
        sentences.append(f"`{architecture.model_type}` takes at most {most} tokens: {most} assumed, none being stated")
    if not changes:
        return job
    job = replace_fields(job, changes)
    return replace(job, assumptions=(*job.assumptions, *sentences))


def _without_text(job: TrainingJob, architecture: Architecture) -> TrainingJob:
    sentences = []
    spectrogram = architecture.model_type == "audio-spectrogram-transformer"
    if job.training.objective == "causal-lm":
        words = SPECTROGRAM if spectrogram else WITHOUT_TEXT[architecture.family]
        sentences.append(f"`{architecture.model_type}` {words} assumed")
    if architecture.family == "speech" and not spectrogram and not _stated(job, "training.sequence_length"):
        job = replace_fields(job, {"training.sequence_length": FRAMES})
        sentences.append(f"`sequence_length` {FRAMES} (20 seconds) assumed, none being stated")
    return replace(job, assumptions=(*job.assumptions, *sentences))


def _stated(job: TrainingJob, name: str) -> bool:
    """Whether the file or the user states a field; a default or an assumption does not."""
    origin = job.origin(name)
    return origin is not None and origin.default is None and origin.assumed is None


GROUP = 128
"""group_size of transformers' GPTQConfig and AwqConfig (5.24 utils/quantization_config.py) where a config has none."""


def stored_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """Return the format of a ``quantization_config``; None for one that training dequantises, or that is not known.

    FP8 and MXFP4 checkpoints are dequantised for training (their quantizers are not trainable). Experts of a
    bitsandbytes or NVFP4 checkpoint are stored packed as its linear layers are.
    """
    method = str(config.get("quant_method") or "").lower()
    if method == "bitsandbytes" or config.get("load_in_4bit") or config.get("load_in_8bit"):
        if config.get("load_in_8bit") or config.get("_load_in_8bit"):
            return Quantization(bits=8, type="int8", double_quant=False, skip=_skipped(config), experts="linear")
        kind = "fp4" if config.get("bnb_4bit_quant_type") == "fp4" else "nf4"
        double = bool(config.get("bnb_4bit_use_double_quant"))
        return Quantization(type=kind, double_quant=double, skip=_skipped(config), experts="linear")
    if method in ("gptq", "awq"):
        bits, group = config.get("bits"), config.get("group_size")
        return Quantization(
            bits=bits if bits in (2, 3, 4, 8) else 4,
            type=method,
            group_size=group if isinstance(group, int) and (group > 0 or group == -1) else GROUP,
            skip=_skipped(config),
        )
    if str(config.get("quant_algo") or "").upper() == "NVFP4":
        return Quantization(type="nvfp4", double_quant=False, skip=_skipped(config), experts="fused")
    return None


def _skipped(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules left unquantised: what the config lists, beside the output layer that every quantizer leaves."""
    listed = config.get("llm_int8_skip_modules") or config.get("modules_to_not_convert") or ()
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, (list, tuple)) else []
    return tuple(dict.fromkeys(("lm_head", *names[:1000])))
