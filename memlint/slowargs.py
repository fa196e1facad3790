"""argparse for what the quick parser would not judge: help, mistakes, rare forms."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any, NoReturn

OTHER_NAMES = {
    "--gpu": "--target",
    "--gpus": "--target",
    "--device": "--target",
    "--hardware": "--target",
    "--batch-size": "--micro-batch-size",
    "--per-device-train-batch-size": "--micro-batch-size",
    "--seq-len": "--sequence-length",
    "--seqlen": "--sequence-length",
    "--max-length": "--sequence-length",
    "--context": "--sequence-length",
    "--dtype": "--precision",
    "--optim": "--optimizer",
    "--gradient-checkpointing": "--activation-checkpointing",
    "--format": "--output-format",
    "--json": "--output-format",
}
"""What other tools, and the configs themselves, call our options."""


class _Parser(ArgumentParser):
    """Says "did you mean" for a misspelt option, or one that other tools call so."""

    def error(self, message: str) -> NoReturn:
        """Print usage and the mistake on stderr, exit 2."""
        marker = "unrecognized arguments: "
        if message.startswith(marker):
            from difflib import get_close_matches

            word = message[len(marker) :].split(" ")[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            meant = OTHER_NAMES.get(word.lower().replace("_", "-"))
            close = [meant] if meant in known else get_close_matches(word, known, n=1)
            if close:
                message += f"; did you mean `{close[0]}`?"
        super().error(message)


def parser_for(name: str, module: Any) -> ArgumentParser:
    """Return the parser of one command; ``module`` offers ``configure(parser)`` and a docstring."""
    parser = _Parser(
        prog=f"memlint {name}",
        description=(module.__doc__ or "").strip(),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    return parser
