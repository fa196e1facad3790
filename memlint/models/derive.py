"""How transformers' config classes compute a field from others: the words that defaults.jsonl uses.

A rule is a short list, its first word an operation. ``L`` below is the value of the named length field.

    ["copy", a]                    a
    ["mul", a, b]                  int(a * b)             b: a number or a field
    ["div", a, b]                  a // b
    ["ceil", a, n]                 ceil(a / n)
    ["add", a, b]                  a + b
    ["muldiv", a, b, c]            a * b // c
    ["if", flag, value, rule]      value where flag is set, else the rule
    ["keep-if", flag]              the config's own value where flag is set, else nothing
    ["fill", L, x]                 [x] * L
    ["every", L, n, r, x, y]       x where i % n == r, else y, for i in range(L); r "last" is n - 1
    ["first", L, n, x, y]          x for the first n of L, then y
    ["always", ...]                the same, also where the config states a value (the class overrides it)
"""

from __future__ import annotations

import math
from typing import Any, Mapping

from memlint.models.fields import MAX_LAYERS


def _number(operand: Any, values: Mapping[str, Any]) -> Any:
    return values[operand] if isinstance(operand, str) else operand


def _length(name: str, values: Mapping[str, Any]) -> int:
    length = values[name]
    if not isinstance(length, int) or not 0 <= length <= MAX_LAYERS:
        raise ValueError(name)
    return length


def apply_rule(rule: list[Any], values: Mapping[str, Any]) -> Any:
    """Return the value that ``rule`` gives for a config with ``values``.

    Raises KeyError, TypeError, ValueError or ZeroDivisionError where the config lacks what the rule needs.
    """
    word = rule[0]
    if word == "always":
        return apply_rule(rule[1:], values)
    if word == "copy":
        return values[rule[1]]
    if word == "mul":
        return int(values[rule[1]] * _number(rule[2], values))
    if word == "div":
        return values[rule[1]] // _number(rule[2], values)
    if word == "ceil":
        return math.ceil(values[rule[1]] / rule[2])
    if word == "add":
        return values[rule[1]] + values[rule[2]]
    if word == "muldiv":
        return values[rule[1]] * values[rule[2]] // values[rule[3]]
    if word == "if":
        return rule[2] if values[rule[1]] else apply_rule(rule[3], values)
    if word == "fill":
        return [rule[2]] * _length(rule[1], values)
    if word == "every":
        period = _number(rule[2], values)
        at = period - 1 if rule[3] == "last" else _number(rule[3], values)
        return [rule[4] if i % period == at else rule[5] for i in range(_length(rule[1], values))]
    if word == "first":
        length = _length(rule[1], values)
        first = min(max(_number(rule[2], values), 0), length)
        return [rule[3]] * first + [rule[4]] * (length - first)
    raise ValueError(word)
