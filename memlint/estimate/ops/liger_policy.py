"""Liger's chunked losses of preferences and policies: gradients of hidden states and head are made in the forward.

Liger-Kernel 0.8.5 ``chunked_loss/fused_linear_{preference,unpaired_preference,ppo}.py``, as TRL until 1.12 calls them:
one pair, or one row, at a time. The preference losses run each chunk under torch.compile; what that holds is read from
the wrapper that inductor of torch 2.13 writes for an A100 (``benchmarks/objectives/inductor.py``).
"""

from __future__ import annotations

from memlint.estimate.engine.pool import GRADIENTS, LOGITS, TEMPORARIES
from memlint.estimate.engine.tape import Node, Tape, Tensor
from memlint.estimate.ops.fused_loss import dense
from memlint.estimate.ops.inductor_splits import parts
from memlint.units import DTYPE_BYTES

TOKENS, WORDS = 2048, 4096
"""_SELECTIVE_LOGPROB_SEQ_CHUNK_SIZE and _SELECTIVE_LOGPROB_VOCAB_CHUNK_SIZE: fused_linear_ppo.py."""
STEADY_CHUNKS = 2
"""Chunks that are run one by one: from the second on, a chunk before has left its gradients."""


class _Gradients:
    """What the loop over chunks accumulates, and the node that hands it to backward."""

    def __init__(self, f: Tape, x: Tensor, weight: Tensor, rows: int, *, always: bool) -> None:
        self.x, self.weight, self.rows = x, weight, rows
        recorded = f.needs(x, weight)
        self.learns = recorded and (always or weight.node is not None)
        self.enters = recorded and (always or x.node is not None)
        self.of_weight = f.new(weight.shape, weight.dtype, GRADIENTS) if self.learns else None
        self.parts: list[Tensor] = []
        self.last: list[Tensor | None] = []
        """What torch.autograd.grad gave back last: the engine's thread holds it until it runs again."""
        whole = x.shape[0] // rows
        self.chunks = min(whole, STEADY_CHUNKS)
        if self.enters and whole > STEADY_CHUNKS:
            # Those before the last ones.
            self.parts.append(f.new((rows * (whole - STEADY_CHUNKS), *x.shape[1:]), x.dtype))

    def result(self, f: Tape, *, scales: bool) -> Tensor:
        """The loss; the parts are concatenated. ``scales``: its gradient is not one, so both are multiplied by it."""
        given = f.new(self.x.shape, self.x.dtype) if self.enters else None
        self.parts.clear()
        loss = f.new((), "fp32", TEMPORARIES)
        if not f.needs(self.x, self.weight):
            return loss
        f.save(given, self.of_weight)
        return f.record(loss, _kept, (self.x, self.weight), (), (given, self.of_weight, scales, self.last))


def _kept(f: Tape, node: Node, grad: Tensor) -> tuple[Tensor | None, ...]:
    given, of_weight, scales, last = node.meta
    node.meta = None
    last.clear()
    if not scales:
        return given, of_weight
    # The saved ones live until the function returns.
    first = f.like(given) if given is not None else None
    second = f.new(of_weight.shape, of_weight.dtype, GRADIENTS) if of_weight is not None else None
    return first, second


