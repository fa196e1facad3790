"""docs/accuracy.md: what the tables mean, with date and versions, and the tables."""

from __future__ import annotations

import datetime
import os

import memlint

INTRODUCTION = """# How accurate the predictions are

Written by `python -m benchmarks.accuracy` on {date} with memlint {version}; do not edit by hand.

{command}

* **Traced code**: reference points from the real `transformers` code on fake CUDA tensors (torch 2.13, transformers
  5.24). They hold every tensor that autograd keeps, so the simulation is compared with them to the byte.
* **Published measurements**: peaks that people printed for runs whose settings are known, each turned into a job with
  the versions of its day. Figures of live tensors (`max_memory_allocated`, active bytes) are compared with the
  allocated peak and the cuBLAS workspaces; figures of reserved memory, and figures that do not say what they are, with
  `reserved_bytes`. A paged optimizer's states, which PyTorch's allocator does not see, are left out. A figure counts
  as held when the interval meets it as exactly as it was printed: half a unit of its last digit, and GB or GiB where a
  source writes `G` or `GB`. An interval also covers what the source leaves open (the dtype of PEFT's adapters).
* No constant is fitted to any of these rows. Where a row stays off, the table says what its source leaves out.

## What the measured rows taught

These tensors are in the model because a measured row pointed at them and the framework's source confirmed them:

* **litgpt** casts the logits of each piece to fp32 on leaving the model (lightning's `convert_output`), and its loop
  still holds the last micro batch's logits while the next forward runs.
* **bitsandbytes up to 0.43** keeps every 4-bit product's input in `ctx.tensors`, which lives as long as the loss: QLoRA
  then needs more than LoRA beyond the weights it saves.
* `index_copy_` saves its source, so litgpt's zero padding of q and v keeps the padded branch.
* **torchtune** gathers the gradients of the eight head pieces in one input buffer; a compiled layer keeps products and
  whatever its backward must lay down anyway.
* **torch 2.0** made the denominator of foreach AdamW a second list of the parameters' size.
* **Qwen's first code** registered a bool mask of all positions in every layer: 64 MiB a layer.
* **ms-swift** leaves out samples longer than `max_length` by default, so lengths vary, and the caching allocator holds
  up to twice what is in use; the estimate replays it over lengths drawn from the stated statistics.

"""


def page(tables: str, date: datetime.date, oracle: str | None, measured: str | None) -> str:
    """The whole page; ``oracle`` and ``measured`` are the files compared with, named by their last two parts."""
    files = [f"--{kind} {_short(path)}" for kind, path in (("oracle", oracle), ("measured", measured)) if path]
    command = f"    python -m benchmarks.accuracy {' '.join(files)}" if files else ""
    return INTRODUCTION.format(date=date.isoformat(), version=memlint.__version__, command=command) + tables + "\n"


def _short(path: str) -> str:
    folder, name = os.path.split(path)
    return f"../shared/{os.path.basename(folder)}/{name}"
