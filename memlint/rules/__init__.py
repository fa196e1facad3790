"""One rule a module: what is wrong, how bad, and on which key."""
