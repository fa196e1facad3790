"""trace (fake tensors) and verify (one real step); the only place that imports torch and transformers."""
