"""Activation checkpointing: the forward without what is saved, and its second run in the backward.

Source: torch 2.13 utils/checkpoint.py. Both forms are here: reentrant (CheckpointFunction) and not (saved-tensor hooks
with early stop).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from memlint.estimate.engine.casts import Casts, Sharing
from memlint.estimate.engine.graph import Leaf, Node, Tensor
from memlint.estimate.engine.nested import captured, go_on_around, held_inside, settle
from memlint.estimate.engine.pool import TEMPORARIES
from memlint.estimate.engine.twice import Ready, are_plain, may_stand_for_both, run_for_both

if TYPE_CHECKING:
    from memlint.estimate.engine.selective import Selection
    from memlint.estimate.engine.tape import Tape


class Plan(NamedTuple):
    """What the node of a checkpoint knows of its recomputation."""

    run: Callable[..., Tensor]
    limit: int | None
    """How often it saves; None: with reentry."""
    autocast: str | None
    casts: Sharing | None
    tail: list[Any]
    """The last nodes of the forward, which save nothing."""
    selection: Selection | None
    ready: Ready | None
    beside: list[list[Tensor]]
    """What checkpoints inside hold by keyword."""
    through: bool
    """The backward goes on around it (see engine/nested.py)."""
    custom: bool
    """Its backward runs inside its autocast."""


def checkpoint(
    tape: Tape,
    run: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    *,
    reentrant: bool,
    offload: bool,
    custom: bool = False,
    selection: Selection | None,
    keywords: tuple[Tensor, ...] = (),
) -> Tensor:
    """``torch.utils.checkpoint``: run without keeping what is saved, and again in backward (utils/checkpoint.py,
    2.13).

    ``run(*inputs, *keywords)`` must make all its tensors from these and parameters. The non-reentrant form stops the
    recomputation at its last save (early stop); the reentrant one also recomputes and holds the output, and holds
    the incoming gradient throughout. ``offload`` keeps the inputs in host memory instead (unsloth's and axolotl's
    checkpoint functions, TRL's activation offloading) and brings them back for the recomputation. ``custom``: by such
    a function, whose ``custom_bwd`` puts its backward inside the autocast too, so that copies of weights outlive it
    (LLaMA-Factory 0.9.5 model/model_utils/checkpointing.py UnslothGradientCheckpointing).

    ``keywords`` are what the closure holds of the forward around it. Without reentry that is until the block's backward
    is over, also where a checkpoint around this one keeps nothing. With reentry no gradient leaves the block through
    them: its own backward goes on where they come from, which must be the recomputation of a checkpoint around it.
    """
    if not tape.grad_enabled:
        return run(*inputs, *keywords)
    if reentrant and not tape.needs(*inputs):
        # CheckpointFunction.apply: no input asks for a gradient, so there is no node, whatever trains inside.
        tape.grad_enabled = False
        out = run(*inputs, *keywords)
        tape.grad_enabled = True
        return out
    through = reentrant and tape.needs(*keywords)
    if reentrant and keywords:
        run, keywords = captured(tape, run, keywords), ()
    kept = inputs
    if offload:
        tape.host_bytes += sum([t.size for t in inputs])
        kept = tuple([Tensor(t.shape, t.dtype, None) for t in inputs])
    else:
        tape.save(*inputs)
    mark, before, outer = len(tape.nodes), tape.saves, (tape.hollow, tape.graphless)
    given = inputs
    if keywords:
        given, kept = (*inputs, *keywords), (*kept, *held_inside(tape, keywords))
    outside, tape.beside = tape.beside, []
    casts = tape.cast_cache
    sharing = None if reentrant or tape.autocast is None else casts.begin()
    hollow = tape.hollow
    tape.hollow, tape.graphless = True, reentrant or tape.graphless
    tape.selection = selection
    second = None
    alone = hollow or reentrant or offload or tape.dry or selection is not None
    if alone or not may_stand_for_both(tape, given):
        if tape.second is not None:
            tape.second.spoilt = True
        out = run(*given)
    else:
        tape.hollow_asked = False
        out, second, gates = run_for_both(tape, run, given)
    tape.hollow, tape.graphless = outer
    tape.selection = None
    beside, tape.beside = tape.beside, outside
    limit = None
    if not reentrant:
        # A checkpoint around this one has saved its inputs alone.
        limit, tape.saves = tape.saves - before, before
    shared = None if sharing is None else casts.end(sharing)
    if out.node is None:
        # Nothing inside asks for a gradient, so nothing was packed: neither inputs nor closure are held.
        return out
    ready = None
    if second is not None:
        nodes = tape.nodes[mark:]
        spoilt = second.spoilt or second.stop is None or tape.hollow_asked
        if spoilt or not are_plain(nodes, second):
            for made in nodes:
                made.saved = ()
        else:
            ready = Ready(second, gates, nodes, out.node)
    tail: list[Any] = []
    if not reentrant and tape.saving >= mark:
        tail = tape.nodes[tape.saving + 1 :]
        while tail and tail[-1] is not out.node:
            tail.pop()
    del tape.nodes[mark:]
    plan = Plan(run, limit, tape.autocast, shared, tail, selection, ready, beside, through, custom)
    edges = tuple([t.node for t in given])
    shapes = tuple([(t.shape, t.dtype) for t in given])
    node = Node(None, edges, shapes, () if hollow else kept, plan, tape.component)
    tape.saving = len(tape.nodes)
    tape.nodes.append(node)
    return Tensor(out.shape, out.dtype, out.storage, node)


def replay(tape: Tape, node: Node) -> list[Tensor | None]:
    """Run a checkpointed block again and then backwards; the gradients of its inputs."""
    run, limit, autocast, shared, tail, selection, ready, beside, through, custom = node.meta
    # With reentry the inputs are leaves, whose half copies autocast caches.
    leaf = _cut_off if limit is None else None
    gates = [Node(leaf, (), (), (), None, TEMPORARIES) for _ in node.saved] if ready is None else ready.gates
    inputs = []
    for tensor, gate, edge in zip(node.saved, gates, node.edges):
        assert tensor is not None
        storage = tensor.storage or tape.new(tensor.shape, tensor.dtype).storage
        # What asked for no gradient asks for none again.
        inputs.append(Tensor(tensor.shape, tensor.dtype, storage, gate if edge is not None else None))
    tensor = storage = gate = edge = None
    floor = len(tape.nodes)
    held_before, tape.lingering = tape.lingering, []
    # Without reentry it is the first saved tensor asked for that starts the recomputation: sums, casts and
    # multiples at the end of the block, which save none, have run before, and their gradients wait.
    ahead = _ahead(tape, tail, node) if tail and node.grad is not None else None
    held = casts = None
    if ready is not None:
        ready.begin(tape, inputs)
        root = ready.root
        tape.saves += limit
    else:
        outer = tape.autocast, tape.cast_cache, tape.saves_left
        tape.autocast, tape.cast_cache = autocast, (casts := Casts(shared))
        tape.saves_left = None if limit is None else tape.saves + limit
        tape.selection = selection.replay() if selection is not None else None
        outside, tape.recalled = tape.recalled, beside
        out = run(*inputs)
        tape.recalled, tape.selection = outside, None
        beside = selection = None
        tape.autocast, tape.cast_cache, tape.saves_left = outer
        tape.dry = False
        root = out.node
        if limit is None:
            # Its locals: the output, the incoming gradient, and the inputs, also where they have come from the host.
            held = (out, node.grad, tuple(inputs), casts if custom else None)
        del out
    del inputs, ready, casts
    if limit is not None:
        # Saved tensors have gone to the first run's hooks: nothing holds the second run's graph, nor what its nodes
        # hold in attributes.
        tape.release()
    if ahead is not None:
        _carry_on(tape, tail, ahead, root)
    elif isinstance(root, Node):
        root.grad = node.grad
        tape.pending.add(root)
    node.grad = None
    del root, ahead, tail
    node.meta = None
    around = tape.unpacked, tape.around
    tape.unpacked, tape.around = limit is not None, (floor, gates)
    if limit is not None:
        # The hooks of the first run's saved tensors hold the inputs: the last of them goes before the block's end.
        first = floor
        while first < len(tape.nodes) and not tape.nodes[first].saved:
            first += 1
        tape.unwind(first)
        node.saved = ()
    tape.unwind(floor)
    tape.unpacked, tape.around = around
    if limit is None:
        settle(tape, gates)
    if through:
        go_on_around(tape)
    tape.release()
    tape.lingering = held_before
    # The recomputation's closure (its masks and tables) lives until the block's last node has run.
    del held, run
    results = [gate.grad for gate in gates]
    tape.pending.difference_update(gates)
    return results


def _cut_off(tape: Tape, node: Node, grad: Tensor) -> tuple[Tensor, ...]:
    # What a reentrant checkpoint has detached leads nowhere.
    return ()


def _ahead(tape: Tape, tail: list[Node], checkpoint: Node) -> dict[int, Node]:
    """Run the last nodes of a block, which save nothing, on the checkpoint's gradient.

    Returns stand-ins, which hold the gradients, for the nodes of the first run that these lead to, by their id.
    """
    stands: dict[int, Node] = {}
    for node in tail:
        edges: list[Node | Leaf | None] = []
        for edge in node.edges:
            if isinstance(edge, Node):
                edge = stands.setdefault(id(edge), Node(None, (), (), (), None, TEMPORARIES))
            edges.append(edge)
        stands[id(node)] = Node(node.backward, tuple(edges), node.shapes, (), node.meta, node.component)
    component = tape.component
    stands[id(tail[-1])].grad = checkpoint.grad
    checkpoint.grad = None
    for node in reversed(tail):
        stand = stands.pop(id(node))
        if stand.grad is not None:
            tape.execute(stand)
    tape.component = component
    tape.pending.difference_update(stands.values())
    return stands


def _carry_on(tape: Tape, tail: list[Node], stands: dict[int, Node], root: Node) -> None:
    """Give the gradients that waited to the nodes of the recomputation, whose last ones need not run again."""
    end = len(tape.nodes)
    while tape.nodes[end - 1] is not root:
        end -= 1
    start = end - len(tail)
    for old, new in zip(tail, tape.nodes[start:end]):
        assert isinstance(new, Node)
        for before, now in zip(old.edges, new.edges):
            stand = stands.pop(id(before), None)
            if stand is not None and stand.grad is not None and isinstance(now, Node):
                now.grad, stand.grad = stand.grad, None
                tape.pending.add(now)
    del tape.nodes[start:]
