"""A rules file, in TOML: a default queue, and rules of which the first that holds names another.

    default = "jobs-30s"

    [[rules]]
    queue = "jobs-10min"
    attributes.kind = ["video", "archive"]
    body."/job/pages" = { min = 100 }

    [queues.jobs-10min]
    visibility_timeout_s = 600

All conditions of a rule must hold. ``docs/forwarding.md`` has the whole of it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from veilmq.client.messages import ReceivedMessage
from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.forwarding.conditions import Condition, compiled
from veilmq.forwarding.content import Content, Value, read_pointer
from veilmq.forwarding.router import Route, RoutesError

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
"""Tells whether one condition holds of a message."""


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
    return Rules(default=file.default, rules=rules, targets=_targets(file))


def _targets(file: _File) -> dict[str, int | None]:
    targets: dict[str, int | None] = dict.fromkeys([file.default, *(rule.queue for rule in file.rules)])
    for name, given in file.queues.items():
        if name not in targets:
            raise RoutesError(f"queues.{name}: no rule names that queue, nor is it the default one.")
        targets[name] = _converted(given, _QueueFields, f"queues.{name}").visibility_timeout_s
    return targets


_Kind = TypeVar("_Kind")


def _converted(given: Any, kind: type[_Kind], place: str) -> _Kind:
    """Return ``given`` as a ``kind``; raises ``RoutesError`` that begins with ``place``."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        what, inner = _taken_apart(error)
        raise RoutesError(f"{place}{inner if inner.startswith('[') or not inner else f'.{inner}'}: {what}.") from None


def _conditions(number: int, fields: _RuleFields, text: str) -> list[Holds]:
    conditions = []
    for place, given, look in _given(fields):
        where = _where(number, text) + place
        condition: Any = _converted(given, Condition, where)  # type: ignore[arg-type]  # a union is what is wanted
        try:
            conditions.append(_on(look(), compiled(condition)))
        except ValueError as error:
            raise RoutesError(f"{where}: {error}.") from None
    if not conditions:
        raise RoutesError(
            f"{_where(number, text)}the rule for {fields.queue} has no condition, so it would take every message; "
            "that is what default is for."
        )
    return conditions


_Look = Callable[[Content], Value | None]


def _on(look: _Look, holds: Callable[[Value | None], bool]) -> Holds:
    return lambda content: holds(look(content))


def _given(fields: _RuleFields) -> Iterator[tuple[str, Any, Callable[[], _Look]]]:
    """Yield the conditions of a rule: where each stands, what it is, and how to come to the value that it is about."""
    for name, condition in fields.attributes.items():
        yield f"attributes.{name}", condition, partial(_attribute, name)
    for path, condition in fields.body.items():
        yield f"body.{path!r}", condition, partial(_field, path)
    if fields.size is not None:
        yield "size", fields.size, lambda: Content.size
    if fields.group is not None:
        yield "group", fields.group, lambda: Content.group


def _attribute(name: str) -> _Look:
    return lambda content: content.attribute(name)


def _field(path: str) -> _Look:
    pointer = read_pointer(path)
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
