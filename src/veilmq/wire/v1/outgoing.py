"""Messages that a writer stages: from the rows of JSON, or the columns of Arrow, to what a command has.

The rules for a message are those of SendMessage (``wire.sqs``), but for delays, which may be as long as the engine
takes. Types of attributes are given beside their values, where they are not ``String``; a binary value is in Base64.

Making thousands of messages takes the processor some tenths of a second. So they are made ``PIECE_ROWS`` at a time, and
whoever asked (the server) does something else between two pieces.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from veilmq.core import limits, properties
from veilmq.core.commands import NewMessage
from veilmq.core.properties import Attribute, Properties, attributes_bytes
from veilmq.wire.sqs.attributes import read_attributes
from veilmq.wire.sqs.callers import SENDER_ID, Caller
from veilmq.wire.sqs.errors import SqsError, too_many_attributes
from veilmq.wire.sqs.names import is_fifo
from veilmq.wire.sqs.parameters import DEDUPLICATION, GROUP, checked_id
from veilmq.wire.sqs.shapes import AttributeValue
from veilmq.wire.sqs.text import check_text
from veilmq.wire.v1.errors import INVALID_REQUEST, RowRefused
from veilmq.wire.v1.messages import STRING

PIECE_ROWS = 100

_BODY = "the message body"
_BINARY = "Binary"
_NOTHING: dict[str, str] = {}


class OutgoingRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One message; ``delay_s`` is ``None`` for the queue's own delay."""

    body: str
    attributes: dict[str, str] | None = None
    attribute_types: dict[str, str] | None = None
    group: str | None = None
    dedup_id: str | None = None
    delay_s: int | None = None


Pieces = Iterator[tuple[NewMessage, ...]]
"""Messages, a few at a time."""


def in_pieces(count: int, make: Callable[[int, int], tuple[NewMessage, ...]], *, behind: int = 0) -> Pieces:
    """Yield what ``make`` makes of ``count`` rows, each time from one up to another, which follow ``behind`` others."""
    for first in range(0, count, PIECE_ROWS):
        try:
            yield make(first, min(first + PIECE_ROWS, count))
        except RowRefused as error:
            raise error.behind(behind + first) from None


class Outgoing:
    """Makes messages for one queue, sent by one caller."""

    def __init__(self, *, queue: str, caller: Caller | None) -> None:
        """``queue`` is its full name; ``caller`` is who signed the request, if anybody is asked."""
        self._fifo = is_fifo(queue)
        self._sent = b"" if caller is None else caller.sent
        self._system: dict[str, Attribute] = {} if caller is None else {SENDER_ID: caller.sender}

    def from_rows(self, rows: Sequence[OutgoingRow]) -> tuple[NewMessage, ...]:
        """Return the messages; raises ``RowRefused`` for the first that cannot be one."""
        return tuple([self._checked(index, row) for index, row in enumerate(rows)])

    def from_bodies(self, bodies: Sequence[str]) -> tuple[NewMessage, ...]:
        """Return messages that are nothing but their bodies; raises ``RowRefused``."""
        together = "".join(bodies)
        plain = together.isascii() and all(bodies)
        if plain:
            try:
                check_text(together, _BODY)
            except SqsError:
                plain = False
        if not plain:  # one by one, to tell which
            return self.from_rows([OutgoingRow(body=body) for body in bodies])
        return tuple([NewMessage(body=body, size_bytes=len(body), properties=self._sent) for body in bodies])

    def _checked(self, index: int, row: OutgoingRow) -> NewMessage:
        try:
            return self._message(row)
        except SqsError as error:
            raise RowRefused(index, error) from None

    def _message(self, row: OutgoingRow) -> NewMessage:
        body = row.body
        if not body:
            raise SqsError(INVALID_REQUEST, "It has no body; a message has at least one character.")
        check_text(body, _BODY)
        size_bytes = len(body) if body.isascii() else len(body.encode())
        delay_s = self._delay(row.delay_s)
        if not (row.attributes or row.attribute_types or row.group is not None or row.dedup_id is not None):
            return NewMessage(body=body, size_bytes=size_bytes, properties=self._sent, delay_s=delay_s)
        attributes = _attributes(row.attributes or _NOTHING, row.attribute_types or _NOTHING)
        group, dedup_id = checked_id(GROUP, row.group), self._dedup_id(row.dedup_id)
        carried = Properties(attributes=attributes, system=self._system, group=group, dedup_id=dedup_id)
        return NewMessage(
            body=body,
            size_bytes=size_bytes + attributes_bytes(attributes),
            properties=properties.encode(carried),
            delay_s=delay_s,
            group=group,
            dedup_id=dedup_id,
        )

    def _delay(self, delay_s: int | None) -> int | None:
        if delay_s is None:
            return None
        if not limits.DELAY_S.holds(delay_s):
            raise SqsError(INVALID_REQUEST, f"delay_s must be 0 to {limits.DELAY_S.maximum}, and is {delay_s}.")
        if not self._fifo:
            return delay_s
        if delay_s:
            raise SqsError(INVALID_REQUEST, "delay_s must be 0: a FIFO queue has one delay for all of its messages.")
        return None

    def _dedup_id(self, dedup_id: str | None) -> str | None:
        if dedup_id is not None and not self._fifo:
            raise SqsError(INVALID_REQUEST, "dedup_id means nothing here: the queue is no FIFO queue; leave it out.")
        return checked_id(DEDUPLICATION, dedup_id)


def _attributes(texts: Mapping[str, str], types: Mapping[str, str]) -> dict[str, Attribute]:
    for given in (texts, types):
        if len(given) > limits.SQS_MESSAGE_ATTRIBUTES_MAX:
            raise too_many_attributes(len(given))
    for name in types:
        if name not in texts:
            raise SqsError(INVALID_REQUEST, f"attribute_types has {name[:64]!r}, which attributes has not.")
    return read_attributes({name: _value(name, text, types.get(name, STRING)) for name, text in texts.items()})


def _value(name: str, text: str, label: str) -> AttributeValue:
    if label.partition(".")[0] != _BINARY:
        return AttributeValue(string_value=text, data_type=label)
    try:
        return AttributeValue(binary_value=b64decode(text, validate=True), data_type=label)
    except (NotBase64, ValueError):
        raise SqsError(INVALID_REQUEST, f"The attribute {name[:64]!r} is binary and must be Base64.") from None
