"""Image models: towers, merged tokens, what is frozen and what does not run."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimate.build import Build
from memlint.estimate.env import Env
from memlint.estimate.errors import Unsupported
from memlint.estimate.families import registry
from memlint.estimate.simulate import Step, run_step
from memlint.job import Checkpointing, Lora, Precision, Training, TrainingJob, replace_fields
from memlint.models.architecture import Architecture
from memlint.models.config import read_config
from memlint.records import replace
from tests.estimate.vision_configs import CONFIGS, FIXED, PADDED, PEAKS, PIXELS, TOWER

HALF = Precision(weights="bf16", autocast=None)
SETUPS: dict[str, dict[str, Any]] = {
    "bf16": {"training.precision": HALF},
    "autocast": {"training.precision": Precision(weights="fp32", autocast="bf16")},
    "checkpointing": {"training.precision": HALF, "training.checkpointing": Checkpointing(mode="full")},
    "lora": {"training.precision": HALF, "training.method": "lora", "training.lora": Lora()},
    "eager": {"training.precision": Precision(weights="fp32", autocast=None), "training.attention": "eager"},
    "reentrant": {
        "training.precision": HALF,
        "training.checkpointing": Checkpointing(mode="full", reentrant=True),
    },
}
POINTS = [(kind, setup) for kind, peaks in PEAKS.items() for setup in peaks]


def job(kind: str, changes: dict[str, Any] | None = None) -> TrainingJob:
    architecture = read_config(CONFIGS[kind])
    assert isinstance(architecture, Architecture), architecture
    training = Training(
        micro_batch_size=2,
        sequence_length=512,
        images=1,
        image_pixels=PIXELS.get(kind, FIXED),
        optimizer="sgd",
        precision=HALF,
    )
    return replace_fields(TrainingJob(model=kind, architecture=architecture, training=training), changes or {})


def peak(step: Step) -> int:
    return max(phase.peak_bytes for phase in step.timeline)


def names(step: Step, *, trainable: bool = True) -> list[str]:
    return [record.name for record in step.build.records if record.trainable == trainable]


@pytest.mark.parametrize(("kind", "setup"), POINTS)
def test_the_peak_is_that_of_the_real_code(kind: str, setup: str) -> None:
    step = run_step(job(kind, SETUPS[setup]), (8, 0))
    assert peak(step) == pytest.approx(PEAKS[kind][setup], rel=0.004)


@pytest.mark.parametrize(("setup", "traced"), PADDED.items())
def test_padded_patches_are_masked(setup: str, traced: int) -> None:
    step = run_step(job("gemma4", {**SETUPS[setup], "training.padding": True}), (8, 0))
    assert peak(step) == pytest.approx(traced, rel=0.001)


@pytest.mark.parametrize("kind", CONFIGS)
def test_running_fewer_layers_changes_nothing(kind: str) -> None:
    assert peak(run_step(job(kind), (8, 0))) == peak(run_step(job(kind), (8, 0), full=True))


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_those_of_transformers_by_name(kind: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if kind == "gemma3n":
        pytest.importorskip("timm", reason="its image tower is timm's")
    fields = dict(CONFIGS[kind])
    if kind == "mllama":
        fields["image_token_index"] = 5
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    sound = "vision_config" not in CONFIGS[kind]
    owner = transformers.AutoModelForMultimodalLM if sound else transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        model = owner.from_config(config)
    model.tie_weights()
    build = Build(job(kind))
    build.run_all_layers = True
    registry.build_model(build.job, build, Env.of(build.job, None))
    counted: dict[str, int] = {}
    for record in build.records:
        counted[record.name] = counted.get(record.name, 0) + record.numel
    assert counted == {name: parameter.numel() for name, parameter in model.named_parameters()}


def test_a_tower_without_images_is_there_but_gets_no_optimizer_states() -> None:
    adam = {"training.optimizer": "adamw", "training.images": 0}
    idle = run_step(job("llava", adam))
    busy = run_step(job("llava", {**adam, "training.images": 1}))
    assert idle.static["parameters"] == busy.static["parameters"]
    assert idle.static["optimizer_states"] < busy.static["optimizer_states"]
    assert peak(idle) < peak(busy)


def test_the_layer_behind_llavas_features_is_never_trained() -> None:
    records = run_step(job("llava"), full=True).build.records
    idle = {record.name for record in records if record.idle}
    assert "model.vision_tower.encoder.layers.5.mlp.fc1.weight" in idle
    assert "model.vision_tower.encoder.layers.4.mlp.fc1.weight" not in idle


def test_a_frozen_tower_gets_no_adapters() -> None:
    step = run_step(job("qwen2_vl", {**SETUPS["lora"], "training.freeze": ("visual",)}))
    assert not [name for name in names(step) if ".visual." in name]
    assert any(".language_model." in name for name in names(step))


def test_gemma3n_embeds_image_and_audio_ids_without_images_too() -> None:
    step = run_step(job("gemma3n", {"training.images": 0}), (8, 0))
    assert peak(step) == pytest.approx(1216968704, rel=0.0001)
    trained = {record.name for record in step.build.records if not record.idle}
    assert {"model.embed_vision.embedding.weight", "model.embed_audio.hard_embedding_norm.weight"} <= trained
    assert not [name for name in trained if "timm_model" in name or "soft_embedding_norm" in name]


def test_gemma3ns_image_tower_has_the_parameters_of_timms() -> None:
    records = run_step(job("gemma3n"), full=True).build.records
    assert sum(record.numel for record in records if ".timm_model." in record.name) == 294_126_912


def test_a_pooling_head_that_image_tokens_replace_is_there_and_never_trained() -> None:
    config = {
        **CONFIGS["aya_vision"],
        "vision_config": {**CONFIGS["aya_vision"]["vision_config"], "vision_use_head": True},
    }
    architecture = read_config(config)
    assert isinstance(architecture, Architecture), architecture
    step = run_step(replace_fields(job("aya_vision"), {"architecture": architecture}), (8, 0))
    heads = [record for record in step.build.records if ".head." in record.name]
    assert heads and all(record.idle for record in heads)
    assert peak(step) == pytest.approx(304884224, rel=0.0001)


def test_without_freezing_all_linear_layers_of_the_tower_get_adapters() -> None:
    step = run_step(job("qwen2_vl", SETUPS["lora"]))
    assert any(name.startswith("model.visual.blocks.") for name in names(step))


def test_freezing_the_tower_saves_its_gradients_and_activations() -> None:
    whole = run_step(job("gemma3"))
    frozen = run_step(job("gemma3", {"training.freeze": ("vision_tower",)}))
    assert not [name for name in names(frozen) if "vision_tower" in name]
    assert frozen.forward_end_bytes < whole.forward_end_bytes


def test_larger_images_cost_more_in_towers_that_take_any_size() -> None:
    small = run_step(job("qwen3_vl"))
    large = run_step(job("qwen3_vl", {"training.image_pixels": 640**2}))
    assert large.forward_end_bytes > small.forward_end_bytes


def test_an_image_of_unknown_size_is_taken_at_the_processors_limit() -> None:
    from memlint.estimate.families.qwen_vision import DEFAULT_PIXELS

    unknown = run_step(job("qwen2_vl", {"training.image_pixels": None}))
    stated = run_step(job("qwen2_vl", {"training.image_pixels": DEFAULT_PIXELS}))
    assert peak(unknown) == peak(stated)


def test_window_attention_covers_every_patch_once() -> None:
    from memlint.estimate.families.qwen_vision import Tower

    step_job = job("qwen2_5_vl")
    build = Build(step_job)
    model: Any = registry.build_model(step_job, build, Env.of(step_job, None))
    tower: Tower = model.body.tower
    for side in (14, 20, 34):
        lengths = tower.lengths(2, (side * 14) ** 2)
        assert sum(lengths["window"]) == sum(lengths["full"]) == 2 * side**2


FROZEN = [
    ("qwen2_vl", "visual", 175398400),
    ("llava", "vision_tower", 171603456),
    ("mllama", "vision_model", 185343488),
    ("gemma3", "vision_tower", 164477952),
    ("internvl", "vision_tower", 171877888),
    ("idefics3", "vision_model", 170803712),
    ("qwen3_vl", "visual", 177287680),
    ("glm4v", "visual", 173702656),
    ("ovis2", "vision_tower", 165796864),
]
"""Peaks of traces with a frozen tower under activation checkpointing: transformers makes the patches require gradients
(enable_input_require_grads), so the tower's graph is there all the same. Not in the last three, whose classes do not
say which module embeds: nothing of a frozen tower is kept."""


@pytest.mark.parametrize(("kind", "fragment", "traced"), FROZEN)
def test_a_frozen_tower_under_checkpointing_keeps_what_has_gradients(kind: str, fragment: str, traced: int) -> None:
    changes = {"training.freeze": (fragment,), "training.checkpointing": Checkpointing(mode="full")}
    assert peak(run_step(job(kind, changes), (8, 0))) == pytest.approx(traced, rel=0.0005)


def test_reentrant_checkpoints_train_no_adapters_of_a_tower_whose_patches_ask_for_no_gradient() -> None:
    changes = {**SETUPS["lora"], **SETUPS["reentrant"], "training.optimizer": "adamw"}
    step = run_step(job("qwen3_vl", changes), (8, 0))
    assert peak(step) == pytest.approx(197829120, rel=0.0005)
    assert step.static["optimizer_states"] == 7815168


TEXTS = {
    "num_hidden_layers": 5,
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
}
SINGLE: dict[str, dict[str, Any]] = {
    "vit": {"model_type": "vit", **TOWER},
    "clip": {
        "model_type": "clip",
        "projection_dim": 128,
        "text_config": {**TEXTS, "max_position_embeddings": 77},
        "vision_config": TOWER,
    },
    "siglip": {
        "model_type": "siglip",
        "text_config": {**TEXTS, "max_position_embeddings": 64, "projection_size": 256},
        "vision_config": TOWER,
    },
}
SINGLE_PEAKS = [
    ("vit", "sequence-classification", {"bf16": 124402176, "autocast": 171424768, "checkpointing": 47740416}),
    ("vit", "sequence-classification", {"lora": 211418624}),
    ("clip", "causal-lm", {"bf16": 193353728, "autocast": 267257344, "checkpointing": 81765376, "lora": 292455936}),
    ("siglip", "causal-lm", {"bf16": 159356928, "autocast": 235177472, "checkpointing": 75328512}),
    ("clip", "sequence-classification", {"bf16": 154949120, "autocast": 201971712, "checkpointing": 57233920}),
    ("siglip", "sequence-classification", {"bf16": 127146496, "autocast": 176069120, "checkpointing": 49231872}),
]
"""Peak bytes of traces, made as those of :data:`tests.estimate.vision_configs.PEAKS`, of eight images (and texts)."""


@pytest.mark.parametrize(
    ("kind", "objective", "setup", "traced"),
    [(kind, objective, setup, traced) for kind, objective, peaks in SINGLE_PEAKS for setup, traced in peaks.items()],
)
def test_image_models_peak_where_the_real_code_does(kind: str, objective: str, setup: str, traced: int) -> None:
    architecture = read_config(SINGLE[kind])
    assert isinstance(architecture, Architecture), architecture
    training = Training(micro_batch_size=8, objective=objective, optimizer="sgd")
    start = TrainingJob(model=kind, architecture=architecture, training=training)
    step = run_step(replace_fields(start, SETUPS[setup]), (8, 0))
    assert peak(step) == pytest.approx(traced, rel=0.007)


def test_an_adapted_patch_embedding_is_hooked_inside_its_adapter() -> None:
    changes = {**SETUPS["lora"], **SETUPS["checkpointing"]}
    assert peak(run_step(job("lfm2_vl", changes), (8, 0))) == pytest.approx(192419328, rel=0.0005)


EVERY_SECOND = Checkpointing(mode="full", every=2)


def test_every_second_layer_is_counted_through_towers_and_language_model() -> None:
    """CLIP's image tower begins with its sixth layer, and so does what LLaVA's tower runs for nobody."""
    training = Training(micro_batch_size=8, optimizer="sgd", checkpointing=EVERY_SECOND, precision=HALF)
    architecture = read_config(SINGLE["clip"])
    assert isinstance(architecture, Architecture), architecture
    both = TrainingJob(model="clip", architecture=architecture, training=training)
    step = run_step(replace_fields(both, SETUPS["lora"]), (8, 0))
    assert peak(step) == pytest.approx(185459712, rel=0.0005)
    frozen = {"training.freeze": ("vision_tower",), "training.checkpointing": EVERY_SECOND}
    assert peak(run_step(job("llava", frozen), (8, 0))) == pytest.approx(222609920, rel=0.0005)


@pytest.mark.parametrize(("kind", "traced"), [("gemma4", 327628288), ("qwen2_5_omni_thinker", 240510464)])
def test_layers_of_towers_that_a_text_leaves_idle_are_counted_too(kind: str, traced: int) -> None:
    alone = {"training.images": 0, "training.checkpointing": EVERY_SECOND}
    assert peak(run_step(job(kind, alone), (8, 0))) == pytest.approx(traced, rel=0.0005)


def test_gemma4_looks_up_its_further_embeddings_before_its_tower_runs() -> None:
    given = {"training.sequence_length": 257, "training.padding": True, "training.image_pixels": 224**2}
    step = run_step(job("gemma4", SETUPS["checkpointing"] | given), (8, 0))
    assert peak(step) == pytest.approx(339537408, rel=0.0005)


@pytest.mark.parametrize("layer", [7, 10**9])
def test_a_hidden_state_that_the_tower_does_not_have_is_refused_at_once(layer: int) -> None:
    """llava's tower has six layers here; a config from a pull request may name any number."""
    wanted = job("llava")
    assert wanted.architecture is not None
    config = {**wanted.architecture.config, "vision_feature_layer": layer}
    with pytest.raises(Unsupported, match="vision_feature_layer"):
        run_step(replace(wanted, architecture=replace(wanted.architecture, config=config)))


def test_the_masks_of_mllama_are_in_the_models_dtype_and_the_towers_in_autocasts() -> None:
    assert peak(run_step(job("mllama", SETUPS["autocast"]), (8, 0))) == pytest.approx(486425600, rel=0.0005)
