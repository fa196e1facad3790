"""docs/accuracy.md: what the tables mean, with date and versions, and the tables."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping

import memlint

INTRODUCTION = """# How accurate the predictions are

Written by `python -m benchmarks.accuracy` on {date} with memlint {version}; do not edit by hand.

{command}

* **Traced code**: reference points from the real `transformers` code on fake CUDA tensors (torch 2.13, transformers
  5.24). They hold every tensor that autograd keeps, so the simulation is compared with them to the byte.
* **The grid**: small models of the types named, and published ones at their own size, in sixteen setups each, traced
  likewise (`python -m benchmarks.accuracy.grid`; every third and fifth point, more of the published).
* **QLoRA and LLM.int8()**: the same over bitsandbytes' own layers and operators
  (`python -m benchmarks.accuracy.grid_quantised`): ten types in up to twenty-one setups, and published models.
* **Every model type**: the runs of the tests, `tests/estimate/traces_*.jsonl` and `vision_configs.py`: small models of
  all families, images and sound included, each traced in several precisions and setups.
* **Real trainers**: `compute_loss` of TRL's trainers, and LLaMA-Factory's own losses, run on fake tensors
  (`python -m benchmarks.objectives`): two layers of llama, qwen2, gpt2, gemma2, cohere and mixtral, full and with LoRA,
  with and without checkpointing, in fp32, bf16 and under autocast, references copied, switched off or precomputed, most
  of them 512 wide, those that another width changes at that one. Of PPO whole updates with the generation of their
  completions (`python -m benchmarks.objectives.ppo_grid`).
* **Published measurements**: peaks that people printed for runs whose settings are known, each turned into a job with
  the versions of its day. Figures of live tensors (`max_memory_allocated`, active bytes) are compared with the
  allocated peak and the cuBLAS workspaces; figures of reserved memory, and figures that do not say what they are, with
  `reserved_bytes`. States that a paged optimizer pages, which PyTorch's allocator does not see, are left out. A figure counts
  as held when the interval meets it as exactly as it was printed: half a unit of its last digit, and GB or GiB where a
  source writes `G` or `GB`. An interval also covers what the source leaves open (the dtype of PEFT's adapters).
* No factor is fitted to these rows, but they were in view while the model was written, so they are no held-out test:
  see "Choices made with these rows in view". Where a row stays off, the table says what is known of the reason.

## What the measured rows taught

These are in the model because a measured row pointed at them, and they were then read in the framework's source:

* **litgpt** casts the logits of each piece to fp32 on leaving the model (lightning's `convert_output`), and its loop
  still holds the last micro batch's logits while the next forward runs.
* **Baichuan 13B** makes its mask for every head, [h, S, S], keeps it, and adds it to the padding mask in every forward: 10 GiB
  at 8,192 tokens. Both sizes of its second edition divide the head's rows by their norms, in fp32 under autocast.
* **bitsandbytes up to 0.43.1** keeps every 4-bit product's input in `ctx.tensors`, which lives as long as the loss, and
  8-bit products do to this day: QLoRA then needs more than LoRA beyond the weights it saves, also under checkpointing
  unless that is reentrant (ms-swift's is not).
* **auto_gptq** unpacks a weight by torch ops, and its product saves the unpacked one for the backward.
* `index_copy_` saves its source, so litgpt's zero padding of q and v keeps the padded branch.
* **torchtune** gathers the gradients of the eight head pieces in one input buffer; a compiled layer keeps products and
  whatever its backward must lay down anyway.
* **torch 2.0** made the denominator of foreach AdamW a second list of the parameters' size.
* **ms-swift** leaves out samples longer than `max_length` by default, so lengths vary, and the caching allocator holds
  up to twice what is in use; the estimate replays it over lengths drawn from the stated statistics.

## Choices made with these rows in view

None of these is a factor, but each was settled, or kept, after its effect on the rows was known.

* **The interval's share went from 67 % to 83.8 % (93 of 111 rows)** in steps that were looked for because the share was
  short of its bar of 85 %. Taking one of them back at a time gave: the printed figure as a point, 83 rows; no
  alternative dtype of PEFT's adapters, 90; paged states left in `low`, 91. It became 88.5 % (100 of 113) when PEFT's layers
  over bitsandbytes were traced (they cast nothing under autocast: three rows more), the low end reckoned with xIELU's
  kernels (one), and axolotl's Qwen3.5 page was dated by the pull requests that wrote it, so that transformers 5.3's loader
  counts (one, whose interval is wide); a bucket of DeepSpeed's own size cost one, and its copy as DeepSpeed makes it
  gave one back. The rotary tables that every layer of older Mistrals keeps, found on rows that are not in this table,
  brought one. Two more rows could be predicted, once the replay ran layers of every kind and the catalog held their
  shapes. It is 86.7 % (98 of 113) since Baichuan 13B's mask of every head brought swiftbench-062 in, and two things that are
  so in the code took three rows out, by up to 3 %, because the allocator's replay lays its blocks elsewhere: Qwen's one
  `c_attn` (swiftbench-064 and -071), and queries and keys that live until the output's projection (axolotl-004). The replay
  takes optimizer states as equal blocks; as blocks of their own sizes they make Qwen-7B's full runs right to 0.6 %, but
  LoRA with trained embeddings up to 17 % too high, which is not understood and so not done. The median
  width mixes narrow groups with ms-swift's wide ones: see the table by framework.
* **`compile` lowered `low` by half of the logits**, a choice made when two torchtune rows lay just outside; it had no
  source and is gone. A model compiled as one graph is followed tensor by tensor instead
  (`memlint/estimate/engine/compiled_tape.py`), held to what inductor's partitioner saves of real models and to the live
  bytes of compiled steps on a CPU; no measured row has such a job. torchtune compiles its layers and its loss by
  themselves: the logits are that function's input, nothing is written over them, and its `low` is no longer lowered.
  What its compiled layers keep was checked against the partitioner, and their backward lets go of it as inductor's code
  does: that moved torchtune-025 from 25.00 to 24.80 GiB and no other row, since their peaks lie in the head.
* **Qwen's first code registered a bool mask of all positions in every layer**, 64 MiB each: looked for because of a gap
  of that size, then found in the copy kept by modelscope 1.9.5 (`models/nlp/qwen/backbone.py:154`). That the rows of
  Qwen's own repository, 72B apart, ran that code is inferred from their date. Of the product's jobs none has it.
* **ms-swift's lengths**: that samples are left out, not cut, is its default at the time and fits the throughputs, but
  contradicts these rows' own `near-cap` tag. The gamma distribution, 64 draws and 5 orders are modelling choices;
  a lognormal and other ways of drawing were tried first. The replay moves by up to 20 % with the order alone.
* **Versions and settings that a source leaves open**: litgpt 0.4.13 for the Llama 3.2 rows, fused AdamW for torchtune
  (so in 91 of its 95 configs; the row of 24.9 GiB rules the other out), eager attention for swiftbench-083.

"""


def page(tables: str, date: datetime.date, given: Mapping[str, str | None]) -> str:
    """The whole page. ``given``: option -> file or folder, which is named as seen from the working directory."""
    files = [f"--{option} {os.path.relpath(path)}" for option, path in given.items() if path]
    command = f"    python -m benchmarks.accuracy {' '.join(files)}" if files else ""
    return INTRODUCTION.format(date=date.isoformat(), version=memlint.__version__, command=command) + tables + "\n"
