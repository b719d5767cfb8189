"""Which queue a message goes to: rules of a TOML file, or a routing table.

    default = "jobs-30s"

    [[rules]]
    queue = "jobs-10min"
    attributes.kind = ["video", "archive"]
    body."/job/pages" = { min = 100 }

    [queues.jobs-10min]
    visibility_timeout_s = 600

The first rule whose conditions all hold names the queue. ``docs/forwarding.md`` describes them.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from veilmq.client.messages import ReceivedMessage
from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.core.settings import RoutingTable


class Route(NamedTuple):
    """Where a message goes, and by which ``rule``: its number, or the name of a table's class; ``None`` for none."""

    queue: str
    rule: str | None = None


class RoutesError(ValueError):
    """Rules, or a table, by which nothing can be forwarded; says in a sentence what to correct."""


class TableRouter:
    """Routes by a routing table: the class of the message's kind of work. ``targets`` are those of ``Rules``.

    How often the message was received before does not count: no work was done on it in the intake.
    """

    def __init__(self, table: RoutingTable) -> None:
        """``table`` must name a queue for each class; raises ``RoutesError``."""
        for each in table.classes:
            if not each.queue:
                raise RoutesError(f"The class {each.name} of the routing table names no queue to forward to.")
        self._table = table
        self.targets: Mapping[str, int | None] = {each.queue: each.visibility_timeout_s for each in table.classes}

    def route(self, message: ReceivedMessage) -> Route:
        """Return the queue of the message's class."""
        attribute = message.attributes.get(self._table.attribute)
        kind = "" if attribute is None else attribute.text or ""
        found = self._table.class_of(kind)
        return Route(found.queue, found.name if kind in self._table.keys else None)


Scalar = str | int | float | bool
Value = tuple[Scalar, ...] | None
"""What a value can be compared with: nothing, where it is none of these; ``None`` where there is no value."""
Pointer = tuple[str, ...]
"""What a JSON Pointer (RFC 6901) names: the names that lead to a field, or the indices."""


def _attribute(name: str, message: ReceivedMessage) -> Value:
    """Return the value of the attribute ``name``: a number is one, and a text."""
    found = message.attributes.get(name)
    if found is None or found.text is None:
        return None if found is None else ()
    with suppress(ValueError):
        return (found.text, float(found.text)) if found.type.startswith("Number") else (found.text,)
    return (found.text,)


def _field(pointer: Pointer, message: ReceivedMessage) -> Value:
    """Return the field of the body there; none is present where the body is no JSON."""
    found = _document(message.body)
    for part in pointer:
        found = _step(found, part)
    if found is _NOWHERE:
        return None
    return (found,) if isinstance(found, Scalar) else ()


