"""What ``.gitignore`` leaves out, read as git reads it (gitignore(5)), without asking git.

A folder is searched as git would list it: rules of the repository's root first, those of deeper folders after them, the
last match wins. ``.git/info/exclude`` counts, the user's own excludes file does not: two people see the same files. A
file that is ignored although it is tracked is left out too; name it on the command line to check it.
"""

from __future__ import annotations

import os
import re

from memlint.settings.globs import translate

LARGEST = 256 * 1024
"""Bytes: more is no list that a person wrote."""
MOST_STARS = 3
"""A pattern with more wildcards is passed over: matching it may take long, and a repository is not trusted."""

_WILD = frozenset("*?[")


class Segment:
    """Neighbouring rules of the same sign; most of them are plain names or endings, which need no expression."""

    __slots__ = ("_compiled", "endings", "expressions", "folders", "names", "negated")

    def __init__(self, negated: bool) -> None:
        """``negated``: these rules take back (``!``) what earlier ones left out."""
        self.negated = negated
        self.names: set[str] = set()
        self.folders: set[str] = set()
        """Names of folders only."""
        self.endings: tuple[str, ...] = ()
        self.expressions: tuple[list[str], list[str], list[str]] = ([], [], [])
        """For names, for paths below the rules' folder, and for either of folders only (both, a line each)."""
        self._compiled: list[re.Pattern[str] | None] | None = None

    def add(self, pattern: str, *, only_folders: bool) -> None:
        """Add one rule without its signs."""
        if "/" not in pattern and _WILD.isdisjoint(pattern):
            (self.folders if only_folders else self.names).add(pattern)
        elif pattern[0] == "*" and not only_folders and "/" not in pattern and _WILD.isdisjoint(pattern[1:]):
            self.endings += (pattern[1:],)
        else:
            anchored = "/" in pattern
            expression = translate(pattern if anchored else "/" + pattern)
            if only_folders:
                self.expressions[2].append(r"[^\n]*\n" + expression if anchored else expression + r"\n[^\n]*")
            else:
                self.expressions[anchored].append(expression)

    def __call__(self, relative: str, name: str, is_folder: bool) -> bool:
        """Whether a rule matches an entry called ``name``, whose path below the rules' folder is ``relative``."""
        if name in self.names or (is_folder and name in self.folders) or name.endswith(self.endings):
            return True
        if self._compiled is None:
            self._compiled = [_either(expressions) for expressions in self.expressions]
        names, paths, folders = self._compiled
        return bool(
            (names is not None and names.match(name))
            or (paths is not None and paths.match(relative))
            or (is_folder and folders is not None and folders.match(f"{name}\n{relative}"))
        )


class Ignored:
    """The rules that hold in one folder: its own after its parents'."""

    def __init__(self, folder: str, segments: tuple[Segment, ...], parent: Ignored | None) -> None:
        """``segments`` are those of the ``.gitignore`` in ``folder``."""
        self._prefix = len(folder.rstrip(os.sep)) + 1
        self._segments = segments
        self._parent = parent

    def __call__(self, path: str, name: str, is_folder: bool) -> bool:
        """Whether the entry ``path``, called ``name``, is ignored; its folder is not."""
        rules: Ignored | None = self
        while rules is not None:
            relative = path[rules._prefix :].replace(os.sep, "/")
            for segment in reversed(rules._segments):
                if segment(relative, name, is_folder):
                    return not segment.negated
            rules = rules._parent
        return False


def rules_above(folder: str) -> Ignored | None:
    """Return the rules that hold in the parent folders of the absolute ``folder``; None outside a git repository."""
    chain = [folder]
    while not os.path.exists(os.path.join(chain[-1], ".git")):
        parent = os.path.dirname(chain[-1])
        if parent == chain[-1]:
            return None
        chain.append(parent)
    root = chain[-1]
    rules = Ignored(root, _read(os.path.join(root, ".git", "info", "exclude")), None)
    for above in reversed(chain[1:]):
        rules = rules_in(above, rules)
    return rules


def rules_in(folder: str, parent: Ignored) -> Ignored:
    """Return the rules of ``folder``, which may have a ``.gitignore``, on top of its parent's."""
    segments = _read(os.path.join(folder, ".gitignore"))
    return Ignored(folder, segments, parent) if segments else parent


def _read(path: str) -> tuple[Segment, ...]:
    if not os.path.isfile(path):  # a pipe would be waited for
        return ()
    try:
        with open(path, "rb") as handle:
            text = handle.read(LARGEST + 1)
    except OSError:
        return ()
    if len(text) > LARGEST:
        return ()
    return compile_rules(text.decode("utf-8", "replace"))


def compile_rules(text: str) -> tuple[Segment, ...]:
    """Return the rules of a ``.gitignore``: neighbours of the same sign as one segment."""
    segments: list[Segment] = []
    for line in text.splitlines():
        pattern = line[:-2] + " " if line.endswith("\\ ") else line.rstrip()
        if not pattern or pattern[0] == "#" or pattern.count("*") > 2 * MOST_STARS:
            continue
        negated = pattern[0] == "!"
        pattern = pattern[1:] if negated or pattern[:2] in ("\\#", "\\!") else pattern
        only_folders = pattern.endswith("/")
        pattern = pattern.rstrip("/")
        if not pattern or re.sub(r"\*\*+", "*", pattern).count("*") > MOST_STARS:
            continue
        if not segments or segments[-1].negated != negated:
            segments.append(Segment(negated))
        segments[-1].add(pattern, only_folders=only_folders)
    return tuple(segments)


def _either(expressions: list[str]) -> re.Pattern[str] | None:
    if not expressions:
        return None
    try:
        return re.compile("(?:" + "|".join(expressions) + r")\Z")
    except re.error:
        good = [one for one in expressions if _compiles(one)]
        return re.compile("(?:" + "|".join(good) + r")\Z") if good else None


def _compiles(expression: str) -> bool:
    try:
        re.compile(expression)
    except re.error:
        return False
    return True
