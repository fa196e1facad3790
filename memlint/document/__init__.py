"""Config text to values with positions; knows nothing of what a key means."""
