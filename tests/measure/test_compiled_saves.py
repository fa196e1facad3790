"""What inductor's partitioner saves of real models, and what lives in a compiled step, beside the compiled tape."""

from __future__ import annotations

import os
import shutil
from types import MethodType
from typing import Any

import pytest

from memlint.estimate.engine.compiled_tape import CompiledTape
from memlint.estimate.engine.tape import Tensor
from memlint.estimate.engine.traced import Ghost
from memlint.estimate.simulate import run_step
from memlint.job import Checkpointing, Lora, Precision, Training, TrainingJob
from tests.estimate.traced import architecture

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.measure,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(os.environ.get("MEMLINT_SLOW") != "1", reason="slow: set MEMLINT_SLOW=1"),
]
ROWS, TOKENS, WORDS = 3, 160, 1024
LLAMA = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS,
    "use_cache": False,
}
GPT2 = {"n_embd": 128, "n_layer": 3, "n_head": 4, "vocab_size": WORDS, "use_cache": False, "attn_pdrop": 0.0}
BERT = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": WORDS,
    "attention_probs_dropout_prob": 0.0,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 32}),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, "head_dim": 32}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "bert": ("BertForMaskedLM", BERT),
}


def model(kind: str, *, half: bool, lora: bool = False, checkpointed: bool = False, **changes: Any) -> Any:
    """A small model, prepared as transformers' Trainer with accelerate does it."""
    name, values = CONFIGS[kind]
    made = getattr(transformers, name)
    trained = made(made.config_class(**{**values, **changes})).train()
    if lora:
        peft = pytest.importorskip("peft")
        trained = peft.get_peft_model(trained, peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    if checkpointed:
        trained.gradient_checkpointing_enable({"use_reentrant": False})
    if half:
        return trained.to(torch.bfloat16)
    from accelerate.utils import convert_outputs_to_fp32

    # Accelerator.prepare_model of accelerate 1.15.
    trained.forward = MethodType(torch.autocast("cpu", dtype=torch.bfloat16)(trained.forward.__func__), trained)
    trained.forward = MethodType(convert_outputs_to_fp32(trained.forward.__func__), trained)
    return trained


def job(trained: Any, kind: str, *, half: bool, lora: bool = False, checkpointed: bool = False) -> TrainingJob:
    """The job of which :func:`model` is the model, with the mask that a compiled one always has."""
    config = {key: value for key, value in trained.config.to_dict().items() if value is not None}
    return TrainingJob(
        model="small",
        architecture=architecture(config),
        training=Training(
            objective="masked-lm" if kind == "bert" else "causal-lm",
            method="lora" if lora else "full",
            lora=Lora(rank=8, targets="all-linear", dropout=0.0, dtype="bf16" if half else "fp32") if lora else None,
            micro_batch_size=ROWS,
            sequence_length=TOKENS,
            padding=True,
            precision=Precision(weights="bf16" if half else "fp32", autocast=None if half else "bf16"),
            checkpointing=Checkpointing(mode="full" if checkpointed else "none"),
            optimizer="sgd",
            max_grad_norm=None,
        ),
    )


def saved_by_partitioner(trained: Any) -> int:
    """Bytes that the compiled forward hands to the backward beside parameters, logits and states of random numbers."""
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.compile_fx import compile_fx

    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any, **options: Any) -> Any:
        if not options.get("is_backward"):
            graphs.append(graph)
        return graph.forward

    def backend(graph: Any, inputs: Any) -> Any:
        return compile_fx(graph, inputs, inner_compile=keep)

    torch._dynamo.reset()
    ids = torch.randint(0, WORDS, (ROWS, TOKENS))
    with (
        torch._inductor.config.patch(force_disable_caches=True),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        step = torch.compile(trained, backend=backend)
        loss = step(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids)).loss
        loss.backward()
    found: dict[str, int] = {}
    for graph in graphs:
        for node in list(graph.graph.nodes)[-1].args[0]:
            value = None if node is None or node.op == "placeholder" else node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.shape[-1:] != (WORDS,) and value.dtype != torch.uint8:
                found[node.name] = value.numel() * value.element_size()
    return sum(found.values())


class Watching(CompiledTape):
    """Notes what stands for the backward when it begins."""

    saved = 0

    def run_backward(self, root: Tensor, grad: Tensor) -> None:
        held = {}
        for node in self.nodes:
            for tensor in node.saved:
                if tensor is None or tensor.shape[-1:] == (WORDS,):
                    continue
                for storage in tensor.held if isinstance(tensor, Ghost) else (tensor.storage,):
                    if storage is not None:
                        held[id(storage)] = storage.size
        self.saved = sum(held.values())
        super().run_backward(root, grad)


@pytest.mark.parametrize(
    ("kind", "settings", "tolerance"),
    [
        ("llama", {"half": True}, 0.01),
        ("llama", {"half": False}, 0.01),
        ("llama", {"half": True, "lora": True}, 0.01),
        # The adapters of the first layer cast its frozen input each for itself here, once there.
        ("llama", {"half": False, "lora": True}, 0.05),
        ("qwen3", {"half": False}, 0.01),
        # Its loss is a graph of its own, which holds the hidden states once more.
        ("gpt2", {"half": True}, 0.02),
        ("gpt2", {"half": False}, 0.02),
        ("bert", {"half": False}, 0.02),
        # Row maxima and sums of the eager softmax.
        ("gemma2", {"half": True}, 0.05),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) if isinstance(value, dict) else "",
)
def test_the_tape_keeps_what_the_partitioner_saves(kind: str, settings: dict[str, bool], tolerance: float) -> None:
    trained = model(kind, **settings)
    tape = Watching()
    run_step(job(trained, kind, **settings), (8, 0), full=True, tape=tape)
    assert tape.saved == pytest.approx(saved_by_partitioner(trained), rel=tolerance)


def test_a_checkpointed_layer_keeps_its_input_alone() -> None:
    settings = {"half": True, "checkpointed": True}
    trained = model("llama", **settings)
    layer = ROWS * TOKENS * LLAMA["hidden_size"] * 2  # type: ignore[operator]
    mask = ROWS * TOKENS * TOKENS * 2
    saved = saved_by_partitioner(trained)
    # Three inputs and what the head reads.
    assert saved == pytest.approx(4 * layer + mask, rel=0.02)
    tape = Watching()
    run_step(job(trained, "llama", **settings), (8, 0), full=True, tape=tape)
    # The tape holds the last layer's output beside its norm; the mask is held by the layers, not by nodes.
    assert tape.saved == pytest.approx(5 * layer, rel=0.02)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles its code for a CPU with g++")
@pytest.mark.parametrize("half", [True, False], ids=["half", "autocast"])
def test_live_bytes_of_a_compiled_step(half: bool) -> None:
    changes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "vocab_size": 8192}
    trained = model("llama", half=half, **changes)
    compiled = torch.compile(trained)
    ids = torch.randint(0, 8192, (ROWS, TOKENS))

    def step() -> None:
        loss = compiled(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids)).loss
        loss.backward()

    for _ in range(2):
        step()
        for parameter in trained.parameters():
            parameter.grad = None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    simulated = run_step(job(trained, "llama", half=half), (8, 0), tape=CompiledTape())
    before = simulated.static["parameters"] + simulated.static["optimizer_states"] + 3 * ROWS * TOKENS * 8
    peak = max(phase.peak_bytes for phase in simulated.timeline) - before
    assert peak == pytest.approx(highest, rel=0.03)
