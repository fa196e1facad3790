"""What the estimator cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from memlint.estimate.engine.tape import Tape, Tensor
    from memlint.estimate.env import Env
    from memlint.models.architecture import Architecture


class Unsupported(Exception):
    """The simulated method has no model for this architecture or setup; the message says which, in a sentence."""


def refuse_reentrant(
    f: Tape, env: Env, a: Architecture, given: Tensor | None, what: str, layers: Sequence[int]
) -> None:
    """Refuse reentrant checkpoints of several layers that are given ``given``, the model's ``what``, by keyword.

    CheckpointFunction cuts off its positional inputs alone (torch 2.13 utils/checkpoint.py): each layer's backward goes
    on through the graph of ``given``, which the first one has freed.

    Raises:
        Unsupported: two of ``layers`` are checkpointed so, and ``given`` has a graph of its own.
    """
    options = env.checkpointing
    if given is None or not f.grad_enabled or not options.reentrant or options.mode == "selective":
        return
    if hasattr(given.node, "edges") and sum(env.checkpointed(index) for index in layers) > 1:
        raise Unsupported(
            f"training this `{a.model_type.removesuffix('_text_model')}` with reentrant checkpoints ends in PyTorch's "
            f'error "Trying to backward through the graph a second time", because its layers are given {what} by '
            "keyword: set `use_reentrant` to false"
        )


def refuse_kept_graph(f: Tape, env: Env, kept: Sequence[Tensor], name: str) -> None:
    """Refuse keys and values with a graph among the keywords of reentrant checkpoints: a layer that others take them
    from is not checkpointed itself (``every_n_layers``).

    CheckpointFunction keeps its keywords in an attribute, and the graph of ``kept`` leads to the one of a layer before:
    a circle of nodes, which neither the backward nor Python's collector breaks, so that each micro batch stays. A
    checkpointed layer that takes them runs their graph a second time (torch 2.13 utils/checkpoint.py).

    Raises:
        Unsupported: that is so here.
    """
    options = env.checkpointing
    if options.mode in ("none", "selective") or not options.reentrant or options.every == 1 or not f.needs(*kept):
        return
    raise Unsupported(
        f"training this `{name}` with reentrant checkpoints of every n-th layer frees nothing of a micro batch when it "
        'is over, or ends in PyTorch\'s error "Trying to backward through the graph a second time", because its layers '
        "share keys and values of one that is not checkpointed: set `use_reentrant` to false"
    )


def required(a: Architecture, *names: str) -> int:
    """Return the first of these fields of a config that holds a number.

    Raises:
        Unsupported: none does, and the class has no default.
    """
    for name in names:
        value = a.get(name)
        if isinstance(value, int):
            return value
    raise Unsupported(f"no memory model of a `{a.model_type}` whose config does not state `{names[0]}`")


def kinds_of_layers(a: Architecture, *names: str) -> list[str]:
    """Return the kind of each layer from the first of these fields that states one.

    Raises:
        Unsupported: none does, or not for every layer.
    """
    stated = next((a.get(name) for name in names if a.get(name)), None)
    if not isinstance(stated, (list, tuple)) or len(stated) != a.num_hidden_layers:
        raise Unsupported(f"the layer kinds of this `{a.model_type}` config are not known")
    return [str(kind) for kind in stated]
