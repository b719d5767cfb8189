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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from veilmq.client.messages import ReceivedMessage
from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.core.settings import RoutingTable


class Route(NamedTuple):
    """Where a message goes, and by which ``rule``: its number, or the name of a table's class; ``None`` for none."""

    queue: str
    rule: str | None = None


class Router(Protocol):
    """Decides by the message alone, so that it always decides the same."""

    @property
    def targets(self) -> Mapping[str, int | None]:
        """Return every queue that messages may go to, with the visibility timeout that it is to have, if any."""

    def route(self, message: ReceivedMessage) -> Route:
        """Return where the message goes."""


class RoutesError(ValueError):
    """Rules, or a table, by which nothing can be forwarded; says in a sentence what to correct."""


class TableRouter:
    """Routes by a routing table: the class of the message's kind of work.

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


_NUMBER = "Number"


class Value(NamedTuple):
    """One value, by what it can be compared with; all are ``None`` in one that is there and is none of them."""

    text: str | None = None
    number: float | None = None
    flag: bool | None = None


Pointer = tuple[str, ...]
"""What a JSON Pointer (RFC 6901) names: the names that lead to a field, or the indices."""


class Content:
    """The values of one message; its body is decoded once, when the first rule needs it."""

    __slots__ = ("_document", "_message")

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message
        self._document: Any = _UNREAD

    def attribute(self, name: str) -> Value | None:
        """Return the value of the attribute ``name``, ``None`` where there is none."""
        found = self._message.attributes.get(name)
        if found is None:
            return None
        number = None
        if found.type.startswith(_NUMBER) and found.text is not None:
            with suppress(ValueError):
                number = float(found.text)
        return Value(text=found.text, number=number)

    def field(self, pointer: Pointer) -> Value | None:
        """Return the field of the body there, ``None`` where there is none or the body is no JSON."""
        if self._document is _UNREAD:
            try:
                self._document = msgspec.json.decode(self._message.body)
            except (msgspec.DecodeError, RecursionError):
                self._document = _NOWHERE
        found = self._document
        for part in pointer:
            found = _step(found, part)
        match found:
            case str():
                return Value(text=found)
            case bool():
                return Value(flag=found)
            case int() | float():
                return Value(number=found)
            case _:
                return None if found is _NOWHERE else Value()

    def group(self) -> Value | None:
        """Return the message group, ``None`` where there is none."""
        group = self._message.group
        return None if group is None else Value(text=group)

    def size(self) -> Value:
        """Return how many bytes the body has in UTF-8."""
        return Value(number=len(self._message.body.encode()))


_UNREAD = object()
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


Scalar = str | int | float | bool


class Test(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is given must hold: a number from ``min`` to ``max``, both included; a text that begins with ``prefix``.

    ``present``: there is a value, or there is none.
    """

    min: int | float | None = None
    max: int | float | None = None
    prefix: str | None = None
    present: bool | None = None


Condition = Scalar | list[Scalar] | Test

ValueHolds = Callable[[Value | None], bool]
"""Returns whether a condition holds of a value, ``None`` standing for none."""


def compiled(condition: Condition) -> ValueHolds:
    """Return the condition as a function; raises ``ValueError`` for one that nothing could meet, or everything."""
    match condition:
        case bool():
            return lambda value: value is not None and value.flag is condition
        case str():
            return lambda value: value is not None and value.text == condition
        case int() | float():
            return lambda value: value is not None and value.number == condition
        case list():
            if not condition:
                raise ValueError("the list is empty, so no message could have one of its values")
            each = [compiled(one) for one in condition]
            return lambda value: any(holds(value) for holds in each)
        case Test():
            return _compiled_test(condition)


def _compiled_test(test: Test) -> ValueHolds:
    low, high, prefix, present = test.min, test.max, test.prefix, test.present
    tests: list[ValueHolds] = []
    if low is not None:
        tests.append(lambda value: value is not None and value.number is not None and value.number >= low)
    if high is not None:
        tests.append(lambda value: value is not None and value.number is not None and value.number <= high)
    if prefix is not None:
        tests.append(lambda value: value is not None and value.text is not None and value.text.startswith(prefix))
    if present is not None:
        tests.append(lambda value: (value is not None) is present)
    if not tests:
        raise ValueError("the test is empty; give min, max, prefix or present")
    if low is not None and high is not None and low > high:
        raise ValueError(f"min ({low}) is more than max ({high}), so no number could lie between")
    return lambda value: all(holds(value) for holds in tests)


