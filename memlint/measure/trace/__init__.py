"""The real transformers code run on fake CUDA tensors, every storage followed through two training steps.

Library use: ``from memlint.measure.trace.run import trace_model``.
"""
