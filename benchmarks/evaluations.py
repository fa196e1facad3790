"""The simulation of an evaluation against traces of transformers' own code: a forward and its loss without gradients.

    python -m benchmarks.evaluations [--only llama,bert] [--output tests/estimate/traces_evaluations.jsonl]

Needs the measure extra; a run takes a second or two. What the code's names hold shows here: autograd keeps nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from benchmarks.lines import known_lines, replaced, write_lines
from memlint.measure.trace.build import DTYPES, make_config, make_inputs, make_model
from memlint.measure.trace.cuda_choices import cuda_choices
from memlint.measure.trace.guard import install_idle_cuda
from memlint.measure.trace.mode import RecordingMode
from memlint.measure.trace.phases import label
from memlint.measure.trace.recorder import Recorder
from memlint.measure.trace.settings import TraceSettings
from tests.estimate.evaluation_points import simulated, title
from tests.estimate.traced import PRECISIONS

_WIDE: dict[str, Any] = {
    **{"hidden_size": 256, "intermediate_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 16},
    **{"num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 1024, "pad_token_id": 0},
}
_MIXED: dict[str, Any] = {**_WIDE, "intermediate_size": 512, "moe_intermediate_size": 512, "head_dim": 16}
_LATENT: dict[str, Any] = {
    **{"q_lora_rank": 192, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32},
    **{**_WIDE, "num_key_value_heads": 16, "intermediate_size": 256},
}
_LINEAR: dict[str, Any] = {
    **{"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 64},
    **{"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 128, "num_hidden_layers": 4},
}
_BART: dict[str, Any] = {
    **{"d_model": 256, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 8, "vocab_size": 512},
    **{"decoder_attention_heads": 8, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": None},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("causal", {"model_type": "llama", **_WIDE}),
    "gemma2": ("causal", {"model_type": "gemma2", "head_dim": 16, **_WIDE}),
    "phi3": ("causal", {"model_type": "phi3", **_WIDE}),
    "apertus": ("causal", {"model_type": "apertus", **_WIDE}),
    "stablelm": ("causal", {"model_type": "stablelm", **_WIDE, "intermediate_size": 256}),
    "phi": ("causal", {"model_type": "phi", **_WIDE, "intermediate_size": 256, "num_key_value_heads": 16}),
    "persimmon": ("causal", {"model_type": "persimmon", **_WIDE, "intermediate_size": 256}),
    "mixtral": ("causal", {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, **_MIXED}),
    "qwen2_moe": ("causal", {"model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2, **_MIXED}),
    "gpt_oss": ("causal", {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, **_MIXED}),
    "granite_swa": ("causal", {"model_type": "granite_swa", **_WIDE}),
    "minicpm3": ("causal", {"model_type": "minicpm3", **_LATENT}),
    "qwen3_next": ("causal", {"model_type": "qwen3_next", **_MIXED, **_LINEAR}),
    "bloom": ("causal", {"model_type": "bloom", "n_layer": 3, "n_head": 8, "hidden_size": 256, "vocab_size": 512}),
    "opt": ("causal", {"model_type": "opt", "ffn_dim": 1024, "word_embed_proj_dim": 256, "dropout": 0.1, **_WIDE}),
    "bart": ("seq2seq", {"model_type": "bart", **_BART}),
    "distilbert": (
        "mlm",
        {"model_type": "distilbert", "dim": 256, "hidden_dim": 1024, "n_layers": 3, "n_heads": 8, "vocab_size": 512},
    ),
}


def points() -> Iterator[dict[str, Any]]:
    """What is traced."""
    for model, (head, config) in MODELS.items():
        shape: dict[str, Any] = {"precision": "bf16", "batch": 4, "seq": 96, "attention": "eager"}
        if model == "distilbert":
            shape.update(precision="bf16-autocast", attention="sdpa")
        yield {"head": head, "config": config, **shape}
    for model in ("llama", "stablelm", "qwen3_next", "gpt_oss"):
        head, config = MODELS[model]
        yield {
            "head": head,
            "config": config,
            "precision": "bf16-autocast",
            "batch": 3,
            "seq": 200,
            "attention": "eager",
        }
        yield {"head": head, "config": config, "precision": "fp32", "batch": 2, "seq": 128, "attention": "sdpa"}


def trace_point(point: dict[str, Any]) -> int:
    """The highest level of the second evaluation above what was there before it."""
    install_idle_cuda()
    recorder = Recorder()
    weights, autocast = PRECISIONS[point["precision"]]
    settings = TraceSettings(head=point["head"], batch=point["batch"], seq=point["seq"])
    config = make_config(point["config"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_choices(recorder, padding=False))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(RecordingMode(recorder, padding=False, kernels={}))
        recorder.enter("build", 0)
        model = make_model(config, head=point["head"], dtype=DTYPES[weights], attention=point["attention"])
        model.eval()
        recorder.note_parameters(model.parameters())
        label(recorder, model.parameters(), "params")
        height = 0
        for number in (1, 2):
            gc.collect()
            before = recorder.live
            inputs = make_inputs(config, settings)
            recorder.enter("forward", number)
            with torch.no_grad(), torch.autocast("cuda", DTYPES[autocast]) if autocast else contextlib.nullcontext():
                outputs = model(**inputs)
            del outputs, inputs
            recorder.enter("end")
            height = recorder.mark(number, "forward").peak.bytes - before
        return height


def main() -> int:
    """Print a line a point, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), help="model types")
    parser.add_argument("--output", metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    made = []
    for point in points():
        if options.only and point["config"]["model_type"] not in options.only:
            continue
        traced = trace_point(point)
        predicted = simulated(point)
        print(f"{100 * (predicted / traced - 1):+9.4f} %  {title(point)}", flush=True)
        made.append({**point, "peak": traced})
    if options.output:
        write_lines(options.output, replaced(known_lines(options.output), made, title))
    return 0


if __name__ == "__main__":
    sys.exit(main())
