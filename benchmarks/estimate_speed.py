"""Processor time of one estimate for every model of the bundled catalog under a spread of setups.

    python -m benchmarks.estimate_speed [--id TEXT] [--runs N] [--rows N] [--json FILE]

Each time is the least of some runs, divided by that of one fixed estimate (32 Llama layers, checkpointed) run beside
it: machines are noisy and differ, ratios do not. Models of the same shape are run once.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from memlint.engine.whole_run import with_evaluation
from memlint.estimate.errors import Unsupported
from memlint.estimate.simulate import simulate
from memlint.job import TrainingJob, replace_fields
from memlint.models import catalog
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.models.fill import UNREADABLE

BF16 = {"training.precision.weights": "bf16", "training.precision.autocast": None}
LORA = {**BF16, "training.method": "lora", "training.lora.targets": "all-linear", "training.lora.dropout": 0.05}
CHECKPOINTED = {"training.checkpointing.mode": "full", "training.checkpointing.reentrant": False}
SETUPS: dict[str, dict[str, Any]] = {
    "full": {},
    "checkpointed": CHECKPOINTED,
    "lora": LORA,
    "qlora": {
        **LORA,
        **CHECKPOINTED,
        "training.method": "qlora",
        "training.quantization.type": "nf4",
        "training.quantization.double_quant": True,
    },
    "dpo": {**BF16, **CHECKPOINTED, "training.objective": "dpo"},
    "dpo lora": {**LORA, "training.objective": "dpo", "training.reference_model": "adapter"},
    "grpo": {**LORA, **CHECKPOINTED, "training.objective": "grpo"},
    "evaluation": {**CHECKPOINTED, "training.eval_micro_batch_size": 8},
    "fsdp": {**CHECKPOINTED, "parallelism.strategy": "fsdp", "parallelism.gpus": 8},
}
"""What people run: name -> changes of a job's defaults."""
LENGTH = 2048
OBJECTIVES = ("causal-lm", "seq2seq-lm", "masked-lm", "sequence-classification", "feature-extraction")


def reference() -> TrainingJob:
    """The estimate that all others are compared with."""
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    architecture = read_config({**config, "num_key_value_heads": 8})
    assert isinstance(architecture, Architecture)
    start = TrainingJob(model="llama", architecture=architecture)
    return replace_fields(start, {"training.checkpointing.mode": "full"})


def least(action: Callable[[], object], runs: int) -> float:
    """Milliseconds of processor time, the least of ``runs``."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times) * 1000


def estimated(job: TrainingJob) -> None:
    """One whole estimate, as ``memlint estimate`` makes it once the config is read."""
    with_evaluation(simulate(job), job, None)


def models(text: str) -> Iterator[tuple[str, TrainingJob]]:
    """One job for every shape of the catalog, with images where the model takes them."""
    seen = set()
    for model_id in catalog.model_ids():
        row = catalog.find(model_id)
        if row is None or text not in model_id:
            continue
        key = json.dumps(row.config, sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        architecture = read_config(row.config)
        if isinstance(architecture, Architecture):
            start = TrainingJob(model=model_id, architecture=architecture)
            length = min(LENGTH, architecture.max_position_embeddings or LENGTH)
            start = replace_fields(start, {"training.sequence_length": length})
            if "vision_config" in row.config:
                start = replace_fields(start, {"training.images": 1})
            yield model_id, start


def measure(start: TrainingJob, runs: int) -> Iterator[tuple[str, float]]:
    """Setup and ratio of every estimate that there is a memory model for."""
    base = reference()
    for name, changes in SETUPS.items():
        for objective in OBJECTIVES if "training.objective" not in changes else [""]:
            job = replace_fields(start, changes)
            if objective:
                job = replace_fields(job, {"training.objective": objective})
            try:
                estimated(job)
            except (Unsupported, *UNREADABLE):
                continue
            beside = least(lambda: simulate(base), runs)
            took = least(lambda job=job: estimated(job), runs)  # type: ignore[misc]
            beside = min(beside, least(lambda: simulate(base), runs))
            yield name, took / beside
            break


def main() -> int:
    """Measure everything; print a line for each setup and the slowest estimates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--id", default="", help="only models whose ID holds this text")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=25, help="slowest model types shown")
    parser.add_argument("--json", help="write every ratio to this file")
    options = parser.parse_args()
    gc.disable()
    estimated(reference())
    rows = []
    for model_id, start in models(options.id):
        for setup, ratio in measure(start, options.runs):
            assert start.architecture is not None
            rows.append({"id": model_id, "type": start.architecture.model_type, "setup": setup, "ratio": ratio})
    report(rows, options.rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=0)
    return 0


def report(rows: list[dict[str, Any]], count: int) -> None:
    """Print medians and worst by setup, then the model types with the slowest estimates."""
    unit = statistics.median([least(lambda: simulate(reference()), 3) for _ in range(9)])
    print(f"reference estimate: {unit:.2f} ms; ratios to it over {len({row['id'] for row in rows})} shapes")
    for setup in SETUPS:
        found = sorted(row["ratio"] for row in rows if row["setup"] == setup)
        if found:
            ninth = found[len(found) * 9 // 10]
            middle = statistics.median(found)
            print(f"{setup:14} {len(found):4} median {middle:5.2f}, 90 % {ninth:5.2f}, worst {found[-1]:5.2f}")
    by_type = defaultdict(list)
    for row in rows:
        by_type[row["type"]].append(row)
    print("slowest types:")
    for kind in sorted(by_type, key=lambda kind: -max(row["ratio"] for row in by_type[kind]))[:count]:
        worst = max(by_type[kind], key=lambda row: row["ratio"])
        middle = statistics.median(row["ratio"] for row in by_type[kind])
        print(f"{kind:24} median {middle:5.2f}, worst {worst['ratio']:5.2f} ({worst['setup']}: {worst['id']})")


if __name__ == "__main__":
    sys.exit(main())