@lru_cache(maxsize=10)  # several rules, and several threads, have one message each at a time
def _document(body: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _NOWHERE


_OTHERS: dict[str, Callable[[ReceivedMessage], Value]] = {
    "size": lambda message: (len(message.body.encode()),),
    "group": lambda message: None if message.group is None else (message.group,),
}
_NOWHERE = object()


def _step(document: Any, part: str) -> Any:
    """Return the member or the element of ``document`` that one part of a pointer names."""
    if isinstance(document, dict):
        return document.get(part, _NOWHERE)
    if not isinstance(document, list) or not part.isdecimal() or not part.isascii() or (part[0] == "0" and part != "0"):
        return _NOWHERE
    if len(part) > len(str(len(document))) or int(part) >= len(document):
        return _NOWHERE
    return document[int(part)]


class Test(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is given must hold: a number from ``min`` to ``max``, both included; a text that begins with ``prefix``.

    ``present``: there is a value, or there is none.
    """

    min: int | float | None = None
    max: int | float | None = None
    prefix: str | None = None
    present: bool | None = None


Condition = Scalar | list[Scalar] | Test


def check(condition: Condition) -> None:
    """Raise ``ValueError`` for a condition that nothing could meet, or everything."""
    if condition == []:
        raise ValueError("the list is empty, so no message could have one of its values")
    if condition == Test():
        raise ValueError("the test is empty; give min, max, prefix or present")
    if isinstance(condition, Test) and condition.min is not None and condition.max is not None:
        low, high = condition.min, condition.max
        if low > high:
            raise ValueError(f"min ({low}) is more than max ({high}), so no number could lie between")


def holds(condition: Condition, value: Value) -> bool:
    """Return whether ``condition`` holds of ``value``."""
    if isinstance(condition, list):
        return any(holds(each, value) for each in condition)
    if not isinstance(condition, Test):  # true is no 1
        return any(each == condition and isinstance(each, bool) is isinstance(condition, bool) for each in value or ())
    numbers = [each for each in value or () if not isinstance(each, str | bool)]
    texts = [each for each in value or () if isinstance(each, str)]
    return (
        (condition.min is None or any(each >= condition.min for each in numbers))
        and (condition.max is None or any(each <= condition.max for each in numbers))
        and (condition.prefix is None or any(each.startswith(condition.prefix) for each in texts))
        and condition.present in (None, value is not None)
    )


_RULE_BEGINS = re.compile(r"^[ \t]*\[\[[ \t]*(?:rules|\"rules\"|'rules')[ \t]*\]\]", re.MULTILINE)
_PLACE = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)
_WORDS = {"array": "list", "object": "table", "Object": "Table", "`str`": "`string`", "str`": "string`"}
_RULE = re.compile(r"rules\[(\d+)\]\.?")

Name = Annotated[str, Meta(min_length=1)]
Timeout = Annotated[int, VISIBILITY_TIMEOUT_S.constraint]


class _RuleFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: Name
    attributes: dict[str, Any] = {}
    body: dict[str, Any] = {}
    size: Any = None
    group: Any = None


class _QueueFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    visibility_timeout_s: Timeout


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    default: Name
    rules: list[_RuleFields] = []
    queues: dict[str, Any] = {}


_Conditions = list[tuple[Callable[[ReceivedMessage], Value], Condition]]
"""Values of a message, each read by a function, and what must hold of them."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one file: pairs of a queue and the conditions that must hold for it.

    ``targets`` are all queues that messages may go to, with the visibility timeout that each is to have, if any.
    """

    default: str
    rules: list[tuple[str, _Conditions]]
    targets: Mapping[str, int | None]

    def route(self, message: ReceivedMessage) -> Route:
        """Return the queue of the first rule that holds of the message, or the default one."""
        for number, (queue, conditions) in enumerate(self.rules, start=1):
            if all(holds(condition, read(message)) for read, condition in conditions):
                return Route(queue, str(number))
        return Route(self.default)


Router = Rules | TableRouter
"""Decides by the message alone, so that it always decides the same."""


def read_rules(text: str) -> Rules:
    """Return the rules that ``text`` has; raises ``RoutesError``, which names the place of what is wrong."""
    try:
        file = msgspec.toml.decode(text, type=_File)
    except msgspec.ValidationError as error:
        what, place = _taken_apart(error)
        if (rule := _RULE.match(place)) is not None:
            place = f"{_where(int(rule[1]), text)}{place[rule.end() :] or 'the rule'}"
        raise RoutesError(f"{place or 'The file'}: {what}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RoutesError(f"The file is not TOML: {error}.") from None
    rules = [(fields.queue, _conditions(number, fields, text)) for number, fields in enumerate(file.rules)]
    targets: dict[str, int | None] = dict.fromkeys([file.default, *(rule.queue for rule in file.rules)])
    for name, given in file.queues.items():
        if name not in targets:
            raise RoutesError(f"queues.{name}: no rule names that queue, nor is it the default one.")
        targets[name] = _converted(given, _QueueFields, f"queues.{name}").visibility_timeout_s
    return Rules(file.default, rules, targets)


_Kind = TypeVar("_Kind")


def _converted(given: Any, kind: type[_Kind], place: str) -> _Kind:
    """Return ``given`` as a ``kind``; raises ``RoutesError`` that begins with ``place``."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        what, inner = _taken_apart(error)
        raise RoutesError(f"{place}{inner if inner.startswith('[') or not inner else f'.{inner}'}: {what}.") from None


def _conditions(number: int, fields: _RuleFields, text: str) -> _Conditions:
    begin, found = _where(number, text), _Conditions()

    def add(place: str, given: Any, read: Callable[[ReceivedMessage], Value]) -> None:
        condition: Any = _converted(given, Condition, begin + place)  # type: ignore[arg-type]  # a union is what is wanted
        try:
            check(condition)
        except ValueError as error:
            raise RoutesError(f"{begin}{place}: {error}.") from None
        found.append((read, condition))

    for name, given in fields.attributes.items():
        add(f"attributes.{name}", given, partial(_attribute, name))
    for path, given in fields.body.items():
        pointer = tuple(part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:])
        add(f"body.{path!r}", given, partial(_field, pointer))
        if path and not path.startswith("/"):
            what = f"{path!r} is not a path into the body: it begins with a slash, such as /job/kind"
            raise RoutesError(f"{begin}body.{path!r}: {what}.")
    for name, read in _OTHERS.items():
        if (given := getattr(fields, name)) is not None:
            add(name, given, read)
    if not found:
        raise RoutesError(
            f"{begin}the rule for {fields.queue} has no condition, so it would take every message; that is what "
            "default is for."
        )
    return found


def _taken_apart(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return what is wrong, in the words of TOML, and where."""
    match = _PLACE.fullmatch(str(error))
    what, place = match.groups() if match is not None else (str(error), "")
    for ours, theirs in _WORDS.items():
        what = what.replace(ours, theirs)
    return f"{what[:1].lower()}{what[1:]}", place


def _where(number: int, text: str) -> str:
    """Return which rule it is, counted from 1, and in which line it begins, where it has a heading of its own."""
    begins = [match.start() for match in _RULE_BEGINS.finditer(text)]
    line = f" (line {text.count(chr(10), 0, begins[number]) + 1})" if number < len(begins) else ""
    return f"Rule {number + 1}{line}: "
