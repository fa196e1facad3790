"""The points of PPO: which updates are traced, and the simulation beside them.

    python -m benchmarks.objectives.ppo_grid [--classic] [--output tests/estimate/traces_ppo.jsonl]

Needs TRL 1.12 beside the measure extra; under ``--classic`` the sources of LLaMA-Factory 0.9.5 and TRL 0.9.6 on the path.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from benchmarks.objectives.__main__ import LORA, MODELS, PRECISIONS
from benchmarks.objectives.ppo import PPOSetup, traced_ppo
from benchmarks.objectives.ppo_classic import traced_classic
from benchmarks.objectives.report import report
from memlint.measure.trace.settings import LoraSettings
from tests.estimate.ppo_points import PHASES, simulated, title


def _point(model: str = "llama", **fields: Any) -> dict[str, Any]:
    return {
        "config": MODELS[model],
        "precision": "fp32",
        "checkpointing": "none",
        "attention": "sdpa",
        "padding": False,
        "optimizer": "sgd",
        "batch": 2,
        "accumulation": 1,
        "mini_batches": 1,
        "rollout_batch": 64,
        "seq": 256,
        "completion": 24,
        "reward": "copy",
        **fields,
    }


def points() -> Iterator[dict[str, Any]]:
    """TRL's trainer: precisions, adapters, accumulation, mini batches, rollouts in parts, lengths, padding, attention."""
    yield _point()
    yield _point(precision="bf16-autocast")
    yield _point(precision="bf16-bf16", optimizer="adamw")
    yield _point(accumulation=2)
    yield _point(precision="bf16-bf16", accumulation=4, mini_batches=2, rollout_batch=3)
    yield _point(precision="bf16-autocast", accumulation=4, mini_batches=4, rollout_batch=2)
    yield _point(precision="bf16-bf16", lora=LORA, accumulation=2)
    yield _point(precision="bf16-autocast", lora=LORA, batch=1, seq=384)
    yield _point(precision="bf16-autocast", padding=True, batch=4)
    yield _point(precision="bf16", attention="eager", seq=320)
    yield _point(precision="bf16-bf16", batch=1, accumulation=16, rollout_batch=8, seq=64, completion=48)
    yield _point("gpt2", batch=3, padding=True)
    yield _point("gpt2", precision="bf16-autocast", lora={"rank": 8, "targets": ["c_attn"]})
    yield _point("qwen2", precision="bf16-bf16", batch=1)
    yield _point("qwen2", precision="bf16-autocast", lora=LORA, accumulation=2, completion=12)
    small = {**MODELS["llama"], "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3}
    yield _point(precision="bf16-bf16", accumulation=2, scorer=small)
    large = {**MODELS["llama"], "model_type": "qwen2", "hidden_size": 1024, "intermediate_size": 2816}
    yield _point("gpt2", precision="bf16-autocast", optimizer="adamw", scorer=large)
    yield _point("gpt2", precision="bf16-bf16", batch=3)
    ungrouped = {**MODELS["llama"], "num_key_value_heads": 8, "intermediate_size": 512}
    yield _point(precision="bf16-autocast", attention="eager", config=ungrouped)
    # While a token is computed, each row copies the matrices of the experts it goes to.
    yield _point("mixtral", precision="bf16", batch=4, accumulation=2, seq=64)
    yield _point("mixtral", precision="bf16-bf16", lora=LORA, batch=4, accumulation=4, seq=64)


def classic_points() -> Iterator[dict[str, Any]]:
    """LLaMA-Factory's: three reward models, full and LoRA, with its checkpointing and without, a buffer."""
    own: dict[str, Any] = {"framework": "llamafactory", "rollout_batch": 2}
    adapted = {**own, "lora": LORA, "reward": "adapter", "precision": "bf16-bf16"}
    yield _point(**own, precision="bf16-autocast")
    yield _point(**{**own, "reward": "none"}, precision="bf16-autocast", checkpointing="reentrant", accumulation=2)
    yield _point(**adapted, checkpointing="reentrant", accumulation=2)
    yield _point(**{**adapted, "reward": "copy", "rollout_batch": 1}, batch=1, buffer=2)
    yield _point("qwen2", **{**adapted, "rollout_batch": 1}, batch=1, checkpointing="reentrant", padding=True)
    yield _point("gpt2", **{**own, "reward": "none"}, precision="bf16-autocast", accumulation=2)
    yield _point("qwen2", **{**own, "rollout_batch": 1}, precision="bf16", batch=1, seq=128)
    yield _point("mixtral", **{**adapted, "rollout_batch": 4}, batch=4, seq=64)
    # The masks of the micro batch before, with its graph.
    yield _point(**adapted, checkpointing="reentrant", attention="eager", seq=512)


def traced(point: dict[str, Any]) -> Any:
    """Trace one point."""
    weights, autocast = PRECISIONS[point["precision"]]
    names = ("batch", "accumulation", "mini_batches", "rollout_batch", "seq", "completion", "attention", "padding")
    setup = PPOSetup(
        **{name: point[name] for name in names},
        optimizer=point["optimizer"],
        checkpointing=point["checkpointing"],
        weights=weights,
        autocast=autocast,
        lora=_adapter(point["lora"]) if "lora" in point else None,
    )
    if point.get("framework") == "llamafactory":
        return traced_classic(point["config"], setup, reward=point["reward"], buffer=point.get("buffer", 1))
    return traced_ppo(point["config"], setup, point.get("scorer"))


def _adapter(lora: dict[str, Any]) -> LoraSettings:
    targets = lora["targets"]
    return LoraSettings(**{**lora, "targets": tuple(targets) if isinstance(targets, list) else targets})


def main() -> int:
    """Print a line a point and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--classic", action="store_true", help="LLaMA-Factory's points instead of TRL's")
    parser.add_argument("--output")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    chosen = classic_points() if options.classic else points()
    return report(chosen, traced, simulated, title, PHASES, options.output)


if __name__ == "__main__":
    sys.exit(main())
