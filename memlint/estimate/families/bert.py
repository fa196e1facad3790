"""BERT and its kin: post-norm encoder layers with learned positions (bert, roberta, xlm-roberta, electra, distilbert).

Sources: transformers 5.24 models/{bert,roberta,xlm_roberta,camembert,electra,distilbert}/modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from memlint.estimate.build import Build
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.families.encoder_heads import MaskedHead, PooledHead, TokenHead, classifier_dropout, unused_pooler
from memlint.estimate.families.pieces import LayerNorm, attend, heads_of
from memlint.estimate.ops.activations import activate
from memlint.estimate.ops.basic import add, dropout
from memlint.estimate.stack import Stack
from memlint.models.architecture import Architecture

ROOTS = {
    "electra": "electra",
    "distilbert": "distilbert",
    "bert": "bert",
    "ernie": "ernie",
    "data2vec-text": "data2vec_text",
}
"""base_model_prefix; ``roberta`` for its descendants."""

COUNTED = ("bert", "ernie", "electra", "distilbert", "albert")
"""Types whose positions are a slice of a buffer; the others count them from the ids, a [B, S] tensor."""

BERT_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}

DISTILBERT_NAMES = {
    "q": "attention.q_lin",
    "k": "attention.k_lin",
    "v": "attention.v_lin",
    "o": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "norm": "output_layer_norm",
}


class Embeddings:
    """BertEmbeddings: words, token types and positions, normed and dropped out."""

    def __init__(self, a: Architecture, b: Build, name: str, p: float) -> None:
        narrow = a.model_type in ("electra", "albert")
        width = int(a.get("embedding_size", a.hidden_size)) if narrow else a.hidden_size
        rows = b.training.vocab_size or a.vocab_size
        longest = int(a.get("max_position_embeddings"))
        self.per_row = a.model_type not in COUNTED
        self.words = b.embedding(f"{name}.word_embeddings", rows, width, entry=True)
        self.positions = b.embedding(f"{name}.position_embeddings", longest, width)
        self.types = None
        b.buffer(longest * 8)
        if a.model_type != "distilbert":
            self.types = b.embedding(f"{name}.token_type_embeddings", int(a.get("type_vocab_size", 2)), width)
            b.buffer(longest * 8)
        self.tasks = None
        if a.model_type == "ernie" and a.get("use_task_id", False):
            self.tasks = b.embedding(f"{name}.task_type_embeddings", int(a.get("task_type_vocab_size", 3)), width)
        self.norm = LayerNorm(b, f"{name}.LayerNorm", width)
        self.dropout = p

    def __call__(self, f: Tape, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, E]."""
        rows, length = ids.shape
        position_ids = f.new((rows, length), "int64") if self.per_row else Tensor((1, length), "int64", None)
        embeds = self.words(f, ids)
        x = embeds
        if self.types is not None:
            type_ids = f.new((rows if self.per_row else 1, length), "int64").view(rows, length)
            types = self.types(f, type_ids)
            x = add(f, embeds, types)
        positions = self.positions(f, position_ids)
        x = add(f, x, positions)
        if self.tasks is not None:
            tasks = self.tasks(f, f.new((rows, length), "int64"))
            x = add(f, x, tasks)
        x = self.norm(f, x)
        return dropout(f, x, self.dropout)


