"""Entry point of the `memlint` command and of ``python -m memlint``."""

from __future__ import annotations

import sys
from typing import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (:class:`memlint.exits.Exit`)."""
    import gc

    from memlint.cli import run

    # Importing makes many objects that live to the end: collecting while they come costs 5 ms and frees nothing.
    gc.set_threshold(50_000, 20, 100)
    _prepare_streams()
    return run(list(sys.argv[1:] if argv is None else argv))


def _prepare_streams() -> None:
    """Make the standard streams take whatever a path or an excerpt holds; a closed one reads and writes nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            import os

            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # as long as the process
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A terminal shows what it can; JSON, SARIF and the rest are UTF-8 whatever the locale says.
            reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
