"""The exception that is a user's mistake, a sentence that says what is wrong and what to do, and what others say."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the user (usage, settings, a name that does not exist).

    The command line prints the message as one sentence on stderr and exits 2; never a traceback.
    """


class SettingError(UserError):
    """A setting of a job that a command cannot run; commands put the place of ``name`` before the sentence."""

    def __init__(self, sentence: str, name: str) -> None:
        """``name``: dotted native name (``training.loss``)."""
        super().__init__(sentence)
        self.name = name


def first_line(error: BaseException) -> str:
    """What an exception of somebody else's code says, in one line."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:200]}" if said else type(error).__name__
