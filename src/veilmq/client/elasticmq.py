"""ElasticMQ's file of queues (HOCON), read as it is into the tables of ours.

(ElasticMQ, README, "Automatically creating queues on startup".) Needs pyhocon, the extra ``hocon``. Durations follow
HOCON: a number without a unit is milliseconds. As ElasticMQ does, a FIFO queue gets the end ``.fifo`` where its name
has none. What the file says of the server itself has no effect here, and is named in a note.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_DURATIONS = {
    "defaultVisibilityTimeout": "visibility_timeout_s",
    "delay": "delay_s",
    "receiveMessageWait": "receive_wait_s",
}
_SAME = {"fifo": "fifo", "contentBasedDeduplication": "content_deduplication"}
_FORWARDS = {
    "copyTo": "send to a topic to which both queues are subscribed",
    "moveTo": "`veilmq forward` moves messages to another queue",
}
_IGNORED = ("created", "lastModified")
_DEAD_LETTERS, _TAGS = "deadLettersQueue", "tags"
_KEYS = (*_DURATIONS, _DEAD_LETTERS, *_SAME, *_FORWARDS, _TAGS, *_IGNORED)
_OF_DEAD_LETTERS = ("name", "maxReceiveCount")
_CLASSPATH = re.compile(r"^[ \t]*include\s+(?:required\()?classpath\(.*?\)+[ \t]*,?", re.MULTILINE)
"""Names a file inside ElasticMQ's own archive: its defaults."""

_INSTANT = datetime(2000, 1, 1, tzinfo=UTC)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_UNITS |= {word[:length]: word for word in _UNITS.values() for length in (len(word) - 1, len(word))}
_QUOTED = re.compile(rf"\s*([0-9]{{1,12}})\s*({'|'.join(_UNITS)})\s*")


class ElasticMqError(ValueError):
    """The file cannot be used; ``str()`` says where and why."""


def from_elasticmq(text: str, *, folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the tables that the file ``text`` is, and notes on what has no effect; raises ``ElasticMqError``.

    ``folder`` is where files are that it includes.
    """
    try:
        from pyhocon import ConfigFactory  # noqa: PLC0415 (an extra)
        from pyhocon.exceptions import ConfigException  # noqa: PLC0415
        from pyparsing import ParseBaseException  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ElasticMqError(f"HOCON needs the module {error.name}: pip install 'veilmq[hocon]'.") from None
    try:
        found = ConfigFactory.parse_string(_CLASSPATH.sub("", text), basedir=str(folder)).as_plain_ordered_dict()
    except ParseBaseException as error:
        raise ElasticMqError(f"is no HOCON file (at line {error.lineno}, column {error.column}).") from None
    except (ConfigException, OSError, OverflowError) as error:
        raise ElasticMqError(f"is no HOCON file that can be read: {error}.") from None
    queues = _object("queues", found.get("queues", {}))
    given = {_name(key): _object(f"queues.{key}", content) for key, content in queues.items()}
    ends = {name: ".fifo" if content.get("fifo") is True else "" for name, content in given.items()}
    names = {name: name if name.endswith(end) else name + end for name, end in ends.items()}
    made = {names[name]: _queue(name, content, names) for name, content in given.items()}
    notes = [
        f"queues.{name}: {key} = {content[key]} has no effect; {instead}."
        for name, content in given.items()
        for key, instead in _FORWARDS.items()
        if key in content
    ]
    if others := sorted(set(found) - {"queues"}):
        notes.append(f"{', '.join(others)}: has no effect; these are settings of `veilmq serve`.")
    return {"queues": made}, tuple(notes)


def _name(key: str) -> str:
    return key.strip('"')  # pyhocon leaves the quotes of a key


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _object(where: str, content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise ElasticMqError(f"{where}: must be an object, in braces.")
    return content


def _check(where: str, content: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in content:
        if key not in known:
            raise ElasticMqError(f"{where}: unknown key {key}; there are {', '.join(known)}.")


def _queue(name: str, content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    where = f"queues.{name}"
    _check(where, content, _KEYS)
    made = {field: content[key] for key, field in _SAME.items() if key in content}
    made |= {field: _seconds(f"{where}.{key}", content[key]) for key, field in _DURATIONS.items() if key in content}
    if _DEAD_LETTERS in content:
        dead_letters = _object(f"{where}.{_DEAD_LETTERS}", content[_DEAD_LETTERS])
        _check(f"{where}.{_DEAD_LETTERS}", dead_letters, _OF_DEAD_LETTERS)
        if len(dead_letters) < len(_OF_DEAD_LETTERS):
            raise ElasticMqError(f"{where}.{_DEAD_LETTERS}: needs {' and '.join(_OF_DEAD_LETTERS)}.")
        target = str(dead_letters["name"])
        made |= {"dead_letter_queue": names.get(target, target), "receives_max": dead_letters["maxReceiveCount"]}
    if _TAGS in content:
        tags = _object(f"{where}.{_TAGS}", content[_TAGS])
        made["tags"] = {_name(key): _text(value) for key, value in tags.items()}
    return made


def _seconds(where: str, value: Any) -> int:
    """Return a duration in seconds.

    Unless it is in quotes pyhocon has read it, as a ``timedelta`` or, where dateutil is installed, what dateutil has
    for it: both can be added to an instant.
    """
    match = _QUOTED.fullmatch(value) if isinstance(value, str) else None
    try:
        if match is not None:
            value = timedelta(**{_UNITS[match[2]]: int(match[1])})
        elif isinstance(value, int | float) and not isinstance(value, bool):
            value = timedelta(milliseconds=value)
        span = _INSTANT + value - _INSTANT
    except (TypeError, OverflowError):
        span = timedelta.resolution
    if span % timedelta(seconds=1):
        raise ElasticMqError(f"{where}: must be whole seconds, as 10 seconds; a number alone is milliseconds.")
    return int(span.total_seconds())
