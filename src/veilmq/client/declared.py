"""Declared queues and topics: a file that says which of them a server has, and with which attributes.

The file is TOML with the tables ``[queues.NAME]`` and ``[topics.NAME]``, alone or in the settings file of a server; or
ElasticMQ's, in HOCON (``elasticmq.py``). An attribute of a queue has its name of SQS or ours. All of the file is read
and checked, by the rules of the wire, before a server is asked for anything (``plan.py``); ``docs/declared-queues.md``
describes it.

The names of other queues begin with ``-/`` in what is read: the account is the one of the caller, which is not known.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec

from veilmq.client.elasticmq import ElasticMqError, from_elasticmq
from veilmq.core import limits
from veilmq.core.settings import SettingValue
from veilmq.wire.exchange import DEFAULT_REGION, RequestContext
from veilmq.wire.smq.errors import SmqError
from veilmq.wire.smq.queues import ATTRIBUTES
from veilmq.wire.smq.request import checked_name
from veilmq.wire.smq.topics import FORMATS, STRATEGIES, SUBSCRIPTION_NAME, TOPIC_NAME, read_endpoint, read_tag
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.names import is_fifo
from veilmq.wire.sqs.queue_attributes import SETTINGS
from veilmq.wire.sqs.queues import read_tags
from veilmq.wire.v1.queues import SettingFields, check_new, read_settings
from veilmq.wire.v1.request import from_json

OWN = "-/"
JSON_TEXTS = frozenset({"policy", "visibility_rules"})
"""Settings that are JSON: a file may have them as tables, and spaces do not count."""

_QUEUES = ("dead_letter_queue", "redrive_sources")
_HOCON = (".conf", ".hocon")
_FIELDS: tuple[str, ...] = SettingFields.__struct_fields__
_ARN = re.compile(r"arn:[^:]*:sqs:([a-z0-9-]+):([0-9]{12}):")
_QUEUE = re.compile(r"acs:mns:.*:/?queues/(.+)")
_CONTEXT = RequestContext(base_url="", account="-", smq_message_bytes_max=limits.MESSAGE_BYTES.maximum)
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
class DeclaredQueue:
    """``given`` are the settings as our API takes them; ``settings`` are the same as fields of ``QueueSettings``.

    ``tags`` are all that the queue has; ``None`` where the file does not say.
    """

    given: Mapping[str, Any]
    settings: Mapping[str, SettingValue]
    tags: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTopic:
    """Attributes by their names of SMQ. A subscription has its ``queue``, a plain name, in place of an ``Endpoint``."""

    attributes: Mapping[str, str]
    subscriptions: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a file declares; ``None`` where it has no such table. ``notes`` say what of it has no effect.

    A dead-letter queue is before the queues that name it.
    """

    queues: Mapping[str, DeclaredQueue] | None
    topics: Mapping[str, DeclaredTopic] | None
    notes: tuple[str, ...] = ()


