"""Traces of the objectives' real trainers on fake tensors, and the simulation beside them."""
