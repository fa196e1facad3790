"""One folder or file per config format: recognise it, read it into a TrainingJob, write remedies in its own keys."""
