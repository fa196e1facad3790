"""Build a transformers model from its config on the fake CUDA device, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from memlint.errors import SettingError
from memlint.measure.trace import flash
from memlint.measure.trace.settings import TraceSettings

HEADS = {
    "causal": "AutoModelForCausalLM",
    "mlm": "AutoModelForMaskedLM",
    "seqcls": "AutoModelForSequenceClassification",
    "tokcls": "AutoModelForTokenClassification",
    "seq2seq": "AutoModelForSeq2SeqLM",
}

TURNED = {"hybrid_override_pattern"}
"""Fields that a class computes and yet takes: Nemotron-H makes its kinds of layers of this one."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make_config(source: Mapping[str, Any], remote: str | None = None) -> Any:
    """Return transformers' config object for a mapping as in ``config.json``; absent fields take the class defaults.

    remote: repository or folder whose own code makes the config instead; the user has allowed it.
    Raises SettingError for a model type that this transformers does not know.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if remote is not None:
        return AutoConfig.from_pretrained(remote, trust_remote_code=True)
    values = {key: value for key, value in source.items() if key != "auto_map"}
    kind = values.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        raise SettingError(f"this transformers has no model type `{kind}`, so there is no code to run", "model")
    owner = CONFIG_MAPPING[kind]
    # What a class computes itself (Falcon's head_dim) cannot be set; an estimate's architecture states it all the same.
    # Bamba's and Jamba's kinds of layers stand under another name of the same.
    names = getattr(owner, "attribute_map", {})
    stated = {key: getattr(owner, names.get(key, key), None) for key in values}
    computed = {key for key, found in stated.items() if isinstance(found, property) and not found.fset} - TURNED
    return AutoConfig.for_model(kind, **{key: value for key, value in values.items() if key not in computed})


def make_model(
    config: Any, *, head: str, dtype: torch.dtype, attention: str, device: str = "cuda", remote: bool = False
) -> Any:
    """Build the model of ``config`` with the given head, weights uninitialised; inside FakeTensorMode they are fake.

    remote: whether the config's own repository may bring the code.
    """
    import transformers
    from transformers.initialization import no_init_weights

    config.use_cache = False
    for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name, None):
            # A step in which every layer runs: M2M-100's and Wav2Vec2's leave some out by chance.
            setattr(config, name, 0.0)
    chosen: str | None = attention
    if attention == "flash":
        flash.register()
        chosen = flash.NAME
    elif attention == "sdpa":
        # What transformers takes where nothing is asked for: eager where the class has no other (GPT-OSS, BLOOM,
        # Mamba), which refuses to be asked for sdpa.
        chosen = None
    owner = getattr(transformers, HEADS[head])
    if head == "causal" and type(config) in transformers.AutoModelForImageTextToText._model_mapping:
        # The tower is there for text alone too: axolotl 0.19 loaders/model.py _set_auto_model_loader, LLaMA-Factory
        # 0.9.5 model/loader.py, TRL 1.16 create_model_from_path (architectures[0]). AutoModelForCausalLM has classes
        # of the text part alone (MllamaForCausalLM).
        owner = transformers.AutoModelForImageTextToText
    if not remote and type(config) not in getattr(owner, "_model_mapping", {type(config): owner}):
        raise SettingError(
            f"transformers has no `{config.model_type}` that takes text with the head of this objective"
            f" ({HEADS[head]}), and a trace makes no images or sound",
            "training.objective",
        )
    with torch.device(device), no_init_weights():
        options = {"trust_remote_code": True} if remote else {}
        model = owner.from_config(config, dtype=dtype, attn_implementation=chosen, **options)
    if chosen == flash.NAME and not getattr(model, "_supports_flash_attn", True):
        name = type(model).__name__
        raise SettingError(f"transformers' {name} does not run with flash attention", "training.attention")
    stray = any(parameter.device.type == "cpu" for parameter in model.parameters())
    if stray and torch.device(device).type not in ("cpu", "meta"):
        # torch.normal in a constructor (DiffLlama's lambdas) does not heed the device of the context.
        model.to(device)
    model.tie_weights()
    if head == "seq2seq" and getattr(config, "decoder_start_token_id", None) is None:
        # Checkpoints state it in generation_config.json or config.json; labels are shifted right with it.
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return model


def make_inputs(config: Any, settings: TraceSettings, device: str = "cuda") -> dict[str, Any]:
    """Token ids and labels of one full batch, as uninitialised int64 tensors on the device."""

    def tokens(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.long, device=device)

    batch, seq = settings.batch, settings.seq
    inputs: dict[str, Any] = {"input_ids": tokens(batch, seq)}
    if settings.head == "seqcls":
        inputs["labels"] = tokens(batch)
    elif settings.head == "seq2seq":
        inputs["labels"] = tokens(batch, settings.target_seq or seq)
    else:
        inputs["labels"] = tokens(batch, seq)
    if settings.padding:
        inputs["attention_mask"] = tokens(batch, seq)
    return inputs
