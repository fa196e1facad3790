"""Entry point of the `memlint` command and of ``python -m memlint``."""

from __future__ import annotations

import sys
from typing import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (:class:`memlint.exits.Exit`)."""
    from memlint.cli import run

    return run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
