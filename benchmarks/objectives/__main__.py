"""The simulation of preference, reward and policy training against traces of TRL's real trainers.

    python -m benchmarks.objectives [--only dpo,grpo] [--output tests/estimate/traces_objectives.jsonl]

Needs TRL 1.16 beside the measure extra; a run takes seconds.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from benchmarks.objectives.report import report
from benchmarks.objectives.run import traced
from benchmarks.objectives.trainers import VERSION, Setup
from memlint.estimate.result import PHASES
from memlint.measure.trace.settings import LoraSettings, TraceSettings
from tests.estimate.objective_points import simulated, title

_WIDE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_WIDE},
    "wide": {"model_type": "llama", **_WIDE, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 32000},
    "qwen2": {
        **{"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 2},
        **{"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 512, "n_layer": 2, "n_head": 8, "vocab_size": 8192},
    "gemma2": {"model_type": "gemma2", **_WIDE, "head_dim": 64},
    "cohere": {"model_type": "cohere", **_WIDE},
    "mixtral": {"model_type": "mixtral", **_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2},
}
PRECISIONS: dict[str, tuple[str, str | None]] = {
    "bf16": ("bf16", None),
    "fp32": ("fp32", None),
    "bf16-autocast": ("fp32", "bf16"),
    "bf16-bf16": ("bf16", "bf16"),
}
"""Weights and autocast; the last is what TRL's own default makes of a model that is loaded in bf16."""


def _point(objective: str, model: str = "llama", **fields: Any) -> dict[str, Any]:
    point: dict[str, Any] = {
        "objective": objective,
        "config": MODELS[model],
        "precision": "bf16",
        "checkpointing": "none",
        "attention": "sdpa",
        "padding": False,
        "optimizer": "sgd",
        "batch": 2,
        "seq": 512,
        "reference": "none",
        "options": {},
        **fields,
    }
    if objective in ("grpo", "rloo"):
        point.setdefault("completion", point["seq"] // 2)
    if objective == "dpo":
        point["options"] = {"loss_type": ["sigmoid"], **point["options"]}
    return point


LORA: dict[str, Any] = {"rank": 16, "targets": "all-linear"}
_KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sft", {}),
    ("dpo", {"reference": "copy"}),
    ("kto", {"reference": "copy"}),
    ("reward", {}),
    ("grpo", {}),
    ("rloo", {"reference": "copy"}),
    ("orpo", {}),
    ("cpo", {}),
)


