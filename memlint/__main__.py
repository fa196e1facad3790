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
    # Paths and excerpts may hold what the terminal's encoding cannot show.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    return run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
