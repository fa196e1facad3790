"""The simulation of PEFT's methods around several model types against traces of PEFT's own code.

    python -m benchmarks.peft_methods [--only prompt,prefix] [--output tests/estimate/traces_peft.jsonl]

Needs the measure extra; a run takes a second or two.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

from benchmarks.objectives.report import report
from memlint.estimate.result import PHASES
from memlint.measure.trace import run
from memlint.measure.trace.settings import LoraSettings, TraceSettings
from tests.estimate.peft_points import simulated, title
from tests.estimate.traced import PRECISIONS

_WIDE: dict[str, Any] = {
    **{"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 3, "num_attention_heads": 8},
    **{"num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 2048},
}
_ENCODER: dict[str, Any] = {
    **{"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8},
    **{"vocab_size": 4096, "max_position_embeddings": 1024},
}
_BART: dict[str, Any] = {
    **{"d_model": 512, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 8},
    **{"decoder_attention_heads": 8, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "vocab_size": 4096},
}
_T5: dict[str, Any] = {
    **{"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 8},
    **{"vocab_size": 4096, "decoder_start_token_id": 0},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("causal", {"model_type": "llama", **_WIDE}),
    "qwen3": ("causal", {"model_type": "qwen3", "head_dim": 64, **_WIDE}),
    "gemma2": ("causal", {"model_type": "gemma2", "head_dim": 64, **_WIDE}),
    "gemma3_text": ("causal", {"model_type": "gemma3_text", "head_dim": 64, **_WIDE}),
    "qwen3_moe": (
        "causal",
        {
            **{"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
            **{"head_dim": 64, **_WIDE},
        },
    ),
    "mixtral": ("causal", {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, **_WIDE}),
    "gpt2": ("causal", {"model_type": "gpt2", "n_embd": 512, "n_layer": 3, "n_head": 8, "vocab_size": 4096}),
    "opt": ("causal", {"model_type": "opt", "ffn_dim": 1536, "word_embed_proj_dim": 512, **_ENCODER}),
    "gpt_neox": ("causal", {"model_type": "gpt_neox", **_ENCODER}),
    "bart": ("seq2seq", {"model_type": "bart", **_BART}),
    "t5": ("seq2seq", {"model_type": "t5", **_T5}),
    "bert": ("seqcls", {"model_type": "bert", **_ENCODER}),
}
TASKS = {"causal": "CAUSAL_LM", "seq2seq": "SEQ_2_SEQ_LM", "seqcls": "SEQ_CLS"}


def _point(method: str, model: str, **fields: Any) -> dict[str, Any]:
    head, config = MODELS[model]
    point: dict[str, Any] = {
        **{"method": method, "head": head, "config": config, "precision": "bf16", "checkpointing": "none"},
        **{"attention": "eager" if model == "gemma2" else "sdpa", "padding": False, "optimizer": "adamw"},
        **{"batch": 2, "seq": 128},
    }
    if head == "seq2seq":
        point["target_seq"] = 64
    return {**point, **fields}


def points() -> Iterator[dict[str, Any]]:
    """What is traced."""
    checked = {"checkpointing": "reentrant"}
    odd = {"precision": "bf16-autocast", "batch": 3, "seq": 100, "padding": True, "attention": "eager", "tokens": 5}
    for method in ("prompt", "p-tuning"):
        for model in MODELS:
            if model != "qwen3_moe":
                yield _point(method, model)
        yield _point(method, "gemma3_text", **odd)
        yield _point(method, "bart", **odd)
        yield _point(method, "gemma3_text", **checked)
        yield _point(method, "llama", checkpointing="nonreentrant", tokens=128)
    for model in ("llama", "qwen3", "gemma2", "gemma3_text", "mixtral", "gpt2", "opt", "gpt_neox", "bart", "t5"):
        yield _point("prefix", model)
        yield _point("prefix", model, **odd)
    yield _point("prefix", "gpt2", attention="eager")
    yield _point("lora", "gemma3_text", rank=8, targets=["embed_tokens", "q_proj"])
    yield _point("lora", "gemma2", rank=8, targets=["embed_tokens", "q_proj"], **checked)
    yield _point("lora", "t5", rank=8, targets="default", seq=148)
    yield _point("lora", "t5", rank=8, targets="default", seq=257, target_seq=33, precision="bf16-autocast")
    for model in ("t5", "opt", "bart"):
        yield _point("adalora", model, rank=8, targets="default")
    for model in ("qwen3", "gemma3_text", "gpt2"):
        yield _point("ln-tuning", model)
    yield from _matrices()
    # Layers of several shapes, fused experts and all factors' gradients at once.
    for method, model in (
        *(("adalora", name) for name in ("gpt_neox", "bert", "qwen3_moe")),
        *(("randlora", name) for name in ("gemma3_text", "bert")),
        *(("ia3", "gpt_neox"), ("vera", "qwen3_moe")),
    ):
        yield _point(method, model, rank=8, targets="all-linear")


def _matrices() -> Iterator[dict[str, Any]]:
    """Adapters that make a matrix, also beside transformers' Conv1D, whose weight stands the other way round."""
    half = {"precision": "fp16-autocast", "batch": 3, "seq": 100}
    for method in ("hira", "fourierft", "loha", "lokr", "miss"):
        for model, targets in (("llama", "default"), ("gpt2", ["c_attn"]), ("gpt2", ["mlp.c_proj"])):
            if method not in ("loha", "lokr", "miss") or model != "gpt2":  # theirs take no Conv1D
                yield _point(method, model, rank=8, targets=targets)
                yield _point(method, model, rank=8, targets=targets, **half)
        yield _point(method, "gemma3_text", rank=8, targets="all-linear", **half)
        yield _point(method, "bert", rank=8, targets="default", checkpointing="reentrant", precision="bf16-autocast")