def points() -> Iterator[dict[str, Any]]:
    """What is traced: each objective in the setups that change it, and further setups of some."""
    for kind, fields in _KINDS:
        lora = {**LORA, "modules_to_save": ["score"]} if kind == "reward" else LORA
        adapted = {**fields, "reference": "adapter" if fields else "none", "lora": lora}
        yield _point(kind, **fields)
        yield _point(kind, **fields, precision="bf16-autocast", batch=1)
        yield _point(kind, **fields, precision="bf16-bf16", checkpointing="nonreentrant")
        yield _point(kind, **adapted, precision="bf16-bf16", checkpointing="nonreentrant")
        yield _point(kind, **fields, precision="fp32", batch=1)
        yield _point(kind, "gpt2", **fields, batch=1)
        yield _point(kind, "qwen2", **adapted, batch=1, seq=1024)
    yield _point("dpo", reference="precomputed", options={"loss_type": ["ipo"]})
    yield _point("dpo", reference="adapter", lora=LORA, checkpointing="reentrant", precision="bf16-autocast")
    yield _point("dpo", reference="copy", padding=True)
    yield _point("dpo", "qwen2", reference="copy", seq=3072, precision="bf16-autocast", checkpointing="nonreentrant")
    yield _point("kto", reference="precomputed", batch=1)
    yield _point("kto", reference="adapter", lora=LORA, options={"loss_type": "apo_zero_unpaired"})
    yield _point("cpo", options={"loss_type": "simpo", "cpo_alpha": 0.0})
    yield _point("sft", "qwen2", seq=3072, precision="bf16-autocast", checkpointing="nonreentrant")
    if VERSION >= (1, 15):
        yield _point("sft", options={"loss_type": "dft"}, padding=True)
        yield _point("dpo", "mixtral", reference="copy", checkpointing="reentrant")
        autocast: dict[str, Any] = {"precision": "bf16-autocast", "checkpointing": "nonreentrant", "batch": 3}
        yield _point("rloo", "cohere", reference="copy", **autocast)
    else:
        yield _point("sft", "gemma2", attention="eager", precision="fp32", batch=3, seq=257)
        yield _point("sft", "cohere", precision="bf16-autocast", seq=257)
        yield _point("sft", options={"loss_type": "nll"}, precision="bf16-autocast")
        yield _point("sft", options={"loss_type": "nll"}, precision="bf16", batch=1)
        yield _point("sft", options={"loss_type": "nll"}, precision="bf16-bf16", checkpointing="nonreentrant")
        yield _point("sft", options={"loss_type": "nll"}, precision="bf16-bf16", checkpointing="reentrant", lora=LORA)
    # Short rows of a wide model: the weights' half copies count for more than the logits.
    short: dict[str, Any] = {"precision": "bf16-autocast", "checkpointing": "nonreentrant", "batch": 1, "seq": 200}
    yield _point("kto", "wide", reference="copy", **short)
    yield _point("orpo", "wide", **short)
    yield _point("grpo", "wide", **short)
    yield _point("dpo", "mixtral", reference="copy", lora=LORA, precision="bf16-bf16", seq=333)
    yield _point("kto", "mixtral", reference="adapter", lora=LORA, checkpointing="nonreentrant", batch=1, seq=200)
    yield _point("grpo", "qwen2", seq=2048, batch=4, checkpointing="nonreentrant", precision="bf16-autocast")
    yield _point("grpo", reference="copy", options={"beta": 0.04, "loss_type": "grpo"})


def factory_points() -> Iterator[dict[str, Any]]:
    """What is traced of LLaMA-Factory."""
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("dpo", {"reference": "copy"}),
        ("kto", {"reference": "copy"}),
        ("orpo", {}),
        ("reward", {}),
    )
    for kind, fields in kinds:
        adapted = {**fields, "reference": "adapter" if fields else "none", "lora": LORA}
        for point in (
            _point(kind, **fields),
            _point(kind, **fields, precision="bf16-autocast", batch=1),
            _point(kind, **adapted, precision="bf16-bf16", checkpointing="nonreentrant"),
            _point(kind, "gpt2", **fields, batch=1),
            _point(kind, "qwen2", **adapted, batch=1, seq=1024),
        ):
            yield {**point, "options": {}, "framework": "llamafactory"}
    adapted = {"precision": "bf16-autocast", "batch": 1, "lora": LORA}
    for point in (
        # What the value head's model makes of logits that nobody reads: a frozen head's cast, a scale, a cap.
        _point("reward", "wide", **adapted, seq=200),
        _point("reward", "cohere", precision="fp32", checkpointing="reentrant", seq=257),
        _point("reward", "gemma2", attention="eager", batch=3, seq=200),
        # A stated reference model has no adapters, of experts neither.
        _point("kto", "mixtral", precision="bf16-bf16", lora=LORA, reference="copy", padding=True, seq=200),
        _point("simpo", "wide", batch=1, seq=333),
        _point("simpo", "wide", **adapted, checkpointing="reentrant", seq=200),
        _point(
            "dpo", "wide", precision="bf16-autocast", checkpointing="nonreentrant", reference="copy", batch=1, seq=200
        ),
    ):
        yield {**point, "options": {}, "framework": "llamafactory"}
    for point in _supervised_points():
        yield {**point, "framework": "llamafactory"}


def _supervised_points() -> Iterator[dict[str, Any]]:
    """SFT with losses of LLaMA-Factory's own: v1's, which has no autocast, and three of the older trainer's."""
    weighted: dict[str, Any] = {"options": {"loss": "v1"}}
    yield _point("sft", **weighted)
    yield _point("sft", **weighted, precision="fp32", checkpointing="nonreentrant", padding=True)
    yield _point("sft", **weighted, precision="fp32", batch=1)
    yield _point("sft", "qwen2", **weighted, lora=LORA, checkpointing="nonreentrant", seq=1024)
    yield _point("sft", "gpt2", **weighted, batch=1)
    for kind, fields in (("dft", {}), ("eaft", {}), ("asft", {"reference": "copy"})):
        own: dict[str, Any] = {**fields, "options": {"loss": kind}}
        yield _point("sft", **own)
        yield _point("sft", **own, precision="bf16-autocast", batch=1)
        yield _point("sft", "qwen2", **own, precision="bf16-bf16", checkpointing="reentrant", seq=1024)
        yield _point("sft", "wide", **own, precision="bf16-autocast", checkpointing="reentrant", batch=3, seq=333)


