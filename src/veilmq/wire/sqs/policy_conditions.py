"""Conditions of queue policies: what a request is asked for, how it is compared, and what an absent value means.

Operators and keys are those of the IAM User Guide ("IAM JSON policy elements: Condition operators", "AWS global
condition context keys"). Every key here has one value or none. What a key tells of no request here (``aws:SourceArn``,
which only AWS's own services bring) is absent, and so is a key that nobody knows: a condition on it does not hold,
unless its operator is a negated one, ends in ``IfExists``, begins with ``ForAllValues:`` or is ``Null``. With
``ForAnyValue:`` before it none of them but ``Null`` holds, as there is no value that could.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fnmatch import translate
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple, Protocol

import msgspec

from veilmq.wire.sqs.callers import Caller

_ARN_PARTS = 6
_ALL_VALUES = "forallvalues:"
_ANY_VALUE = "foranyvalue:"
_IF_EXISTS = "ifexists"
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")


class PolicyError(ValueError):
    """A policy cannot be used; ``str()`` says which part and why."""


class Source(Protocol):
    """Where a request came from."""

    def source_ip(self) -> str | None:
        """Return the address of the client, ``None`` where it has none."""

    def user_agent(self) -> str | None:
        """Return what program the client says that it is."""


class Asked(msgspec.Struct, gc=False):
    """One request, as far as conditions look at it; ``action`` is in lower case, ``owner`` is the queue's account."""

    caller: Caller
    owner: str
    action: str
    secure: bool
    now_s: float
    region: str
    source: Source


Tell = Callable[[Asked], str | None]
Test = Callable[[str, Any], bool]

KEYS: dict[str, Tell] = {
    "aws:sourceip": lambda asked: asked.source.source_ip(),
    "aws:useragent": lambda asked: asked.source.user_agent(),
    "aws:principalarn": lambda asked: asked.caller.arn,
    "aws:principalaccount": lambda asked: asked.caller.account,
    "aws:principaltype": lambda asked: "Account" if asked.caller.is_root else "User",
    "aws:userid": lambda asked: asked.caller.sender_id,
    "aws:username": lambda asked: asked.caller.user or None,
    "aws:securetransport": lambda asked: str(asked.secure).lower(),
    "aws:currenttime": lambda asked: datetime.fromtimestamp(asked.now_s, tz=UTC).isoformat(),
    "aws:epochtime": lambda asked: str(int(asked.now_s)),
    "aws:requestedregion": lambda asked: asked.region,
    "aws:resourceaccount": lambda asked: asked.owner,
    "aws:principalisawsservice": lambda asked: "false",
    "aws:viaawsservice": lambda asked: "false",
}
"""Key, in lower case → what it is of a request."""

SOURCE_IP = "aws:sourceip"
_STEADY = frozenset(
    {key for key in KEYS if "principal" in key}
    | {"aws:userid", "aws:username", "aws:securetransport", "aws:requestedregion", "aws:resourceaccount"}
    | {"aws:viaawsservice"}
)
VARYING = frozenset(KEYS) - _STEADY - {SOURCE_IP}
"""The keys that may tell something else of each request of a caller from one address; a new one is among them."""


class Condition(NamedTuple):
    """One line of a condition: the value that ``tell`` tells is compared with each of ``wanted``."""

    key: str
    tell: Tell
    test: Test
    wanted: tuple[Any, ...]
    negated: bool
    when_absent: bool

    def holds(self, asked: Asked) -> bool:
        """Tell whether the request is as it must be."""
        value = self.tell(asked)
        if value is None:
            return self.when_absent
        return any(self.test(value, wanted) for wanted in self.wanted) is not self.negated


class _Operator(NamedTuple):
    read: Callable[[str], Any]
    test: Test


def glob(pattern: str) -> re.Pattern[str]:
    """Return what matches ``pattern``, in which ``*`` is any text and ``?`` any character; never backtracks."""
    return re.compile(translate(pattern.replace("[", "[[]")))


def _glob_test(value: str, wanted: re.Pattern[str]) -> bool:
    return wanted.match(value) is not None


def _read_arn(text: str) -> list[re.Pattern[str]]:
    return [glob(part) for part in text.split(":", _ARN_PARTS - 1)]


def _arn_test(value: str, wanted: list[re.Pattern[str]]) -> bool:
    parts = value.split(":", _ARN_PARTS - 1)
    return len(parts) == len(wanted) and all(map(_glob_test, parts, wanted))


