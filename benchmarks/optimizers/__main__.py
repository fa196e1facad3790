"""Run real optimizers on CPU tensors and write tests/estimate/optimizer_points.jsonl.

    python -m benchmarks.optimizers [--only NAME] [--output FILE]

Wanted beside the dev extra: galore_torch 1.0, apollo_torch 1.0.3, schedulefree 1.4.1, grokadamw 0.1.2, came_pytorch
0.1.3, bitsandbytes (galore_torch imports it), llamafactory 0.9.5 (its Muon). Lines of what is not installed, or not asked
for, stay as they are.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch

from benchmarks.lines import known_lines, replaced, write_lines
from benchmarks.optimizers.count import counted
from benchmarks.optimizers.kinds import DTYPES, KINDS, RANK, SHAPES, TIED, parameters

KEY = ("optimizer", "dtype", "tied")
"""What tells one line of the file from the others."""
PATH = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "estimate", "optimizer_points.jsonl")


def main() -> int:
    """Write a line for each optimizer, dtype and whether embedding and head are one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=tuple(KINDS), metavar="NAME", help="this optimizer alone")
    parser.add_argument("--output", default=PATH)
    options = parser.parse_args()
    torch.manual_seed(0)
    lines = []
    for name, make in KINDS.items():
        if options.only not in (None, name):
            continue
        for dtype in DTYPES:
            for shapes in (SHAPES, TIED):
                try:
                    states, temporaries = counted(make, parameters(dtype, shapes))
                except ImportError as error:
                    print(f"{name}: left out ({error})", file=sys.stderr)
                    continue
                point = {"optimizer": name, "dtype": dtype, "tied": shapes is TIED, "rank": RANK}
                lines.append({**point, "states": states, "temporaries": temporaries})
    known = [point for point in known_lines(options.output, KEY) if point["optimizer"] in KINDS]
    write_lines(options.output, replaced(known, lines, lambda point: tuple(point[name] for name in KEY)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
