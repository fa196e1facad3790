"""Files of other programs that look like a training config memlint reads, and must be left alone.

Each test names what the file is. Recognition is by content; facts are in the frameworks' own example trees.
"""

from __future__ import annotations

from typing import Any, Mapping


def is_foreign(data: Mapping[str, Any]) -> bool:
    """Whether a mapping belongs to a program memlint does not read (yet), though it shares keys with one it does."""
    return any(test(data) for test in _TESTS)


def _peft(data: Mapping[str, Any]) -> bool:
    """adapter_config.json of PEFT, or of MLX-LM."""
    if "peft_type" in data and "output_dir" not in data and "per_device_train_batch_size" not in data:
        return True
    return "lora_parameters" in data and "iters" in data


def _hydra(data: Mapping[str, Any]) -> bool:
    """verl, NeMo-RL and others composed with Hydra."""
    if "actor_rollout_ref" in data or "_target_" in data:
        return True
    return isinstance(data.get("defaults"), (list, str)) and not any(
        key in data for key in ("model_name_or_path", "base_model", "per_device_train_batch_size")
    )


def _nanotron(data: Mapping[str, Any]) -> bool:
    return isinstance(data.get("parallelism"), dict) and isinstance(data.get("tokens"), dict) and "model" in data


def _ludwig(data: Mapping[str, Any]) -> bool:
    return "input_features" in data and "output_features" in data


def _swift(data: Mapping[str, Any]) -> bool:
    """ms-swift, flat or under ``args``."""
    for part in (data, data.get("args")):
        if (
            isinstance(part, dict)
            and isinstance(part.get("model"), str)
            and any(key in part for key in ("tuner_type", "train_type", "rlhf_type", "ENV"))
        ):
            return True
    return False


def _unsloth(data: Mapping[str, Any]) -> bool:
    training = data.get("training")
    if isinstance(training, dict) and "training_type" in training:
        return True
    return isinstance(data.get("lora"), dict) and (isinstance(training, dict) or "inference" in data)


def _open_instruct(data: Mapping[str, Any]) -> bool:
    if any(key in data for key in ("use_lora", "use_qlora", "use_slow_tokenizer", "dataset_mixer_list")):
        return "finetuning_type" not in data and "base_model" not in data
    if "tasks" in data and data.get("version") == "v2":
        return True
    # open-instruct says num_epochs where the HF Trainer says num_train_epochs.
    own = "with_tracking" in data or ("num_epochs" in data and "num_train_epochs" not in data)
    if own and "model_name_or_path" in data and "finetuning_type" not in data:
        return True
    return "dataset_mixer" in data and "bf16" not in data and "torch_dtype" not in data and "beta" not in data


def _xtuner(data: Mapping[str, Any]) -> bool:
    return "zero_stage" in data and "MBS" in data and "L" in data


_YAML_ON: Any = True
"""What YAML 1.1 makes of the key ``on``."""


def _operations(data: Mapping[str, Any]) -> bool:
    """GitHub workflows, Kubernetes, compose files."""
    if "jobs" in data and ("on" in data or _YAML_ON in data):
        return True
    if "apiVersion" in data and "kind" in data:
        return True
    return "services" in data and isinstance(data["services"], dict)


_TESTS = (_peft, _hydra, _nanotron, _ludwig, _swift, _unsloth, _open_instruct, _xtuner, _operations)
