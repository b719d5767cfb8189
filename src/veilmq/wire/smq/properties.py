"""Message properties: those of users, which SQS knows as message attributes, and the system's (reference, section 6).

One table says how the types of both protocols become each other. Three types are the same on both sides; a truth value
is text for SQS, with a suffix to its type by which it is known again. A suffix that only SQS knows is not told to SMQ.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from veilmq.core.limits import (
    SMQ_PROPERTIES_MAX,
    SMQ_PROPERTY_NAME_CHARACTERS_MAX,
    SMQ_PROPERTY_VALUE_CHARACTERS_MAX,
)
from veilmq.core.properties import Attribute
from veilmq.wire.smq.errors import SmqError, invalid_argument
from veilmq.wire.smq.members import children, texts
from veilmq.wire.smq.xml_reading import Element
from veilmq.wire.smq.xml_writing import container, element
from veilmq.wire.sqs.attributes import is_number

SOURCE_ARN = "DLQSourceArn"
ORIGIN_MESSAGE_ID = "DLQOriginMessageId"
DEAD_LETTER_TYPE = "DLQMessageType"

SYSTEM_NAMES = frozenset({"traceparent", "tracestate", "baggage", DEAD_LETTER_TYPE, SOURCE_ARN, ORIGIN_MESSAGE_ID})
"""The system properties that SDKs know; one of them fails on any other."""

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TRUTH = "String.boolean"
_STRING = "String"


class _Type(NamedTuple):
    """A type of SMQ: what it is for SQS, and how the text of a value is read."""

    label: str
    read: Callable[[str, str], Attribute]


class _Container(NamedTuple):
    """How properties of one kind are written: the element around all of them, and the one around each."""

    name: str
    entry: str


_USER = _Container("UserProperties", "PropertyValue")
_SYSTEM = _Container("SystemProperties", "SystemPropertyValue")


def _string(name: str, text: str) -> Attribute:
    return Attribute(type=_STRING, text=text)


def _number(name: str, text: str) -> Attribute:
    if not is_number(text):
        raise _invalid(name, "is no NUMBER")
    return Attribute(type="Number", text=text)


def _truth(name: str, text: str) -> Attribute:
    if text.lower() not in ("true", "false"):
        raise _invalid(name, "is no BOOLEAN")
    return Attribute(type=_TRUTH, text=text)


def _binary(name: str, text: str) -> Attribute:
    try:
        return Attribute(type="Binary", data=b64decode(text, validate=True))
    except (Base64Error, ValueError):
        raise _invalid(name, "is BINARY and no base64") from None


_TYPES: dict[str, _Type] = {
    "STRING": _Type(_STRING, _string),
    "NUMBER": _Type("Number", _number),
    "BOOLEAN": _Type(_TRUTH, _truth),
    "BINARY": _Type("Binary", _binary),
}
_TYPE_OF_LABEL = {kind.label: name for name, kind in _TYPES.items()}


def read_user_properties(message: Element) -> dict[str, Attribute]:
    """Return the properties of users that ``message`` has, in order; raises ``SmqError`` (InvalidArgument)."""
    return _read(message, _USER)


def read_system_properties(message: Element) -> dict[str, Attribute]:
    """Return the system's; a name that SDKs do not know, and a type but STRING, is refused."""
    read = _read(message, _SYSTEM)
    for name, value in read.items():
        if name not in SYSTEM_NAMES:
            raise _invalid(name, f"is none of the SystemProperties {', '.join(sorted(SYSTEM_NAMES))}")
        if value.type != _STRING:
            raise _invalid(name, "must have the type STRING")
    return read


def written_user_properties(attributes: Mapping[str, Attribute]) -> str:
    """Return the element with ``attributes``, in their order; nothing where there are none."""
    return _written(_USER, attributes.items())


def written_system_properties(attributes: Mapping[str, Attribute]) -> str:
    """Return the element with those of ``attributes`` that SDKs know."""
    return _written(_SYSTEM, [pair for pair in attributes.items() if pair[0] in SYSTEM_NAMES])


def _read(message: Element, kind: _Container) -> dict[str, Attribute]:
    entries = [texts(entry) for outer in children(message, kind.name) for entry in children(outer, kind.entry)]
    if len(entries) > SMQ_PROPERTIES_MAX:
        raise invalid_argument(f"{kind.name}: there may be {SMQ_PROPERTIES_MAX} of them")
    read: dict[str, Attribute] = {}
    for entry in entries:
        name = _checked_name(entry.get("Name", ""))
        if name in read:
            raise _invalid(name, "was given twice")
        read[name] = _value(name, entry)
    return read


def _checked_name(name: str) -> str:
    if len(name) > SMQ_PROPERTY_NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise invalid_argument(
            f"the name of the property '{name[:64]}': it has 1 to {SMQ_PROPERTY_NAME_CHARACTERS_MAX} letters, digits, "
            "_, - and ., no dot at an end or beside another"
        )
    return name


def _value(name: str, entry: Mapping[str, str]) -> Attribute:
    text = entry.get("Value", "")
    if not 1 <= len(text) <= SMQ_PROPERTY_VALUE_CHARACTERS_MAX:
        raise _invalid(name, f"must have a Value of 1 to {SMQ_PROPERTY_VALUE_CHARACTERS_MAX} characters")
    kind = _TYPES.get(entry.get("Type", "").strip())
    if kind is None:
        raise _invalid(name, f"must have a Type, one of {', '.join(_TYPES)}")
    return kind.read(name, text)


def _written(kind: _Container, attributes: Iterable[tuple[str, Attribute]]) -> str:
    entries = "".join(container(kind.entry, _entry(*pair)) for pair in attributes)
    return container(kind.name, entries) if entries else ""


def _entry(name: str, value: Attribute) -> str:
    text = (value.text or "") if value.data is None else b64encode(value.data).decode()
    return element("Name", name) + element("Value", text) + element("Type", _type_of(value))


def _type_of(value: Attribute) -> str:
    return _TYPE_OF_LABEL.get(value.type) or _TYPE_OF_LABEL[value.type.partition(".")[0]]


def _invalid(name: str, why: str) -> SmqError:
    return invalid_argument(f"the property '{name}', which {why}")