class Layer:
    """BertLayer and distilbert's TransformerBlock, which drops out once less."""

    def __init__(self, a: Architecture, b: Build, name: str, env: Env) -> None:
        h = a.hidden_size
        distil = self.distil = a.model_type == "distilbert"
        names = {k: f"{name}.{v}" for k, v in (DISTILBERT_NAMES if distil else BERT_NAMES).items()}
        self.env = env
        self.heads = int(a.get("num_attention_heads"))
        self.act = str(a.get("activation" if distil else "hidden_act", "gelu"))
        self.attention_dropout = float(a.get("attention_dropout" if distil else "attention_probs_dropout_prob", 0.0))
        self.hidden_dropout = float(a.get("dropout" if distil else "hidden_dropout_prob", 0.0))
        self.branch_dropout = 0.0 if distil else self.hidden_dropout
        self.query, self.key, self.value, self.out = (b.linear(names[n], h, h, True) for n in "qkvo")
        self.attention_norm = LayerNorm(b, names["attention_norm"], h)
        width = int(a.get("hidden_dim" if distil else "intermediate_size"))
        self.up = b.linear(names["up"], h, width, True)
        self.down = b.linear(names["down"], width, h, True)
        self.norm = LayerNorm(b, names["norm"], h)

    def attend(self, f: Tape, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """BertSelfAttention."""
        width = x.shape[-1] // self.heads
        q = heads_of(self.query(f, x), self.heads, width)
        k = heads_of(self.key(f, x), self.heads, width)
        v = heads_of(self.value(f, x), self.heads, width)
        mask = self.env.state["mask"]
        return attend(f, self.env, q, k, v, mask, self.attention_dropout, causal=False, style="raw")

    def joined(self, f: Tape, linear: Any, x: Tensor, residual: Tensor, norm: LayerNorm, p: float) -> Tensor:
        """Projection, dropout, sum and norm of BertSelfOutput and BertOutput."""
        x = linear(f, x)
        x = dropout(f, x, p)
        return norm(f, add(f, x, residual))

    def __call__(self, f: Tape, x: Tensor) -> Tensor:
        """x [B, S, H] -> [B, S, H]."""
        attended, weights = self.attend(f, x)
        attended = self.joined(f, self.out, attended, x, self.attention_norm, self.branch_dropout)
        fed = activate(f, self.up(f, attended), self.act)
        if self.distil:
            # FFN.ff_chunk calls each step of it x.
            fed = dropout(f, self.down(f, fed), self.hidden_dropout)
            out = self.norm(f, add(f, fed, attended))
        else:
            out = self.joined(f, self.down, fed, attended, self.norm, self.hidden_dropout)
        del weights
        return out


class Model:
    """BertModel and its like: ids [B, S] -> hidden states [B, S, H]; the head for an objective is ``head``."""

    def __init__(self, a: Architecture, b: Build, env: Env, objective: str) -> None:
        self.env = env
        root = ROOTS.get(a.model_type, "roberta")
        distil = a.model_type == "distilbert"
        p = float(a.get("dropout" if distil else "hidden_dropout_prob", 0.0))
        self.embeddings = Embeddings(a, b, f"{root}.embeddings", p)
        width = self.embeddings.words.weight.shape[1]
        self.project = (
            b.linear(f"{root}.embeddings_project", width, a.hidden_size, True) if width != a.hidden_size else None
        )
        layers = f"{root}.transformer.layer" if distil else f"{root}.encoder.layer"
        self.layers = Stack(
            b, ["layer"] * a.num_hidden_layers, lambda build, kind, i: Layer(a, build, f"{layers}.{i}", env)
        )
        self.head = head(a, b, self.embeddings, root, objective)

    def __call__(self, f: Tape, batch: Batch) -> Tensor:
        """The model's forward up to its last hidden state."""
        env = self.env
        embedded = self.embeddings(f, batch.ids)
        if self.project is not None:
            embedded = self.project(f, embedded)
        env.state["mask"] = env.mask(f, batch.rows, batch.length, embedded.dtype) if env.padding else None
        x = self.layers(f, env, embedded)
        env.release()
        return x


def head(a: Architecture, b: Build, embeddings: Embeddings, root: str, objective: str) -> Any:
    """The head that transformers' class for this type and objective has."""
    if objective == "contrastive":
        return unused_pooler(a, b)
    p = classifier_dropout(a)
    if objective == "token-classification":
        return TokenHead(a, b, float(a.get("dropout", 0.0)) if root == "distilbert" else p)
    if objective == "sequence-classification":
        if root in ("bert", "ernie"):
            return PooledHead(a, b, dense=f"{root}.pooler.dense", act="tanh", classifier="classifier", after=p)
        if root == "distilbert":
            after = float(a.get("seq_classif_dropout", 0.2))
            return PooledHead(a, b, dense="pre_classifier", act="relu", classifier="classifier", after=after)
        act = "gelu" if root == "electra" else "tanh"
        names: dict[str, Any] = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
        return PooledHead(a, b, act=act, before=p, after=p, **names)
    if root == "distilbert":
        names = {"dense": "vocab_transform", "norm": "vocab_layer_norm", "decoder": "vocab_projector"}
        return MaskedHead(
            a, b, embeddings.words, bias="vocab_projector.bias", act=str(a.get("activation", "gelu")), **names
        )
    if root == "electra":
        names = {"dense": "generator_predictions.dense", "norm": "generator_predictions.LayerNorm"}
        decoder = "generator_lm_head"
        return MaskedHead(a, b, embeddings.words, decoder=decoder, bias=f"{decoder}.bias", act="gelu", **names)
    if root in ("bert", "ernie"):
        at = "cls.predictions"
        names = {"dense": f"{at}.transform.dense", "norm": f"{at}.transform.LayerNorm", "decoder": f"{at}.decoder"}
        return MaskedHead(a, b, embeddings.words, bias=f"{at}.bias", act=str(a.get("hidden_act", "gelu")), **names)
    names = {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "decoder": "lm_head.decoder"}
    return MaskedHead(a, b, embeddings.words, bias="lm_head.bias", act="gelu", **names)