_RULE_BEGINS = re.compile(r"^[ \t]*\[\[[ \t]*(?:rules|\"rules\"|'rules')[ \t]*\]\]", re.MULTILINE)
_PLACE = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)
_WORDS = {"array": "list", "object": "table", "Object": "Table", "`str`": "`string`", "str`": "string`"}
_RULE = re.compile(r"rules\[(\d+)\]\.?")

Name = Annotated[str, Meta(min_length=1)]
Timeout = Annotated[int, Meta(ge=VISIBILITY_TIMEOUT_S.minimum, le=VISIBILITY_TIMEOUT_S.maximum)]


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


Holds = Callable[[Content], bool]
"""Returns whether one condition holds of a message."""

_Read = Callable[[Content], Value | None]


class Rules:
    """The rules of one file."""

    def __init__(self, *, default: str, rules: list[tuple[str, list[Holds]]], targets: Mapping[str, int | None]):
        """``rules`` are pairs of a queue and the conditions that must hold for it."""
        self._default = default
        self._rules = rules
        self.targets = targets

    def route(self, message: ReceivedMessage) -> Route:
        """Return the queue of the first rule that holds of the message, or the default one."""
        content = Content(message)
        for number, (queue, conditions) in enumerate(self._rules, start=1):
            if all(holds(content) for holds in conditions):
                return Route(queue, str(number))
        return Route(self._default)


def read_rules(text: str) -> Rules:
    """Return the rules that ``text`` has; raises ``RoutesError``, which names the place of what is wrong."""
    try:
        file = msgspec.toml.decode(text, type=_File)
    except msgspec.ValidationError as error:
        raise _misfit(error, text) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RoutesError(f"The file is not TOML: {error}.") from None
    rules = [(fields.queue, _conditions(number, fields, text)) for number, fields in enumerate(file.rules)]
    targets: dict[str, int | None] = dict.fromkeys([file.default, *(rule.queue for rule in file.rules)])
    for name, given in file.queues.items():
        if name not in targets:
            raise RoutesError(f"queues.{name}: no rule names that queue, nor is it the default one.")
        targets[name] = _converted(given, _QueueFields, f"queues.{name}").visibility_timeout_s
    return Rules(default=file.default, rules=rules, targets=targets)


_Kind = TypeVar("_Kind")


def _converted(given: Any, kind: type[_Kind], place: str) -> _Kind:
    """Return ``given`` as a ``kind``; raises ``RoutesError`` that begins with ``place``."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        what, inner = _taken_apart(error)
        raise RoutesError(f"{place}{inner if inner.startswith('[') or not inner else f'.{inner}'}: {what}.") from None


def _conditions(number: int, fields: _RuleFields, text: str) -> list[Holds]:
    conditions: list[Holds] = []
    for place, given, read in _given(fields):
        where = _where(number, text) + place
        condition: Any = _converted(given, Condition, where)  # type: ignore[arg-type]  # a union is what is wanted
        try:
            conditions.append(partial(_holds, read(), compiled(condition)))
        except ValueError as error:
            raise RoutesError(f"{where}: {error}.") from None
    if not conditions:
        raise RoutesError(
            f"{_where(number, text)}the rule for {fields.queue} has no condition, so it would take every message; "
            "that is what default is for."
        )
    return conditions


def _holds(read: _Read, condition: ValueHolds, content: Content) -> bool:
    return condition(read(content))


def _given(fields: _RuleFields) -> Iterator[tuple[str, Any, Callable[[], _Read]]]:
    """Yield the conditions of a rule: where each stands, what it is, and how to come to the value that it is about."""
    for name, condition in fields.attributes.items():
        yield f"attributes.{name}", condition, partial(methodcaller, "attribute", name)
    for path, condition in fields.body.items():
        yield f"body.{path!r}", condition, partial(_field, path)
    if fields.size is not None:
        yield "size", fields.size, lambda: Content.size
    if fields.group is not None:
        yield "group", fields.group, lambda: Content.group


def _field(path: str) -> _Read:
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} is no path into the body: it begins with a slash, such as /job/kind")
    pointer = tuple(part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:])
    return lambda content: content.field(pointer)


def _misfit(error: msgspec.ValidationError, text: str) -> RoutesError:
    what, place = _taken_apart(error)
    rule = _RULE.match(place)
    if rule is None:
        return RoutesError(f"{place or 'The file'}: {what}.")
    return RoutesError(f"{_where(int(rule[1]), text)}{place[rule.end() :] or 'the rule'}: {what}.")


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
