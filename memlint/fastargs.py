"""Accept a well-formed command line quickly; leave everything else to argparse, which explains.

``argparse`` with the modules that it needs costs 10 ms before the first file is read. :class:`FastParser` takes the
same ``add_argument`` calls and understands options in full, their values, and positionals. Whatever it is not sure of
(help, an unknown or misspelt option, a missing or wrong value) it does not judge: :meth:`FastParser.parse` returns
None, and the caller lets argparse parse the same words. A test proves that both agree.
"""

from __future__ import annotations

from typing import Any, Callable


class _Option:
    __slots__ = ("action", "choices", "const", "default", "dest", "kind", "nargs")

    def __init__(self, dest: str, given: dict[str, Any]) -> None:
        self.dest = dest
        self.action: str = given.get("action", "store")
        self.kind: Callable[[str], Any] | None = given.get("type")
        self.choices: Any = given.get("choices")
        self.nargs: str | int | None = given.get("nargs")
        self.const: Any = given.get("const")
        self.default: Any = given.get("default", False if self.action == "store_true" else None)


class Namespace:
    """The parsed options as attributes, like ``argparse.Namespace``."""

    def __init__(self, values: dict[str, Any]) -> None:
        """Hold ``values``."""
        self.__dict__.update(values)


class FastParser:
    """Collects options as ``argparse.ArgumentParser`` does, without its imports."""

    def __init__(self) -> None:
        """Start without options."""
        self._options: dict[str, _Option] = {}
        self._positionals: list[_Option] = []
        self._sure = True

    def add_argument(self, *names: str, **given: Any) -> None:
        """Add an option or a positional; a form that :meth:`parse` does not know leaves everything to argparse."""
        if not names[0].startswith("-"):
            option = _Option(names[0], given)
            self._positionals.append(option)
            self._sure = self._sure and option.nargs in (None, "?", "*")
            return
        longest = next((name for name in names if name.startswith("--")), names[0])
        option = _Option(given.get("dest") or longest.lstrip("-").replace("-", "_"), given)
        self._sure = self._sure and option.nargs is None and option.action in ("store", "store_true", "append")
        for name in names:
            self._options[name] = option

    def __getattr__(self, name: str) -> Any:
        """Accept any other call of a configure function (groups, mutually exclusive options) by giving up."""
        if name.startswith("__"):
            raise AttributeError(name)
        self._sure = False
        return lambda *args, **given: self

    def parse(self, words: list[str]) -> Namespace | None:
        """Return the parsed options, or None where argparse should look."""
        if not self._sure:
            return None
        values: dict[str, Any] = {}
        for option in (*self._options.values(), *self._positionals):
            default = option.default
            values[option.dest] = list(default) if isinstance(default, list) else default
        positionals: list[str] = []
        index = 0
        while index < len(words):
            word = words[index]
            index += 1
            if word == "-" or not word.startswith("-"):
                positionals.append(word)
                continue
            name, equals, value = word.partition("=")
            found = self._options.get(name)
            if found is None:
                return None
            if found.action == "store_true":
                if equals:
                    return None
                values[found.dest] = True
                continue
            if not equals:
                if index >= len(words) or words[index].startswith("-"):
                    return None
                value = words[index]
                index += 1
            if not self._store(found, value, values):
                return None
        return Namespace(values) if self._place(positionals, values) else None

    def _store(self, option: _Option, text: str, values: dict[str, Any]) -> bool:
        value: Any = text
        if option.kind is not None:
            try:
                value = option.kind(text)
            except (TypeError, ValueError):
                return False
        if option.choices is not None and value not in option.choices:
            return False
        if option.action == "append":
            values[option.dest] = [*(values[option.dest] or []), value]
        else:
            values[option.dest] = value
        return True

    def _place(self, words: list[str], values: dict[str, Any]) -> bool:
        """Hand positionals out in order: at most one of them takes any number."""
        needed = sum(option.nargs is None for option in self._positionals)
        spare = len(words) - needed
        if spare < 0:
            return False
        for option in self._positionals:
            if option.nargs == "*":
                taken, words = words[:spare], words[spare:]
                spare = 0
                if not all(option.choices is None or word in option.choices for word in taken):
                    return False
                if taken or option.default is None:
                    values[option.dest] = taken
            elif option.nargs is None or spare > 0:
                spare -= option.nargs is not None
                if not self._store(option, words[0], values):
                    return False
                words = words[1:]
        return not words
