"""GPUs and cloud instances, and what CUDA really reports as usable on them."""
