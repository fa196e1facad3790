"""What GaLore and APOLLO project, and to what rank, as trainers on the HF Trainer are told.

Source: transformers 5.24 trainer_optimizer.py (``rank`` in optim_args, optim_target_modules); LLaMA-Factory 0.9.5
hparams/finetuning_args.py (galore_rank, galore_target and the like, ranks of 16, all linear layers).
"""

from __future__ import annotations

import re
from typing import Any, Callable

from memlint.dialects.values import as_strings

_PROJECTING = ("galore-adamw", "galore-adamw-8bit", "galore-adafactor", "q-galore-adamw-8bit", "apollo")
_MOST = 1 << 20


def read_low_rank(native: str | None, raw: Callable[[str], Any], put: Callable[[str, Any, str], None]) -> None:
    """Set rank and targets from ``optim_args`` and ``optim_target_modules`` where the optimizer ``native`` projects."""
    if native not in _PROJECTING:
        return
    rank = _rank(raw("optim_args"))
    if rank is not None:
        put("training.optimizer_rank", rank, "optim_args")
    read_targets("optim_target_modules", raw, put)


def read_targets(key: str, raw: Callable[[str], Any], put: Callable[[str, Any, str], None]) -> None:
    """Set the targets from ``key``: a list of name fragments, one of them, or ``all-linear``."""
    value = raw(key)
    names = as_strings(value) or ()
    if len(names) == 1 and names[0].replace("_", "-") == "all-linear":
        names = ("all-linear",)
    if names:
        put("training.optimizer_targets", tuple(_plain(name) for name in names), key)


def _plain(name: str) -> str:
    """A pattern of whole names such as ``.*.mlp.*`` as the fragment that it asks for: no pattern of a file is run."""
    return re.sub(r"^\.\*(\\?\.)?|(\\?\.)?\.\*$", "", name).replace("\\.", ".") or name


def _rank(value: Any) -> int | None:
    """``rank`` of ``optim_args``, a mapping or ``rank=64,scale=0.25``."""
    if isinstance(value, str):
        found = re.search(r"(?:^|[,\s])rank\s*=\s*(\d{1,7})(?:[,\s]|$)", value)
        value = {"rank": int(found.group(1))} if found else {}
    rank = value.get("rank") if isinstance(value, dict) else None
    if isinstance(rank, str) and rank.isdecimal():
        rank = int(rank[:8])
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 < rank <= _MOST else None
