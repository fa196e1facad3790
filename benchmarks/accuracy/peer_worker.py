# mypy: ignore-errors
"""Runs inside another environment: settings as JSON lines on stdin, each available peer's peak as JSON lines on stdout.

Imports nothing of memlint. A peer that is not installed, or cannot express a case, gives no line.
"""

from __future__ import annotations

import json
import sys


def vramcalc(case):
    """vramcalc 0.1.2: estimate(config, mode="train"); no quantised weights, AdamW or SGD."""
    import vramcalc as peer

    if case["quantized"] or case["method"] not in ("full", "lora") or case["objective"] != "causal-lm":
        return None
    if not case["optimizer"].startswith(("adamw", "sgd")) or "8bit" in case["optimizer"]:
        return None
    config = dict(case["config"], model_type=case["model_type"])
    estimate = peer.estimate(
        config,
        mode="train",
        dtype=case["autocast"] or case["weights"],
        precision="amp" if case["autocast"] and case["weights"] == "fp32" else "pure",
        batch=case["batch"],
        seq_len=case["length"],
        lora_rank=case["rank"] if case["method"] == "lora" else None,
        grad_checkpoint=case["checkpointing"],
        optimizer="adamw" if case["optimizer"].startswith("adamw") else "sgd",
        attn_impl=case["attention"] if case["attention"] in ("eager", "sdpa", "flash") else "sdpa",
    )
    return estimate.total


def torch_preflight(case):
    """torch-preflight 0.5.0: estimate_config on the shape of the HF config; no quantised weights."""
    from torch_preflight.vram import estimate_config
    from torch_preflight.vram.providers import hub, static
    from torch_preflight.vram.types import OptimizerKind, PrecisionMode, RunConfig

    if case["quantized"] or case["method"] not in ("full", "lora"):
        return None
    shape = hub.shape_from_config(dict(case["config"], model_type=case["model_type"]))
    if shape is None:
        return None
    shape.has_lm_head = case["objective"] == "causal-lm"
    profile = static.from_shape(shape, "case")
    if case["autocast"] and case["weights"] == "fp32":
        precision = PrecisionMode.AMP
    else:
        precision = {"bf16": PrecisionMode.PURE_BF16, "fp16": PrecisionMode.PURE_FP16}.get(
            case["weights"], PrecisionMode.FP32
        )
    kinds = {"adamw-8bit": OptimizerKind.ADAM_8BIT, "sgd": OptimizerKind.SGD}
    frozen = 0.0
    if case["method"] == "lora":
        frozen = 1.0 - min(1.0, 16.0 * case["rank"] * shape.hidden * shape.layers / max(1, profile.param_count))
    report = estimate_config(
        profile,
        RunConfig(
            batch_size=case["batch"],
            seq_len=case["length"],
            precision=precision,
            optimizer=kinds.get(case["optimizer"], OptimizerKind.ADAMW),
            gradient_checkpointing=case["checkpointing"],
            flash_attention=case["attention"] != "eager",
            accumulation_steps=case["accumulation"],
            frozen_fraction=frozen,
        ),
        with_remediations=False,
    )
    return report.breakdown.total


def accelerate(case):
    """accelerate estimate-memory: training with Adam, four times the weights; no batch, no length, no adapters.

    It counts the elements of a model on the meta device, whose config comes from the hub: they are given to it here.
    """
    from accelerate.commands.estimate import estimate_training_usage

    if case["quantized"] or case["method"] != "full":
        return None
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    usage = estimate_training_usage(case["parameters"] * 4, names[case["autocast"] or case["weights"]])
    return max(value for value in usage.values() if value >= 0)


PEERS = {"vramcalc": vramcalc, "torch-preflight": torch_preflight, "accelerate": accelerate}


def main():
    """Answer every case for every peer that can be imported."""
    for number, line in enumerate(sys.stdin.read().splitlines()):
        case = json.loads(line)
        for name, run in PEERS.items():
            try:
                size = run(case)
            except ImportError:
                continue
            except Exception as problem:  # what a peer refuses is a case that it cannot express
                print(f"{name} {case['model_type']}: {problem}", file=sys.stderr)
                continue
            if size:
                print(json.dumps({"case": number, "peer": name, "bytes": int(size)}))


if __name__ == "__main__":
    main()
