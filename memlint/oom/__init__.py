"""What an out-of-memory message means: which tensor, which phase, which cause, and what to do next."""
