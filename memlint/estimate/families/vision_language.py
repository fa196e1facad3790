"""Vision-language models: an image tower, what fits its tokens to the language model, and that model over both.

Image tokens stand in the sequence already (``sequence_length`` counts them); their features are copied over their
embeddings. Without images (``training.images`` 0) the tower is there but does not run.

Sources: transformers 5.24 models/<type>/modeling_<type>.py of each type in :data:`TOWERS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families.decoder import PAIRED, DecoderModel
from memlint.estimate.families.pieces import hooked
from memlint.estimate.fully_shard import ATTENTION_ALONE
from memlint.estimate.heads import CausalHead
from memlint.estimate.ops.basic import add, cast, copy, scale
from memlint.estimate.ops.images import masked_rows, masked_scatter, put_rows
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.config import part
from memlint.records import replace

_QWEN = ("qwen_vision", "Tower", "visual", "language_model")
TOWERS: dict[str, tuple[str, str, str, str]] = {
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_vl_moe": _QWEN,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "qwen2_5_omni_thinker": _QWEN,
    "qwen3_omni_moe_thinker": _QWEN,
    "llava": ("llava_vision", "Llava", "vision_tower", "language_model"),
    "llava:pixtral": ("pixtral", "Pixtral", "vision_tower", "language_model"),
    "llava_next": ("llava_vision", "LlavaNext", "vision_tower", "language_model"),
    "llava_next_video": ("llava_vision", "LlavaNext", "vision_tower", "language_model"),
    "llava_onevision": ("llava_vision", "LlavaOnevision", "vision_tower", "language_model"),
    "vipllava": ("llava_vision", "VipLlava", "vision_tower", "language_model"),
    "video_llava": ("llava_vision", "VideoLlava", "image_tower", "language_model"),
    "deepseek_vl": ("llava_vision", "DeepseekVl", "vision_model", "language_model"),
    "paligemma": ("image_projectors", "PaliGemma", "vision_tower", "language_model"),
    "gemma3": ("image_projectors", "Gemma3", "vision_tower", "language_model"),
    "idefics3": ("image_projectors", "Idefics3", "vision_model", "text_model"),
    "smolvlm": ("image_projectors", "Idefics3", "vision_model", "text_model"),
    "mllama": ("mllama_vision", "Tower", "vision_model", "language_model"),
    "mistral3": ("pixtral", "Tower", "vision_tower", "language_model"),
    "lighton_ocr": ("pixtral", "LightOnOcr", "vision_encoder", "language_model"),
    "ovis2": ("ovis2", "Tower", "vision_tower", "language_model"),
    "got_ocr2": ("sam_vision", "GotOcr2", "vision_tower", "language_model"),
    "idefics2": ("idefics2", "Idefics2", "vision_model", "text_model"),
    "llama4": ("llama4_vision", "Tower", "vision_model", "language_model"),
    "aya_vision": ("image_projectors", "Gated", "vision_tower", "language_model"),
    "cohere2_vision": ("image_projectors", "Gated", "vision_tower", "language_model"),
    "internvl": ("image_projectors", "InternVl", "vision_tower", "language_model"),
    "glm4v": ("glm4v_vision", "Tower", "visual", "language_model"),
    "glm46v": ("glm4v_vision", "Tower", "visual", "language_model"),
    "glm_ocr": ("glm4v_vision", "Tower", "visual", "language_model"),
    "glm4v_moe": ("glm4v_vision", "Tower", "visual", "language_model"),
    "lfm2_vl": ("siglip2_vision", "Lfm2Vl", "vision_tower", "language_model"),
    "qwen2_audio": ("audio_towers", "Qwen2Audio", "audio_tower", "language_model"),
    "voxtral": ("audio_towers", "Voxtral", "audio_tower", "language_model"),
    "gemma3n": ("gemma3n_towers", "Tower", "vision_tower", "language_model"),
    "gemma4": ("gemma4_towers", "Tower", "vision_tower", "language_model"),
    "gemma4_unified": ("gemma4_unified", "Tower", "embed_vision", "language_model"),
}
"""model_type -> module of this package and class of its tower; names of tower and language model under ``model``. With
the tower's own type behind a colon where a type takes several.
"""

AUDIO = ("qwen2_audio", "voxtral")
"""Types whose tower hears instead of sees."""

UNCACHED = (
    *("llava_next", "llava_next_video", "llava_onevision", "video_llava"),
    *("idefics2", "idefics3", "smolvlm", "mistral3", "lighton_ocr", "llama4", "gemma4", "gemma4_unified"),
)
CACHED = tuple(kind for kind in TOWERS if kind not in UNCACHED)
"""Types whose language model makes a key-value cache in training too: trainers set ``use_cache`` of the outer config to
False, but these read the inner one's, which is true unless a checkpoint says otherwise. Checkpointing turns it off. The
others pass on the outer one's.
"""

BLOCKS = ("gemma3", "paligemma")
"""Types in which the tokens of an image (or of the prompt) see one another: token_type_ids come with every batch, and
attention always has a mask of its own for each sequence.
"""


def deepstack(f: Tape, features: Tensor, x: Tensor) -> Tensor:
    """_deepstack_process: features from inside Qwen3-VL's tower are added to the outputs of the first layers."""
    x = copy(f, x)
    local = add(f, masked_rows(f, x, features.shape[0]), features)
    return put_rows(f, x, local)


