"""ElasticMQ's file of queues (HOCON), read as it is into the tables of ours.

(ElasticMQ, README, "Automatically creating queues on startup".) Needs pyhocon, the extra ``hocon``. Values follow
HOCON: a number without a unit is milliseconds, ``null`` is no value, and numbers and flags may be texts, which
substituted variables always are. As ElasticMQ does, a FIFO queue gets the end ``.fifo`` where its name has none. What
the file says of the server itself has no effect here, and is named in a note.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

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
_TEXT = re.compile(rf"\s*([0-9]{{1,12}})\s*({'|'.join(_UNITS)})?\s*")


def from_elasticmq(text: str, *, folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the tables that the file ``text`` is, and notes on what has no effect; raises ``ValueError``.

    ``folder`` is where files are that it includes.
    """
    try:
        from pyhocon import ConfigFactory  # noqa: PLC0415 (an extra)
        from pyhocon.exceptions import ConfigException  # noqa: PLC0415
        from pyparsing import ParseBaseException  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ValueError(f"HOCON needs the module {error.name}: pip install 'veilmq[hocon]'.") from None
    try:
        found = ConfigFactory.parse_string(_CLASSPATH.sub("", text), basedir=str(folder)).as_plain_ordered_dict()
    except ParseBaseException as error:
        raise ValueError(f"is no HOCON file (at line {error.lineno}, column {error.column}).") from None
    except (ConfigException, OSError, OverflowError) as error:
        raise ValueError(f"is no HOCON file that can be read: {error}.") from None
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
    return {"queues": {names[name]: _queue(name, given[name], names) for name in given}}, (*forwards, *notes)


def _object(where: str, content: Any, known: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of an object by their keys, which pyhocon leaves in quotes."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be an object, in braces.")
    values = {key.strip('"'): value for key, value in content.items() if value is not None}
    for key in values:
        if known and key not in known:
            raise ValueError(f"{where}: unknown key {key}; there are {', '.join(known)}.")
    return values


def as_text(value: Any) -> str:
    """Return a value of a file as text: what is no text as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _value(given: Any) -> Any:
    """Return the number or flag that ``given`` is, perhaps as a text."""
    with suppress(msgspec.DecodeError, TypeError):
        return msgspec.json.decode(given)
    return given


def _queue(name: str, content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
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
        if match := _TEXT.fullmatch(str(value)):
            value = timedelta(**{_UNITS[match[2] or "ms"]: int(match[1])})
        span = _INSTANT + value - _INSTANT
    except (TypeError, OverflowError):
        span = timedelta.resolution
    if span % timedelta(seconds=1):
        raise ValueError(f"{where}: must be whole seconds, as 10 seconds; a number alone is milliseconds.")
    return int(span.total_seconds())
