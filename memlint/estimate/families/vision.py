"""Image models on their own: ViT with a classifier; CLIP and SigLIP with a contrastive loss, or a classifier.

Sources: transformers 5.24 models/{vit,clip,siglip}/modeling_*.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.pool import INPUTS, LOGITS
from memlint.estimate.engine.tape import Leaf, Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import vision_dino
from memlint.estimate.families.encoder_heads import labels_of
from memlint.estimate.families.pieces import LayerNorm, hooked
from memlint.estimate.families.pooling_head import PoolingHead
from memlint.estimate.families.vision_tower import KINDS, Kind, Layer, Tower, Unreached
from memlint.estimate.ops.basic import add, mean_last, mul, saving_output, scale, slice_of, square
from memlint.estimate.ops.gather import divide, index_rows, sum_last
from memlint.estimate.ops.linear import matmul
from memlint.estimate.ops.loss import cross_entropy
from memlint.estimate.stack import Stack
from memlint.job import TrainingJob
from memlint.models.architecture import Architecture
from memlint.models.config import part

FIRST = ("vit", "deit", "vit_msn")
"""Towers on their own that are classified by their first token."""

MEAN = ("ijepa",)
"""Towers on their own that are classified by the mean of their states."""

OWN = {
    "resnet": "convnets",
    "convnext": "convnets",
    "convnextv2": "convnets",
    "swin": "swin",
    "beit": "beit",
    "segformer": "segformer",
}
"""model_type -> module of this package with a ``Classifier`` of its own."""

CLASSIFIED = ("image-classification", "sequence-classification")
"""Objectives that put a classifier on the image tower; any other trains CLIP and SigLIP against each other's towers."""


