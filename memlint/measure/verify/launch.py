"""Several GPUs: start one process for each through torchrun, and take the report of the one that speaks."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from typing import Any

from memlint.errors import UserError
from memlint.measure.verify.request import Request

_SHOWN = 12
"""Lines of a failed start that are shown."""


def launch(request: Request, gpus: int) -> dict[str, Any]:
    """Run ``request`` in ``gpus`` processes of this machine and return the report. Raises UserError."""
    import json

    with tempfile.TemporaryDirectory(prefix="memlint-verify-") as folder:
        asked, answer = os.path.join(folder, "request"), os.path.join(folder, "report.json")
        with open(asked, "wb") as handle:
            pickle.dump(request, handle)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}",
            "-m", "memlint.measure.verify.worker", asked, answer,
        ]  # fmt: skip
        # A launcher around us must not be taken for the one that we start.
        clean = {name: value for name, value in os.environ.items() if name not in _LAUNCHERS}
        clean.setdefault("OMP_NUM_THREADS", "1")  # as torchrun sets it, without its warning
        run = subprocess.run(
            command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if not os.path.exists(answer):
            raise UserError(f"the {gpus} processes failed: {_reason(run.stdout)}")
        with open(answer, encoding="utf-8") as handle:
            found: dict[str, Any] = json.load(handle)
    if "error" in found:
        raise UserError(found["error"])
    return found


_LAUNCHERS = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID"}
)


def _reason(output: str) -> str:
    """The last exception of the processes' output in one line, else its end."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        head = line.rpartition("]:")[2].strip() if line.startswith("[rank") else line
        if "Error" in head.partition(":")[0] and "ChildFailedError" not in head:
            return head
    return " | ".join(lines[-_SHOWN:]) or "torchrun said nothing"