def preference_loss(
    f: Tape,
    hidden: Tensor,
    weight: Tensor,
    reference: tuple[Tensor, Tensor] | None,
    *,
    rows: int,
    copies: bool,
    always: bool = False,
    scales: bool = False,
) -> Tensor:
    """DPO's (``rows`` 2: a pair a chunk) or KTO's (1) loss over hidden states [B, S, H] and the head's weight [V, H].

    reference: hidden states and weight of the reference model. copies: a chunk is a concatenation of two parts.
    always: Liger before 0.8.3 (0.8.4 for GRPO), which takes the head's gradient where it is frozen too. Inductor
    orders the kernels by the peak that it expects of them (torch/_inductor/memory.py reorder_for_peak_memory): it takes
    the logits' mean first, and their gradient takes their place, where what the products after it give outweighs the
    fp32 buffer before; else the mean comes last and the logits stay. Where it splits that sum just into the rows, the
    softmax's kernel takes it along, before all else.
    """
    f.component = LOGITS
    sums = _Gradients(f, hidden, weight, rows, always=always)
    _, length, width = hidden.shape
    shape, words = (rows, length, width), (rows * length, weight.shape[0])
    part = other = logits = theirs = None
    products = (sums.enters * rows * length + sums.learns * weight.shape[0]) * width * DTYPE_BYTES[hidden.dtype]
    along = not copies and parts(words[0] * words[1]) == words[0]
    replaces = along or products > DTYPE_BYTES["fp32"] * words[0] * words[1]
    for _ in range(sums.chunks):
        # The loop's variables hold the chunk before until this one is there.
        part = f.new(shape, hidden.dtype) if copies else None
        other = f.new(shape, reference[0].dtype) if copies and reference is not None else None
        logits = f.new(words, hidden.dtype)
        theirs = f.new(words, reference[0].dtype) if reference is not None else None
        if copies:
            theirs = None  # DPO has taken its sums; a buffer of its size and dtype takes its place at once
        if sums.enters or sums.learns:
            scattered = f.new(words, "fp32")
            theirs = None
            gradient = logits if replaces else f.new(words, hidden.dtype)
            del scattered
            if sums.enters:
                sums.parts.append(f.new(shape, hidden.dtype))
            update = f.new(weight.shape, weight.dtype) if sums.learns else None
            del gradient, update
        logits = theirs = None  # noqa: F841  # they go before the next chunk is copied
    del part, other
    return sums.result(f, scales=scales)


def policy_loss(f: Tape, hidden: Tensor, weight: Tensor, *, always: bool = False, scales: bool = False) -> Tensor:
    """GRPO's loss over hidden states [B, T, H] of the completions: a row at a time, tiles of 2048 tokens by 4096 words.

    Its own autograd function keeps hidden states and statistics of a row, and accumulates a row's gradients in fp32,
    the head's as large as the head (_selective_logprob_backward).
    """
    f.component = LOGITS
    # The head's gradient is no view of a product: a tied embedding's is added to it in place.
    head = dense(f, weight) if weight.node is not None else weight
    sums = _Gradients(f, hidden, head, 1, always=always)
    _, length, width = hidden.shape
    for _ in range(sums.chunks):
        _tiles(f, min(length, TOKENS), weight, width, hidden.dtype, backward=False)
        if not f.grad_enabled:
            continue
        sums.last = []
        given = f.new((length, width), "fp32")
        of_weight = f.new(weight.shape, "fp32") if sums.learns else None
        _tiles(f, min(length, TOKENS), weight, width, hidden.dtype, backward=True, learns=sums.learns)
        sums.parts.append(f.new((1, length, width), hidden.dtype) if hidden.dtype != "fp32" else given)
        update = f.new(weight.shape, weight.dtype) if sums.learns and weight.dtype != "fp32" else of_weight
        sums.last = [sums.parts[-1], update]
        del given, of_weight, update
    return sums.result(f, scales=scales)


def _tiles(
    f: Tape, tokens: int, weight: Tensor, width: int, dtype: str, *, backward: bool, learns: bool = False
) -> None:
    """The most that a loop over tiles holds: its variables are those of the tile before until they are assigned."""
    words = min(WORDS, weight.shape[0])
    shape = (tokens, words)
    several = weight.shape[0] > WORDS
    before = f.new(shape, "fp32") if several else None  # chunk_exp, or probs
    last = f.new(shape, "fp32") if several and backward else None  # grad_logits
    logits = f.new(shape, "fp32")
    product = f.new(shape, dtype) if dtype != "fp32" else None
    del product
    difference = f.new(shape, "fp32")
    exponent = f.new(shape, "fp32")
    del difference, before
    if backward:
        gradient = f.new(shape, "fp32")
        del last
        factor = f.new((words, width), "fp32") if weight.dtype != "fp32" else None
        rows = f.new((tokens, width), "fp32")
        del factor, rows
        if learns:
            widened = f.new((tokens, width), "fp32") if dtype != "fp32" else None
            update = f.new((words, width), "fp32")
            del widened, update
        del gradient
    del logits, exponent