class TextTower:
    """CLIPTextModel and SiglipTextModel: ids [B, S] -> one vector a text."""

    def __init__(self, a: Architecture, b: Build, env: Env, name: str) -> None:
        h = a.hidden_size
        self.env, self.width = env, h
        self.causal = a.model_type == "clip_text_model"
        self.words = b.embedding(f"{name}.embeddings.token_embedding", a.vocab_size, h)
        self.longest = int(a.get("max_position_embeddings"))
        self.positions = b.embedding(f"{name}.embeddings.position_embedding", self.longest, h)
        b.buffer(self.longest * 8)
        kind = Kind()
        make = lambda build, _, i: Layer(a, build, f"{name}.encoder.layers.{i}", kind, env)  # noqa: E731
        self.layers = Stack(b, ["layer"] * a.num_hidden_layers, make)
        self.norm = LayerNorm(b, f"{name}.final_layer_norm", h)
        self.head = None if self.causal else b.linear(f"{name}.head", h, int(a.get("projection_size", h)), True)

    def _embedded(self, f: Tape, ids: Tensor) -> Tensor:
        words = hooked(f, self.env, self.words(f, ids))
        places = self.positions(f, Tensor((1, ids.shape[1]), "int64", None))
        return add(f, words, places)

    def __call__(self, f: Tape, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The text's vector, and the last hidden states that the outputs hold."""
        env, (rows, length) = self.env, ids.shape
        x = self._embedded(f, ids)
        mask = env.mask(f, rows, length, x.dtype) if self.causal or env.padding else None
        env.state["tower mask"] = (mask, self.causal)
        x = self.layers(f, env, x)
        x = self.norm(f, x)
        env.release()
        if self.causal:
            # CLIP finds the last word of each text; SigLIP takes the last place.
            pooled = index_rows(f, x.view(rows * length, self.width), f.new((rows,), "int64"))
        else:
            pooled = slice_of(f, x, (rows, self.width))
        return (pooled if self.head is None else self.head(f, pooled)), x


class ImageTower:
    """The tower and what makes one vector of its states: the class token normed (CLIP), attention pooling (SigLIP)."""

    def __init__(self, a: Architecture, b: Build, env: Env, name: str, *, pooled: bool = True) -> None:
        self.env, self.a = env, a
        self.clip = a.model_type == "clip_vision_model"
        self.tower: Any
        if a.model_type == "siglip2_vision_model":
            from memlint.estimate.families import siglip2_vision

            self.tower = siglip2_vision.Alone(a, b, env, name, worded=pooled)
        else:
            self.tower = Tower(a, b, env, name)
        idle, b.idle = b.idle, b.idle or not pooled
        self.norm = LayerNorm(b, f"{name}.post_layernorm", a.hidden_size) if self.clip else None
        self.head = PoolingHead(a, b, f"{name}.head") if not self.clip and a.get("vision_use_head", True) else None
        b.idle = idle

    def __call__(self, f: Tape, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The image's vector, and the last hidden states that the outputs hold."""
        x, _ = self.tower(f, pixels)
        self.env.release()
        return self.pooled(f, x), x

    def pooled(self, f: Tape, x: Tensor) -> Tensor:
        """hidden states [B, N, H] -> [B, H]."""
        if self.norm is not None:
            return self.norm(f, slice_of(f, x, (x.shape[0], x.shape[2])))
        return self.head(f, x) if self.head is not None else x


def normalised(f: Tape, x: Tensor) -> Tensor:
    """``x / x.norm(dim=-1, keepdim=True)``."""
    return divide(f, x, saving_output(f, sum_last(f, square(f, x))))


class Contrastive:
    """CLIPModel and SiglipModel."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        text, image = part(a, "text_config"), part(a, "vision_config")
        if text is None or image is None:
            raise Unsupported(f"`{a.model_type}` without text_config and vision_config")
        self.clip = a.model_type == "clip"
        self.text = TextTower(text, b, env, "text_model")
        b.first_layer = b.layers
        self.image = ImageTower(image, b, env, "vision_model")
        b.first_layer = 0
        self.scale = b.parameter("logit_scale", *(() if self.clip else (1,)))
        self.bias = None if self.clip else b.parameter("logit_bias", 1)
        self.project: tuple[Any, Any] | None = None
        if self.clip:
            width = int(a.get("projection_dim", 512))
            self.project = (
                b.linear("visual_projection", image.hidden_size, width),
                b.linear("text_projection", text.hidden_size, width),
            )

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Similarities [B, B] and what the outputs hold."""
        assert batch.pixels is not None
        image, states = self.image(f, batch.pixels)
        if self.project is not None:
            image = self.project[0](f, image)
        text, words = self.text(f, batch.ids)
        if self.project is not None:
            text = self.project[1](f, text)
        image, text = normalised(f, image), normalised(f, text)
        f.component = LOGITS
        logits = matmul(f, text, image, image.shape[0])
        logits = mul(f, logits, saving_output(f, self.scale))
        if self.bias is not None:
            logits = add(f, logits, self.bias)
        return logits, image, text, states, words

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over rows and columns (CLIP), or a sigmoid for each pair (SigLIP)."""
        logits: Tensor = output[0]
        rows = logits.shape[0]
        if self.clip:
            labels = f.new((rows,), "int64")
            return add(f, cross_entropy(f, logits, labels), cross_entropy(f, logits, labels))
        signs = f.like(logits)
        pairs = mul(f, signs, logits)
        return mean_last(f, scale(f, sum_last(f, saving_output(f, pairs))).view(rows)).view()


class Classifier:
    """ViTForImageClassification, CLIPForImageClassification, SiglipForImageClassification."""

    def __init__(self, a: Architecture, b: Build, env: Env) -> None:
        self.first, self.alone = a.model_type in FIRST, a.model_type in (*FIRST, *MEAN)
        self.env = env
        if self.alone:
            vision: Architecture | None = a
            self.tower: Any = Tower(a, b, env, "vit" if a.model_type == "vit_msn" else a.model_type)
        else:
            vision = part(a, "vision_config") or a
            self.tower = ImageTower(vision, b, env, "vision_model", pooled=False)
        assert vision is not None
        self.clip = vision.model_type == "clip_vision_model"
        self.classifier = b.linear("classifier", vision.hidden_size, labels_of(a), True)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """Logits [B, labels], and what the outputs hold."""
        assert batch.pixels is not None
        tower = self.tower if self.alone else self.tower.tower
        x, _ = tower(f, batch.pixels)
        self.env.release()
        rows, count, width = x.shape
        if self.first:
            return self.classifier(f, slice_of(f, x, (rows, width))), x
        if self.alone:
            return self.classifier(f, _mean_tokens(f, x)), x
        # The pooled vector is made all the same and stands in the outputs; nothing leads backward through it.
        mark = len(f.nodes)
        vector = self.tower.pooled(f, x)
        held = [vector, Unreached(f.nodes[mark:])]
        del f.nodes[mark:]
        kept = slice_of(f, x, (rows, count - 1, width)) if self.clip else x
        mean = tower.mean(f, kept, batch.beside[1]) if batch.beside else _mean_tokens(f, kept)
        return self.classifier(f, mean), x, held

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """Cross entropy over the labels."""
        assert batch.labels is not None
        return cross_entropy(f, output[0], batch.labels)


def _mean_tokens(f: Tape, x: Tensor) -> Tensor:
    """``x.mean(dim=1)``: its gradient is a new tensor of x's size."""
    rows, count, width = x.shape
    return mean_last(f, x.view(rows, width, count)).view(rows, width)


class VisionModel:
    """An image model under an objective."""

    def __init__(self, job: TrainingJob, build: Build, env: Env) -> None:
        a = job.architecture
        assert a is not None
        self.job, self.build = job, build
        alone = a.model_type in (*FIRST, *MEAN, *vision_dino.PREFIXES, *OWN)
        self.classified = alone or job.training.objective in CLASSIFIED
        seen = a.model_type in KINDS or a.model_type == "siglip2_vision_model"
        if not alone and a.model_type not in ("clip", "siglip", "siglip2") and not (self.classified and seen):
            raise Unsupported(f"no memory model for `{a.model_type}` yet")
        classifier: Any = vision_dino.Classifier if a.model_type in vision_dino.PREFIXES else Classifier
        if a.model_type in OWN:
            module: Any = import_module(f"memlint.estimate.families.{OWN[a.model_type]}")
            pixels = job.training.objective == "token-classification" and hasattr(module, "Segmenter")
            classifier = module.Segmenter if pixels else module.Classifier
        self.model: Any = classifier(a, build, env) if self.classified else Contrastive(a, build, env)

    def batch(self, f: Tape) -> Batch:
        """Pixels in fp32, with a label or a text each."""
        rows = self.job.training.micro_batch_size
        tower = self.model.tower if self.classified else self.model.image
        tower = getattr(tower, "tower", tower)
        side = getattr(self.model, "side", None) or getattr(tower, "image", 0)
        dtype = self.job.training.precision.weights if getattr(self.model, "uncast", False) else "fp32"
        own = getattr(tower, "input_shape", None)
        shape: Any = own(rows) if own is not None else (rows, tower.channels, side, side)
        pixels = f.new(shape, dtype, INPUTS)
        beside = tower.beside(f, rows) if own is not None else ()
        if self.classified:
            shape = self.model.labels_shape(rows) if hasattr(self.model, "labels_shape") else (rows,)
            labels = f.new(shape, "int64", INPUTS)
            return Batch(ids=labels, labels=labels, pixels=pixels, beside=beside)
        length = min(self.job.training.sequence_length, self.model.text.longest)
        return Batch(ids=f.new((rows, length), "int64", INPUTS), labels=None, pixels=pixels, beside=beside)

    def forward(self, f: Tape, batch: Batch) -> Any:
        """See the models."""
        return self.model.forward(f, batch)

    def loss(self, f: Tape, output: Any, batch: Batch) -> Tensor:
        """The scalar loss."""
        loss: Tensor = self.model.loss(f, output, batch)
        return loss

    def leaves(self) -> list[Leaf]:
        """Gradient accumulators of all trainable parameters."""
        return self.build.leaves
