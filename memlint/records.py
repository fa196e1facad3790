"""Frozen records that cost nothing to define.

``dataclasses`` imports ``inspect`` (10 ms) and compiles four methods for each class (0.3 ms), which for some fifty
classes is more than reading and predicting a config takes. :func:`dataclass` here has the same meaning for the options
that memlint uses (keyword-only where asked, frozen, slots, default factories), with methods shared rather than
generated. To a type checker it *is* ``dataclasses.dataclass``; to ``dataclasses.fields``, ``replace`` and ``asdict``
its classes are dataclasses, whose field table is made when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass, field, fields, replace

else:
    _MISSING = object()

    class _Field:
        """What :func:`field` returns inside a class body, and what :func:`fields` lists."""

        __slots__ = ("compare", "default", "default_factory", "name", "repr")

        def __init__(self, default, default_factory, repr, compare):
            self.name = ""
            self.default = default
            self.default_factory = default_factory
            self.repr = repr
            self.compare = compare

    def field(*, default=_MISSING, default_factory=_MISSING, repr=True, compare=True):
        """Describe a field of a record: its default or default factory, and whether ``repr`` and ``==`` show it."""
        return _Field(default, default_factory, repr, compare)

    class _Table:
        """``__dataclass_fields__`` of the standard library, made when somebody asks for it."""

        def __get__(self, instance, owner):
            import dataclasses

            table = {}
            for item in owner.__record_fields__:
                given = {}
                if item.default is not _MISSING:
                    given["default"] = item.default
                if item.default_factory is not _MISSING:
                    given["default_factory"] = item.default_factory
                made = dataclasses.field(repr=item.repr, compare=item.compare, **given)
                made.name = item.name
                made.type = owner.__annotations__.get(item.name)
                made.kw_only = owner.__record_kw_only__
                made._field_type = dataclasses._FIELD
                table[item.name] = made
            owner.__dataclass_fields__ = table
            return table

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False):
        """Make a class a record; see the module's docstring."""

        def make(cls):
            return _make(cls, frozen, slots, kw_only)

        return make if cls is None else make(cls)

    def _make(cls, frozen, slots, kw_only):
        body = dict(cls.__dict__)
        table = {
            item.name: item for base in reversed(cls.__mro__[1:]) for item in getattr(base, "__record_fields__", ())
        }
        own = []
        for name, annotation in body.get("__annotations__", {}).items():
            if isinstance(annotation, str) and annotation.startswith(("ClassVar", "typing.ClassVar")):
                continue
            value = body.get(name, _MISSING)
            item = value if isinstance(value, _Field) else _Field(value, _MISSING, True, True)
            item.name = name
            own.append(name)
            table[name] = item
            if slots or item.default is _MISSING:
                body.pop(name, None)
            else:
                body[name] = item.default
        items = tuple(table.values())
        body["__record_fields__"] = items
        body["__record_kw_only__"] = kw_only
        body["__record_order__"] = tuple(item.name for item in items)
        body["__record_compare__"] = tuple(item.name for item in items if item.compare)
        body["__dataclass_fields__"] = _Table()
        body["__match_args__"] = () if kw_only else body["__record_order__"]
        body.setdefault("__init__", _init)
        body.setdefault("__repr__", _repr)
        if "__eq__" not in cls.__dict__:
            body["__eq__"] = _eq
            body["__hash__"] = _hash if frozen else None
        if frozen:
            body["__setattr__"] = _frozen_set
            body["__delattr__"] = _frozen_delete
        if slots:
            inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
            body["__slots__"] = tuple(name for name in own if name not in inherited)
            body.pop("__dict__", None)
            body.pop("__weakref__", None)
            if frozen:
                body.setdefault("__getstate__", _getstate)
                body.setdefault("__setstate__", _setstate)
        made = type(cls)(cls.__name__, cls.__bases__, body)
        made.__qualname__ = cls.__qualname__
        return made

    _set = object.__setattr__

    def _init(self, *args, **given):
        cls = type(self)
        items = cls.__record_fields__
        if args:
            if cls.__record_kw_only__ or len(args) > len(items):
                raise TypeError(f"{cls.__qualname__}() takes no more positional arguments")
            for item, value in zip(items, args):
                if item.name in given:
                    raise TypeError(f"{cls.__qualname__}() got multiple values for argument {item.name!r}")
                given[item.name] = value
        used = 0
        for item in items:
            name = item.name
            if name in given:
                used += 1
                _set(self, name, given[name])
            elif item.default is not _MISSING:
                _set(self, name, item.default)
            elif item.default_factory is not _MISSING:
                _set(self, name, item.default_factory())
            else:
                raise TypeError(f"{cls.__qualname__}() is missing the argument {name!r}")
        if used != len(given):
            unknown = next(name for name in given if name not in cls.__record_order__)
            raise TypeError(f"{cls.__qualname__}() got an unexpected keyword argument {unknown!r}")
        after = getattr(self, "__post_init__", None)
        if after is not None:
            after()

    def _repr(self):
        shown = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in self.__record_fields__ if item.repr)
        return f"{type(self).__qualname__}({shown})"

    def _values(self):
        return tuple([getattr(self, name) for name in self.__record_compare__])

    def _eq(self, other):
        if type(other) is not type(self):
            return NotImplemented
        return _values(self) == _values(other)

    def _hash(self):
        return hash(_values(self))

    def _frozen_set(self, name, value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def _frozen_delete(self, name):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _getstate(self):
        return [getattr(self, name) for name in self.__record_order__]

    def _setstate(self, state):
        for name, value in zip(self.__record_order__, state):
            _set(self, name, value)

    def fields(record):
        """Return the fields of a record or its class, in order; each has a ``name``."""
        return record.__record_fields__

    def replace(record, /, **changes):
        """Return a copy of a record with some fields changed."""
        for name in record.__record_order__:
            if name not in changes:
                changes[name] = getattr(record, name)
        return type(record)(**changes)


__all__ = ["dataclass", "field", "fields", "replace"]
