"""Routing of messages to queues by the rules of a TOML file, or by a routing table.

    default = "jobs-30s"

    [[rules]]
    queue = "jobs-10min"
    attributes.kind = ["video", "archive"]
    body."/job/pages" = { min = 100 }

    [queues.jobs-10min]
    visibility_timeout_s = 600

The first rule whose conditions all hold selects the queue; see ``docs/forwarding.md``.
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
    """The target queue, and the rule that matched: its number, or the name of a table's class; ``None`` for none."""

    queue: str
    rule: str | None = None


class RoutesError(ValueError):
    """The rules or the table are invalid; the message is a sentence for the user."""


class TableRouter:
    """Routes by the class that a routing table has for the message's kind; ``targets`` as in ``Rules``.

    The receive count is ignored, because no work is done on messages in the intake.
    """

    def __init__(self, table: RoutingTable) -> None:
        """Raises ``RoutesError`` unless each class has a queue."""
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
"""The comparable forms of a value: none for an object or a list; ``None`` if the value is absent."""
Pointer = tuple[str, ...]
"""The parts of a JSON Pointer (RFC 6901): names and indices."""


def _attribute(name: str, message: ReceivedMessage) -> Value:
    """Return the value of the attribute ``name``; a number compares as a number and as text."""
    found = message.attributes.get(name)
    if found is None or found.text is None:
        return None if found is None else ()
    with suppress(ValueError):
        return (found.text, float(found.text)) if found.type.startswith("Number") else (found.text,)
    return (found.text,)


def _field(pointer: Pointer, message: ReceivedMessage) -> Value:
    """Return the field of the body at ``pointer``; absent if the body is not JSON."""
    found = _document(message.body)
    for part in pointer:
        found = _step(found, part)
    if found is _ABSENT:
        return None
    return (found,) if isinstance(found, Scalar) else ()


@lru_cache(maxsize=10)  # the rules read a message one after another, in up to ten threads
def _document(body: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _ABSENT


_OTHERS: dict[str, Callable[[ReceivedMessage], Value]] = {
    "size": lambda message: (len(message.body.encode()),),
    "group": lambda message: None if message.group is None else (message.group,),
}
_ABSENT = object()


def _step(document: Any, part: str) -> Any:
    """Return the member or element of ``document`` for one part of a pointer."""
    if isinstance(document, dict):
        return document.get(part, _ABSENT)
    if not isinstance(document, list) or not part.isdecimal() or not part.isascii() or (part[0] == "0" and part != "0"):
        return _ABSENT
    if len(part) > len(str(len(document))) or int(part) >= len(document):
        return _ABSENT
    return document[int(part)]


class Test(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A test with one or more parts, which must all hold: an inclusive range, the prefix of a text, the presence."""

    min: int | float | None = None
    max: int | float | None = None
    prefix: str | None = None
    present: bool | None = None


Condition = Scalar | list[Scalar] | Test


def check(condition: Condition) -> None:
    """Raise ``ValueError`` for a condition that no value, or each value, would meet."""
    if condition == []:
        raise ValueError("the list is empty, so no message could have one of its values")
    if condition == Test():
        raise ValueError("the test is empty; give min, max, prefix or present")
    if isinstance(condition, Test) and condition.min is not None and condition.max is not None:
        low, high = condition.min, condition.max
        if low > high:
            raise ValueError(f"min ({low}) is more than max ({high}), so no number could lie between")


def holds(condition: Condition, value: Value) -> bool:
    """Return whether ``condition`` holds for ``value``."""
    if isinstance(condition, list):
        return any(holds(each, value) for each in condition)
    if not isinstance(condition, Test):  # True must not equal 1
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
"""Functions that read a value of a message, each with the condition for it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one file: queues, each with the conditions for it.

    ``targets`` has all target queues, with their visibility timeout if the file sets one.
    """

    default: str
    rules: list[tuple[str, _Conditions]]
    targets: Mapping[str, int | None]

    def route(self, message: ReceivedMessage) -> Route:
        """Return the queue of the first matching rule, or the default."""
        for number, (queue, conditions) in enumerate(self.rules, start=1):
            if all(holds(condition, read(message)) for read, condition in conditions):
                return Route(queue, str(number))
        return Route(self.default)


Router = Rules | TableRouter
"""Depends on the message alone, so that repeated attempts have the same target."""


def read_rules(text: str) -> Rules:
    """Parse rules. Raises ``RoutesError`` with the position of the mistake."""
    try:
        file = msgspec.toml.decode(text, type=_File)
    except msgspec.ValidationError as error:
        what, place = _split(error)
        if (rule := _RULE.match(place)) is not None:
            place = f"{_where(int(rule[1]), text)}{place[rule.end() :] or 'the rule'}"
        raise RoutesError(f"{place or 'The file'}: {what}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RoutesError(f"The file is not TOML: {error}.") from None
    rules = [(fields.queue, _conditions(number, fields, text)) for number, fields in enumerate(file.rules)]
    targets: dict[str, int | None] = dict.fromkeys([file.default, *(rule.queue for rule in file.rules)])
    for name, value in file.queues.items():
        if name not in targets:
            raise RoutesError(f"queues.{name}: no rule names that queue, nor is it the default one.")
        targets[name] = _converted(value, _QueueFields, f"queues.{name}").visibility_timeout_s
    return Rules(file.default, rules, targets)


_Kind = TypeVar("_Kind")


def _converted(value: Any, kind: type[_Kind], place: str) -> _Kind:
    """Convert ``value`` to ``kind``. Raises ``RoutesError`` that begins with ``place``."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, inner = _split(error)
        raise RoutesError(f"{place}{inner if inner.startswith('[') or not inner else f'.{inner}'}: {what}.") from None


def _conditions(number: int, fields: _RuleFields, text: str) -> _Conditions:
    begin, found = _where(number, text), _Conditions()

    def add(place: str, value: Any, read: Callable[[ReceivedMessage], Value]) -> None:
        condition: Any = _converted(value, Condition, begin + place)  # type: ignore[arg-type]  # a union
        try:
            check(condition)
        except ValueError as error:
            raise RoutesError(f"{begin}{place}: {error}.") from None
        found.append((read, condition))

    for name, value in fields.attributes.items():
        add(f"attributes.{name}", value, partial(_attribute, name))
    for path, value in fields.body.items():
        pointer = tuple(part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:])
        add(f"body.{path!r}", value, partial(_field, pointer))
        if path and not path.startswith("/"):
            what = f"{path!r} is not a path into the body: it begins with a slash, such as /job/kind"
            raise RoutesError(f"{begin}body.{path!r}: {what}.")
    for name, read in _OTHERS.items():
        if (value := getattr(fields, name)) is not None:
            add(name, value, read)
    if not found:
        raise RoutesError(
            f"{begin}the rule for {fields.queue} has no condition, so it would take every message; that is what "
            "default is for."
        )
    return found


def _split(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the problem, in the terms of TOML, and its place."""
    match = _PLACE.fullmatch(str(error))
    what, place = match.groups() if match is not None else (str(error), "")
    for ours, theirs in _WORDS.items():
        what = what.replace(ours, theirs)
    return f"{what[:1].lower()}{what[1:]}", place


def _where(number: int, text: str) -> str:
    """Return a label for rule ``number`` (counted from 0), with its line if it has a heading."""
    begins = [match.start() for match in _RULE_BEGINS.finditer(text)]
    line = f" (line {text.count(chr(10), 0, begins[number]) + 1})" if number < len(begins) else ""
    return f"Rule {number + 1}{line}: "
