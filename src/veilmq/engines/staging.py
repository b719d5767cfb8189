"""Staged messages as the store keeps them: in pieces, each so many as one slice of a publication moves.

A piece is one row with its messages encoded, so staging costs a row for some hundred of them and dropping it one
deletion. What a message may be was checked before: here it has no size any more, and a message of a FIFO queue brings
its deduplication id, made of its content where the queue says so at that moment.
"""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from veilmq.core import fifo
from veilmq.core.commands import NewMessage
from veilmq.core.errors import (
    DeduplicationIdMissing,
    GroupMissing,
    MessageTooLong,
    StageRefused,
    VeilmqError,
)
from veilmq.core.settings import QueueSettings

PIECE_MESSAGES = 500
PIECE_BYTES = 262_144


class _Kept(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    body: str
    properties: bytes
    delay_s: int | None
    priority: int
    group: str | None
    dedup_id: str | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Kept])


def check(messages: tuple[NewMessage, ...], settings: QueueSettings) -> None:
    """Raise ``StageRefused`` for the first message that a queue of these settings would not take."""
    for index, new in enumerate(messages):
        reason = _refusal(new, settings)
        if reason is not None:
            raise StageRefused(index, reason)


def _refusal(new: NewMessage, settings: QueueSettings) -> VeilmqError | None:
    if new.size_bytes > settings.message_bytes_max:
        return MessageTooLong(settings.message_bytes_max)
    if not settings.fifo:
        return None
    if new.group is None:
        return GroupMissing()
    if new.dedup_id is None and not settings.content_deduplication:
        return DeduplicationIdMissing()
    return None


def pieces(messages: tuple[NewMessage, ...], settings: QueueSettings) -> Iterator[tuple[int, bytes]]:
    """Yield the messages in pieces: how many, and their encoding."""
    named = [_named(new) for new in messages] if settings.fifo else messages
    start = size = 0
    for end, new in enumerate(named):
        size += _size(new)
        if end > start and (size > PIECE_BYTES or end - start == PIECE_MESSAGES):
            yield end - start, pack(named[start:end])
            start, size = end, _size(new)
    if start < len(named):
        yield len(named) - start, pack(named[start:])


def _named(new: NewMessage) -> NewMessage:
    return new if new.dedup_id is not None else replace(new, dedup_id=fifo.content_id(new.body))


def _size(new: NewMessage) -> int:
    return len(new.body) + len(new.properties)


def pack(messages: Sequence[NewMessage]) -> bytes:
    """Return the content of a piece."""
    return _encoder.encode(
        [_Kept(new.body, new.properties, new.delay_s, new.priority, new.group, new.dedup_id) for new in messages]
    )


def unpack(content: bytes) -> tuple[NewMessage, ...]:
    """Return the messages of a piece."""
    return tuple(
        NewMessage(
            body=kept.body,
            size_bytes=0,
            properties=kept.properties,
            delay_s=kept.delay_s,
            priority=kept.priority,
            group=kept.group,
            dedup_id=kept.dedup_id,
        )
        for kept in _decoder.decode(content)
    )
