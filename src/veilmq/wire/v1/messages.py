"""A claimed message as a reader gets it, in JSON; ``arrow`` has the same columns as Arrow.

``attributes`` are texts; a value that is not of type String has its type in ``attribute_types``, which is null where
there is none, and one that is binary is in Base64.
"""

from base64 import b64encode

import msgspec

from veilmq.core import properties
from veilmq.core.claims import ClaimedMessage
from veilmq.core.properties import Attribute
from veilmq.wire.sqs.names import id_text
from veilmq.wire.sqs.parameters import sequence_text

STRING = "String"


class MessageRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message. Instants are milliseconds since the epoch; ``queue`` is the name without the account."""

    id: str
    body: str
    attributes: dict[str, str]
    attribute_types: dict[str, str] | None
    group: str | None
    sent_at_ms: int
    received_at_ms: int
    receive_count: int
    sequence_number: str | None
    queue: str


def texts(attributes: dict[str, Attribute]) -> dict[str, str]:
    """Return the values of ``attributes`` as text."""
    return {name: text_of(value) for name, value in attributes.items()}


def types(attributes: dict[str, Attribute]) -> dict[str, str] | None:
    """Return the types of those ``attributes`` that are no plain strings, ``None`` where all are."""
    return {name: value.type for name, value in attributes.items() if value.type != STRING} or None


def text_of(value: Attribute) -> str:
    """Return one value as text."""
    if value.text is not None:
        return value.text
    return b64encode(value.data or b"").decode()


def row(message: ClaimedMessage, queue: str) -> MessageRow:
    """Return ``message`` of ``queue``, a name without the account."""
    carried = properties.decode(message.properties)
    return MessageRow(
        id=id_text(message.id),
        body=message.body,
        attributes=texts(carried.attributes),
        attribute_types=types(carried.attributes),
        group=carried.group,
        sent_at_ms=message.sent_at_ms,
        received_at_ms=message.received_at_ms,
        receive_count=message.receive_count,
        sequence_number=sequence_text(message.sequence),
        queue=queue,
    )
