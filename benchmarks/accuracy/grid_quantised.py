"""The simulation against traces of bitsandbytes' own code: QLoRA and LLM.int8() over types and setups.

    python -m benchmarks.accuracy.grid_quantised [--types llama,qwen3] [--output FILE]

Needs bitsandbytes beside the measure extra. ``grid_quantised.jsonl`` beside this module was made with bitsandbytes
0.50.2, peft 0.21.2, transformers 5.24 and torch 2.13; points that the output file holds are not run again.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from benchmarks.accuracy.grid import none_unknown
from benchmarks.accuracy.grid_models import TYPES
from benchmarks.accuracy.grid_tables import Compared, by, job_in
from benchmarks.lines import Point as Line
from benchmarks.lines import add_line, known_lines
from memlint.estimate.simulate import Step, run_step
from memlint.job import Lora, Precision, Quantization, Training, TrainingJob, replace_fields
from memlint.measure.trace.settings import CAPABILITY
from memlint.models.architecture import Architecture
from memlint.models.catalog import find
from memlint.models.config import read_config

FILE = os.path.join(os.path.dirname(__file__), "grid_quantised.jsonl")
FIELDS = ("type", "setup", "phase_peaks", "parameter_bytes", "forward_end_bytes")
"""Of a line of that file."""
HALF = Precision(weights="bf16", autocast=None)
AUTOCAST = Precision(weights="bf16", autocast="bf16")
"""The frozen half base that trainers load, under their autocast: what most QLoRA runs are."""
SINGLE = Precision(weights="fp32", autocast="bf16")
DOUBLE = {"training.quantization": Quantization(kbit_preparation=False)}
PREPARED = {"training.quantization": Quantization(kbit_preparation=True)}
SIMPLE = {"training.quantization": Quantization(type="fp4", double_quant=False, kbit_preparation=False)}
INT8 = {"training.quantization": Quantization(bits=8, type="int8", double_quant=False, kbit_preparation=False)}
INT8_PREPARED = {"training.quantization": Quantization(bits=8, type="int8", double_quant=False, kbit_preparation=True)}
FULL = {"training.checkpointing.mode": "full"}
REENTRANT = {**FULL, "training.checkpointing.reentrant": True}


def _setup(precision: Precision, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {"training.precision": precision}
    for part in parts:
        merged |= part
    return merged | {f"training.{name}": value for name, value in fields.items()}


SETUPS: dict[str, dict[str, Any]] = {
    "nf4": _setup(HALF, DOUBLE),
    "nf4 autocast": _setup(AUTOCAST, DOUBLE),
    "nf4 autocast checkpointing": _setup(AUTOCAST, DOUBLE, FULL),
    "nf4 autocast prepared": _setup(AUTOCAST, PREPARED),
    "nf4 autocast prepared reentrant": _setup(AUTOCAST, PREPARED, REENTRANT),
    "nf4 prepared": _setup(HALF, PREPARED),
    "nf4 fp32 weights": _setup(SINGLE, DOUBLE),
    "nf4 autocast dropout": _setup(AUTOCAST, DOUBLE, lora=Lora(rank=8, dropout=0.05)),
    "nf4 autocast half adapters": _setup(AUTOCAST, DOUBLE, lora=Lora(rank=8, dtype="bf16")),
    "nf4 autocast saved modules": _setup(
        AUTOCAST, DOUBLE, lora=Lora(rank=8, targets=("q_proj", "v_proj"), modules_to_save=("embed_tokens", "lm_head"))
    ),
    "nf4 autocast skipped modules": _setup(
        AUTOCAST, {"training.quantization": Quantization(kbit_preparation=False, skip=("lm_head", "down_proj"))}
    ),
    "nf4 autocast padding accumulation": _setup(AUTOCAST, DOUBLE, padding=True, gradient_accumulation_steps=2),
    "nf4 autocast checkpointing short": _setup(AUTOCAST, DOUBLE, FULL, sequence_length=64, optimizer="adamw-8bit"),
    "nf4 autocast paged": _setup(AUTOCAST, DOUBLE, optimizer="paged-adamw-8bit"),
    "fp4 single autocast": _setup(AUTOCAST, SIMPLE),
    "int8": _setup(HALF, INT8),
    "int8 autocast": _setup(AUTOCAST, INT8),
    "int8 autocast checkpointing": _setup(AUTOCAST, INT8, FULL),
    "int8 autocast prepared checkpointing": _setup(AUTOCAST, INT8_PREPARED, FULL),
    "int8 reentrant": _setup(HALF, INT8, REENTRANT),
    "int8 autocast dropout": _setup(AUTOCAST, INT8, lora=Lora(rank=8, dropout=0.05)),
}
CHECKED = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3_text",
    "phi3",
    "qwen3_moe",
    "mixtral",
    "qwen3_5_text",
)
"""Small models. The first has every setup, the others every third, each beginning with another one."""
NARROW = {"vocab_size": 256}
"""A vocabulary so small that the layers make the peak, not the logits: every other model's."""
REAL = {
    "meta-llama/Llama-3.1-8B": (
        "nf4 autocast", "nf4 autocast checkpointing", "nf4 autocast prepared reentrant", "int8 autocast",
        "int8 autocast checkpointing",
    ),
    "Qwen/Qwen3.5-27B": ("nf4 autocast checkpointing",),
    "Qwen/Qwen3-8B": ("nf4 autocast checkpointing", "nf4 autocast prepared"),
    "mistralai/Mistral-7B-v0.3": ("nf4 autocast checkpointing", "int8 autocast prepared checkpointing"),
}  # fmt: skip
"""Published models at their own size, 2048 tokens, adapters of rank 16 on every linear layer, AdamW in 8 bits."""
TEXT = {"qwen3_5": "qwen3_5_text"}
"""The language model inside a vision-language one."""
EAGER_ONLY = ("gemma2",)
Point = tuple[str, str, TrainingJob]


