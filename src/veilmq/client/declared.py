"""Declared queues and topics: a file that says which of them a server has, and with which attributes.

The file is TOML with the tables ``[queues.NAME]`` and ``[topics.NAME]``, alone or in the settings file of a server; or
ElasticMQ's, in HOCON (``elasticmq.py``). An attribute of a queue has its name of SQS or ours. All of the file is read
and checked, by the rules of the wire, before a server is asked for anything (``plan.py``); ``docs/declared-queues.md``
describes it.

Queues are named without their accounts: the caller's is not known, and of an ARN the name counts.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec

from veilmq.client.elasticmq import as_text, from_elasticmq
from veilmq.core import limits
from veilmq.wire.exchange import DEFAULT_ACCOUNT, RequestContext
from veilmq.wire.smq.errors import SmqError
from veilmq.wire.smq.queues import ATTRIBUTES
from veilmq.wire.smq.request import checked_name
from veilmq.wire.smq.topics import FORMATS, STRATEGIES, SUBSCRIPTION_NAME, TOPIC_NAME, read_endpoint, read_tag
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.names import is_fifo, queue_arn
from veilmq.wire.sqs.queue_attributes import SETTINGS
from veilmq.wire.sqs.queues import read_tags
from veilmq.wire.v1.queues import SettingFields, check_new, read_settings
from veilmq.wire.v1.request import from_json

JSON_TEXTS = frozenset({"policy", "visibility_rules"})
"""Settings that are JSON: a file may have them as tables, and spaces do not count."""
QUEUES = frozenset({"dead_letter_queue", "redrive_sources"})
"""Settings that name other queues."""

_OWN = f"{DEFAULT_ACCOUNT}/"
_HOCON = (".conf", ".hocon")
_FIELDS: tuple[str, ...] = SettingFields.__struct_fields__
_ARN = re.compile(r"arn:[^:]*:sqs:[a-z0-9-]+:[0-9]{12}:")
_QUEUE = re.compile(r"acs:mns:.*:/?queues/(.+)")
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
        found, notes = from_elasticmq(text, folder=path.parent) if path.suffix in _HOCON else (_from_toml(text), ())
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


def _from_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"is no TOML file: {error}. (The name of a HOCON file ends in .conf.)") from None


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
    given = {
        field: as_text(table[field]) if field in JSON_TEXTS else table[field] for field in _FIELDS if field in table
    }
    settings: dict[str, Any] = read_settings(from_json(as_text(given).encode(), SettingFields), _OWN + name, _CONTEXT)
    for attribute in (each for each in table if each in SETTINGS):
        kind, text = SETTINGS[attribute].kind, as_text(table[attribute])
        if QUEUES.intersection(kind.fields):
            text = _ARN.sub(queue_arn(_OWN, _CONTEXT), text)
        values = kind.read(attribute, text, _OWN + name, _CONTEXT)
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
        raise ValueError("give queue, the name of a queue, or url, which is pushed to.")
    read_endpoint(with_endpoint(attributes, DEFAULT_ACCOUNT)["Endpoint"], _CONTEXT)
    read_tag("FilterTag", attributes)
    for attribute, words in (("NotifyStrategy", STRATEGIES), ("NotifyContentFormat", FORMATS)):
        if attributes.get(attribute, next(iter(words))) not in words:
            raise ValueError(f"{attribute}: must be one of {', '.join(words)}.")
    return attributes


def with_queue(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes of a subscription with its queue's name in place of an ``Endpoint`` that is a queue."""
    match = _QUEUE.fullmatch(attributes.get("Endpoint", ""))
    if match is None:
        return dict(attributes)
    return {name: text for name, text in attributes.items() if name != "Endpoint"} | {"queue": match[1]}


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
