"""The configs of a repository as they were at a revision, written into a folder of their own.

Everything a prediction may read is there: configs, the files they point to, model configs, settings, pinned versions.
Nothing is checked out and the working tree is not touched.
"""

from __future__ import annotations

import os
from typing import Iterator

from memlint.errors import UserError

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".lock")
LARGEST = 4 * 1024 * 1024
"""Bytes: above this a file is data, not a config."""
PORTION = 64 * 1024 * 1024
"""Bytes of files that are held in memory at once."""


_LACKING = "the repository lacks files of that revision (a partial clone?): fetch them, then try again"


def toplevel() -> str:
    """Return the root of the repository that the working directory is in. Raises UserError outside one."""
    return _git(["rev-parse", "--show-toplevel"]).decode().rstrip("\n")


def write_tree(revision: str, folder: str) -> str:
    """Write the configs of ``revision`` into ``folder``; return the commit's hash. Raises UserError."""
    if revision.startswith("-"):
        raise UserError(f"--base takes a revision, not `{revision}`")
    commit = _git(
        ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"],
        f"--base: the repository has no revision `{revision}`",
    )
    root = toplevel()
    wanted: list[tuple[str, str, int]] = []
    for entry in _git(["ls-tree", "-r", "-l", "-z", "--full-tree", commit.decode().strip()]).split(b"\0"):
        about, tab, name = entry.partition(b"\t")
        words = about.split()
        if not tab or len(words) != 4 or words[0] not in (b"100644", b"100755"):
            continue
        path = os.fsdecode(name)
        if not _is_wanted(path):
            continue
        if not words[3].isdigit():  # BAD
            raise UserError(_LACKING)
        if int(words[3]) <= LARGEST:
            wanted.append((words[2].decode(), path, int(words[3])))
    os.makedirs(os.path.join(folder, ".git"), exist_ok=True)  # the folder is the repository root for what reads there
    for part in _portions(wanted):
        for path, content in zip([path for _, path in part], _contents([blob for blob, _ in part], root), strict=True):
            full = os.path.join(folder, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as handle:
                handle.write(content)
    return commit.decode().strip()


def _portions(wanted: list[tuple[str, str, int]]) -> Iterator[list[tuple[str, str]]]:
    """Blobs and paths in turns of at most :data:`PORTION` bytes: a repository of data may hold gigabytes of JSON."""
    part: list[tuple[str, str]] = []
    total = 0
    for blob, path, size in wanted:
        if part and total + size > PORTION:
            yield part
            part, total = [], 0
        part.append((blob, path))
        total += size
    if part:
        yield part


def _is_wanted(path: str) -> bool:
    name = os.path.basename(path)
    parts = path.split("/")
    if ".." in parts or ".git" in parts or os.path.isabs(path):
        return False
    if name.startswith("requirements"):
        return name.endswith((*SUFFIXES, ".txt"))
    return name.endswith(SUFFIXES) or name == ".gitignore"  # what git ignores is left out of both sides


def _contents(blobs: list[str], root: str) -> list[bytes]:
    answer = _git(["cat-file", "--batch"], stdin="".join(f"{blob}\n" for blob in blobs).encode(), folder=root)
    found: list[bytes] = []
    place = 0
    for _ in blobs:
        end = answer.index(b"\n", place)
        words = answer[place:end].split()
        if len(words) != 3:  # `<blob> missing`
            raise UserError(_LACKING)
        size = int(words[2])
        found.append(answer[end + 1 : end + 1 + size])
        place = end + 1 + size + 1
    return found


def _git(words: list[str], otherwise: str | None = None, *, stdin: bytes = b"", folder: str | None = None) -> bytes:
    import subprocess

    try:
        done = subprocess.run(["git", *words], input=stdin, capture_output=True, check=False, cwd=folder)
    except FileNotFoundError:
        raise UserError("`git` is not installed") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UserError(otherwise or f"git {words[0]}: {said[0] if said else 'failed'}")
    return done.stdout
