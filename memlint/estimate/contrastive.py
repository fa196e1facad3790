"""Training of text embeddings: several texts a row, embedded by one model, and their similarities.

Source: sentence-transformers 6.2 ``sentence_transformer/losses/multiple_negatives_ranking.py`` and its cached form,
``base/losses/{merged_forward,gradcache}.py``, ``base/modules/transformer.py``, ``sentence_transformer/modules/
pooling.py``, ``base/trainer.py`` (compute_loss).

The first column is embedded on its own, all others in one forward (embed_columns); the graphs of both live until
backward. The dictionary of a column that is embedded on its own holds its token embeddings until compute_loss returns.
Each forward of the model is an autocast of its own (Accelerator.prepare_model), the loss runs outside of any.
"""

from __future__ import annotations

from math import prod
from typing import Any, Callable

from memlint.estimate.build import Build
from memlint.estimate.engine.gradients import accumulate
from memlint.estimate.engine.graph import Leaf, Node
from memlint.estimate.engine.pool import ACTIVATIONS, GRADIENTS, LOGITS, TEMPORARIES, rounded
from memlint.estimate.engine.tape import Tape, Tensor
from memlint.estimate.env import Batch, Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.ops.basic import cast, slice_of
from memlint.estimate.ops.similarity import HALVES, POOLINGS, ranking_loss, stacked
from memlint.estimate.rollout import batch_of
from memlint.job import TrainingJob
from memlint.units import DTYPE_BYTES

UNDIVIDED = ("none", "ddp", "device-map")
"""Strategies under which every GPU has whole parameters and gradients."""


