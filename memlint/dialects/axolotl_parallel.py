"""axolotl: DeepSpeed, FSDP, tensor, context and expert parallelism, and layer offloading."""

from __future__ import annotations

from memlint.dialects.accelerate_fsdp import apply_fsdp
from memlint.dialects.axolotl_base import VERSION, Run
from memlint.dialects.deepspeed import join_deepspeed
from memlint.dialects.values import Section, as_int, as_strings

_TRAINER = f"axolotl {VERSION}: utils/trainer.py"
_SIZES = (
    ("tensor_parallel_size", "parallelism.tensor"),
    ("context_parallel_size", "parallelism.context"),
    ("dp_shard_size", "parallelism.shard"),
    ("expert_parallel_size", "parallelism.expert"),
)


def find_sharding(run: Run) -> None:
    """Leave on ``run`` whether FSDP (and which) or DeepSpeed is in use; later parts depend on it."""
    cfg = run.cfg
    run.deepspeed = bool(cfg.raw("deepspeed"))
    config = cfg.raw("fsdp_config")
    if not cfg.raw("fsdp") and not config:
        return
    version = cfg.raw("fsdp_version")
    if version is None and isinstance(config, dict):
        version = config.get("version", config.get("fsdp_version"))
    run.fsdp_version = 2 if as_int(version) == 2 else 1


def read_parallelism(run: Run) -> None:
    """Sharding last: DeepSpeed and accelerate override data types that were read before."""
    _sizes(run)
    if run.deepspeed and run.fsdp_version:
        run.reject("deepspeed", "`deepspeed` and `fsdp` cannot be used together; keep one")
    if run.fsdp_version:
        _fsdp(run)
    elif run.deepspeed:
        join_deepspeed(run.draft, run.cfg, "deepspeed", run.context, run.companions, framework="axolotl")
    elif (run.context.gpus or 1) > 1:
        run.default("parallelism.strategy", "ddp", "utils/config/__init__.py: ddp where the world is larger than one")
    else:
        run.default("parallelism.strategy", "none", "utils/config/__init__.py: one process")
    _offload(run)
    _refusals(run)


def _sizes(run: Run) -> None:
    cfg = run.cfg
    product, stated = 1, False
    for key, name in _SIZES:
        size = cfg.integer(key, minimum=1)
        if key == "context_parallel_size" and size is None:
            key, size = "sequence_parallel_degree", cfg.integer("sequence_parallel_degree", minimum=1)
        if size is None:
            continue
        if key == "expert_parallel_size" and not run.plugin("ExpertParallelPlugin"):
            run.no_effect(
                key,
                f"`{key}` has no effect without `axolotl.integrations.expert_parallel.ExpertParallelPlugin` "
                "in `plugins`",
            )
            continue
        product *= size
        stated = stated or key == "dp_shard_size"
        run.put(name, size, key)
    replicas = cfg.integer("dp_replicate_size", minimum=1) or 1
    if stated:
        run.put("parallelism.gpus", product * replicas, "dp_shard_size")
    elif cfg.flag("use_ray") and cfg.integer("ray_num_workers", minimum=1):
        run.put("parallelism.gpus", cfg.integer("ray_num_workers", minimum=1), "ray_num_workers")


def _fsdp(run: Run) -> None:
    cfg = run.cfg
    part = _known_fsdp(cfg.section("fsdp_config") or Section({}, run.problems))
    options = tuple(word for text in as_strings(cfg.raw("fsdp")) or () for word in text.split())
    apply_fsdp(
        run.draft,
        part,
        version=run.fsdp_version,
        wrap="layer",
        source=_TRAINER,
        options=options,
        options_key="fsdp" if options else None,
        outer=cfg,
    )
    if cfg.has("fsdp_version") and run.draft.get("parallelism.strategy") in ("fsdp", "fsdp1"):
        run.put("parallelism.strategy", "fsdp" if run.fsdp_version == 2 else "fsdp1", "fsdp_version")
    replicas = cfg.integer("dp_replicate_size", minimum=1) or 1
    if replicas > 1 and run.draft.get("parallelism.strategy") == "fsdp":
        run.put("parallelism.strategy", "hsdp", "dp_replicate_size")


def _known_fsdp(part: Section) -> Section:
    """Drop ``sharding_strategy``: the schema's FSDPConfig has no such field, so axolotl never passes it on."""
    named = part.has("fsdp_sharding_strategy", "sharding_strategy")
    if named is None:
        return part
    value = str(part.raw(named)).upper()
    if value not in ("FULL_SHARD", "1"):
        part.problem(
            "MEM007",
            named,
            f"`{named}: {value[:40]}` has no effect in axolotl {VERSION}; use FSDP2 with `reshard_after_forward`, "
            "or name the strategy under `fsdp`",
            label="has no effect",
            on_key=True,
        )
    kept = {key: value for key, value in part.data.items() if key != named}
    return Section(kept, part.problems, prefix=part.prefix, file=part.file)


def _offload(run: Run) -> None:
    if run.cfg.flag("layer_offloading") and run.draft.get("parallelism.offload", "none") == "none":
        run.put("parallelism.offload", "parameters", "layer_offloading")
        run.assume("`layer_offloading` is computed as frozen layers fetched one at a time")
    if run.cfg.flag("lora_on_cpu"):
        run.assume("`lora_on_cpu` concerns loading only; adapters train on the GPU")


def _refusals(run: Run) -> None:
    """Pairs that axolotl's validators refuse (utils/schemas/validation.py)."""
    name = str(run.cfg.raw("optimizer", ""))
    if run.fsdp_version == 2 and name in ("adamw_8bit", "adamw_bnb_8bit"):
        run.reject("optimizer", f"`optimizer: {name}` does not work with FSDP2; use `adamw_torch_8bit`")
    if run.fsdp_version == 1 and "8bit" in name and run.draft.get("parallelism.offload") == "all":
        run.reject("optimizer", f"`optimizer: {name}` does not work with FSDP1 and offload; use FSDP2")
    if run.deepspeed and (name == "muon" or name.startswith("flash_") or name == "q_galore_adamw8bit"):
        run.reject("optimizer", f"`optimizer: {name}` does not work with DeepSpeed; use FSDP2")
    if run.draft.get("parallelism.tensor", 1) > 1 and name in ("paged_adamw_8bit", "adamw_8bit", "adamw_bnb_8bit"):
        run.reject("optimizer", f"`optimizer: {name}` does not work with tensor parallelism")
    if run.fsdp_version == 2 and run.rl in ("dpo", "kto", "orpo", "ipo"):
        quantised = next((key for key in ("load_in_4bit", "load_in_8bit") if run.cfg.flag(key)), None)
        if quantised:
            run.reject(quantised, f"`{quantised}` does not work with FSDP2 and `rl: {run.rl}`; use DeepSpeed or FSDP1")
