"""One of the processes that torchrun starts for `memlint verify --gpus N`."""

from __future__ import annotations

import json
import os
import pickle
import sys

from memlint.errors import UserError
from memlint.measure.verify.request import Request
from memlint.report.write import write_atomically


def main(asked: str, answer: str) -> int:
    """Run the request in the file ``asked`` (written by our own parent); the speaking rank writes ``answer``."""
    from memlint.measure.verify.run import leave_at_once, verify_job

    with open(asked, "rb") as handle:
        request = pickle.load(handle)
    assert isinstance(request, Request)
    try:
        report = verify_job(request)
    except UserError as error:
        if not os.path.exists(answer):
            write_atomically(answer, json.dumps({"error": str(error)}))
        return 1
    if report is None:
        return 0
    write_atomically(answer, json.dumps(report))
    leave_at_once(report)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
