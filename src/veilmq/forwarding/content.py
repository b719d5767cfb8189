"""What rules look at in a message: its attributes, the fields of a body that is JSON, its size and its group."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from veilmq.client.messages import ReceivedMessage
from veilmq.core.properties import Attribute

_NUMBER = "Number"


class Value(NamedTuple):
    """One value, by what it can be compared with; all are ``None`` in one that is there and is none of them."""

    text: str | None = None
    number: float | None = None
    flag: bool | None = None


Pointer = tuple[str, ...]
"""The names that lead to a field, or the indices."""


def read_pointer(text: str) -> Pointer:
    """Return what a JSON Pointer (RFC 6901) names; raises ``ValueError``."""
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is no path into the body: it begins with a slash, such as /job/kind")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


class Content:
    """One message, looked into; its body is decoded once, when the first rule asks."""

    __slots__ = ("_document", "_message")

    def __init__(self, message: ReceivedMessage) -> None:
        """Look at nothing yet."""
        self._message = message
        self._document: Any = _UNREAD

    def attribute(self, name: str) -> Value | None:
        """Return the value of the attribute ``name``, ``None`` where there is none."""
        found = self._message.attributes.get(name)
        return None if found is None else _of_attribute(found)

    def field(self, pointer: Pointer) -> Value | None:
        """Return the field of the body there, ``None`` where there is none or the body is no JSON."""
        if self._document is _UNREAD:
            self._document = _decoded(self._message.body)
        found = self._document
        for part in pointer:
            found = _STEPS.get(type(found), _nowhere)(found, part)
        return None if found is _NOWHERE else _KINDS.get(type(found), _of_other)(found)

    def group(self) -> Value | None:
        """Return the message group, ``None`` where there is none."""
        group = self._message.group
        return None if group is None else Value(text=group)

    def size(self) -> Value:
        """Return how many bytes the body has in UTF-8."""
        return Value(number=len(self._message.body.encode()))


def _of_attribute(attribute: Attribute) -> Value:
    if not attribute.type.startswith(_NUMBER) or attribute.text is None:
        return Value(text=attribute.text)
    try:
        return Value(text=attribute.text, number=float(attribute.text))
    except ValueError:
        return Value(text=attribute.text)


_UNREAD = object()
_NOWHERE = object()


def _decoded(body: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _NOWHERE


def _named(document: Any, name: str) -> Any:
    return document.get(name, _NOWHERE)


def _indexed(document: Any, index: str) -> Any:
    if not index.isdecimal() or not index.isascii() or (index[0] == "0" and len(index) > 1):
        return _NOWHERE
    return document[int(index)] if len(index) <= len(str(len(document))) and int(index) < len(document) else _NOWHERE


def _nowhere(document: Any, part: str) -> Any:
    return _NOWHERE


_STEPS: dict[type, Callable[[Any, str], Any]] = {dict: _named, list: _indexed}


def _of_other(found: Any) -> Value:
    return Value()


_KINDS: dict[type, Callable[[Any], Value]] = {
    str: lambda found: Value(text=found),
    bool: lambda found: Value(flag=found),
    int: lambda found: Value(number=found),
    float: lambda found: Value(number=found),
}