def points(types: list[str] | None = None) -> Iterator[Point]:
    """Every (name, setup, job)."""
    for number, kind in enumerate(CHECKED):
        fields = {**TYPES[kind], **(NARROW if number % 2 else {})}
        for index, name in enumerate(SETUPS):
            if (not types or kind in types) and (number == 0 or (index + number) % 3 == 0):
                yield kind, name, _job({"model_type": kind, **fields}, name, 1 + index % 2, 512, 8, "sgd")
    for name, setups in REAL.items():
        if not types or name in types:
            config = _text(name)
            for setup in setups:
                yield name, setup, _job(config, setup, 1, 2048, 16, "adamw-8bit")


def _text(name: str) -> dict[str, Any]:
    row = find(name)
    assert row is not None, name
    config = dict(row.config)
    if "text_config" in config:
        config = {**config["text_config"], "model_type": TEXT[config["model_type"]]}
    return config


def _job(config: dict[str, Any], setup: str, batch: int, length: int, rank: int, optimizer: str) -> TrainingJob:
    kind = str(config["model_type"])
    architecture = read_config(config)
    assert isinstance(architecture, Architecture), architecture
    start = TrainingJob(
        model=kind,
        architecture=architecture,
        training=Training(
            method="lora" if "int8" in setup else "qlora",
            lora=Lora(rank=rank),
            micro_batch_size=batch,
            sequence_length=length,
            optimizer=optimizer,
            attention="eager" if kind in EAGER_ONLY else "sdpa",
        ),
    )
    return replace_fields(start, SETUPS[setup])


def traced(kind: str, setup: str, job: TrainingJob) -> dict[str, Any]:
    """Trace one point: what its line in the file holds."""
    from memlint.measure.trace.from_job import hf_config, settings_of
    from memlint.measure.trace.run import trace

    result = trace(hf_config(job), settings_of(job, 1))
    return {
        "type": kind,
        "setup": setup,
        "phase_peaks": {name: size for name, size in result.phase_peaks.items() if name != "zero_grad"},
        "parameter_bytes": result.param_bytes + result.buffer_bytes,
        "forward_end_bytes": result.fwd_end_bytes - result.static_before_fwd_bytes,
    }


def kept(path: str = FILE) -> list[Line]:
    """Points that an earlier run wrote."""
    return known_lines(path, FIELDS)


def simulated(job: TrainingJob) -> Step:
    """The simulated step of a point, on the A100 of the traces."""
    return run_step(job, CAPABILITY)


def compared(rows: list[dict[str, Any]]) -> list[tuple[Compared, dict[str, float]]]:
    """Simulate the jobs of traced points; beside each, the error of every phase. ValueError: a point the grid lacks."""
    jobs = {(kind, setup): job for kind, setup, job in points()}
    found = []
    for row in rows:
        job = job_in(jobs, row)
        step = simulated(job)
        phases = {phase.phase: phase.peak_bytes for phase in step.timeline}
        top, traced_top = max(phases, key=phases.__getitem__), max(row["phase_peaks"], key=row["phase_peaks"].get)
        assert job.architecture is not None
        point = Compared(
            name=row["type"],
            family=job.architecture.family,
            setup=row["setup"],
            error=phases[top] / row["phase_peaks"][traced_top] - 1,
            phase=top,
            traced_phase=traced_top,
            parameters=step.static["parameters"] - row["parameter_bytes"],
        )
        found.append((point, {name: phases[name] / size - 1 for name, size in row["phase_peaks"].items()}))
    return found


def quantised_tables(path: str = FILE) -> list[str]:
    """Errors by setup and by model, and what is left to explain."""
    found = [point for point, _ in compared(kept(path))]
    lines = ["## QLoRA and LLM.int8(), against our own trace of bitsandbytes' code", ""]
    lines += by("setup", found, lambda point: point.setup)
    lines += by("model", found, lambda point: point.name)
    return [*lines, REST, ""]


REST = """The trace runs bitsandbytes 0.50.2's Python, its CUDA operators' included (memlint/measure/trace/bnb_kernels.py);
the launches do nothing. What is left are 2 KiB, whatever the model's size, and of mixtures under autocast the half
copies of the router's adapter (8.5 KiB a layer). Up to 1536 tokens bitsandbytes may run a fused kernel that needs no
dequantised weight in the forward: the prediction has one. Columns with outliers, whose copies LLM.int8() keeps, depend
on the data: neither side has any."""


def main() -> int:
    """Run the grid and print a line a point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--types", type=lambda text: text.split(","))
    parser.add_argument("--output", default=FILE, help="JSON-lines file of all points; those in it are not run again")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        done = {(row["type"], row["setup"]) for row in kept(options.output)}
        none_unknown(options.types, (*CHECKED, *REAL))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for kind, setup, job in points(options.types):
        if (kind, setup) in done:
            continue
        try:
            row = traced(kind, setup, job)
        except Exception as problem:  # a point that cannot be traced is reported, not hidden
            print(f"{kind:26} {setup:38} not traced: {type(problem).__name__}: {str(problem)[:80]}", flush=True)
            continue
        add_line(options.output, row)
        phases = {phase.phase: phase.peak_bytes for phase in simulated(job).timeline}
        off = max(phases.values()) / max(row["phase_peaks"].values()) - 1
        print(f"{kind:26} {setup:38} {off:+9.4%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
