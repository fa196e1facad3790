"""The one exception that is a user's mistake: a sentence that says what is wrong and what to do."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the user (usage, settings, a name that does not exist).

    The command line prints the message as one sentence on stderr and exits 2; never a traceback.
    """
