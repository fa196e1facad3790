"""Why a measured row stays off: what its source leaves out or gets wrong, tensor by tensor where that is known.

Nothing here changes a prediction.
"""

from __future__ import annotations

from benchmarks.accuracy.measured import Prediction

_SWIFT = (
    "the data's samples have {mean} +- {deviation} tokens, and ms-swift's default is `truncation_strategy "
    "delete`: longer samples are left out, so micro batches differ in length and the figure is what the caching "
    "allocator holds after every new longest sample. The order of the samples is not published; other orders of the "
    "same lengths give {low} to {high} GiB (replay of the allocator), {expected} in the middle"
)
_BITS = (
    "bitsandbytes rows of this page are 10 to 13 % low, by bytes that grow with depth and width, GPTQ rows are not: ms-swift "
    "prepares no 4-bit model (1.4 to 1.6 read), and with fp32 norms and embeddings those of 7B and 14B would be 8 % high"
)
_GPTQ = "auto_gptq unpacks and keeps each weight as its torch path does (qlinear_cuda_old.py); which kernel ran is not stated"
_RULES: tuple[tuple[str, str], ...] = (
    (
        "chatglm3",
        "its code's operations are followed to the byte, with a flash kernel; with scores multiplied out it would be about "
        "82 GiB, so neither explains it; ",
    ),
    (
        "baichuan2-13b",
        "its code takes a fused kernel where xformers is installed, which the source does not say: the low end; ",
    ),
)
"""(word in the model's name, what to say before ms-swift's own explanation)."""
_PREFIX = (
    "200 virtual tokens cost 1.3 GiB more than predicted, 50 cost 0.4: neither keys and values of the prefix, repeated for "
    "all heads, nor the mask, nor the outputs that the loop holds until the next forward (run.py) are so much; the traced "
    "code of PEFT allocates what is predicted. Reserved with other lengths every step, it may be the allocator's"
)
_ROWS: dict[str, str] = {
    **dict.fromkeys(("peft-043", "peft-044", "peftold-012"), _PREFIX),
    "torchtune-001": "0.04 GiB below the interval; from the same table as the LoRA row, whose figure leaves no room for "
    "the half-precision logits of the eight pieces (here 0.88 GiB)",
    "torchtune-003": "the published 16.2 GiB is 0.1 GiB above the bf16 weights (14.97) and the 32 saved layer inputs "
    "(1.06): it leaves no room for the 0.98 GiB of half-precision logits that the eight pieces of the head hold at "
    "once. The command behind this table is not published",
    "torchtune-005": "from the same table as the LoRA row, whose figure leaves no room for the logits",
    "torchtune-029": "rank and targets are those of the default config, assumed; 6.05 GiB of weights, 0.7 of adapters "
    "and states, 1.96 of half-precision logits in eight pieces",
    "axolotl-004": "its README says `about`; the high end is 0.2 GiB below, and what the allocator's replay over the packed "
    "rows' lengths adds to the 61.0 GiB allocated moves by half a GiB with the moment at which queries and keys are freed",
    "axolotl-006": "4.7 GB is 3.3 GiB more than weights, adapters and one layer, which the fused loss of its config leaves; "
    "with whole logits [4096, 120818] the step allocates 6.3 GiB and the evaluation that the config asks for 5.2. Whether "
    "the loss took effect, and which of axolotl's three figures it is (active, allocated, reserved: utils/bench.py), is "
    "not stated. The patch itself covers evaluation (cut_cross_entropy/transformers/utils.py use_lce)",
    "axolotl-014": "with whole logits instead of its config's fused loss the step allocates 11.05 GiB and reserves 12.45: "
    "11.3 lies between. Its page asks for the loss's package; whether the loss took effect is not stated",
    "axolotl-012": "4.76 GiB lies between what is allocated (4.54, of which about 0.2 are the image tower's 4-bit weights) and "
    "what is expected as reserved; axolotl logs active, allocated and reserved bytes (utils/bench.py), and the page does "
    "not say which it prints",
    "axolotl-021": "a table of peak VRAM of the whole process, printed in March 2026 under transformers 5.3 or older, whose "
    "loader may hold the whole model in half precision, 51.8 GiB, before it quantises (memlint/estimate/loading.py): the "
    "high end of the interval. The step itself needs half of it: traced in transformers', peft's and bitsandbytes' own "
    "code (grid_quantised.jsonl, with adapters on every linear layer and whole logits) it peaks at 24.1 GiB",
    "axolotl-001": "its README recommends xIELU's CUDA package, with which the low end reckons and the expected figure does "
    "not (docs/kernels.md)",
    "axoold-001": "README of July 2023, `about 17 GB` (15.4 GiB and more, if it is GB). axolotl then prepared a 4-bit model "
    "(fp32 norms, embeddings and head, so fp32 hidden states) and cast nothing back, and bitsandbytes kept every input: "
    "3 of the 6.8 GiB that were missing. The rest is not known; its xFormers attention gets fp32 queries, keys and values, "
    "which the flash kernel of the prediction does not",
    "hfdoc-001": "the driver's figure on a V100 with eager kernel loading: the page itself gives 1343 MiB for the "
    "context, against 430 expected and up to 1343 in the interval; the rest is the attention of transformers 4.16, "
    "whose copies of the [4, 16, 512, 512] scores differ from today's",
    "swifttuner-023": "a run with evaluation, whose batches are not packed, so their lengths vary: swiftbench-020, the same "
    "run without packing, reserves 27.74 GiB",
    "peft-015": "LoRA rows of the same loop are within 0.3 %; what differs is 6 GiB of gradients that come and go between "
    "batches of other lengths, in a run whose cache is emptied every tenth step (run.py): the allocator's slack as far as "
    "is known, no tensor",
}
"""Row -> what is known of it."""


def explain(prediction: Prediction) -> str | None:
    """A sentence for a row whose error or interval is off; None where nothing is known."""
    row = prediction.row
    if row.id in _ROWS:
        return _ROWS[row.id]
    training = prediction.job.training
    if row.framework == "ms-swift" and training.length_deviation is not None:
        sizes = {name: f"{getattr(prediction, name) / 2**30:.1f}" for name in ("low", "high", "expected")}
        text = _SWIFT.format(mean=training.length_mean, deviation=training.length_deviation, **sizes)
        for word, before in _RULES:
            if word in row["model"].lower():
                text = before + text
        if "bnb" in row["param_dtype"]:
            return f"{_BITS}; {text}"
        return f"{_GPTQ}; {text}" if "gptq" in row["param_dtype"] else text
    if row.framework == "qwen-finetune" and row["sharding"].startswith("zero"):
        return (
            "DeepSpeed on one GPU: its flat buffers (fp16 copies, reduce buckets of its own file's sizes) are counted, "
            "their fragmentation is not; the version is not stated. " + (_GPTQ if row["method"] == "qlora" else "")
        )
    if row.framework == "qwen-finetune":
        return (
            "how the figure was read (driver or allocator) is not stated; the driver's holds about 0.5 GiB of CUDA "
            "context besides"
        )
    if row.length in ("cap", "unknown"):
        return "the real length of the longest batch is not stated: the prediction holds for full sequences"
    return None
