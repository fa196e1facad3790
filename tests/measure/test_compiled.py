"""Inductor's own code for a small Llama with its loss: what it lays down of the logits' size, on a CPU."""

from __future__ import annotations

import os
import re
import shutil
from types import MethodType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.measure,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(os.environ.get("MEMLINT_SLOW") != "1", reason="slow: set MEMLINT_SLOW=1"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles its code for a CPU with g++"),
]
WORDS, TOKENS = 8192, 256


def model() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=WORDS,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).train()


def backward_of(trained: Any) -> tuple[str, list[int]]:
    """The code of a compiled model's backward, and the bytes a logit of each zero tensor that autograd makes for it."""
    import torch._inductor.config
    from torch._inductor.utils import run_and_get_code
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Zeros(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if "zeros" in str(func) and getattr(out, "shape", ())[-1:] == (WORDS,):
                sizes.append(out.element_size())
            return out

    compiled = torch.compile(trained)
    ids = torch.randint(0, WORDS, (1, TOKENS))

    def step() -> Any:
        outputs = compiled(input_ids=ids, labels=ids)
        loss = outputs.loss
        del outputs
        loss.backward()

    with torch._inductor.config.patch(force_disable_caches=True):
        _, codes = run_and_get_code(step)
    loss = compiled(input_ids=ids, labels=ids).loss
    with Zeros():
        loss.backward()
    code = codes[-1]
    return code[code.index("def call") : code.index("return (", code.index("def call"))], sizes


def laid_down(code: str) -> list[str]:
    """dtypes of the buffers of [tokens, words] that the code makes."""
    return re.findall(rf"= empty_strided_cpu\((?:\(1, )?\(?{TOKENS}, {WORDS}\), .*?torch\.(\w+)\)", code)


def test_half_logits_that_are_an_output_keep_their_place_and_the_gradient_takes_another() -> None:
    code, zeros = backward_of(model().to(torch.bfloat16))
    assert laid_down(code) == ["bfloat16"]
    assert not re.search(rf"{TOKENS}, {WORDS}\).*# reuse", code)
    assert zeros == [2]


def test_under_autocast_the_gradient_is_written_over_the_half_logits() -> None:
    from accelerate.utils import convert_outputs_to_fp32

    trained = model()
    # Accelerator.prepare_model of accelerate 1.15.
    trained.forward = MethodType(torch.autocast("cpu", dtype=torch.bfloat16)(trained.forward.__func__), trained)
    trained.forward = MethodType(convert_outputs_to_fp32(trained.forward.__func__), trained)
    code, zeros = backward_of(trained)
    assert laid_down(code) == []
    assert re.search(rf"{TOKENS}, {WORDS}\).*del mm_\d+ +# reuse", code)
    assert zeros == [4]
