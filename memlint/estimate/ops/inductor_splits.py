"""Into how many parts inductor splits the sum of a whole tensor, on an A100.

Source: torch 2.13 _inductor/choices.py, reduction_split_factor.
"""

from __future__ import annotations

PROCESSORS, THREADS_EACH = 108, 2048
"""Multiprocessors of an A100, and threads that each of them runs."""
LEAST, MOST = 32, 512
"""Elements a thread sums up."""
BLOCK = 256
"""Threads of a block: eight warps."""
WHOLE = 8192
"""Elements up to which nothing is split."""


def parts(numel: int) -> int:
    """How many partial sums the first of two kernels makes of so many elements."""
    if numel <= WHOLE:
        return 1
    if numel <= LEAST * PROCESSORS * THREADS_EACH:
        size = LEAST
    elif numel < MOST * PROCESSORS * THREADS_EACH:
        wanted = -(-numel // (BLOCK * (PROCESSORS * THREADS_EACH // (2 * BLOCK))))
        size = max(_divisor(numel, wanted, 30) or wanted, LEAST)
    else:
        size = _divisor(numel, MOST, 50) or MOST
    return -(-numel // (size * BLOCK))


def _divisor(numel: int, wanted: int, within: int) -> int | None:
    """The divisor next to what is wanted, where it is nearer than ``within``; of two the smaller."""
    for distance in range(within):
        for size in (wanted - distance, wanted + distance):
            if size > 0 and numel % size == 0:
                return size
    return None
