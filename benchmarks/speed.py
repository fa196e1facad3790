"""How fast memlint is, as ratios measured in one run: against other linters on the same file, and inside the process.

    python -m benchmarks.speed [--corpus ../shared/corpus] [--rounds N]

Processor time of whole commands, medians of alternating runs; machines are noisy, so only the ratios mean something.
Needs yamllint and check-jsonschema beside this Python (the ``dev`` extra).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

CONFIG = """\
# memlint: target=A100-80GB
base_model: Qwen/Qwen3-0.6B
sequence_len: 1024
micro_batch_size: 1
optimizer: adamw_torch
bf16: true
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
output_dir: out
num_epochs: 1
"""
OTHERS = (
    "on: [push]\njobs: {test: {runs-on: ubuntu-latest, steps: [{run: make}]}}\n",
    "apiVersion: v1\nkind: Service\nspec:\n" + "".join(f"  key{n}: value {n}\n" for n in range(50)),
    "services:\n  web:\n    image: nginx\n",
    "- a\n- b\n",
)


def seconds(command: list[str], folder: Path) -> float:
    """Processor time of one run of a command and its children, with bytecode written as an installed tool has it."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "memlint-bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, capture_output=True, check=False, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def against(ours: list[str], theirs: list[str], folder: Path, rounds: int) -> tuple[float, float]:
    """Medians of alternating runs of two commands, after one run of each that compiles."""
    for command in (ours, theirs):
        seconds(command, folder)
    pairs = [(seconds(ours, folder), seconds(theirs, folder)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def repeated(action: Callable[[], object], rounds: int) -> float:
    """Median milliseconds of processor time of something inside this process, after one run to warm up."""
    action()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1000


def commands(rounds: int) -> None:
    """Whole commands beside other linters."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.yaml").write_text(CONFIG)
        memlint = [sys.executable, "-m", "memlint", "check", "--offline", "train.yaml"]
        schema = Path(__file__).parents[1] / "schemas" / "settings.schema.json"
        for tool, arguments, bar in (
            ("yamllint", [], 1.5),
            ("check-jsonschema", ["--schemafile", str(schema)], 0.6),
        ):
            path = Path(sys.executable).with_name(tool)
            if not path.exists():
                print(f"{tool:22} not installed beside this Python")
                continue
            ours, theirs = against(memlint, [str(path), *arguments, "train.yaml"], folder, rounds)
            times = f"{ours * 1000:.0f} against {theirs * 1000:.0f} ms"
            print(f"one file / {tool:18} {ours / theirs:6.2f}   (bar {bar}; {times})")
        for number in range(1000):
            text = CONFIG if number % 50 == 0 else OTHERS[number % len(OTHERS)]
            (folder / f"{number}.yaml").write_text(text)
        many = min(seconds([sys.executable, "-m", "memlint", "check", "--offline", "."], folder) for _ in range(2))
        print(f"1,000 mixed files             {many:6.2f} s (bar 3 s; 20 of them are training configs)")


def inside() -> None:
    """Estimates, model look-ups and plans inside one process."""
    from memlint.estimate.simulate import simulate
    from memlint.job import TrainingJob, replace_fields
    from memlint.models import catalog
    from memlint.models.architecture import Architecture
    from memlint.models.config import read_config

    for label, kind, layers, bar in (
        ("32 layers", "llama", 32, 5),
        ("80 layers", "llama", 80, 10),
        ("48 layers, 128 experts", "qwen3_moe", 48, 10),
    ):
        architecture = read_config(
            {
                "model_type": kind,
                "hidden_size": 4096,
                "num_hidden_layers": layers,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
            }
        )
        assert isinstance(architecture, Architecture)
        start = TrainingJob(model=kind, architecture=architecture)
        job = replace_fields(start, {"training.checkpointing.mode": "full"})
        took = repeated(lambda job=job: simulate(job), 15)  # type: ignore[misc]
        print(f"estimate, {label:22} {took:6.2f} ms (bar {bar})")
    print(f"read one HF config               {repeated(lambda: read_config({'model_type': 'mixtral'}), 15):6.2f} ms")
    print(f"look up one catalog ID           {repeated(lambda: catalog.find('zai-org/GLM-5.2'), 15):6.2f} ms")


def plans(corpus: Path, count: int = 20) -> None:
    """`memlint plan` over real configs set to a small GPU."""
    from memlint.engine.predict import predict
    from memlint.engine.source import open_source
    from memlint.errors import UserError
    from memlint.plan.planner import Planner
    from memlint.plan.question import from_source

    times: list[float] = []
    for path in islice(sorted((corpus / "axolotl").rglob("*.y*ml")), 3 * count):
        try:
            source = open_source(os.path.relpath(path), target="24GiB", offline=True, isolated=True)
        except UserError:
            continue
        estimate, _ = predict(source.job, source.target)
        if estimate is None:
            continue
        start = time.process_time()
        Planner(from_source(source, estimate, hypothetical=False)).report()
        times.append(time.process_time() - start)
        if len(times) == count:
            break
    if times:
        print(f"plan, median of {len(times)} configs      {statistics.median(times) * 1000:6.0f} ms (bar 1000)")


def main() -> int:
    """Run everything and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=Path("../shared/corpus"))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    commands(options.rounds)
    inside()
    if options.corpus.is_dir():
        plans(options.corpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