def _read_number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise PolicyError(f"'{text}' is no number")
    return float(text)


def _read_instant(text: str) -> float:
    """Return seconds since the epoch, which may be given as they are."""
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        instant = datetime.fromisoformat(text)
        return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise PolicyError(f"'{text}' is no date") from None


def _read_network(text: str) -> Any:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise PolicyError(f"'{text}' is no address range") from None


def _read_bool(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise PolicyError(f"'{text}' is neither true nor false")
    return text.lower()


@lru_cache(maxsize=4_096)  # clients ask again and again, and reading an address takes longer than comparing it
def _ip_test(value: str, wanted: Any) -> bool:
    return ip_address(value) in wanted


def _compared(read: Callable[[str], float], compare: Callable[[float, float], bool]) -> _Operator:
    def test(value: str, wanted: float) -> bool:
        try:
            return compare(read(value), wanted)
        except PolicyError:
            return False

    return _Operator(read, test)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "equals": lambda value, wanted: value == wanted,
    "lessthan": lambda value, wanted: value < wanted,
    "lessthanequals": lambda value, wanted: value <= wanted,
    "greaterthan": lambda value, wanted: value > wanted,
    "greaterthanequals": lambda value, wanted: value >= wanted,
}
_ARN = _Operator(_read_arn, _arn_test)
_OPERATORS: dict[str, _Operator] = {
    "stringequals": _Operator(str, lambda value, wanted: value == wanted),
    "stringequalsignorecase": _Operator(str.lower, lambda value, wanted: value.lower() == wanted),
    "stringlike": _Operator(glob, _glob_test),
    "binaryequals": _Operator(str, lambda value, wanted: value == wanted),
    "bool": _Operator(_read_bool, lambda value, wanted: value == wanted),
    "ipaddress": _Operator(_read_network, _ip_test),
    "arnequals": _ARN,
    "arnlike": _ARN,
    **{f"numeric{name}": _compared(_read_number, compare) for name, compare in _COMPARISONS.items()},
    **{f"date{name}": _compared(_read_instant, compare) for name, compare in _COMPARISONS.items()},
}
_NEGATED = {
    "stringnotequals": "stringequals",
    "stringnotequalsignorecase": "stringequalsignorecase",
    "stringnotlike": "stringlike",
    "notipaddress": "ipaddress",
    "arnnotequals": "arnequals",
    "arnnotlike": "arnlike",
    "numericnotequals": "numericequals",
    "datenotequals": "dateequals",
}


def read_conditions(document: object) -> list[Condition]:
    """Return the lines of the element ``Condition``; raises ``PolicyError``."""
    if not isinstance(document, dict):
        raise PolicyError("Condition must be an object")
    return [condition for operator, lines in document.items() for condition in _read_lines(str(operator), lines)]


def _read_lines(operator: str, lines: object) -> Iterator[Condition]:
    if not isinstance(lines, dict) or not lines:
        raise PolicyError(f"{operator} must be an object of keys and values")
    for key, values in lines.items():
        given = values if isinstance(values, list) else [values]
        if not given or not all(isinstance(value, str | bool | int | float) for value in given):
            raise PolicyError(f"{operator} of {key} must be a value or a list of values")
        yield _read_line(operator, str(key).lower(), [_text(value) for value in given])


def _read_line(name: str, key: str, values: list[str]) -> Condition:
    operator = name.lower()
    for_all, for_any = operator.startswith(_ALL_VALUES), operator.startswith(_ANY_VALUE)
    operator = operator.removeprefix(_ALL_VALUES).removeprefix(_ANY_VALUE)
    tell = KEYS.get(key, _absent)
    if operator == "null":
        wanted = tuple(_read_bool(value) for value in values)
        return Condition(key, tell, lambda value, wanted: wanted == "false", wanted, False, "true" in wanted)
    if_exists = operator.endswith(_IF_EXISTS)
    operator = operator.removesuffix(_IF_EXISTS)
    negated = operator in _NEGATED
    found = _OPERATORS.get(_NEGATED.get(operator, operator))
    if found is None:
        raise PolicyError(f"there is no condition operator {name}")
    wanted = tuple(found.read(value) for value in values)
    return Condition(key, tell, found.test, wanted, negated, (negated or if_exists or for_all) and not for_any)


def _absent(asked: Asked) -> None:
    """Tell nothing: a key that no request here has."""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
