"""Declared queues and topics: a file says which of them a server has, with which attributes; a plan makes it so.

The file is TOML with the tables ``[queues.NAME]`` and ``[topics.NAME]``, alone or in the settings file of a server; or
ElasticMQ's, in HOCON. An attribute of a queue has its name of SQS or ours. All of the file is read and checked, by the
rules of the wire, before the first request to a server; ``docs/declared-queues.md`` describes it. Queues are named
without their accounts: the caller's is not known, and of an ARN the name counts.

What is to be done is computed first, as steps, then applied. The start of a server and ``veilmq apply`` share it, the
first without a socket. What a file names of a queue, topic or subscription becomes so; what it does not name stays as
it is. A dead-letter queue comes before the queues that name it. What the rules of ``core.settings`` refuse is found
before the first step.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec

from veilmq.client.api import Settings
from veilmq.client.messages import ClientError, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.client.topics import Topics
from veilmq.client.transport import Transport
from veilmq.core import limits
from veilmq.core.errors import SettingsConflict
from veilmq.core.settings import QueueSettings, checked_settings, dead_letter_refusal
from veilmq.wire.exchange import DEFAULT_ACCOUNT, RequestContext
from veilmq.wire.smq.errors import SmqError
from veilmq.wire.smq.queues import ATTRIBUTES
from veilmq.wire.smq.request import checked_name
from veilmq.wire.smq.topics import (
    FORMATS,
    QUEUE_ENDPOINT,
    STRATEGIES,
    SUBSCRIPTION_NAME,
    TOPIC_NAME,
    read_endpoint,
    read_tag,
)
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.names import full_name, is_fifo, queue_arn
from veilmq.wire.sqs.queue_attributes import SETTINGS
from veilmq.wire.sqs.queues import read_tags
from veilmq.wire.v1.queues import SettingFields, check_new, read_settings
from veilmq.wire.v1.request import from_json

JSON_TEXTS = frozenset({"policy", "visibility_rules"})
"""Settings that are JSON: a file may have them as tables, and spaces do not count."""
QUEUES = frozenset({"dead_letter_queue", "redrive_sources"})
"""Settings that name other queues."""

_OWN = f"{DEFAULT_ACCOUNT}/"
_FIELDS: tuple[str, ...] = SettingFields.__struct_fields__
_ARN = re.compile(r"arn:[^:]*:sqs:[a-z0-9-]+:[0-9]{12}:")
_CONTEXT = RequestContext(base_url="", smq_message_bytes_max=limits.MESSAGE_BYTES.maximum)
_TOPIC = {"message_bytes_max": "MaximumMessageSize", "operations_logged": "LoggingEnabled"}
_SUBSCRIPTION = {
    "url": "Endpoint",
    "filter_tag": "FilterTag",
    "strategy": "NotifyStrategy",
    "format": "NotifyContentFormat",
}


class DeclaredError(ValueError):
    """The file cannot be used; ``str()`` says where and what to correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a file declares; ``None`` where it has no such table. ``notes`` say what of it has no effect.

    ``queues`` have fields of ``QueueSettings``; ``tags``, where they are given, are all that the queue has. A
    dead-letter queue is before the queues that name it. ``topics`` have their attributes by the names of SMQ, and so
    have subscriptions, as ``topic/subscriptions/name`` behind their topic; a plain ``queue`` is in place of an
    ``Endpoint``.
    """

    queues: Mapping[str, Mapping[str, Any]] | None
    topics: Mapping[str, Mapping[str, str]] | None
    notes: tuple[str, ...]


def read_declared(path: Path, *, others: Collection[str] = ()) -> Declared:
    """Return what the file at ``path`` declares; raises ``DeclaredError``.

    ``others`` are the keys that a TOML file may have beside its tables: the settings of a server.
    """
    with _at(str(path)):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}.") from None
        try:
            is_hocon = path.suffix in (".conf", ".hocon")
            found, notes = _from_elasticmq(text, path.parent) if is_hocon else (tomllib.loads(text), ())
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"is not a TOML file: {error}. (The name of a HOCON file ends in .conf.)") from None
        _known(found, ("queues", "topics", *others), "key")
        queues = _in_order(_read_each("queues", found["queues"], _queue)) if "queues" in found else None
        topics = _read_each("topics", found["topics"], _topic) if "topics" in found else None
        places = None if topics is None else {place: each for topic in topics.values() for place, each in topic.items()}
        return Declared(queues=queues, topics=places, notes=notes)


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Put ``where`` before the errors of a place in the file."""
    try:
        yield
    except (SqsError, SmqError, ValueError) as error:
        raise DeclaredError(f"{where}: {str(error).replace(_OWN, '')}") from None
    except RecursionError:
        raise DeclaredError(f"{where}: is nested too deeply.") from None


