"""Training of text embeddings: the losses and modules of sentence-transformers 6.2 on fake CUDA tensors.

    python -m benchmarks.objectives.contrastive [--only bert] [--output tests/estimate/traces_contrastive.jsonl]

Needs sentence-transformers 6.2 (its packages scipy and scikit-learn too) beside the measure extra.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode

from benchmarks.objectives.contrastive_grid import points
from benchmarks.objectives.declared import DeclaringMode, prepare
from benchmarks.objectives.marks import micro_batch, update
from benchmarks.objectives.report import report
from memlint.estimate.result import PHASES
from memlint.measure.trace.adapters import add_lora, checkpoint_layers
from memlint.measure.trace.build import DTYPES, HEADS, make_config, make_model
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.optimizers import OPTIMIZERS
from memlint.measure.trace.phases import label, module_paths
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.result import TraceResult, summarise
from memlint.measure.trace.run import _no_collection
from memlint.measure.trace.settings import LoraSettings
from tests.estimate.contrastive_points import simulated, title
from tests.estimate.traced import PRECISIONS


def part(module: str) -> Any:
    """A module of sentence-transformers."""
    return importlib.import_module(f"sentence_transformers.{module}")


def sentence_transformer(model: Any, config: Any, pooling: str) -> Any:
    """The modules of a SentenceTransformer around a model that is ready; its own constructor reads files."""
    first: Any = object.__new__(part("base.modules").Transformer)
    torch.nn.Module.__init__(first)
    first.model = model
    first.modality_config = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    first.model_forward_params, first._declared_forward_params = {"input_ids", "attention_mask", "return_dict"}, set()
    first.module_output_name = "token_embeddings"
    pool = part("sentence_transformer.modules").Pooling
    return torch.nn.Sequential(first, pool(config.hidden_size, pooling_mode=pooling.replace("-", "")))


def loss_of(model: Any, mini_batch: int | None) -> Any:
    """MultipleNegativesRankingLoss, or the form that embeds a mini batch at a time."""
    losses = part("sentence_transformer.losses")
    if mini_batch is None:
        return losses.MultipleNegativesRankingLoss(model)
    module = "sentence_transformers.sentence_transformer.losses.cached_multiple_negatives_ranking"
    # It asks whether the first module is a table of static embeddings, which brings in more packages.
    with mock.patch(f"{module}.has_static_embedding_input", return_value=False):
        return losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch)


def _rows(features: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    """gradcache._create_minibatch where the last column is no padding."""
    return {name: value[begin:end] for name, value in features.items()}


def _no_state(*given: Any) -> Any:
    return contextlib.nullcontext()


@contextlib.contextmanager
def _phases(recorder: Recorder) -> Iterator[None]:
    """Enter the phase ``loss`` when similarities are asked for; leave out the states of random numbers."""
    gradcache, losses = part("base.losses.gradcache"), part("sentence_transformer.losses")

    def entering(inner: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            recorder.enter("loss")
            return inner(*args, **options)

        return call

    plain, cached = losses.MultipleNegativesRankingLoss, losses.CachedMultipleNegativesRankingLoss
    with contextlib.ExitStack() as stack:
        for owner, name in ((plain, "compute_loss_from_embeddings"), (cached, "calculate_loss")):
            stack.enter_context(mock.patch.object(owner, name, entering(getattr(owner, name))))
        stack.enter_context(mock.patch.object(gradcache, "RandContext", _no_state))
        stack.enter_context(mock.patch.object(gradcache, "_create_minibatch", _rows))
        yield


def compute_loss(loss: Any, inputs: dict[str, Any]) -> Any:
    """BaseTrainer.compute_loss and collect_features: what its variables hold lives until it returns."""
    columns = sorted({name.split("_")[0] for name in inputs})
    kinds = ("input_ids", "attention_mask")
    features = [{kind: inputs[f"{column}_{kind}"] for kind in kinds} for column in columns]
    value = loss(features, None)
    return value


def trace(point: dict[str, Any]) -> TraceResult:
    """The account of the second step of a point."""
    part("sentence_transformer.losses")  # makes real tensors while it loads
    install_idle_cuda()
    recorder = Recorder()
    config = make_config(point["config"])
    weights, autocast = PRECISIONS[point["precision"]]
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_choices(recorder, padding=point["padding"]))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        mode = DeclaringMode(recorder, padding=point["padding"])
        mode.scored, mode.rejected = {}, set()
        stack.enter_context(mode)
        stack.enter_context(_phases(recorder))
        stack.enter_context(mock.patch.dict(HEADS, {"none": "AutoModel"}))
        recorder.enter("build", 0)
        base = make_model(config, head="none", dtype=DTYPES[weights], attention=point["attention"])
        base.train()
        elements = sum(p.numel() for p in base.parameters())
        settings: Any = mock.Mock(checkpointing=point["checkpointing"], checkpoint_every=1)
        if point["checkpointing"] != "none":
            checkpoint_layers(base, settings)
        inner = add_lora(base, LoraSettings(**point["lora"])) if "lora" in point else base
        if "lora" in point and point["checkpointing"] != "none":
            inner.enable_input_require_grads()
        model = sentence_transformer(inner, config, point.get("pooling", "mean"))
        prepare(model, DTYPES[autocast] if autocast else None)
        loss = loss_of(model, point.get("mini_batch"))
        parameters = [p for p in model.parameters() if p.requires_grad]
        recorder.note_parameters([*model.parameters()])
        label(recorder, model.parameters(), "params")
        label(recorder, model.buffers(), "buffers")
        driver = OPTIMIZERS[point["optimizer"]](parameters)
        stack.enter_context(module_paths(recorder, model))
        stack.enter_context(_no_collection())
        marks: dict[str, int] = {}
        accumulation = point.get("accumulation", 1)
        for number in range(1, 2 * accumulation + 1):
            shape = (point["batch"], point["seq"])
            inputs = {
                f"{column}_{kind}": torch.empty(shape, dtype=torch.long, device="cuda")
                for column in range(point["columns"])
                for kind in ("input_ids", "attention_mask")
            }
            last = number % accumulation == 0
            step = number // accumulation if last else -1
            marks = micro_batch(recorder, partial(compute_loss, loss), parameters, inputs, step)
            if last:
                update(recorder, parameters, driver, 1.0)
            del inputs
        recorder.enter("end")
        trained = sum(p.numel() for p in parameters)
        return summarise(recorder, (elements, trained), 2, marks, int(config.vocab_size))


def main() -> int:
    """Print a line a point and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="part of the titles of the points to trace; others of FILE stay")
    parser.add_argument("--output", metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = (point for point in points() if not options.only or options.only in title(point))
    return report(chosen, trace, simulated, title, PHASES, options.output, part=bool(options.only))


if __name__ == "__main__":
    sys.exit(main())
