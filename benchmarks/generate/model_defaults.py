"""Write memlint/models/defaults.jsonl: what transformers' config classes fill in when a config.json says nothing.

One JSON line a model_type, found by text search and parsed alone:

* ``type``: the model_type; ``defaults``: field -> class default (before ``__post_init__``);
* ``names``: attribute_map, standard name -> the class's own name;
* ``parts``: sub-config key -> {type, auto (the mapping's own model_type decides), optional, init (values given to it)};
* ``rules``: field -> how ``__post_init__`` or a property computes it, in the words of memlint/models/derive.py.
  The rules are not read from the source: each class is built with one field after the other changed, which shows
  what a value depends on, and the simplest rule that explains every such instance is kept;
* ``open``: computed fields that no rule explains (their value is then absent, or comes from memlint/models/special.py).

Fields that cannot matter to memory (token ids, epsilons, initialisers, labels) are left out.
Run: ``python -m benchmarks.generate.model_defaults`` with the transformers version that the data shall follow.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import random
import re
import sys
import textwrap
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from memlint.models.derive import apply_rule

TARGET = os.path.join(os.path.dirname(__file__), "..", "..", "memlint", "models", "defaults.jsonl")

BASE_FIELDS = {f.name for f in dataclasses.fields(PretrainedConfig)} - {"is_encoder_decoder"}
DROPPED = re.compile(
    r"_token_ids?$|_token_index$|^token_|initializer|init_std|^init_|_init$|_eps$|epsilon$|^eps$|theta|^output_(att|hid|log)"
    r"|^summary_|^task_|loss_coef|loss_weight|_loss|_path$|^rope_(parameters|scaling)$|^pretraining_tp$|^image_(mean|std)$"
    r"|_type_ids$|^return_|^backbone$|timm|^use_pretrained|^ignore_|_seed$|^out_features$|^stage_names$|_coeff|_prob(s)?$"
    r"|^ctc_|^mask_(time|feature)|sampling_rate|spec_augment|init_value|layerscale_value|feature_select|^conv_(stride|kernel|dim)$"
    r"|^time_step_(min|max|floor|limit)|_scale$|scaling$|_multiplier$|^name$|grid_pinpoints|aspect_ratios$|^vocabulary_map"
)
KEPT_ANYWAY = re.compile(r"dropout|dropout_prob|attention_probs|pdrop|^layerdrop|^scale_attn|^conv_kernel$")
PROPERTIES = {
    "layer_types",
    "layers_block_type",
    "layers_num_experts",
    "head_dim",
    "num_key_value_heads",
    "sliding_window",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "rotary",
    "num_attention_heads",
    "vocab_size",
    "num_local_experts",
    "num_experts",
}
LEFT_OUT = re.compile(
    r"^$|detr|sam\d?(_|$)|sam_|pp_|tokenizer|hifigan|bigvgan|vqgan|vqmodel|parakeet|superglue|lightglue|time_series"
    r"|informer|autoformer|patchts|timesfm|maskformer|oneformer|mask2|esmfold|encodec|xcodec|codec|vits|univnet|speecht5"
    r"|fastspeech|clvp|bark|mimi|^dac$|loftr|superpoint|depth|dpt|upernet|textnet|levit|pvt|regnet|mobilenet"
    r"|mobilevit|efficientnet|^bit$|cvt|focalnet|poolformer|hgnet|swin2sr|vitmatte|vitpose|tvp|slane|align"
    r"|d_fine|deim|yolos|edgetam|omdet|grounding|seggpt|videomt|eomt|segment|glpn|uvdoc|swiftformer|mgp|talker"
    r"|code_predictor|token2wav|_dit$|pocket_tts|kyutai|moshi|musicgen|audio_v2|sew|unispeech|diarization"
)
"""Networks of convolutions, codecs, detectors and time series: not what people fine-tune with the formats we read."""


def plain(value: Any) -> Any:
    """Return a value as JSON would give it back, or raise TypeError."""
    return json.loads(json.dumps(value))


def relevant(name: str) -> bool:
    if name.startswith("_") or name in BASE_FIELDS:
        return False
    return bool(KEPT_ANYWAY.search(name)) or not DROPPED.search(name)


def raw_defaults(cls: type[PretrainedConfig]) -> dict[str, Any]:
    """Class defaults as written, before ``__post_init__``."""
    result: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            continue
        try:
            result[cls.attribute_map.get(field.name, field.name)] = plain(value)
        except TypeError:
            continue
    return result


def inner_configs(cls: type[PretrainedConfig]) -> dict[str, type[PretrainedConfig]]:
    """Fields that hold a config of their own although the class does not declare them (MPT, DBRX)."""
    base = build(cls)
    if base is None:
        return {}
    declared = set(getattr(cls, "sub_configs_defaults", {}))
    return {k: type(v) for k, v in vars(base).items() if isinstance(v, PretrainedConfig) and k not in declared}


def legacy_arguments(cls: type[PretrainedConfig]) -> dict[str, Any]:
    """Arguments that ``__post_init__`` still takes from old configs, with the value it uses when they are absent."""
    found: dict[str, Any] = {}
    for owner in cls.__mro__:
        if owner is PretrainedConfig or "__post_init__" not in vars(owner):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(vars(owner)["__post_init__"])))
        for call in ast.walk(tree):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in {"get", "pop", "setdefault"}
                and isinstance(call.func.value, ast.Name)
                and call.func.value.id == "kwargs"
                and len(call.args) == 2
                and isinstance(call.args[0], ast.Constant)
                and isinstance(call.args[0].value, str)
                and isinstance(call.args[1], ast.Constant)
                and call.args[1].value is not None
            ):
                found.setdefault(call.args[0].value, call.args[1].value)
    return {k: v for k, v in found.items() if relevant(k) and k not in {"num_labels"}}


def build(cls: type[PretrainedConfig], **changes: Any) -> PretrainedConfig | None:
    """Make an instance, or None where the class refuses the combination."""
    try:
        return cls(**json.loads(json.dumps(changes)))
    except Exception:
        return None


def value_of(config: PretrainedConfig, name: str) -> Any:
    try:
        return plain(getattr(config, name))
    except Exception:
        return None


def alternatives(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value + max(value // 2, 1), value + 1, max(value // 2, 1)]
    if isinstance(value, float):
        return [value * 2, value / 2]
    return []


def dependencies(
    cls: type[PretrainedConfig], base: PretrainedConfig, target: str, inputs: dict[str, Any]
) -> dict[str, list[Any]]:
    """Inputs whose change changes ``target``, with the changed values that the class accepts."""
    before = value_of(base, target)
    found: dict[str, list[Any]] = {}
    for name, value in inputs.items():
        if name == target:
            continue
        accepted = []
        changed = False
        for other in alternatives(value):
            config = build(cls, **{name: other})
            if config is not None:
                accepted.append(other)
                changed = changed or value_of(config, target) != before
        if changed:
            found[name] = accepted
    return found


def scalar_candidates(value: Any, inputs: dict[str, Any]) -> list[list[Any]]:
    names = [n for n, v in inputs.items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    flags = [n for n, v in inputs.items() if isinstance(v, bool)]
    rules: list[list[Any]] = []
    for a in names:
        rules.append(["copy", a])
        if inputs[a] and value % inputs[a] == 0:
            rules.append(["mul", a, value // inputs[a]])
        if value and inputs[a] % value == 0:
            rules.append(["div", a, inputs[a] // value])
        rules.append(["ceil", a, 16])
        for b in names:
            if a != b:
                rules += [["div", a, b], ["mul", a, b], ["add", a, b]]
                rules += [["muldiv", a, b, c] for c in names if c not in (a, b)]
    for flag in flags:
        rules += [["if", flag, 1, ["copy", a]] for a in names]
    return rules


def list_candidates(value: list[Any], inputs: dict[str, Any], length: str) -> list[list[Any]]:
    kinds = list(dict.fromkeys(map(str, value)))
    by_text = {str(v): v for v in value}
    rules: list[list[Any]] = []
    if len(kinds) == 1:
        rules.append(["fill", length, value[0]])
    if len(kinds) == 2:
        numbers = [n for n, v in inputs.items() if isinstance(v, int) and not isinstance(v, bool) and n != length]
        for one, other in ((kinds[0], kinds[1]), (kinds[1], kinds[0])):
            at, rest = by_text[one], by_text[other]
            for period in (*numbers, *range(2, 13)):
                step = inputs[period] if isinstance(period, str) else period
                if step < 2:
                    continue
                rules.append(["every", length, period, "last", at, rest])
                rules += [["every", length, period, n, at, rest] for n in numbers if n != period]
                rules += [["every", length, period, n, at, rest] for n in range(min(step, 8))]
            for first in (*numbers, *range(1, 6)):
                rules.append(["first", length, first, at, rest])
    return rules


def holds(rule: list[Any], target: str, cases: list[tuple[dict[str, Any], Any]]) -> bool:
    for values, expected in cases:
        try:
            if apply_rule(rule, values) != expected:
                return False
        except (TypeError, KeyError, ZeroDivisionError, ValueError):
            return False
    return True


def explain(
    cls: type[PretrainedConfig], base: PretrainedConfig, target: str, inputs: dict[str, Any]
) -> list[Any] | None:
    """Return the simplest rule that gives ``target`` in every instance tried; None where there is none."""
    value = value_of(base, target)
    depends = dependencies(cls, base, target, inputs)
    if not depends:
        return ["constant", value]
    cases = [({**inputs}, value)]
    chooser = random.Random(f"{cls.__name__}.{target}")
    for name, others in depends.items():
        for other in others:
            config = build(cls, **{name: other})
            if config is not None:
                cases.append(({**inputs, name: other}, value_of(config, target)))
    for _ in range(40):
        changes = {name: chooser.choice(others) for name, others in depends.items() if others}
        config = build(cls, **changes)
        if config is not None:
            cases.append(({**inputs, **changes}, value_of(config, target)))
    used = {name: inputs[name] for name in depends}
    candidates: list[list[Any]] = []
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        candidates = scalar_candidates(value, used)
    elif isinstance(value, list) and value:
        for length in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth"):
            if length in used and inputs[length] == len(value):
                candidates += list_candidates(value, used, length)
    elif value is None or isinstance(value, bool):
        candidates = [["keep-if", flag] for flag, v in used.items() if isinstance(v, bool)]
    for rule in candidates:
        if holds(rule, target, cases):
            return rule
    return None


def overrides(cls: type[PretrainedConfig], target: str, value: Any) -> bool:
    """Whether the class computes ``target`` even where the config states it."""
    probes: list[Any] = []
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, int):
        probes = [value * 2, value + 2]
    elif isinstance(value, list) and value:
        probes = [list(reversed(value)) if list(reversed(value)) != value else None]
    for probe in probes:
        config = build(cls, **{target: probe}) if probe is not None else None
        if config is not None:
            return bool(value_of(config, target) == value)
    return False


def ignores(cls: type[PretrainedConfig], target: str, value: int) -> bool:
    """Whether the class gives a field a value of its own, whatever the config states."""
    probe = (not value) if isinstance(value, bool) else value * 2 + 2
    config = build(cls, **{target: probe})
    return config is not None and value_of(config, target) != probe


def rotary_share(base: PretrainedConfig) -> float | None:
    """partial_rotary_factor of a default instance: transformers 5 keeps it inside rope_parameters."""
    parameters = getattr(base, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return None
    share = parameters.get("partial_rotary_factor")
    return share if isinstance(share, (int, float)) else None


def entry(model_type: str, cls: type[PretrainedConfig]) -> dict[str, Any] | None:
    base = build(cls)
    if base is None:
        return None
    raw = raw_defaults(cls)
    parts: dict[str, Any] = {}
    for key, spec in getattr(cls, "sub_configs_defaults", {}).items():
        part: dict[str, Any] = {"type": spec.model_type}
        if not (isinstance(spec.config_class, type) and issubclass(spec.config_class, PretrainedConfig)):
            part["auto"] = True
        if spec.optional:
            part["optional"] = True
        init = {k: v for k, v in spec.init_kwargs.items() if relevant(k)}
        if init:
            part["init"] = plain(init)
        parts[key] = part
    for key in inner_configs(cls):
        parts[key] = {"type": f"{model_type}.{key}"}
    legacy = legacy_arguments(cls)
    inputs = {k: v for k, v in {**legacy, **raw}.items() if k not in parts}
    defaults = {k: v for k, v in inputs.items() if relevant(k) and v is not None}
    if not raw.get("is_encoder_decoder"):
        defaults.pop("is_encoder_decoder", None)
    share = rotary_share(base)
    if share is not None:
        defaults["partial_rotary_factor"] = share
    rules: dict[str, Any] = {}
    unexplained: list[str] = []
    names = {k for k in vars(base) if relevant(k) and k not in parts}
    names |= {p for p in PROPERTIES if isinstance(inspect.getattr_static(cls, p, None), property)}
    for name in sorted(names):
        value = value_of(base, name)
        if value is None or isinstance(getattr(base, name, None), PretrainedConfig):
            if raw.get(name) is not None and value is None:
                rule = explain(cls, base, name, inputs)
                if rule and rule[0] == "keep-if":
                    rules[name] = rule
                else:
                    unexplained.append(name)
            continue
        if name in raw and raw[name] == value and not (isinstance(value, int) and ignores(cls, name, value)):
            continue
        rule = explain(cls, base, name, inputs)
        if rule is None:
            unexplained.append(name)
        elif rule[0] == "constant":
            defaults[name] = value
            print(f"{model_type}: constant {name}", file=sys.stderr)
        else:
            forced = name not in raw or overrides(cls, name, value)
            rules[name] = ["always", *rule] if forced else rule
    result: dict[str, Any] = {"type": model_type}
    result["defaults"] = {k: v for k, v in defaults.items() if len(json.dumps(v)) < 2000}
    names_map = {k: v for k, v in cls.attribute_map.items() if relevant(k)}
    for key, value in (("names", names_map), ("parts", parts), ("rules", rules), ("open", unexplained)):
        if value:
            result[key] = value
    return result


def main() -> int:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    classes: dict[str, type[PretrainedConfig]] = {}
    for model_type in CONFIG_MAPPING_NAMES:
        try:
            classes[model_type] = CONFIG_MAPPING[model_type]
        except Exception as error:
            print(f"{model_type}: {error!r}", file=sys.stderr)
    for cls in list(classes.values()):
        for spec in getattr(cls, "sub_configs_defaults", {}).values():
            if isinstance(spec.config_class, type) and issubclass(spec.config_class, PretrainedConfig):
                classes.setdefault(spec.model_type, spec.config_class)
    for model_type, cls in list(classes.items()):
        if not LEFT_OUT.search(model_type):
            classes.update({f"{model_type}.{key}": inner for key, inner in inner_configs(cls).items()})
    for cls in classes.values():
        cls.__class_validators__ = []  # a probe may change one field of a pair that must agree
    only = set(sys.argv[1:])
    lines = [json.dumps({"transformers": transformers.__version__}, separators=(",", ":"))]
    for model_type, cls in sorted(classes.items()):
        if LEFT_OUT.search(model_type) or (only and model_type not in only):
            continue
        found = entry(model_type, cls)
        if found is None:
            print(f"{model_type}: no default instance", file=sys.stderr)
            continue
        if found.get("open"):
            print(f"{model_type}: open {found['open']}", file=sys.stderr)
        lines.append(json.dumps(found, separators=(",", ":"), sort_keys=False))
    text = "\n".join(lines) + "\n"
    if only:
        print(text)
    else:
        with open(TARGET, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        print(f"{len(lines) - 1} model types, {len(text)} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