class Body:
    """The tower and the language model's body: ids and pixels -> last hidden states."""

    def __init__(self, whole: Architecture, text: Architecture, b: Build, env: Env) -> None:
        self.env = env
        self.fully = b.sharding.fully
        self.training = b.training
        section = "audio_config" if whole.model_type in AUDIO else "vision_config"
        vision = part(whole, section)
        if vision is None:
            raise Unsupported(f"`{whole.model_type}` without {section}")
        own = TOWERS.get(f"{whole.model_type}:{vision.model_type}")
        module, kind, name, language = own or TOWERS[whole.model_type]
        b.idle = b.training.images == 0
        tower = getattr(import_module(f"memlint.estimate.families.{module}"), kind)
        self.tower = tower(whole, vision, b, env, f"model.{name}" if module == "qwen_vision" else name)
        b.idle = False
        self.head_name = "language_model.lm_head" if whole.model_type == "llama4" else "lm_head"
        scope = "language_model.model." if whole.model_type == "llama4" else f"model.{language}."
        b.scope, b.apart = scope, len(getattr(self.tower, "taps", ()))
        # The towers of Llama 3.2 Vision and Gemma 3n hold no layers that transformers checkpoints.
        b.first_layer = 0 if whole.model_type in ("mllama", "gemma3n") else b.layers
        self.text = _body_of(text)(text, b, env)
        b.scope, b.apart, b.first_layer = "", 0, 0
        blocks = whole.model_type in BLOCKS or text.get("use_bidirectional_attention") == "vision"
        self.text.blocks = blocks and b.training.images > 0
        self.embed = self.text.embed
        self.scaled = getattr(self.text, "scales", False)
        self.cached = whole.model_type in CACHED and env.checkpointing.mode == "none" and text.get("use_cache", True)
        self.crossing = whole.model_type == "mllama"
        self.held: list[Any] = []
        """What the model's outputs go on holding until the loss is taken: states and tokens of the tower, the cache."""

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The forward of <type>Model."""
        if batch.pixels is not None and self.crossing:
            self._cross(f, batch)  # MllamaTextModel embeds its tokens itself, behind the tower
        embeds = self.embed(f, batch.ids)
        if self.scaled:
            embeds = scale(f, embeds)
        embeds = hooked(f, self.env, embeds)
        if self.fully is not None:
            embeds = self.fully.after_embedding(f, embeds)
        before, among = getattr(self.tower, "before", None), None
        if before is not None:
            embeds, among = before(f, batch.ids, embeds)
        ahead = getattr(self.text, "ahead", None)
        if ahead is not None:
            ahead(f, batch.ids, embeds)
        image = None
        if batch.pixels is not None and not self.crossing:
            count = self.training.images * batch.rows
            image, deep, self.held = self.tower(f, batch.pixels, count, self.training.image_pixels)
            embeds = masked_scatter(f, embeds, image)
            after = getattr(self.tower, "after", None)
            if after is not None:
                embeds = after(f, embeds)
            if deep:
                self.text.layers.after = lambda f, env, index, x: deepstack(f, deep[index], x)
        if self.cached:
            cache: list[Any] = []
            self.env.state["cache"] = cache
            self.held = [*self.held, cache]
        out: Tensor = self.text.body(f, embeds, batch)
        self.text.layers.after = None
        del image, among
        return out

    def _cross(self, f: Tape, batch: Batch) -> None:
        """mllama: states and masks for cross-attention instead of tokens in the sequence."""
        count = self.training.images * batch.rows
        assert batch.pixels is not None
        states, self.held = self.tower(f, batch.pixels, count, self.training.image_pixels)
        state = self.env.state
        length = states.shape[0] * states.shape[1] // batch.rows
        # _prepare_cross_attention_mask, in the dtype of the model, autocast or not
        dtype = self.training.precision.weights
        shape = (batch.rows, 1, batch.length, length)
        repeated = f.new(shape, "int64")
        single = f.new(shape, "fp32")
        inverted = cast(f, single, dtype)
        del single
        flags = f.new(shape, "bool")
        mask = f.like(inverted)
        del flags, repeated, inverted
        state["states"] = states
        state["cross"] = (mask, f.new((batch.rows, batch.length, 1), dtype))


def _body_of(text: Architecture) -> Any:
    if text.family == "moe":
        from memlint.estimate.families.moe import body_of

        return body_of(text)
    if text.model_type in ("lfm2", "lfm2_moe"):
        from memlint.estimate.families import lfm2

        return lfm2.Model
    if text.family == "hybrid":
        from memlint.estimate.families.hybrid import Model as HybridModel

        return HybridModel
    if text.family == "gemma":
        from memlint.estimate.families import gemma4

        return gemma4.body_of(text)
    if text.model_type == "mllama_text_model":
        from memlint.estimate.families.mllama import TextModel

        return TextModel
    if text.family != "llama":
        raise Unsupported(f"no memory model for a language model of type `{text.model_type}` behind images yet")
    from memlint.estimate.families.llama import Model

    return Model


class VisionLanguageModel(DecoderModel):
    """A tower, a language model and its head under an objective."""

    one_stack = False

    def __init__(self, job: TrainingJob, build: Build, env: Env) -> None:
        whole = job.architecture
        assert whole is not None
        # Trainers take the part of the Omni models that hears, sees and writes, without the one that speaks
        # (LLaMA-Factory 0.9.5 model/loader.py: ``model = model.thinker``).
        whole = part(whole, "thinker_config") or whole
        text = part(whole, "text_config")
        if whole.model_type not in TOWERS or text is None:
            raise Unsupported(f"no memory model for `{whole.model_type}` yet")
        self.kind = whole.model_type
        if build.sharding.fully is not None:
            build.sharding.fully.attention_alone = self.kind in ATTENTION_ALONE
        if self.kind == "llama4":
            self.head_name = "language_model.lm_head"
        text = replace(text, tie_word_embeddings=whole.tie_word_embeddings)
        super().__init__(replace(job, architecture=text), build, env, lambda a, b, e: Body(whole, a, b, e))

    def _language_head(self, a: Architecture, body: Any) -> CausalHead:
        if self.kind == "qwen2_audio":
            from memlint.estimate.families.audio_towers import Qwen2AudioHead

            return Qwen2AudioHead(a, self.build, body.embed)
        head = super()._language_head(a, body)
        # Cohere's image models leave their language model's logit_scale out.
        head.scaled = head.scaled and self.kind not in ("aya_vision", "cohere2_vision")
        return head

    def batch(self, f: Tape) -> Batch:
        """ids, labels, mask as a decoder has them, and pixel values, in fp32 unless the tower says otherwise."""
        made = super().batch(f)
        training = self.job.training
        if training.images:
            rows = training.micro_batch_size * (2 if self.objective in PAIRED else 1)
            shape = self.body.tower.input_shape(rows * training.images, training.image_pixels)
            made.pixels = f.new(shape, getattr(self.body.tower, "pixel_dtype", "fp32"), INPUTS)
            beside = getattr(self.body.tower, "beside", None)
            if beside is not None:
                made.beside = beside(f, rows * training.images, training.image_pixels)
            if self.body.text.blocks:
                made.types = f.new(made.ids.shape, "int64", INPUTS)
            elif self.body.crossing:
                tiles = training.images * self.body.tower.most
                made.types = f.new((*made.ids.shape, tiles), "int64", INPUTS)
        return made

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits, last hidden states, and what the outputs hold of the tower."""
        fully, pixels = self.build.sharding.fully, batch.pixels
        if fully is not None and fully.compute is not None and pixels is not None:
            # The root's _pre_forward: a copy that lasts as long as the model's forward, which takes the loss too.
            batch.pixels = cast(f, pixels, fully.compute)
        output = super().forward(f, batch)
        held, self.body.held = [*self.body.held, batch.pixels], []
        batch.pixels = pixels
        # A list is emptied by a loss that lets logits and hidden states go (see DecoderModel.forward).
        return [*output, held] if isinstance(output, list) else (*output, held)

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """The scalar loss."""
        if not isinstance(output, list):
            return super().loss(f, output[:2], batch)
        held = output.pop()
        loss = super().loss(f, output, batch)
        del held
        return loss