class Columns:
    """The texts of a micro batch through one body, and the loss over their embeddings."""

    def __init__(self, job: TrainingJob, build: Build, env: Env, body: Any, *, closures: bool) -> None:
        """``closures``: what the layers share is given to them by keyword, which a reentrant checkpoint's closure holds
        as long as the graph lives (what is given by position goes with the last layer's backward).

        Raises Unsupported for a run that divides parameters or gradients.
        """
        training = job.training
        if job.parallelism.strategy not in UNDIVIDED:
            raise Unsupported("no memory model of contrastive training whose parameters or gradients are divided yet")
        if training.optimizer_in_backward:
            raise Unsupported("no memory model of contrastive training with an optimizer in backward yet")
        self.job, self.build, self.env, self.body = job, build, env, body
        self.rows, self.length, self.columns = training.micro_batch_size, training.sequence_length, training.columns
        env.masked = True
        self.holds = closures and env.checkpointing.mode != "none" and env.checkpointing.reentrant
        self.pool = POOLINGS[training.pooling]
        self.pooler: Any = getattr(body, "head", None)
        """AutoModel's own pooler, whose output nobody asks for."""
        mini = training.embedding_mini_batch
        self.mini = None if mini is None else min(mini, self.rows)
        self.waiting: set[int] = set()
        """Parameters whose gradients of the last forward wait for those of the first."""
        self.cache: list[Tensor] = []
        """Gradients of the embeddings, which the hook of a cached loss holds."""

    def batch(self, f: Tape) -> list[Batch]:
        """ids and mask of every column: [B, S] int64 each; the tokenizer's mask is always there."""
        return [batch_of(f, self.rows, self.length, padding=True) for _ in range(self.columns)]

    def forward(self, f: Tape, batches: list[Batch]) -> list[Any]:
        """Embeddings [B, H] of the first column, [(columns - 1) * B, H] of the others, and what holds them."""
        self._receive(None if self.mini is not None else self._first)
        if self.mini is not None:
            return self._without_graph(f)
        self.env.past = [] if self.holds else None
        first, *others = batches
        held: list[Tensor] = []
        queries = self.embed(f, first, held)
        if queries.node is not None:
            # Backward comes here once it is through with the other columns.
            queries = f.record(queries.detach(), self._others_are_through, (queries,))
        if len(others) == 1:
            answers = self.embed(f, others[0], held)
        else:
            merged = batch_of(f, len(others) * self.rows, self.length, padding=True)
            answers = self.embed(f, merged, [])
        # The graph of the last column lives as long as the first one's.
        self.env.state["past"], self.env.past = self.env.past, None
        return [queries, answers, held]

    def embed(self, f: Tape, batch: Batch, held: list[Tensor]) -> Tensor:
        """One forward of the model and its pooling: [rows, H]; ``held`` takes the token embeddings."""
        f.autocast = self.job.training.precision.autocast
        f.component = TEMPORARIES
        hidden = self.body(f, batch)
        # Router logits go with the model's outputs.
        self.env.state.pop("router", None)
        if self.pooler is not None:
            self.pooler(f, hidden)
        held.append(hidden.detach())
        vector = self.pool(f, hidden)
        f.cast_cache.clear()
        if f.autocast is not None and hidden.dtype in HALVES:
            # convert_outputs_to_fp32 (accelerate 1.15 utils/operations.py) over the whole dictionary.
            whole = cast(f, hidden.detach(), "fp32")
            vector = cast(f, vector, "fp32")
            del whole
        f.autocast = None
        return vector

    def _receive(self, sink: Callable[[Tape, Leaf, Tensor], None] | None) -> None:
        for leaf in self.build.all_leaves():
            leaf.sink = sink

    def _first(self, f: Tape, leaf: Leaf, grad: Tensor) -> None:
        """A parameter's gradient of the last forward: AccumulateGrad waits with it for that of the first column."""
        leaf.sink = None
        if leaf.grad is True:
            # What the micro batches before have summed is there besides.
            if id(leaf) not in self.waiting:
                self.waiting.add(id(leaf))
                if grad.storage is not None:
                    grad.storage.relabel(GRADIENTS)
                f.ends.append(grad)
        else:
            accumulate(f, leaf, grad, self._dense(leaf))
        leaf.sink = self._first

    def _others_are_through(self, f: Tape, node: Node, grad: Tensor) -> tuple[Tensor]:
        self.waiting.clear()
        self._receive(self._second)
        return (grad,)

    def _second(self, f: Tape, leaf: Leaf, grad: Tensor) -> None:
        """Its gradient of the first column: the engine adds in place, or makes a sum beside the view that waits."""
        if not self._dense(leaf):
            f.pool.touch(rounded(prod(leaf.shape) * DTYPE_BYTES[leaf.grad_dtype]), GRADIENTS)

    def _dense(self, leaf: Leaf) -> bool:
        """Whether its gradient is no view: a linear layer's is one, unless autocast's cast has copied it."""
        cast_one = self.job.training.precision.autocast is not None and leaf.grad_dtype == "fp32"
        return len(leaf.shape) != 2 or leaf in self.build.tables or cast_one

    def loss(self, f: Tape, output: list[Any]) -> Tensor:
        """The scalar loss."""
        f.component = LOGITS
        if self.mini is not None:
            return self._cached(f, output)
        queries, others, _ = output
        count = self.columns - 1
        # The columns of one forward are views of it.
        positives = others if count == 1 else slice_of(f, others, (self.rows, others.shape[1]))
        return ranking_loss(f, queries, positives, stacked(f, [others]), self.rows)

    def _part(self) -> Batch:
        """A mini batch of a column: views of what the trainer has put on the device."""
        assert self.mini is not None
        shape = (self.mini, self.length)
        return Batch(ids=Tensor(shape, "int64", None), labels=None, mask=Tensor(shape, "int64", None))

    def _without_graph(self, f: Tape) -> list[Any]:
        """Every mini batch embedded without a graph, the last one beside what the others have left."""
        assert self.mini is not None
        grad_enabled, f.grad_enabled = f.grad_enabled, False
        first = self.embed(f, self._part(), [])
        width, dtype = first.shape[1], first.dtype
        rest = f.new((self.columns * self.rows - 2 * self.mini, width), dtype, ACTIVATIONS)
        last = self.embed(f, self._part(), [])
        f.grad_enabled = grad_enabled
        del first, rest, last
        vectors = [f.new((self.rows, width), dtype, ACTIVATIONS) for _ in range(self.columns)]
        for vector in vectors:
            vector.node = Leaf(vector.shape, dtype)
        return vectors

    def _cached(self, f: Tape, vectors: list[Tensor]) -> Tensor:
        """The loss of the first rows and its backward to the embeddings, whose gradients are kept for the replay."""
        assert self.mini is not None
        made: list[Tensor | None] = [None] * (len(vectors) + 1)
        for _ in range(2 if self.mini < self.rows else 1):
            # Rows after rows; all others are like the second, which adds to gradients that are there.
            each = [stacked(f, [vector], before) for vector, before in zip(vectors, made)]
            documents = stacked(f, each[1:], made[-1])
            loss = ranking_loss(f, each[0], each[1], documents, self.mini)
            seed = f.new((), loss.dtype)
            f.run_backward(loss, seed)
            del loss, seed
            made = [*each, documents]
            for vector in vectors:
                assert isinstance(vector.node, Leaf)
                vector.node.sink = _added
        for vector in vectors:
            assert isinstance(vector.node, Leaf)
            grad = vector.node.grad
            if isinstance(grad, Tensor) and grad.storage is not None:
                grad.storage.relabel(ACTIVATIONS)
                self.cache.append(grad)
        vectors.clear()
        return f.record(f.new((), "fp32"), self._replay, ())

    def _replay(self, f: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
        """The hook of the loss: each mini batch embedded again, with a graph, and its backward.

        The first one makes the gradients of the parameters; every other one is like the second.
        """
        floor = len(f.nodes)
        for _ in range(2):
            vector = self.embed(f, self._part(), [])
            root = vector.node
            if isinstance(root, Node):
                # torch.dot of the embeddings and their cached gradients, in fp32.
                root.grad = f.like(vector)
                f.pending.add(root)
            root = None
            f.unwind(floor)
            f.ends.clear()
            f.release()
            self.env.state.clear()
            # From now on AccumulateGrad adds to gradients that are there.
            self._receive(_added)
        self.cache.clear()
        return ()


def _added(f: Tape, leaf: Leaf, grad: Tensor) -> None:
    """Added in place, and gone."""
