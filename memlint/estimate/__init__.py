"""The memory model: a shape-only autograd. Pure functions over frozen dataclasses; no files, no printing, no torch."""
