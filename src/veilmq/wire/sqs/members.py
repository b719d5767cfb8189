"""Members of requests and replies: their names and types, checks of numbers, ids and text, attributes, batches."""

import html
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from veilmq.core import Value, limits
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import Range
from veilmq.core.messages import Attribute
from veilmq.wire.exchange import Plan, RequestContext, md5
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import Code, SqsError, truncated

Integer = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""An integer of the service model; larger ones are conversion errors, as on AWS."""

_ACRONYMS = {"aws": "AWS", "md5": "MD5"}
_LOWER_CASE = {"tags"}


def wire_name(field: str) -> str:
    """Return the name of the member for a ``field`` of a struct."""
    if field in _LOWER_CASE:
        return field
    return "".join(_ACRONYMS.get(word) or word.capitalize() for word in field.split("_"))


class Shape(Value, omit_defaults=True, rename=wire_name):
    """Base class of requests, results and their parts."""


class AttributeValue(Shape):
    """One message attribute; the lists are reserved by AWS and must be empty."""

    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None
    data_type: str | None = None


# The characters of messages are those of XML 1.0 (SQS API Reference, SendMessage, ``MessageBody``). Most bodies are
# ASCII, and are checked by two scans in C; the regular expression is for the others.

LEGAL = r"\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff"
"""The characters of XML 1.0, for a class of a regular expression."""

ILLEGAL = re.compile(f"[^{LEGAL}]")
"""A character that is not in XML 1.0."""

LEGAL_ASCII = bytes([code if code >= 0x20 or code in b"\t\n\r" else code ^ 0x80 for code in range(256)])
"""A table for ``bytes.translate`` (the fastest check) that changes all bytes but the legal ASCII characters."""
_ALLOWED = "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]"


def is_legal(text: str) -> bool:
    """Return whether SQS accepts every character of ``text``."""
    if text.isascii():
        data = text.encode()
        return data.translate(LEGAL_ASCII) == data
    return ILLEGAL.search(text) is None


def escaped(text: str) -> str:
    """Return ``text`` escaped for XML content, with U+FFFD for characters that are not in XML 1.0.

    A carriage return is escaped too, because a parser would read it as a line feed.
    """
    if text.isascii() and text.isprintable():
        return html.escape(text, quote=False)
    return html.escape(ILLEGAL.sub("\ufffd", text), quote=False).replace("\r", "&#xD;")


def check_text(text: str, place: str, code: Code = errors.INVALID_MESSAGE_CONTENTS) -> None:
    """Raise ``code`` if ``text``, at the location ``place``, has a character that SQS refuses."""
    if not is_legal(text):
        illegal = next(ILLEGAL.finditer(text))[0]
        raise SqsError(
            code,
            f"Invalid binary character '#x{ord(illegal):X}' was found in {place}, "
            f"the set of allowed characters is {_ALLOWED}.",
        )


# Checks of single members. The ids that clients choose (message group, deduplication, receive attempt) have 1 to 128
# ASCII letters, digits and punctuation characters (SQS API Reference, SendMessage and ReceiveMessage).

GROUP = "MessageGroupId"
DEDUPLICATION = "MessageDeduplicationId"
ATTEMPT = "ReceiveRequestAttemptId"

CHARACTERS_MAX: dict[str, int] = {
    GROUP: limits.SQS_GROUP_ID_CHARACTERS_MAX,
    DEDUPLICATION: limits.SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
    ATTEMPT: limits.SQS_ATTEMPT_ID_CHARACTERS_MAX,
}
"""Member → the maximum length of its id."""

_ID_CHARACTERS = re.compile("[!-~]+")
_SEQUENCE_BASE = 10**19  # makes the 63-bit numbers of the engine 20 digits long, as on AWS
_BETWEEN = "Must be between {0.minimum} and {0.maximum}, if provided."
_COMPARED = "Must be >= {0.minimum} and <= {0.maximum}, if provided."
_DELAY = "DelaySeconds must be >= {0.minimum} and <= {0.maximum}."

# Member → its range, and the text of SQS for other numbers. If an action has a range of its own, the key is
# ``Action.Member``.
NUMBERS: dict[str, tuple[Range, str]] = {
    "MaxNumberOfMessages": (limits.SQS_RECEIVE_COUNT, _BETWEEN),
    "MaxResults": (limits.SQS_LIST_RESULTS, _BETWEEN),
    "ListMessageMoveTasks.MaxResults": (limits.SQS_MOVE_TASK_RESULTS, _BETWEEN),
    "MaxNumberOfMessagesPerSecond": (limits.SQS_MOVES_PER_S, _BETWEEN),
    "VisibilityTimeout": (limits.VISIBILITY_TIMEOUT_S, _BETWEEN),
    "WaitTimeSeconds": (limits.SQS_RECEIVE_WAIT_S, _COMPARED),
    "DelaySeconds": (limits.SQS_DELAY_S, _DELAY),
}


def check_number(name: str, value: int | None) -> None:
    """Raise InvalidParameterValue unless ``value`` is ``None`` or in the range of the member ``name``."""
    if value is None:
        return
    allowed, reason = NUMBERS[name]
    if not allowed.minimum <= value <= allowed.maximum:
        raise errors.invalid_parameter(name.rpartition(".")[2], value, reason.format(allowed))


def required(name: str, value: str | None) -> str:
    """Return ``value``; raises MissingParameter if the member ``name`` is absent or empty."""
    if not value:
        raise errors.missing_parameter(name)
    return value


def checked_id(name: str, value: str | None) -> str | None:
    """Return the id ``value`` of the member ``name``, which may be absent; raises InvalidParameterValue."""
    if value is None:
        return None
    characters_max = CHARACTERS_MAX[name]
    if len(value) > characters_max or not _ID_CHARACTERS.fullmatch(value):
        why = f"{name} can only include alphanumeric and punctuation characters. 1 to {characters_max} in length."
        raise errors.invalid_parameter(name, value, why)
    return value


def sequence_text(sequence: int | None) -> str | None:
    """Return a sequence number as text; texts sort like the numbers."""
    return None if sequence is None else str(_SEQUENCE_BASE + sequence)


def unwrap(result: Any) -> Any:
    """Return ``result``; raises a ``VeilmqError`` as the ``SqsError`` that it becomes."""
    if isinstance(result, VeilmqError):
        raise errors.from_core(result)
    return result


def empty_response(result: Any) -> None:
    """Respond with an empty object, or raise like ``unwrap``."""
    unwrap(result)


# Message attributes. The rules are those of the SQS Developer Guide ("Amazon SQS message metadata"):
#
# - A name has letters and digits (of any script, as the service accepts), ``_``, ``-`` and ``.``. It does not begin or
#   end with a period, has no two periods in a row, and does not begin with ``AWS.`` or ``Amazon.``.
# - A type is ``String``, ``Number`` or ``Binary``, with an optional suffix after a period.
# - A number has at most 38 significant digits and is between 10^-128 and 10^126.

TRACE_HEADER = "AWSTraceHeader"

_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_RESERVED = re.compile(r"(?i:aws|amazon)\.")
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?=\.?[0-9])([0-9]*+)\.?([0-9]*+)(?:[eE]([+-]?[0-9]{1,6}))?")  # never backtracks
_SHORTER = "must be shorter than 256 bytes. Give at most 256 characters."
_NUMBER_DIGITS_MAX = 38
_NUMBER_EXPONENT_MIN = -128
_NUMBER_EXPONENT_MAX = 126


def read_attributes(
    values: Mapping[str, AttributeValue], maximum: int = limits.SQS_MESSAGE_ATTRIBUTES_MAX
) -> dict[str, Attribute]:
    """Return the attributes of a message; raises InvalidParameterValue."""
    if len(values) > maximum:
        raise errors.too_many_attributes(len(values), maximum)
    for name in values:
        _check_name(name)
    return {name: _read(name, value) for name, value in values.items()}


def read_system_attributes(values: Mapping[str, AttributeValue]) -> dict[str, Attribute]:
    """Return the system attributes of a message; senders may set only the trace header, a String."""
    for name in values:
        if name != TRACE_HEADER:
            why = (
                f"Message system attribute name '{truncated(name)}' is invalid. A sender may give {TRACE_HEADER} only."
            )
            raise errors.invalid(why)
    read = {name: _read(name, value) for name, value in values.items()}
    for name, attribute in read.items():
        if attribute.type != "String":
            raise _invalid_attribute(name, "must have the type 'String'", kind="system")
    return read


def write_attributes(attributes: Mapping[str, Attribute]) -> dict[str, AttributeValue]:
    return {
        name: AttributeValue(string_value=value.text, binary_value=value.data, data_type=value.type)
        for name, value in attributes.items()
    }


def select_attributes(attributes: Mapping[str, Attribute], names: list[str]) -> dict[str, Attribute]:
    """Return the ``attributes`` selected by ``names``: exact names, prefixes followed by ``.*``, ``All`` or ``*``."""
    if "All" in names or "*" in names:
        return dict(attributes)
    exact, prefixes = frozenset(names), tuple(name[:-2] for name in names if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in exact or name.startswith(prefixes)}


def _read(name: str, value: AttributeValue) -> Attribute:
    if value.string_list_values or value.binary_list_values:
        why = "Message attribute list values in SendMessage operation are not supported."
        raise SqsError(errors.UNSUPPORTED_OPERATION, why)
    if not value.data_type and not value.string_value and not value.binary_value:
        why = f"The message (user) attribute '{truncated(name)}' must contain a non-empty message attribute value."
        raise errors.invalid(why)
    label = value.data_type
    if not label:
        raise _invalid_attribute(name, "must contain a non-empty DataType")
    if len(label) > limits.SQS_ATTRIBUTE_TYPE_CHARACTERS_MAX:
        raise errors.invalid(f"Message (user) attribute type {_SHORTER}")
    match = _TYPE.fullmatch(label)
    if match is None:
        raise errors.invalid(
            f"The type of message (user) attribute '{name}' is invalid. You must use only the following "
            "supported type prefixes: Binary, Number, String."
        )
    check_text(label, f"the type of message attribute '{name}'", errors.INVALID_PARAMETER_VALUE)
    if match[1] == "Binary":
        if value.string_value is not None:
            raise _invalid_attribute(name, f"has the type '{label}' and must use BinaryValue, not StringValue")
        if not value.binary_value:
            raise _invalid_attribute(name, f"must contain a non-empty value of type '{label}'")
        return Attribute(type=label, data=value.binary_value)
    if value.binary_value is not None:
        raise _invalid_attribute(name, f"has the type '{label}' and must use StringValue, not BinaryValue")
    if not value.string_value:
        raise _invalid_attribute(name, f"must contain a non-empty value of type '{label}'")
    check_text(value.string_value, f"the message attribute '{name}'", errors.INVALID_PARAMETER_VALUE)
    if match[1] == "Number" and not is_number(value.string_value):
        raise errors.invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    return Attribute(type=label, text=value.string_value)


def _check_name(name: str) -> None:
    if not name:
        raise errors.invalid("The request must contain non-empty message (user) attribute names.")
    if len(name) > limits.SQS_ATTRIBUTE_NAME_CHARACTERS_MAX:
        raise errors.invalid(f"Message (user) attribute name {_SHORTER}")
    if _RESERVED.match(name):
        raise errors.invalid(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            f"These strings are reserved for internal use. Rename {truncated(name)}."
        )
    if not _NAME.fullmatch(name):
        raise errors.invalid(
            f"The message attribute name '{truncated(name)}' is invalid. Attribute name can contain "
            "A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) characters. "
            "Letters and digits may be of any script; no period may stand at an end or beside another."
        )


def is_number(text: str) -> bool:
    """Return whether ``text`` is a number within the limits of SQS."""
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


def _invalid_attribute(name: str, reason: str, *, kind: str = "user") -> SqsError:
    return errors.invalid(f"Message ({kind}) attribute '{truncated(name)}' {reason}.")


def attributes_md5(attributes: Mapping[str, Attribute]) -> str | None:
    """Return the MD5 of message attributes or message system attributes, ``None`` for none; clients verify it.

    It covers name, type and value of each attribute, by name, each with its length in four bytes (big-endian), and
    before the value one byte: 1 for text, 2 for binary (SQS Developer Guide, "Calculating the MD5 message digest for
    message attributes").
    """
    if not attributes:
        return None
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        digest.update(_length_prefixed(name.encode()) + _length_prefixed(attribute.type.encode()))
        if attribute.data is None:
            digest.update(b"\x01" + _length_prefixed((attribute.text or "").encode()))
        else:
            digest.update(b"\x02" + _length_prefixed(attribute.data))
    return digest.hexdigest()


def _length_prefixed(value: bytes) -> bytes:
    return len(value).to_bytes(4) + value


class Request(Shape):
    """Base class of requests, each named after its action."""

    def plan(self, context: RequestContext) -> Plan:
        """Check the request and return its plan; raises ``SqsError``."""
        raise NotImplementedError


class QueueRequest(Request):
    """Base class of requests on one queue."""

    queue_url: str | None = None


class QueueUrlResult(Shape):
    """The result of CreateQueue and GetQueueUrl."""

    queue_url: str


class SendMessageResult(Shape, kw_only=True):
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    message_id: str
    sequence_number: str | None = None


class SendMessageBatchResultEntry(SendMessageResult, kw_only=True):
    """A stored message of SendMessageBatch."""

    id: str


class BatchResultEntry(Shape):
    """A successful entry of DeleteMessageBatch or ChangeMessageVisibilityBatch."""

    id: str


class ChangedResultEntry(BatchResultEntry):
    """The same, with members of veilmq that clients of SQS ignore.

    - ``veilmq_hidden_for_ms``: the new timeout, if the change was made.
    - ``veilmq_receipt``: ``superseded``, or ``gone`` for a delete, if the entry succeeded by the rules of SQS without
      any effect; ``earlier`` if it had effect although the message has been received again since.
    """

    veilmq_hidden_for_ms: int | None = None
    veilmq_receipt: str | None = None


class BatchResultErrorEntry(Shape):
    """A failed entry of a batch."""

    id: str
    sender_fault: bool
    code: str
    message: str


class BatchResult(Shape):
    """The result of a batch action."""

    successful: list[SendMessageBatchResultEntry] | list[BatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


# Batches. A request is refused if it has no entries, more than ten, or ids that are missing, malformed or repeated.
# Otherwise each entry succeeds or fails alone; an entry that fails a check here is not submitted to the engine.

_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.SQS_BATCH_ENTRY_ID_CHARACTERS_MAX}}}")
_ENTRY_ID_RULE = (
    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
    f"It can be at most {limits.SQS_BATCH_ENTRY_ID_CHARACTERS_MAX} letters long."
)


class Batch:
    """The entries of a batch request: ``items``, prepared for the engine, and the entries that failed their checks."""

    __slots__ = ("_failed", "_ids", "items")

    def __init__(self, request: Any, prepare: Callable[[Any], Any]) -> None:
        """Check the ids of the entries and ``prepare`` each entry, which raises ``SqsError`` for that entry alone."""
        entries, kind = request.entries, f"{type(request).__name__}RequestEntry"
        if entries is None:
            raise errors.missing_parameter("Entries")
        if not entries:
            raise SqsError(errors.EMPTY_BATCH_REQUEST, f"There should be at least one {kind} in the request.")
        if len(entries) > limits.SQS_BATCH_ENTRIES_MAX:
            raise errors.too_many_entries(len(entries))
        seen: set[str] = set()
        for place, entry in enumerate(entries, start=1):
            if entry.id is None:
                raise errors.missing_parameter(f"{kind}.{place}.Id")
            if not _ID.fullmatch(entry.id):
                raise SqsError(errors.INVALID_ENTRY_ID, _ENTRY_ID_RULE)
            if entry.id in seen:
                raise SqsError(errors.ENTRY_IDS_NOT_DISTINCT, f"Id {entry.id} repeated.")
            seen.add(entry.id)
        self._ids: list[str] = []
        self.items: list[Any] = []
        self._failed: list[BatchResultErrorEntry] = []
        for entry in entries:
            try:
                self.items.append(prepare(entry))
                self._ids.append(entry.id)
            except SqsError as error:
                self._failed.append(_error_entry(entry.id, error))

    def respond(self, results: Any, success: Callable[[str, Any, Any], Any]) -> BatchResult:
        """Return the response; ``results`` has an outcome for each item, in order.

        ``success(id, item, outcome)`` returns the result entry, or raises ``SqsError``.
        """
        successful = []
        failed = list(self._failed)
        for identifier, item, outcome in zip(self._ids, self.items, unwrap(results), strict=True):
            try:
                successful.append(success(identifier, item, outcome))
            except SqsError as error:
                failed.append(_error_entry(identifier, error))
        return BatchResult(successful=successful or None, failed=failed or None)


def _error_entry(identifier: str, error: SqsError) -> BatchResultErrorEntry:
    code = error.code
    return BatchResultErrorEntry(
        id=identifier, sender_fault=code.fault == "Sender", code=code.query, message=error.message
    )
