"""Write a report so that a reader sees the old file or the whole new one, never half of it."""

from __future__ import annotations

import os

from memlint.errors import UserError


def write_atomically(path: str, text: str | bytes) -> None:
    """Write ``text`` to ``path`` through a file beside it. Raises UserError where that cannot be done.

    A link is followed, so that the link stays and its target changes; mode bits of an existing file are kept. What
    UTF-8 cannot hold (the bytes of a file name that is none) is written as an escape, as on standard output.
    """
    real = os.path.realpath(path)
    # Not the process's number: where containers share a folder, two processes have the same one.
    temporary = f"{real}.{os.urandom(4).hex()}.tmp"
    content = text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
    try:
        if os.path.exists(real) and not os.path.isfile(real):  # /dev/stdout, a pipe
            with open(real, "wb") as handle:
                handle.write(content)
            return
        with open(temporary, "xb") as handle:
            try:
                handle.write(content)
                handle.close()  # a full disk may say so only here
                if os.path.exists(real):
                    os.chmod(temporary, os.stat(real).st_mode & 0o7777)
                os.replace(temporary, real)
            except BaseException:
                os.unlink(temporary)
                raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
