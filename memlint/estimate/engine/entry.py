"""What stands for a block's input while it runs."""

from __future__ import annotations

from memlint.estimate.engine.pool import ACTIVATIONS, TEMPORARIES, Storage


class Entry(Storage):
    """Stands for a block's input, which something outside may hold longer than the block does."""

    __slots__ = ("__weakref__", "mark", "moved", "twin")

    def __init__(self, other: Storage) -> None:
        pool = other.pool
        peak = pool.peak, pool.peak_components
        self.begin(pool, other.size, TEMPORARIES if other.component == ACTIVATIONS else other.component)
        pool.peak, pool.peak_components = peak
        self.mark, self.moved = pool.mark(), pool.mark()
        """Marks of its end and of a new label: the input itself may have that already."""
        self.twin: Storage | None = None
        """The input itself, where it lives as long as this at least."""

    def __del__(self) -> None:
        running = self.pool.cut(self.mark)
        super().__del__()
        if running:
            self.pool.restart()

    def relabel(self, component: int) -> None:
        """See :class:`Storage`."""
        running = self.pool.cut(self.moved)
        super().relabel(component)
        if running:
            self.pool.restart()

    def become(self, other: Storage) -> None:
        """Stand for the input no longer, but hold it."""
        self.pool.silently(-self.size, self.component)
        self.size = 0
        self.twin = other