def _config(point: dict[str, Any]) -> Any:
    import peft

    method, tokens, task = point["method"], point.get("tokens", 20), TASKS[point["head"]]
    targets = None if point.get("targets") == "default" else point.get("targets")
    if method == "prompt":
        return peft.PromptTuningConfig(num_virtual_tokens=tokens, task_type=task)
    if method == "p-tuning":
        return peft.PromptEncoderConfig(num_virtual_tokens=tokens, task_type=task)
    if method == "prefix":
        return peft.PrefixTuningConfig(num_virtual_tokens=tokens, task_type=task)
    if method == "adalora":
        # Only a model of a task goes through AdaLoraModel.forward, which adds the regularisation.
        return peft.AdaLoraConfig(init_r=point["rank"], target_modules=targets, total_step=100, task_type=task)
    if method == "ln-tuning":
        return peft.LNTuningConfig()
    if method == "fourierft":
        return peft.FourierFTConfig(target_modules=targets)
    if method == "ia3":
        return peft.IA3Config(target_modules=targets, task_type=task)
    kinds = {
        "vera": peft.VeraConfig,
        "randlora": peft.RandLoraConfig,
        "hira": peft.HiraConfig,
        "loha": peft.LoHaConfig,
        "lokr": peft.LoKrConfig,
        "miss": peft.MissConfig,
    }
    if method in kinds:
        return kinds[method](r=point["rank"], target_modules=targets)
    return peft.LoraConfig(r=point["rank"], target_modules=targets)


class _NeverDropped:
    """Below any number. Whether ``torch.rand(1) > module_dropout`` (loha/layer.py) holds is chance on fake tensors."""

    def __lt__(self, other: object) -> bool:
        return True


def _adapted(model: Any, point: dict[str, Any]) -> Any:
    import peft

    adapted = peft.get_peft_model(model, _config(point))
    for module in adapted.modules():
        dropouts = getattr(module, "module_dropout", {})
        for name in dropouts:
            dropouts[name] = _NeverDropped()
    return adapted


def trace_point(point: dict[str, Any]) -> Any:
    """Trace one point."""
    weights, autocast = PRECISIONS[point["precision"]]
    settings = TraceSettings(
        head=point["head"],
        batch=point["batch"],
        seq=point["seq"],
        target_seq=point.get("target_seq"),
        padding=point["padding"],
        weights=weights,
        autocast=autocast,
        checkpointing=point["checkpointing"],
        attention=point["attention"],
        optimizer=point["optimizer"],
        lora=LoraSettings(),
    )
    with mock.patch.object(run, "add_lora", lambda model, _: _adapted(model, point)):
        return run.trace(point["config"], settings, every_layer=True)


def main() -> int:
    """Print a line a point and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), help="methods")
    parser.add_argument("--output")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = (p for p in points() if not options.only or p["method"] in options.only)
    return report(wanted, trace_point, simulated, title, PHASES, options.output, part=bool(options.only))


if __name__ == "__main__":
    sys.exit(main())