def _read_each(place: str, content: Any, read: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return what ``read`` makes of each of the tables in the table ``place``, by name."""
    made = {}
    for name, inner in _table(place, content).items():
        table = _table(f"{place}.{name}", inner)
        with _at(f"{place}.{name}"):
            made[name] = read(name, table)
    return made


def _table(place: str, content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{place}: must be a table, as [{place}].")
    return content


def _known(given: Iterable[str], known: Collection[str], kind: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise ValueError(f"unknown {kind} {name}; {hint}")


def _queue(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    _known(table, (*_FIELDS, *SETTINGS, "tags"), "attribute")
    given = {each: as_text(table[each]) if each in JSON_TEXTS else table[each] for each in _FIELDS if each in table}
    settings: dict[str, Any] = read_settings(from_json(as_text(given).encode(), SettingFields), _OWN + name, _CONTEXT)
    for attribute in (each for each in table if each in SETTINGS):
        setting, text = SETTINGS[attribute], as_text(table[attribute])
        if QUEUES.intersection(setting.fields):
            text = _ARN.sub(queue_arn(_OWN, _CONTEXT), text)
        values = setting.read(attribute, text, _OWN + name, _CONTEXT)
        if twice := settings.keys() & values:
            raise ValueError(f"{min(twice)}: is given twice, as {attribute} is its name of SQS; leave one out.")
        settings |= values
    if is_fifo(name):
        settings.setdefault("fifo", True)
    if "dead_letter_queue" in settings:
        settings.setdefault("receives_max", limits.SQS_RECEIVES_MAX.default if settings["dead_letter_queue"] else 0)
    check_new(name, fifo=settings.get("fifo") is True)
    settings |= {field: plain(settings[field]) for field in QUEUES & settings.keys()}
    if "tags" in table:
        try:
            settings["tags"] = read_tags(msgspec.convert(table["tags"], dict[str, str]), _OWN + name)
        except msgspec.ValidationError as error:
            raise ValueError(f"tags: must be a table of texts: {error}.") from None
    return settings


def as_text(value: Any) -> str:
    """Return a value as text: what is no text as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def plain(names: Any) -> Any:
    """Return the name of a queue, or several, without the account before it."""
    return names.rpartition("/")[2] if isinstance(names, str) else tuple(map(plain, names))


def _in_order(queues: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    targets = {name: [queue.get("dead_letter_queue", "")] for name, queue in queues.items()}
    try:
        return {name: queues[name] for name in TopologicalSorter(targets).static_order() if name in queues}
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise ValueError(f"queues: dead-letter queues form a cycle, {cycle}; end it in a queue without one.") from None


def _topic(name: str, table: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the attributes of a topic and of its subscriptions, by their places."""
    checked_name(name, TOPIC_NAME)
    attributes = {}
    for attribute, text in _smq(table, _TOPIC, "subscriptions").items():
        (value,) = ATTRIBUTES[attribute].read(attribute, text, _CONTEXT).values()
        attributes[attribute] = str(value)
    subscriptions = _read_each("subscriptions", table.get("subscriptions", {}), _subscription)
    return {name: attributes} | {f"{name}/subscriptions/{each}": content for each, content in subscriptions.items()}


def _subscription(name: str, table: Mapping[str, Any]) -> dict[str, str]:
    checked_name(name, SUBSCRIPTION_NAME)
    attributes = with_queue(_smq(table, _SUBSCRIPTION, "queue"))
    if "queue" in table:
        attributes["queue"] = as_text(table["queue"])
    if ("queue" in attributes) is ("Endpoint" in attributes):
        raise ValueError("give queue (the name of a queue) or url (to which messages are pushed).")
    read_endpoint(with_endpoint(attributes, DEFAULT_ACCOUNT)["Endpoint"], _CONTEXT)
    read_tag("FilterTag", attributes)
    for attribute, words in (("NotifyStrategy", STRATEGIES), ("NotifyContentFormat", FORMATS)):
        if attributes.get(attribute, next(iter(words))) not in words:
            raise ValueError(f"{attribute}: must be one of {', '.join(words)}.")
    return attributes


def with_queue(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes of a subscription with its queue's name in place of an ``Endpoint`` that is a queue."""
    match = QUEUE_ENDPOINT.fullmatch(attributes.get("Endpoint", ""))
    if match is None:
        return dict(attributes)
    return {name: text for name, text in attributes.items() if name != "Endpoint"} | {"queue": match["name"]}


def with_endpoint(attributes: Mapping[str, str], account: str) -> dict[str, str]:
    """Return the attributes with the ``Endpoint`` of their queue of ``account``: the reverse of ``with_queue``."""
    if "queue" not in attributes:
        return dict(attributes)
    endpoint = f"acs:mns::{account}:queues/{attributes['queue']}"
    return {name: text for name, text in attributes.items() if name != "queue"} | {"Endpoint": endpoint}


def _smq(table: Mapping[str, Any], names: Mapping[str, str], other: str) -> dict[str, str]:
    """Return the attributes of ``table`` by their names of SMQ, which it may use, too."""
    _known(table, (*names, *names.values(), other), "attribute")
    if twice := [name for name, smq in names.items() if name in table and smq in table]:
        raise ValueError(f"{twice[0]}: is given twice, as {names[twice[0]]} is its name of SMQ; leave one out.")
    return {names.get(name, name): as_text(value) for name, value in table.items() if name != other}


# ElasticMQ's file of queues (HOCON), read as it is into the table of ours (ElasticMQ, README, "Automatically creating
# queues on startup"). Needs pyhocon, the extra hocon.
#
# Values follow HOCON: a number without a unit is milliseconds, null is no value, and numbers and flags may be texts,
# which substituted variables always are. As ElasticMQ does, a FIFO queue gets the end .fifo where its name has none.
# What the file says of the server itself has no effect here, and is named in a note.

_DURATIONS = {
    "defaultVisibilityTimeout": "visibility_timeout_s",
    "delay": "delay_s",
    "receiveMessageWait": "receive_wait_s",
}
_FLAGS = {"fifo": "fifo", "contentBasedDeduplication": "content_deduplication"}
_FORWARDS = {
    "copyTo": "send to a topic to which both queues are subscribed",
    "moveTo": "`veilmq forward` moves messages to another queue",
}
_DEAD_LETTERS, _TAGS = "deadLettersQueue", "tags"
_KEYS = (*_DURATIONS, _DEAD_LETTERS, *_FLAGS, *_FORWARDS, _TAGS, "created", "lastModified")
_OF_DEAD_LETTERS = ("name", "maxReceiveCount")
_CLASSPATH = re.compile(r"^[ \t]*include\s+(?:required\()?classpath\(.*?\)+[ \t]*,?", re.MULTILINE)
"""Names a file inside ElasticMQ's own archive: its defaults."""

_INSTANT = datetime(2000, 1, 1, tzinfo=UTC)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_UNITS |= {word[:length]: word for word in _UNITS.values() for length in (len(word) - 1, len(word))}
_DURATION = re.compile(rf"\s*([0-9]{{1,12}})\s*({'|'.join(_UNITS)})?\s*")


def _from_elasticmq(text: str, folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the tables that ``text`` is, and notes on what has no effect; ``folder`` has files that it includes."""
    try:
        from pyhocon import ConfigFactory  # noqa: PLC0415 (an extra)
        from pyhocon.exceptions import ConfigException  # noqa: PLC0415
        from pyparsing import ParseBaseException  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ValueError(f"HOCON needs the module {error.name}: pip install 'veilmq[hocon]'.") from None
    try:
        found = ConfigFactory.parse_string(_CLASSPATH.sub("", text), basedir=str(folder)).as_plain_ordered_dict()
    except ParseBaseException as error:
        raise ValueError(f"is not a HOCON file (at line {error.lineno}, column {error.column}).") from None
    except (ConfigException, OSError, OverflowError) as error:
        raise ValueError(f"is not a readable HOCON file: {error}.") from None
    others = sorted(found.keys() - {"queues"})
    notes = [f"{', '.join(others)}: has no effect; these are settings of `veilmq serve`."] if others else []
    if "queues" not in found:
        return {}, tuple(notes)
    queues = _object("queues", found["queues"])
    given = {name: _object(f"queues.{name}", content, _KEYS) for name, content in queues.items()}
    ends = {name: ".fifo" if _value(content.get("fifo")) is True else "" for name, content in given.items()}
    names = {name: name.removesuffix(end) + end for name, end in ends.items()}
    if twice := [name for name, full in names.items() if full != name and full in names]:
        raise ValueError(f"queues.{twice[0]}: is given twice, as {names[twice[0]]} is the same queue; leave one out.")
    forwards = [
        f"queues.{name}: {key} = {content[key]} has no effect; {instead}."
        for name, content in given.items()
        for key, instead in _FORWARDS.items()
        if content.get(key)
    ]
    return {"queues": {names[name]: _elasticmq_queue(name, given[name], names) for name in given}}, (*forwards, *notes)


def _object(where: str, content: Any, known: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of an object by their keys, which pyhocon leaves in quotes."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be an object, in braces.")
    values = {key.strip('"'): value for key, value in content.items() if value is not None}
    for key in values:
        if known and key not in known:
            raise ValueError(f"{where}: unknown key {key}; there are {', '.join(known)}.")
    return values


def _value(given: Any) -> Any:
    """Return the number or flag that ``given`` is, perhaps as a text."""
    with suppress(msgspec.DecodeError, TypeError):
        return msgspec.json.decode(given)
    return given


def _elasticmq_queue(name: str, content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    where = f"queues.{name}"
    made = {field: _value(content[key]) for key, field in _FLAGS.items() if key in content}
    made |= {field: _seconds(f"{where}.{key}", content[key]) for key, field in _DURATIONS.items() if key in content}
    if _DEAD_LETTERS in content:
        place = f"{where}.{_DEAD_LETTERS}"
        values = _object(place, content[_DEAD_LETTERS], _OF_DEAD_LETTERS)
        if len(values) < len(_OF_DEAD_LETTERS):
            raise ValueError(f"{place}: needs {' and '.join(_OF_DEAD_LETTERS)}.")
        target, count = (values[key] for key in _OF_DEAD_LETTERS)
        made |= {"dead_letter_queue": names.get(str(target), str(target)), "receives_max": _value(count)}
    if _TAGS in content:
        made["tags"] = {key: as_text(value) for key, value in _object(f"{where}.{_TAGS}", content[_TAGS]).items()}
    return made


def _seconds(where: str, value: Any) -> int:
    """Return a duration in seconds.

    Unless it is a text or a number pyhocon has read it, as a ``timedelta`` or, where dateutil is installed, what
    dateutil has for it: both can be added to an instant.
    """
    try:
        if match := _DURATION.fullmatch(str(value)):
            value = timedelta(**{_UNITS[match[2] or "ms"]: int(match[1])})
        span = _INSTANT + value - _INSTANT
    except (TypeError, OverflowError):
        span = timedelta.resolution
    if span % timedelta(seconds=1):
        raise ValueError(f"{where}: must be whole seconds, such as 10 seconds; a bare number is milliseconds.")
    return int(span.total_seconds())


# What is to be done at a server.

COUNTED = {"create": "created", "change": "changed", "delete": "deleted"}
"""What a step does, and how it is counted."""


class PlanRefused(Exception):
    """What is declared cannot be reached from what the server has; ``str()`` says why. Nothing was changed."""


class Difference(msgspec.Struct, frozen=True):
    """One attribute; ``old`` is null where there was none, ``new`` where there is to be none."""

    attribute: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Step:
    """One change: ``action`` is one of ``COUNTED``, ``kind`` is queue, topic or subscription; ``run`` makes it."""

    action: str
    kind: str
    name: str
    run: Callable[[], object]
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order, and how many declared queues, topics and subscriptions need none."""

    steps: tuple[Step, ...]
    unchanged: int

    def counts(self) -> dict[str, int]:
        """Return how many are created, changed, deleted and unchanged."""
        done = {word: sum(step.action == action for step in self.steps) for action, word in COUNTED.items()}
        return done | {"unchanged": self.unchanged}

    def __str__(self) -> str:
        """Return the counts as a line."""
        return ", ".join(f"{count} {word}" for word, count in self.counts().items())

    def apply(self) -> None:
        """Make the steps; raises ``ClientError`` and ``Unreachable``, which say how many were made."""
        for number, step in enumerate(self.steps):
            where, done = f"{step.kind} {step.name}", f"({number} of {len(self.steps)} steps are done"
            try:
                step.run()
            except ClientError as error:
                raise ClientError(error.code, f"{where}: {error.message} {done}.)", error.status) from error
            except Unreachable as error:
                raise Unreachable(error.endpoint, f"{error.reason}, at {where} {done})") from error


def make_plan(declared: Declared, *, transport: Transport, topics: Topics, prune: bool = False) -> Plan:
    """Return what is to be done at the server of ``transport`` and ``topics``.

    With ``prune`` what is not declared is deleted, of the kinds that the file has. Raises ``PlanRefused``,
    ``ClientError`` and ``Unreachable``.
    """
    steps = tuple(_Planner(declared, transport, topics, prune=prune).steps())
    known = len(declared.queues or ()) + len(declared.topics or ())
    return Plan(steps, known - sum(step.action != "delete" for step in steps))


class _Planner:
    def __init__(self, declared: Declared, transport: Transport, topics: Topics, *, prune: bool) -> None:
        self._queues, self._topics = declared.queues or {}, declared.topics or {}
        self._transport, self._api = transport, topics
        self._client = QueueClient(transport)
        existing = self._client.list_queues() if prune and declared.queues is not None else []
        self._doomed = [name for name in existing if name not in self._queues]
        self._prunes_topics = prune and declared.topics is not None

    def steps(self) -> Iterator[Step]:
        """Yield the steps: what is deleted comes last, queues after all that may name them."""
        found = self._check()
        for name, settings in self._queues.items():
            yield from self._queue_step(name, settings, found[name])
        for place, attributes in self._topics.items():
            yield from self._smq_step(place, attributes)
        for topic in self._api.names() if self._prunes_topics else ():
            names = self._api.names(topic) if topic in self._topics else []
            for place in [f"{topic}/subscriptions/{name}" for name in names] or [topic]:
                if place not in self._topics:
                    yield Step("delete", *_named(place), partial(self._api.delete, place))
        for name in self._doomed:
            yield Step("delete", "queue", name, partial(self._client.delete_queue, name))

    def _found(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue of the server, or ``None``."""
        try:
            found = Settings(self._transport, name).show().settings
        except ClientError as error:
            if error.code == "QueueNotFound":
                return None
            raise
        return found.changed({field: plain(getattr(found, field)) for field in QUEUES})

    def _check(self) -> dict[str, QueueSettings | None]:
        """Return the queues that are declared, or named by those and by subscriptions, as the server has them.

        Raises ``PlanRefused`` where they would contradict themselves or each other.
        """
        targets = {name: each.get("dead_letter_queue") for name, each in self._queues.items()}
        named = [*self._queues, *targets.values(), *(each.get("queue") for each in self._topics.values())]
        found = {name: self._found(name) for name in dict.fromkeys(filter(None, named))}
        after = dict(found)
        for name, changes in self._queues.items():
            try:
                after[name] = checked_settings(found[name], changes)
            except SettingsConflict as error:
                raise PlanRefused(f"queue {name}: {error.setting}: {error}") from None
        for name, target in targets.items():
            settings = after[name]
            assert settings is not None, "it is declared"
            if (kept := settings.dead_letter_queue) in self._doomed:
                raise PlanRefused(f"queue {name}: its dead-letter queue {kept} would be deleted; declare it, too.")
            if target and (refusal := dead_letter_refusal(name, settings, target, after[target])):
                raise PlanRefused(f"queue {name}: {refusal}")
        for place, attributes in self._topics.items():
            if (to := attributes.get("queue")) and (after[to] is None or to in self._doomed):
                raise PlanRefused(f"{' '.join(_named(place))}: there is no queue {to}; declare it.")
        return found

    def _queue_step(self, name: str, wanted: Mapping[str, Any], found: QueueSettings | None) -> Iterator[Step]:
        old, new = msgspec.to_builtins(found or QueueSettings()), msgspec.to_builtins(wanted)
        had, tags = old["tags"], new.pop("tags", old["tags"])
        changes = {field: value for field, value in new.items() if not found or not _same(field, old[field], value)}
        shown = [Difference(field, old[field] if found else None, value) for field, value in changes.items()]
        changed = sorted(key for key in had | tags if had.get(key) != tags.get(key))
        shown += [Difference(f"tags.{key}", had.get(key), tags.get(key)) for key in changed]
        settings, client = Settings(self._transport, name), self._client

        def change() -> None:
            if changes:
                settings.set(changes)
            if gone := [key for key in changed if key not in tags]:
                client.untag(name, gone)
            if put := {key: tags[key] for key in changed if key in tags}:
                client.tag(name, put)

        if found is None:
            yield Step("create", "queue", name, partial(settings.create, changes, tags=tags), shown)
        elif shown:
            yield Step("change", "queue", name, change, shown)

    def _smq_step(self, place: str, wanted: Mapping[str, str]) -> Iterator[Step]:
        """Yield what a topic or a subscription needs, if anything."""
        (kind, name), found = _named(place), self._api.show(place)
        old = with_queue(found or {})
        changes = {each: text for each, text in wanted.items() if old.get(each, "") != text}
        shown = [Difference(each, old.get(each), text) for each, text in changes.items()]
        fixed = [each for each in changes if kind == "subscription" and each != "NotifyStrategy"]
        if found is None:
            yield Step("create", kind, name, partial(self._create, place, wanted), shown)
        elif fixed:
            why = "cannot be changed; give the subscription another name, and --prune this one."
            raise PlanRefused(f"{kind} {name}: {', '.join(fixed)} {why}")
        elif changes:
            yield Step("change", kind, name, partial(self._api.set, place, changes), shown)

    def _create(self, place: str, wanted: Mapping[str, str]) -> None:
        account = full_name(self._client.queue_url(wanted["queue"])).partition("/")[0] if "queue" in wanted else ""
        self._api.create(place, with_endpoint(wanted, account))


def _named(place: str) -> tuple[str, str]:
    """Return kind and name of a topic or a subscription."""
    name = place.replace("/subscriptions/", "/")
    return "subscription" if "/" in name else "topic", name


def _same(field: str, old: Any, new: Any) -> bool:
    if field in JSON_TEXTS and old and new:
        return bool(msgspec.json.decode(old) == msgspec.json.decode(new))
    return sorted(old) == sorted(new) if field == "redrive_sources" else bool(old == new)
