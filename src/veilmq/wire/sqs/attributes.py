"""Message attributes: from the wire to ``core.properties`` and back, with the rules for their names and values.

The rules are those of the SQS Developer Guide ("Amazon SQS message metadata"): a name has letters, digits (of any
script, as the service takes them), ``_``, ``-`` and ``.``, no period at an end or beside another, and does not begin
with ``AWS.`` or ``Amazon.``; a type is
``String``, ``Number`` or ``Binary`` with an optional suffix after a period; a number has at most 38 significant
digits and lies between 10^-128 and 10^126.
"""

import re
from collections.abc import Mapping

from veilmq.core.limits import (
    SQS_ATTRIBUTE_NAME_CHARACTERS_MAX,
    SQS_ATTRIBUTE_TYPE_CHARACTERS_MAX,
    SQS_MESSAGE_ATTRIBUTES_MAX,
)
from veilmq.core.properties import Attribute
from veilmq.wire.sqs.errors import (
    INVALID_PARAMETER_VALUE,
    UNSUPPORTED_OPERATION,
    SqsError,
    shown,
    too_many_attributes,
)
from veilmq.wire.sqs.shapes import AttributeValue
from veilmq.wire.sqs.text import check_text

TRACE_HEADER = "AWSTraceHeader"

_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_RESERVED = re.compile(r"(?i:aws|amazon)\.")
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?=\.?[0-9])([0-9]*+)\.?([0-9]*+)(?:[eE]([+-]?[0-9]{1,6}))?")  # never backtracks
_SHORTER = "must be shorter than 256 bytes. Give at most 256 characters."
_NUMBER_DIGITS_MAX = 38
_NUMBER_EXPONENT_MIN = -128
_NUMBER_EXPONENT_MAX = 126


def read_attributes(values: Mapping[str, AttributeValue]) -> dict[str, Attribute]:
    """Return a message's attributes; raises InvalidParameterValue where one breaks a rule."""
    if len(values) > SQS_MESSAGE_ATTRIBUTES_MAX:
        raise too_many_attributes(len(values))
    for name in values:
        _check_name(name)
    return {name: _read(name, value) for name, value in values.items()}


def read_system_attributes(values: Mapping[str, AttributeValue]) -> dict[str, Attribute]:
    """Return a message's system attributes: a sender may give the trace header, as a String, and no other."""
    for name in values:
        if name != TRACE_HEADER:
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                f"Message system attribute name '{shown(name)}' is invalid. A sender may give {TRACE_HEADER} only.",
            )
    read = {name: _read(name, value) for name, value in values.items()}
    for name, attribute in read.items():
        if attribute.type != "String":
            raise _refused(name, "must have the type 'String'", kind="system")
    return read


def write_attributes(attributes: Mapping[str, Attribute]) -> dict[str, AttributeValue]:
    """Return ``attributes`` as the wire has them."""
    return {
        name: AttributeValue(string_value=value.text, binary_value=value.data, data_type=value.type)
        for name, value in attributes.items()
    }


def choose(attributes: Mapping[str, Attribute], names: list[str]) -> dict[str, Attribute]:
    """Return those of ``attributes`` that ``names`` ask for.

    A name may be ``All``, ``*``, or a prefix followed by ``.*``; a name that no attribute can have chooses nothing.
    """
    exact = set(names)
    if "All" in exact or "*" in exact:
        return dict(attributes)
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in exact or name.startswith(prefixes)}


def _read(name: str, value: AttributeValue) -> Attribute:
    if value.string_list_values or value.binary_list_values:
        raise SqsError(
            UNSUPPORTED_OPERATION, "Message attribute list values in SendMessage operation are not supported."
        )
    if not value.data_type and not value.string_value and not value.binary_value:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"The message (user) attribute '{shown(name)}' must contain a non-empty message attribute value.",
        )
    kind = _kind(name, value.data_type)
    if kind == "Binary":
        return _read_binary(name, value)
    if value.binary_value is not None:
        raise _refused(name, f"has the type '{value.data_type}' and must use StringValue, not BinaryValue")
    if not value.string_value:
        raise _empty(name, value)
    check_text(value.string_value, f"the message attribute '{name}'", INVALID_PARAMETER_VALUE)
    if kind == "Number" and not is_number(value.string_value):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"Can't cast the value of message (user) attribute '{name}' to a number.",
        )
    return Attribute(type=value.data_type or "", text=value.string_value)


def _read_binary(name: str, value: AttributeValue) -> Attribute:
    if value.string_value is not None:
        raise _refused(name, f"has the type '{value.data_type}' and must use BinaryValue, not StringValue")
    if not value.binary_value:
        raise _empty(name, value)
    return Attribute(type=value.data_type or "", data=value.binary_value)


def _kind(name: str, label: str | None) -> str:
    if not label:
        raise _refused(name, "must contain a non-empty DataType")
    if len(label) > SQS_ATTRIBUTE_TYPE_CHARACTERS_MAX:
        raise SqsError(INVALID_PARAMETER_VALUE, f"Message (user) attribute type {_SHORTER}")
    match = _TYPE.fullmatch(label)
    if match is None:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"The type of message (user) attribute '{name}' is invalid. You must use only the following "
            "supported type prefixes: Binary, Number, String.",
        )
    check_text(label, f"the type of message attribute '{name}'", INVALID_PARAMETER_VALUE)
    return match[1]


def _check_name(name: str) -> None:
    if not name:
        raise SqsError(INVALID_PARAMETER_VALUE, "The request must contain non-empty message (user) attribute names.")
    if len(name) > SQS_ATTRIBUTE_NAME_CHARACTERS_MAX:
        raise SqsError(INVALID_PARAMETER_VALUE, f"Message (user) attribute name {_SHORTER}")
    if _RESERVED.match(name):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            f"These strings are reserved for internal use. Rename {shown(name)}.",
        )
    if not _NAME.fullmatch(name):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"The message attribute name '{shown(name)}' is invalid. Attribute name can contain "
            "A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) characters. "
            "Letters and digits may be of any script; no period may stand at an end or beside another.",
        )


def is_number(text: str) -> bool:
    """Tell whether ``text`` is a number as SQS has them: digits and exponent are bounded, and there is no infinity."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return False
    whole, fraction, exponent = match.groups(default="0")
    digits = (whole + fraction).lstrip("0")
    magnitude = len(digits) - len(fraction) - 1 + int(exponent)
    significant = digits.rstrip("0")
    if not significant:
        return True
    return len(significant) <= _NUMBER_DIGITS_MAX and _NUMBER_EXPONENT_MIN <= magnitude <= _NUMBER_EXPONENT_MAX


def _refused(name: str, reason: str, *, kind: str = "user") -> SqsError:
    return SqsError(INVALID_PARAMETER_VALUE, f"Message ({kind}) attribute '{shown(name)}' {reason}.")


def _empty(name: str, value: AttributeValue) -> SqsError:
    return _refused(name, f"must contain a non-empty value of type '{value.data_type}'")
