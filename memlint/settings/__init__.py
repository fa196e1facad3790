"""Settings of a project: ``memlint.toml`` or ``[tool.memlint]``, nearest upward from the file that is checked."""
