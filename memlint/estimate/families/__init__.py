"""Model families: short functions that read like each model's own forward."""
