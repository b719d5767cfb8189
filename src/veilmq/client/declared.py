"""Declared queues and topics: a file with their attributes, and the plan that applies it to a server.

The file (``docs/declared-queues.md``) is TOML with the tables ``[queues.NAME]`` and ``[topics.NAME]``, alone or in the
settings file of a server, or HOCON of ElasticMQ. Attributes of queues have the names of SQS or of veilmq. The file is
read and checked completely, by the rules of the wire, before the first request. Queues are named without accounts, as
that of the caller is unknown; of an ARN only the name is used.

The plan is computed as steps, which include all checks by the rules of ``core.settings``, and then applied. A server at
its start and ``veilmq apply`` share this code, the first without a socket. Declared attributes are set; others do not
change. A dead-letter queue comes before the queues that use it.
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
"""Settings in JSON: a file may have tables instead, and they are compared as JSON."""
QUEUES = frozenset({"dead_letter_queue", "redrive_sources"})
"""Settings that name other queues."""

_PREFIX = f"{DEFAULT_ACCOUNT}/"
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
    """The file is invalid; ``str()`` says where and how to correct it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The content of a file; ``queues`` and ``topics`` are ``None`` if absent. ``notes`` list ignored parts.

    ``queues`` have fields of ``QueueSettings``, dead-letter queues first; ``tags``, if given, replace all tags.
    ``topics`` have attributes by the names of SMQ, as have subscriptions, which follow their topic with the name
    ``topic/subscriptions/name``; they may have the name of a ``queue`` instead of an ``Endpoint``.
    """

    queues: Mapping[str, Mapping[str, Any]] | None
    topics: Mapping[str, Mapping[str, str]] | None
    notes: tuple[str, ...]


def read_declared(path: Path, *, others: Collection[str] = ()) -> Declared:
    """Read and check the file at ``path``; raises ``DeclaredError``.

    ``others`` are other keys that a TOML file may have: the settings of a server.
    """
    with _located(str(path)):
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}.") from None
        try:
            is_hocon = path.suffix in (".conf", ".hocon")
            found, notes = _from_elasticmq(text, path.parent) if is_hocon else (tomllib.loads(text), ())
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"is not a TOML file: {error}. (The name of a HOCON file ends in .conf.)") from None
        _check_names(found, ("queues", "topics", *others), "key")
        queues = _sorted(_read_each("queues", found["queues"], _queue)) if "queues" in found else None
        topics = _read_each("topics", found["topics"], _topic) if "topics" in found else None
        places = None if topics is None else {place: each for topic in topics.values() for place, each in topic.items()}
        return Declared(queues=queues, topics=places, notes=notes)


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Add the location ``where`` to errors."""
    try:
        yield
    except (SqsError, SmqError, ValueError) as error:
        raise DeclaredError(f"{where}: {str(error).replace(_PREFIX, '')}") from None
    except RecursionError:
        raise DeclaredError(f"{where}: is nested too deeply.") from None


