"""One training step of DeepSpeed's real engine on CPU tensors, with every storage counted.

torch's fake process group stands for any number of ranks: collectives return at once and leave their outputs as they
are, which no allocation depends on. Needs deepspeed beside the measure extra.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # imports inductor, for many seconds: once for all points
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import LlamaConfig, LlamaForCausalLM

from memlint.measure.trace.recorder import rounded

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
OPTIMIZERS: dict[str, Any] = {
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-5, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-5, foreach=True),
    "adamw-for-loop": lambda p: torch.optim.AdamW(p, lr=1e-5, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-5, foreach=True),
}


class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Counts the storages that operations return, each rounded as CUDA's caching allocator does."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[int, tuple[int, ...], str]] = {}
        self.now = 0
        self.phase = "start"
        self.peaks: dict[str, int] = {}
        self.held: dict[str, list[tuple[int, tuple[int, ...], str]]] = {}
        """What was alive at each phase's peak, to look into a difference; kept where ``keep`` is set."""
        self.keep = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._add(tensor)
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = rounded(storage.nbytes())
        if key in self.live or not size:
            return
        self.live[key] = (size, tuple(tensor.shape), str(tensor.dtype))
        self.now += size
        weakref.finalize(storage, self._remove, key)
        self._note()

    def _remove(self, key: int) -> None:
        if key in self.live:
            self.now -= self.live.pop(key)[0]

    def _note(self) -> None:
        if self.now > self.peaks.get(self.phase, 0):
            self.peaks[self.phase] = self.now
            if self.keep:
                self.held[self.phase] = list(self.live.values())

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase = phase
        self._note()


def settings(spec: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's config of a point."""
    half: dict[str, dict[str, Any]] = {spec["precision"]: {"enabled": True}} if spec["precision"] != "fp32" else {}
    if "fp16" in half:
        # Nothing may overflow: a step that is left out takes no memory.
        half["fp16"]["initial_scale_power"] = 4
    own = spec.get("config", {})
    return {
        "train_micro_batch_size_per_gpu": spec["micro"],
        "gradient_accumulation_steps": spec["accumulation"],
        **half,
        **({"gradient_clipping": spec["clip"]} if spec["clip"] is not None else {}),
        "zero_optimization": spec["zero"],
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **{key: {**half.get(key, {}), **value} if isinstance(value, dict) else value for key, value in own.items()},
    }


def measured(spec: dict[str, Any], rank: int = 0, watch: Watch | None = None) -> dict[str, int]:
    """Peak bytes of the phases of the last micro batch of the second step on one rank. Once a process."""
    watch = watch or Watch()
    world = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(spec["world"])}
    os.environ.update(world, MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=spec["world"])
    with watch:
        engine = _engine(spec)
        vocabulary, shape = spec["model"]["vocab_size"], (spec["micro"], spec["sequence"])
        for step in range(2):
            for micro in range(spec["accumulation"]):
                last = step == 1 and micro == spec["accumulation"] - 1
                tokens = torch.randint(0, vocabulary, shape)
                watch.enter("forward" if last else "")
                loss = engine(input_ids=tokens, labels=tokens).loss
                watch.enter("backward" if last else "")
                engine.backward(loss)
                del loss
                watch.enter("step" if last else "")
                engine.step()
    return {phase: watch.peaks[phase] for phase in ("forward", "backward", "step")}


def _engine(spec: dict[str, Any]) -> Any:
    config = settings(spec)
    torch.manual_seed(0)
    whole = spec["zero"]["stage"] < 3
    with contextlib.nullcontext() if whole else deepspeed.zero.Init(config_dict_or_path=config):
        torch.set_default_dtype(DTYPES[spec["precision"]])
        model: Any = LlamaForCausalLM(LlamaConfig(**spec["model"], attn_implementation="eager"))
        torch.set_default_dtype(torch.float32)
    if spec["lora"]:
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(r=spec["lora"], target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, adapters, autocast_adapter_dtype=False)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(DTYPES[spec["precision"]])
    model.config.use_cache = False
    model.train()
    if spec["checkpointing"] != "none":
        model.gradient_checkpointing_enable({"use_reentrant": spec["checkpointing"] == "reentrant"})
        model.enable_input_require_grads()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: Any = trained
    if spec.get("groups") == 2:
        # As trainers do: vectors without weight decay.
        groups = [{"params": [p for p in trained if (p.dim() > 1) == matrices]} for matrices in (True, False)]
    optimizer = OPTIMIZERS[spec["optimizer"]](groups)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, model_parameters=trained)
    return engine