def read_declared(path: Path, *, others: Collection[str] = ()) -> Declared:
    """Return what the file at ``path`` declares; raises ``DeclaredError``.

    ``others`` are the keys that a TOML file may have beside its tables: the settings of a server.
    """
    notes: tuple[str, ...] = ()
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix in _HOCON:
            found, notes = from_elasticmq(text, folder=path.parent)
        else:
            found = tomllib.loads(text)
    except OSError as error:
        raise DeclaredError(f"{path}: cannot be read: {error.strerror}.") from None
    except ElasticMqError as error:
        raise DeclaredError(f"{path}: {error}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise DeclaredError(f"{path}: is no TOML file: {error}. (The name of a HOCON file ends in .conf.)") from None
    try:
        _known(found, ("queues", "topics", *others), "key")
        queues = _read_each(found, "queues", _queue)
        topics = _read_each(found, "topics", _topic)
        return Declared(queues=queues if queues is None else _in_order(queues), topics=topics, notes=notes)
    except DeclaredError as error:
        raise DeclaredError(f"{path}: {error}") from None


def _read_each(found: Mapping[str, Any], place: str, read: Callable[[str, Mapping[str, Any]], Any]) -> Any:
    """Return what is in the table ``place``, by name; ``None`` without the table."""
    if place not in found:
        return None
    read_so_far = {}
    for name, content in _table(place, found[place]).items():
        where = f"{place}.{name}"
        table = _table(where, content)
        try:
            read_so_far[name] = read(name, table)
        except (SqsError, SmqError) as error:
            raise DeclaredError(f"{where}: {error.message.replace(OWN, '')}") from None
        except DeclaredError as error:
            raise DeclaredError(f"{where}: {error}") from None
    return read_so_far


def _table(where: str, content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise DeclaredError(f"{where}: must be a table, as [{where}].")
    return content


def _known(given: Iterable[str], known: Collection[str], kind: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise DeclaredError(f"unknown {kind} {name}; {hint}")


def _queue(name: str, table: Mapping[str, Any]) -> DeclaredQueue:
    _known(table, (*_FIELDS, *SETTINGS, "tags"), "attribute")
    given: dict[str, Any] = {}
    for attribute, value in table.items():
        for field, each in _attribute(name, attribute, value).items():
            if field in given:
                raise DeclaredError(f"{attribute}: is given twice, as {field} has another name; leave one out.")
            given[field] = each
    if is_fifo(name):
        given.setdefault("fifo", True)
    if "dead_letter_queue" in given:
        given.setdefault("receives_max", limits.SQS_RECEIVES_MAX.default if given["dead_letter_queue"] else 0)
    check_new(name, fifo=given.get("fifo") is True)
    fields = from_json(_text(given).encode(), SettingFields)
    tags = None
    if "tags" in table:
        try:
            tags = read_tags(msgspec.convert(table["tags"], dict[str, str]), name)
        except msgspec.ValidationError as error:
            raise DeclaredError(f"tags: must be a table of texts: {error}.") from None
    return DeclaredQueue(given=given, settings=read_settings(fields, OWN + name, _CONTEXT), tags=tags)


def _attribute(queue: str, name: str, value: Any) -> dict[str, Any]:
    """Return the settings that an attribute is, as our API takes them."""
    if name == "tags":
        return {}
    if name in _FIELDS:
        return {name: _text(value) if name in JSON_TEXTS else value}
    text = _text(value)
    arn = _ARN.search(text)
    region, account = (DEFAULT_REGION, "-") if arn is None else arn.groups()
    context = RequestContext(base_url="", region=region)
    values = SETTINGS[name].kind.read(name, text, f"{account}/{queue}", context)
    return {field: _plain(each) if field in _QUEUES else each for field, each in values.items()}


def _plain(value: Any) -> Any:
    """Return queues without their accounts."""
    return value.rpartition("/")[2] if isinstance(value, str) else [_plain(each) for each in value]


def _text(value: Any) -> str:
    """Return a value of the file as text: what is no text as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _in_order(queues: Mapping[str, DeclaredQueue]) -> dict[str, DeclaredQueue]:
    targets: dict[str, list[str]] = {name: [queue.given.get("dead_letter_queue", "")] for name, queue in queues.items()}
    try:
        order = list(TopologicalSorter(targets).static_order())
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise DeclaredError(
            f"queues: dead-letter queues form a cycle, {cycle}; end it in a queue without one."
        ) from None
    return {name: queues[name] for name in order if name in queues}


def _topic(name: str, table: Mapping[str, Any]) -> DeclaredTopic:
    checked_name(name, TOPIC_NAME)
    attributes = {}
    for attribute, text in _smq(table, _TOPIC, "subscriptions").items():
        (value,) = ATTRIBUTES[attribute].read(attribute, text, _CONTEXT).values()
        attributes[attribute] = str(value)
    subscriptions = _read_each(table, "subscriptions", _subscription) or {}
    return DeclaredTopic(attributes=attributes, subscriptions=subscriptions)


def _subscription(name: str, table: Mapping[str, Any]) -> dict[str, str]:
    checked_name(name, SUBSCRIPTION_NAME)
    attributes = with_queue(_smq(table, _SUBSCRIPTION, "queue"))
    if "queue" in table:
        attributes["queue"] = _text(table["queue"])
    if ("queue" in attributes) is ("Endpoint" in attributes):
        raise DeclaredError("give queue, the name of a queue, or url, which is pushed to.")
    if "Endpoint" in attributes:
        read_endpoint(attributes["Endpoint"], _CONTEXT)
    read_tag("FilterTag", attributes)
    for attribute, words in (("NotifyStrategy", STRATEGIES), ("NotifyContentFormat", FORMATS)):
        if attributes.get(attribute, next(iter(words))) not in words:
            raise DeclaredError(f"{attribute}: must be one of {', '.join(words)}.")
    return attributes


def with_queue(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes of a subscription with its queue's name in place of an ``Endpoint`` that is a queue."""
    match = _QUEUE.fullmatch(attributes.get("Endpoint", ""))
    if match is None:
        return dict(attributes)
    return {name: text for name, text in attributes.items() if name != "Endpoint"} | {"queue": match[1]}


def _smq(table: Mapping[str, Any], names: Mapping[str, str], other: str) -> dict[str, str]:
    """Return the attributes of ``table`` by their names of SMQ, which it may use, too."""
    _known(table, (*names, *names.values(), other), "attribute")
    if twice := [name for name, smq in names.items() if name in table and smq in table]:
        raise DeclaredError(f"{twice[0]}: is given twice, as {names[twice[0]]} is its name of SMQ; leave one out.")
    return {names.get(name, name): _text(value) for name, value in table.items() if name != other}
