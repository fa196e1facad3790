"""Families and objectives: which function builds the model of a job."""

from __future__ import annotations

from typing import Any, Callable, Protocol

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.traits import ALIBI_MASK, CHATGLM, UNEVEN_LAYERS


class Trainable(Protocol):
    """A model with its objective: what the step runs."""

    def batch(self, f: Tape) -> Batch:
        """Make the inputs of one micro batch."""
        ...

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Everything up to the logits (kept by the caller until the loss is taken)."""
        ...

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """The scalar loss."""
        ...

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        ...


def build_model(job: TrainingJob, build: Build, env: Env) -> Trainable:
    """Build the model of a job.

    Raises:
        Unsupported: the family or objective has no model yet.
    """
    architecture = job.architecture
    if architecture is None:
        raise Unsupported("the model's architecture is not known")
    build.prefix = env.prefix
    own = FRAMEWORKS.get(job.framework.partition(" ")[0])
    if own is not None:
        model = own(job, build, env)
        if model is not None:
            return model
    family = architecture.family
    if family == "unknown":
        # The nearest shape of its fields, where models/families.py found one (estimate/nearest.py widens the interval).
        family = str(architecture.get("nearest_family", family))
    if job.training.objective == "contrastive" and family in WITHOUT_TEXTS and architecture.model_type not in PAIRED:
        raise Unsupported(f"no memory model of contrastive training for `{architecture.model_type}` yet")
    maker = FAMILIES.get(family)
    if maker is None:
        raise Unsupported(f"no memory model for the family of `{architecture.model_type}` yet")
    return maker(job, build, env)


OF_LLAMAS_SHAPE = {"diffllama": "diffllama", "granite_swa": "granite_swa"}
"""model_type -> module that holds its ``Model``, where a row of families/shapes.py does not say all."""


def decoder_body(architecture: Architecture) -> Any | None:
    """The body of a decoder of another shape than the job's own (PPO's reward and value models); None: no such one."""
    if architecture.family == "llama":
        module = _of_llamas_shape(architecture)
    elif architecture.family == "gpt2":
        from memlint.estimate.families.gpt import MODULES

        if architecture.model_type not in MODULES:
            return None
        module = MODULES[architecture.model_type]
    elif architecture.family == "moe":
        from memlint.estimate.families.moe import body_of

        return body_of(architecture)
    else:
        return None
    from importlib import import_module

    return import_module(f"memlint.estimate.families.{module}").Model


def _of_llamas_shape(architecture: Architecture) -> str:
    if UNEVEN_LAYERS in architecture.traits:
        return "uneven"
    if ALIBI_MASK in architecture.traits:
        return "baichuan"
    if CHATGLM in architecture.traits:
        return "chatglm"
    return OF_LLAMAS_SHAPE.get(architecture.model_type, "llama")


def _decoder(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.decoder import DecoderModel

    assert job.architecture is not None
    module = _of_llamas_shape(job.architecture)
    if module != "llama":
        from importlib import import_module

        return DecoderModel(job, build, env, import_module(f"memlint.estimate.families.{module}").Model)
    from memlint.estimate.families.llama import Model

    return DecoderModel(job, build, env, Model)


def _encoder(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.encoder import build as build_encoder

    return build_encoder(job, build, env)


def _encoder_decoder(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.encoder_decoder import build as build_encoder_decoder

    model: Trainable = build_encoder_decoder(job, build, env)
    return model


def _gpt(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.gpt import build as build_gpt

    return build_gpt(job, build, env)


def _moe(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.decoder import DecoderModel
    from memlint.estimate.families.moe import body_of

    assert job.architecture is not None
    return DecoderModel(job, build, env, body_of(job.architecture))


def _mla(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.decoder import DecoderModel
    from memlint.estimate.families.mla import Model

    return DecoderModel(job, build, env, Model)


def _mamba(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.mamba import MambaModel

    return MambaModel(job, build, env)


def _gemma(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.decoder import DecoderModel
    from memlint.estimate.families.gemma4 import body_of

    assert job.architecture is not None
    return DecoderModel(job, build, env, body_of(job.architecture))


def _hybrid(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.hybrid import build_hybrid

    model: Trainable = build_hybrid(job, build, env)
    return model


def _speech(job: TrainingJob, build: Build, env: Env) -> Trainable:
    if job.architecture is not None and job.architecture.model_type == "audio-spectrogram-transformer":
        from memlint.estimate.families import spectrogram

        return spectrogram.Model(job, build, env)
    from memlint.estimate.families.wav2vec2 import SpeechModel

    return SpeechModel(job, build, env)


def _vision(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.vision import VisionModel

    return VisionModel(job, build, env)


def _vision_language(job: TrainingJob, build: Build, env: Env) -> Trainable:
    from memlint.estimate.families.vision_language import VisionLanguageModel

    return VisionLanguageModel(job, build, env)


FAMILIES: dict[str, Callable[[TrainingJob, Build, Env], Trainable]] = {
    "llama": _decoder,
    "gpt2": _gpt,
    "encoder": _encoder,
    "encoder-decoder": _encoder_decoder,
    "moe": _moe,
    "mla": _mla,
    "mamba": _mamba,
    "speech": _speech,
    "vision": _vision,
    "vision-language": _vision_language,
    "hybrid": _hybrid,
    "gemma": _gemma,
}
"""Family name of an Architecture -> builder; modules load on first use."""


def _litgpt(job: TrainingJob, build: Build, env: Env) -> Trainable | None:
    from memlint.estimate.families import litgpt

    return litgpt.build(job, build, env)


def _torchtune(job: TrainingJob, build: Build, env: Env) -> Trainable | None:
    from memlint.estimate.families import torchtune

    return torchtune.build(job, build, env)


WITHOUT_TEXTS = ("encoder-decoder", "speech", "vision", "vision-language", "mamba")
"""Families that estimate/contrastive.py does not run."""
PAIRED = ("clip", "siglip", "siglip2")
"""Types that are trained with a contrastive loss of their own (families/vision.py)."""

FRAMEWORKS: dict[str, Callable[[TrainingJob, Build, Env], Trainable | None]] = {
    "litgpt": _litgpt,
    "torchtune": _torchtune,
}
"""First word of ``job.framework`` -> builder of the framework's own model code; None where it has none of that type."""
