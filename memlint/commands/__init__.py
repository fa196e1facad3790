"""The subcommands: arguments in, exit code out."""
