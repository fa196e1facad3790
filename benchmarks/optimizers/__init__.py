"""Real optimizers on CPU tensors, every storage counted: what they keep, and what a step takes beside it."""
