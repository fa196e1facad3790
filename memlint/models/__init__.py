"""Model IDs, paths and inline configs to an Architecture; knows nothing of training settings."""
