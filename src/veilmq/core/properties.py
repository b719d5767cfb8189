"""What a message carries beside its body: the user's attributes and the protocol's.

The engine keeps them as opaque bytes (MessagePack), empty when there are none, so that a message without any costs
nothing. Only the wire reads them, and the engine where a message becomes a dead letter of a FIFO queue.
"""

from collections.abc import Mapping

import msgspec


class Attribute(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One typed value; ``type`` is the full label with its custom suffix, for example ``Number.float``.

    Exactly one of ``text`` (string and number types) and ``data`` (binary types) is given.
    """

    type: str
    text: str | None = None
    data: bytes | None = None


class Properties(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The user's ``attributes`` by name, and the protocol's own (``system``), for example a trace header.

    ``group`` and ``dedup_id`` are the message's as they were sent; of a dead letter of a FIFO queue ``dedup_id`` is the
    text of its message id.
    """

    attributes: dict[str, Attribute] = {}
    system: dict[str, Attribute] = {}
    group: str | None = None
    dedup_id: str | None = None


NOTHING = Properties()
"""The properties of a message that has none."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Properties)


def encode(properties: Properties) -> bytes:
    """Return ``properties`` as bytes; empty bytes when there are none."""
    return b"" if properties == NOTHING else _encoder.encode(properties)


def decode(data: bytes) -> Properties:
    """Return what ``encode`` was given."""
    return _decoder.decode(data) if data else NOTHING


def attributes_bytes(attributes: Mapping[str, Attribute]) -> int:
    """Return how much ``attributes`` count towards a message's size: names, types and values."""
    return sum(
        len(name.encode()) + len(value.type.encode()) + len(_value_bytes(value)) for name, value in attributes.items()
    )


def _value_bytes(value: Attribute) -> bytes:
    return (value.text or "").encode() if value.data is None else value.data
