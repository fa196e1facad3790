"""When layers of a kind do the same to the live bytes, so that one of them can stand for another."""

from __future__ import annotations

from typing import Hashable

from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.env import Env
from memlint.job import TrainingJob


def condition(env: Env, x: Tensor, held: Tensor | None, *, loose: bool) -> Hashable:
    """What a layer finds when it begins: in equal conditions equal layers do the same."""
    storage, label = x.storage, None if x.storage is None else x.storage.component
    if loose and label == ACTIVATIONS:
        # Its stand-in has no such label yet.
        label = TEMPORARIES
    return (
        x.node is None,
        x.dtype,
        x.shape,
        None if storage is None else (storage.size, label),
        None if held is None else (held.dtype, held.shape),
        # Router logits are kept by some layers and asked for by none.
        tuple([name for name in env.state if name != "router"]),
    )


def is_leaf(f: Tape, x: Tensor) -> bool:
    """Whether autocast caches its cast of a tensor, which is a leaf (see ``to_autocast``)."""
    node = x.node
    return f.autocast is not None and isinstance(node, Node) and not node.edges and node.backward is not None


def numbered(job: TrainingJob) -> bool:
    """Whether parameters may be chosen by the numbers of their layers."""
    training = job.training
    targets = training.lora.targets if training.lora is not None else ()
    patterns = (
        *training.freeze,
        *training.trainable_patterns,
        *training.precision.fp32_modules,
        *((targets,) if isinstance(targets, str) else targets),
    )
    return any("." in pattern and any(map(str.isdigit, pattern)) for pattern in patterns)
