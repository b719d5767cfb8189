"""Conditions on one value of a message, as a rules file writes them: the value, a list of values, or a test."""

from collections.abc import Callable
from typing import Any

import msgspec

from veilmq.forwarding.content import Value

Scalar = str | int | float | bool


class Test(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is given must hold: a number from ``min`` to ``max``, both included; a text that begins with ``prefix``.

    ``present`` asks for no more than that there is a value, or that there is none.
    """

    min: int | float | None = None
    max: int | float | None = None
    prefix: str | None = None
    present: bool | None = None


Condition = Scalar | list[Scalar] | Test

Holds = Callable[[Value | None], bool]
"""Tells whether a condition holds of a value, ``None`` standing for none."""


def compiled(condition: Condition) -> Holds:
    """Return the condition as a function; raises ``ValueError`` for one that nothing could meet, or everything."""
    return _KINDS[type(condition)](condition)


def _is_text(wanted: Any) -> Holds:
    return lambda value: value is not None and value.text == wanted


def _is_number(wanted: Any) -> Holds:
    return lambda value: value is not None and value.number == wanted


def _is_flag(wanted: Any) -> Holds:
    return lambda value: value is not None and value.flag is wanted


def _is_any(wanted: Any) -> Holds:
    if not wanted:
        raise ValueError("the list is empty, so no message could have one of its values")
    each = [compiled(one) for one in wanted]
    return lambda value: any(holds(value) for holds in each)


def _meets(test: Any) -> Holds:
    tests = [make(wanted) for name, make in _TESTS.items() if (wanted := getattr(test, name)) is not None]
    if not tests:
        raise ValueError("the test is empty; give min, max, prefix or present")
    if test.min is not None and test.max is not None and test.min > test.max:
        raise ValueError(f"min ({test.min}) is more than max ({test.max}), so no number could lie between")
    return lambda value: all(holds(value) for holds in tests)


def _at_least(bound: Any) -> Holds:
    return lambda value: value is not None and value.number is not None and value.number >= bound


def _at_most(bound: Any) -> Holds:
    return lambda value: value is not None and value.number is not None and value.number <= bound


def _begins(prefix: Any) -> Holds:
    return lambda value: value is not None and value.text is not None and value.text.startswith(prefix)


def _is_there(wanted: Any) -> Holds:
    return lambda value: (value is not None) is wanted


_KINDS: dict[type, Callable[[Any], Holds]] = {
    str: _is_text,
    int: _is_number,
    float: _is_number,
    bool: _is_flag,
    list: _is_any,
    Test: _meets,
}
_TESTS: dict[str, Callable[[Any], Holds]] = {
    "min": _at_least,
    "max": _at_most,
    "prefix": _begins,
    "present": _is_there,
}
