"""Edits on key paths that leave every other byte of a config as it is."""

from __future__ import annotations

import copy
from typing import Any, Callable, Sequence

from memlint.document.edit_flow import EditRefused, Replacement
from memlint.document.load import load_documents, tree_of
from memlint.document.model import Document, KeyPath
from memlint.document.positions import excerpt
from memlint.document.tree import Node
from memlint.errors import UserError
from memlint.findings import KeyEdit

_Editor = Callable[..., Replacement]


def apply_edits(document: Document, edits: Sequence[KeyEdit]) -> str:
    """Return the text of the whole file with ``edits`` made in ``document``.

    A path that exists gets the new value; one that does not is added at the end of its mapping, with new mappings on
    the way; ``delete`` removes a key with its line. Comments, order, quoting, indentation and line ends stay. The
    result is parsed again: anything but the intended change raises UserError, as does whatever cannot be changed
    without touching something else (anchors, aliases, merge keys, keys given twice, TOML tables).
    """
    fatal = next((problem for problem in document.problems if problem.fatal), None)
    if fatal is not None:
        raise UserError(
            f"{document.path}:{fatal.span.line}: the file cannot be changed before this is mended: {fatal.message}"
        )
    edits = [edit for number, edit in enumerate(edits) if edit not in edits[:number]]
    _check_apart(document, edits)
    ordered = [edit for edit in edits if not edit.delete]
    # From the end of each list to its beginning, so that the places of the others still hold.
    ordered += sorted((edit for edit in edits if edit.delete), key=lambda edit: _order(edit.path), reverse=True)
    expected = copy.deepcopy(document.data)
    current = document
    for edit in ordered:
        try:
            expected = _changed(expected, edit)
            current = _apply_one(current, edit)
        except EditRefused as refusal:
            raise UserError(
                f"{document.path}: `{_dotted(edit.path)}` cannot be changed: {refusal}; edit it by hand"
            ) from None
        if not same(current.data, expected):
            name = f"{document.path}: `{_dotted(edit.path)}`"
            raise UserError(f"{name} cannot be changed without touching something else; edit it by hand")
    if ordered:
        _check_others(document, current.text)
    return current.text


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal in type and content; order of keys aside, and with NaN equal to itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right or (left != left and right != right))


def _apply_one(document: Document, edit: KeyEdit) -> Document:
    root: Node | None = tree_of(document.format, document.text, document.index)
    if root is None or not edit.path:
        raise EditRefused("the whole document cannot be replaced")
    editor: _Editor
    if document.format == "json":
        from memlint.document.edit_json import edit_json as editor
    elif document.format == "toml":
        from memlint.document.edit_toml import edit_toml as editor
    else:
        from memlint.document.edit_yaml import edit_yaml as editor
    text = editor(document, root, edit.path, edit.value, delete=edit.delete).apply(document.text)
    changed = load_documents(text, document.path, format=document.format, hjson=True)
    if len(changed) <= document.index or any(problem.fatal for problem in changed[document.index].problems):
        raise EditRefused("the result would not be readable")
    return changed[document.index]


def _changed(data: Any, edit: KeyEdit) -> Any:
    """Return ``data`` (changed in place) with the edit made on the values."""
    if data is None and not edit.delete:
        data = {}
    target: Any = data
    for step in edit.path[:-1]:
        if isinstance(target, dict) and not edit.delete and target.get(step) is None:
            target[step] = {}
        target = _item(target, step)
    last = edit.path[-1] if edit.path else ""
    if edit.delete:
        _item(target, last)
        del target[last]
    elif isinstance(target, list) and last == len(target):
        target.append(copy.deepcopy(edit.value))
    elif isinstance(target, dict):
        target[last] = copy.deepcopy(edit.value)
    elif isinstance(target, list) and isinstance(last, int):
        _item(target, last)
        target[last] = copy.deepcopy(edit.value)
    else:
        raise EditRefused("what it would be in is neither a mapping nor a list")
    return data


def _item(target: Any, step: str | int) -> Any:
    if isinstance(target, dict) and step in target:
        return target[step]
    if isinstance(target, list) and isinstance(step, int) and 0 <= step < len(target):
        return target[step]
    raise EditRefused(f"there is no `{step}`")


def _check_apart(document: Document, edits: Sequence[KeyEdit]) -> None:
    paths = [edit.path for edit in edits]
    for number, path in enumerate(paths):
        for other in paths[number + 1 :]:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                raise UserError(
                    f"{document.path}: two edits change `{_dotted(path[:shorter])}`; give them one after the other"
                )


def _check_others(document: Document, text: str) -> None:
    before = load_documents(document.text, document.path, format=document.format, hjson=True)
    after = load_documents(text, document.path, format=document.format, hjson=True)
    untouched = len(before) == len(after) and all(
        same(old.data, new.data) for old, new in zip(before, after, strict=True) if old.index != document.index
    )
    if not untouched:
        raise UserError(f"{document.path}: the edit would touch another document of the file; edit it by hand")


def _order(path: KeyPath) -> tuple[tuple[bool, int, str], ...]:
    return tuple((isinstance(step, int), step if isinstance(step, int) else 0, str(step)) for step in path)


def _dotted(path: KeyPath) -> str:
    return excerpt(".".join(str(step) for step in path), 80)