def liger_points() -> Iterator[dict[str, Any]]:
    """What is traced of Liger's chunked losses, under TRL 1.9."""
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("dpo", {"reference": "copy"}),
        ("kto", {"reference": "copy"}),
        ("grpo", {}),
    )
    for kind, fields in kinds:
        adapted = {**fields, "reference": "adapter" if fields else "none", "lora": LORA}
        options = {"use_liger_kernel": True}
        yield _point(kind, **fields, options=options)
        yield _point(kind, **fields, options=options, precision="bf16-autocast", batch=1)
        yield _point(kind, **fields, options=options, precision="bf16-bf16", checkpointing="nonreentrant", batch=4)
        yield _point(kind, **adapted, options=options, precision="bf16-bf16", checkpointing="nonreentrant")
        yield _point(kind, "gpt2", **fields, options=options, batch=1)
        yield _point(kind, "qwen2", **adapted, options=options, precision="bf16-bf16", batch=1, seq=1024)
        if kind != "grpo":
            # The width decides which of its kernels inductor runs first.
            yield _point(kind, "wide", **fields, options=options, batch=1, seq=200)
            yield _point(kind, "wide", **fields, options=options, precision="bf16-autocast", batch=1)
            yield _point(kind, "wide", **fields, options=options, precision="bf16-autocast", batch=1, seq=1024)
            yield _point(kind, "wide", **adapted, options=options, precision="bf16-autocast", batch=1)
    # So many rows that inductor splits the sum of all logits just into them.
    for words, length in ((128256, 1024), (32000, 433)):
        config = {**MODELS["wide"], "vocab_size": words}
        frozen: dict[str, Any] = {"reference": "adapter", "lora": LORA, "precision": "bf16-autocast", "batch": 1}
        yield _point("kto", **frozen, config=config, seq=length, options={"use_liger_kernel": True})
    yield _point("grpo", batch=1, seq=3072, completion=2560, options={"use_liger_kernel": True})
    tied = {**MODELS["llama"], "tie_word_embeddings": True, "vocab_size": 32000}
    yield _point("grpo", seq=200, config=tied, precision="fp32", options={"use_liger_kernel": True})


def trace_point(point: dict[str, Any]) -> Any:
    """Trace one point."""
    weights, autocast = PRECISIONS[point["precision"]]
    names = ("objective", "batch", "seq", "reference", "options")
    setup = Setup(**{name: point[name] for name in names}, completion=point.get("completion", 0))
    settings = TraceSettings(
        weights=weights,
        autocast=autocast,
        checkpointing=point["checkpointing"],
        attention=point["attention"],
        padding=point["padding"],
        optimizer=point["optimizer"],
        lora=LoraSettings(**point["lora"]) if "lora" in point else None,
    )
    return traced(point["config"], setup, settings, point.get("framework", "trl"))


def main() -> int:
    """Print a line a point and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), help="objectives; other points of FILE stay")
    parser.add_argument("--output", metavar="FILE")
    parser.add_argument("--llamafactory", action="store_true", help="its points instead of TRL's")
    parser.add_argument("--liger", action="store_true", help="Liger's chunked losses (TRL 1.9, liger-kernel, triton)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    release = "0.24" if options.llamafactory else ".".join(str(part) for part in VERSION)
    chosen = factory_points() if options.llamafactory else liger_points() if options.liger else points()
    wanted = ({**p, "trl": release} for p in chosen if not options.only or p["objective"] in options.only)
    return report(wanted, trace_point, simulated, title, PHASES, options.output, part=bool(options.only))


if __name__ == "__main__":
    sys.exit(main())