def _read_each(place: str, content: Any, read: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return ``read(name, table)`` for each table in the table ``place``, by name."""
    results = {}
    for name, inner in _table(place, content).items():
        table = _table(f"{place}.{name}", inner)
        with _located(f"{place}.{name}"):
            results[name] = read(name, table)
    return results


def _table(place: str, content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{place}: must be a table, as [{place}].")
    return content


def _check_names(given: Iterable[str], known: Collection[str], kind: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise ValueError(f"unknown {kind} {name}; {hint}")


def _queue(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    _check_names(table, (*_FIELDS, *SETTINGS, "tags"), "attribute")
    given = {each: as_text(table[each]) if each in JSON_TEXTS else table[each] for each in _FIELDS if each in table}
    settings: dict[str, Any] = read_settings(
        from_json(as_text(given).encode(), SettingFields), _PREFIX + name, _CONTEXT
    )
    for attribute in (each for each in table if each in SETTINGS):
        setting, text = SETTINGS[attribute], as_text(table[attribute])
        if QUEUES.intersection(setting.fields):
            text = _ARN.sub(queue_arn(_PREFIX, _CONTEXT), text)
        values = setting.read(attribute, text, _PREFIX + name, _CONTEXT)
        if repeated := settings.keys() & values:
            raise ValueError(f"{min(repeated)}: is given twice, as {attribute} is its name of SQS; leave one out.")
        settings |= values
    if is_fifo(name):
        settings.setdefault("fifo", True)
    if "dead_letter_queue" in settings:
        settings.setdefault("receives_max", limits.SQS_RECEIVES_MAX.default if settings["dead_letter_queue"] else 0)
    check_new(name, fifo=settings.get("fifo") is True)
    settings |= {field: plain(settings[field]) for field in QUEUES & settings.keys()}
    if "tags" in table:
        try:
            settings["tags"] = read_tags(msgspec.convert(table["tags"], dict[str, str]), _PREFIX + name)
        except msgspec.ValidationError as error:
            raise ValueError(f"tags: must be a table of texts: {error}.") from None
    return settings


def as_text(value: Any) -> str:
    """Return a text unchanged, another value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def plain(names: Any) -> Any:
    """Return the name of a queue, or several names, without the account."""
    return names.rpartition("/")[2] if isinstance(names, str) else tuple(map(plain, names))


def _sorted(queues: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    targets = {name: [queue.get("dead_letter_queue", "")] for name, queue in queues.items()}
    try:
        return {name: queues[name] for name in TopologicalSorter(targets).static_order() if name in queues}
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise ValueError(f"queues: dead-letter queues form a cycle, {cycle}; end it in a queue without one.") from None


def _topic(name: str, table: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the attributes of a topic and of its subscriptions, by path."""
    checked_name(name, TOPIC_NAME)
    attributes = {}
    for attribute, text in _smq_attributes(table, _TOPIC, "subscriptions").items():
        (value,) = ATTRIBUTES[attribute].read(attribute, text, _CONTEXT).values()
        attributes[attribute] = str(value)
    subscriptions = _read_each("subscriptions", table.get("subscriptions", {}), _subscription)
    return {name: attributes} | {f"{name}/subscriptions/{each}": content for each, content in subscriptions.items()}


def _subscription(name: str, table: Mapping[str, Any]) -> dict[str, str]:
    checked_name(name, SUBSCRIPTION_NAME)
    attributes = with_queue(_smq_attributes(table, _SUBSCRIPTION, "queue"))
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
    """Return the attributes of a subscription with ``queue`` instead of an ``Endpoint`` that is a queue."""
    match = QUEUE_ENDPOINT.fullmatch(attributes.get("Endpoint", ""))
    if match is None:
        return dict(attributes)
    return {name: text for name, text in attributes.items() if name != "Endpoint"} | {"queue": match["name"]}


def with_endpoint(attributes: Mapping[str, str], account: str) -> dict[str, str]:
    """Return the attributes with an ``Endpoint`` instead of ``queue``, the reverse of ``with_queue``."""
    if "queue" not in attributes:
        return dict(attributes)
    endpoint = f"acs:mns::{account}:queues/{attributes['queue']}"
    return {name: text for name, text in attributes.items() if name != "queue"} | {"Endpoint": endpoint}


def _smq_attributes(table: Mapping[str, Any], names: Mapping[str, str], other: str) -> dict[str, str]:
    """Return the attributes of ``table`` by the names of SMQ; the table may have either name of each."""
    _check_names(table, (*names, *names.values(), other), "attribute")
    if repeated := [name for name, smq in names.items() if name in table and smq in table]:
        raise ValueError(f"{repeated[0]}: is given twice, as {names[repeated[0]]} is its name of SMQ; leave one out.")
    return {names.get(name, name): as_text(value) for name, value in table.items() if name != other}


# Files of ElasticMQ, in HOCON (ElasticMQ, README, "Automatically creating queues on startup"). Requires pyhocon, the
# extra hocon.
#
# As in HOCON, a number without a unit is milliseconds, null is an absent value, and numbers and booleans may be texts,
# as substituted variables always are. As in ElasticMQ, .fifo is appended to the name of a FIFO queue if it is missing.
# Settings of the server are ignored, with a note.

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
"""An include of the defaults in the archive of ElasticMQ."""

_INSTANT = datetime(2000, 1, 1, tzinfo=UTC)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_UNITS |= {word[:length]: word for word in _UNITS.values() for length in (len(word) - 1, len(word))}
_DURATION = re.compile(rf"\s*([0-9]{{1,12}})\s*({'|'.join(_UNITS)})?\s*")


def _from_elasticmq(text: str, folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the tables in ``text``, and notes on ignored parts; ``folder`` has included files."""
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
    if repeated := [name for name, full in names.items() if full != name and full in names]:
        raise ValueError(
            f"queues.{repeated[0]}: is given twice, as {names[repeated[0]]} is the same queue; leave one out."
        )
    forwards = [
        f"queues.{name}: {key} = {content[key]} has no effect; {instead}."
        for name, content in given.items()
        for key, instead in _FORWARDS.items()
        if content.get(key)
    ]
    return {"queues": {names[name]: _elasticmq_queue(name, given[name], names) for name in given}}, (*forwards, *notes)


def _object(where: str, content: Any, known: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of an object by key, without the quotes that pyhocon keeps."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be an object, in braces.")
    values = {key.strip('"'): value for key, value in content.items() if value is not None}
    for key in values:
        if known and key not in known:
            raise ValueError(f"{where}: unknown key {key}; there are {', '.join(known)}.")
    return values


def _value(given: Any) -> Any:
    """Return the number or boolean in ``given``, which may be a text."""
    with suppress(msgspec.DecodeError, TypeError):
        return msgspec.json.decode(given)
    return given


def _elasticmq_queue(name: str, content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    where = f"queues.{name}"
    settings = {field: _value(content[key]) for key, field in _FLAGS.items() if key in content}
    settings |= {field: _seconds(f"{where}.{key}", content[key]) for key, field in _DURATIONS.items() if key in content}
    if _DEAD_LETTERS in content:
        place = f"{where}.{_DEAD_LETTERS}"
        values = _object(place, content[_DEAD_LETTERS], _OF_DEAD_LETTERS)
        if len(values) < len(_OF_DEAD_LETTERS):
            raise ValueError(f"{place}: needs {' and '.join(_OF_DEAD_LETTERS)}.")
        target, count = (values[key] for key in _OF_DEAD_LETTERS)
        settings |= {"dead_letter_queue": names.get(str(target), str(target)), "receives_max": _value(count)}
    if _TAGS in content:
        settings["tags"] = {key: as_text(value) for key, value in _object(f"{where}.{_TAGS}", content[_TAGS]).items()}
    return settings


def _seconds(where: str, value: Any) -> int:
    """Return a duration in seconds.

    Durations that pyhocon parsed are a ``timedelta`` or, with dateutil, a ``relativedelta``; both can be added to a
    ``datetime``.
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


# The plan for a server.

COUNTED = {"create": "created", "change": "changed", "delete": "deleted"}
"""Action of a step → its label in counts."""


class PlanRefused(Exception):
    """The declared state is invalid or cannot be reached; ``str()`` has the reason. Nothing was changed."""


class Difference(msgspec.Struct, frozen=True):
    """The change of one attribute; ``old`` or ``new`` is null if it is absent."""

    attribute: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Step:
    """One change: ``action`` is a key of ``COUNTED``, ``kind`` is queue, topic or subscription; ``run`` applies it."""

    action: str
    kind: str
    name: str
    run: Callable[[], object]
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in order, and the number of declared queues, topics and subscriptions that need none."""

    steps: tuple[Step, ...]
    unchanged: int

    def counts(self) -> dict[str, int]:
        """Return the numbers of created, changed, deleted and unchanged ones."""
        done = {word: sum(step.action == action for step in self.steps) for action, word in COUNTED.items()}
        return done | {"unchanged": self.unchanged}

    def __str__(self) -> str:
        return ", ".join(f"{count} {word}" for word, count in self.counts().items())

    def apply(self) -> None:
        """Apply the steps; raises ``ClientError`` and ``Unreachable``, with the number of applied steps."""
        for number, step in enumerate(self.steps):
            where, done = f"{step.kind} {step.name}", f"({number} of {len(self.steps)} steps are done"
            try:
                step.run()
            except ClientError as error:
                raise ClientError(error.code, f"{where}: {error.message} {done}.)", error.status) from error
            except Unreachable as error:
                raise Unreachable(error.endpoint, f"{error.reason}, at {where} {done})") from error


def make_plan(declared: Declared, *, transport: Transport, topics: Topics, prune: bool = False) -> Plan:
    """Return the plan for the server of ``transport`` and ``topics``.

    ``prune`` deletes undeclared queues, and undeclared topics and subscriptions, if the file has that table. Raises
    ``PlanRefused``, ``ClientError`` and ``Unreachable``.
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
        self._to_delete = [name for name in existing if name not in self._queues]
        self._prunes_topics = prune and declared.topics is not None

    def steps(self) -> Iterator[Step]:
        """Yield the steps; deletions come last, those of queues after those of topics, which may use them."""
        found = self._check()
        for name, settings in self._queues.items():
            yield from self._queue_step(name, settings, found[name])
        for path, attributes in self._topics.items():
            yield from self._smq_step(path, attributes)
        for topic in self._api.names() if self._prunes_topics else ():
            names = self._api.names(topic) if topic in self._topics else []
            for path in [f"{topic}/subscriptions/{name}" for name in names] or [topic]:
                if path not in self._topics:
                    yield Step("delete", *_kind_and_name(path), partial(self._api.delete, path))
        for name in self._to_delete:
            yield Step("delete", "queue", name, partial(self._client.delete_queue, name))

    def _existing_settings(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue of the server, ``None`` if it does not exist."""
        try:
            found = Settings(self._transport, name).show().settings
        except ClientError as error:
            if error.code == "QueueNotFound":
                return None
            raise
        return found.changed({field: plain(getattr(found, field)) for field in QUEUES})

    def _check(self) -> dict[str, QueueSettings | None]:
        """Return the present settings of all queues that are declared or named by a declared queue or subscription.

        Raises ``PlanRefused`` if the declared settings conflict.
        """
        targets = {name: each.get("dead_letter_queue") for name, each in self._queues.items()}
        named = [*self._queues, *targets.values(), *(each.get("queue") for each in self._topics.values())]
        found = {name: self._existing_settings(name) for name in dict.fromkeys(filter(None, named))}
        after = dict(found)
        for name, changes in self._queues.items():
            try:
                after[name] = checked_settings(found[name], changes)
            except SettingsConflict as error:
                raise PlanRefused(f"queue {name}: {error.setting}: {error}") from None
        for name, target in targets.items():
            settings = after[name]
            assert settings is not None, "it is declared"
            if (in_use := settings.dead_letter_queue) in self._to_delete:
                raise PlanRefused(f"queue {name}: its dead-letter queue {in_use} would be deleted; declare it, too.")
            if target and (refusal := dead_letter_refusal(name, settings, target, after[target])):
                raise PlanRefused(f"queue {name}: {refusal}")
        for path, attributes in self._topics.items():
            if (queue := attributes.get("queue")) and (after[queue] is None or queue in self._to_delete):
                raise PlanRefused(f"{' '.join(_kind_and_name(path))}: there is no queue {queue}; declare it.")
        return found

    def _queue_step(self, name: str, declared: Mapping[str, Any], found: QueueSettings | None) -> Iterator[Step]:
        old, new = msgspec.to_builtins(found or QueueSettings()), msgspec.to_builtins(declared)
        old_tags, tags = old["tags"], new.pop("tags", old["tags"])
        changes = {field: value for field, value in new.items() if not found or not _same(field, old[field], value)}
        shown = [Difference(field, old[field] if found else None, value) for field, value in changes.items()]
        changed = sorted(key for key in old_tags | tags if old_tags.get(key) != tags.get(key))
        shown += [Difference(f"tags.{key}", old_tags.get(key), tags.get(key)) for key in changed]
        settings, client = Settings(self._transport, name), self._client

        def change() -> None:
            if changes:
                settings.set(changes)
            if removed := [key for key in changed if key not in tags]:
                client.untag(name, removed)
            if added := {key: tags[key] for key in changed if key in tags}:
                client.tag(name, added)

        if found is None:
            yield Step("create", "queue", name, partial(settings.create, changes, tags=tags), shown)
        elif shown:
            yield Step("change", "queue", name, change, shown)

    def _smq_step(self, path: str, declared: Mapping[str, str]) -> Iterator[Step]:
        (kind, name), found = _kind_and_name(path), self._api.show(path)
        old = with_queue(found or {})
        changes = {each: text for each, text in declared.items() if old.get(each, "") != text}
        shown = [Difference(each, old.get(each), text) for each, text in changes.items()]
        unchangeable = [each for each in changes if kind == "subscription" and each != "NotifyStrategy"]
        if found is None:
            yield Step("create", kind, name, partial(self._create, path, declared), shown)
        elif unchangeable:
            why = "cannot be changed; give the subscription another name, and --prune this one."
            raise PlanRefused(f"{kind} {name}: {', '.join(unchangeable)} {why}")
        elif changes:
            yield Step("change", kind, name, partial(self._api.set, path, changes), shown)

    def _create(self, path: str, declared: Mapping[str, str]) -> None:
        account = full_name(self._client.queue_url(declared["queue"])).partition("/")[0] if "queue" in declared else ""
        self._api.create(path, with_endpoint(declared, account))


def _kind_and_name(path: str) -> tuple[str, str]:
    name = path.replace("/subscriptions/", "/")
    return "subscription" if "/" in name else "topic", name


def _same(field: str, old: Any, new: Any) -> bool:
    if field in JSON_TEXTS and old and new:
        return bool(msgspec.json.decode(old) == msgspec.json.decode(new))
    return sorted(old) == sorted(new) if field == "redrive_sources" else bool(old == new)
