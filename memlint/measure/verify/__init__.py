"""One real training step, measured and held against the prediction."""
