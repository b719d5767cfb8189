"""Reading a claim in bulk: what is asked, and the writers that turn messages into the bytes of an answer.

A read is answered from several pages of the engine. Whoever gathers them (the server) gives a writer a few messages at
a time, so that no step takes long, and stops when the writer has enough.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from veilmq.core.claims import ClaimedMessage, ReadClaim
from veilmq.core.commands import Command
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.v1.messages import row

CURSOR = "x-veilmq-cursor"
"""The header of an answer that tells where the next one begins; there is none after the last."""


class Writer(Protocol):
    """Makes the body of one answer."""

    content_type: bytes

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes the body has so far."""

    def add(self, messages: Sequence[ClaimedMessage]) -> None:
        """Take further messages."""

    def finish(self) -> bytes:
        """Return the body, once."""


class BulkRead(Command, frozen=True, kw_only=True):
    """Read as much of a claim as one answer holds, from ``first`` on. Answers ``Gathered``, or as ``ReadClaim``.

    ``writer`` makes one; it may have to import what it needs, and then takes long.
    """

    first: ReadClaim
    writer: Callable[[], Writer]

    @property
    def queue(self) -> str:
        """Return the full name of the queue."""
        return self.first.queue


class Gathered(msgspec.Struct, frozen=True, gc=False):
    """The body of an answer, and where the next one begins, empty after the last."""

    body: bytes
    content_type: bytes
    cursor: str


def answer(gathered: Gathered) -> Reply:
    """Return the reply with what was gathered."""
    headers = b"Content-Type: %b\r\n" % gathered.content_type
    if gathered.cursor:
        headers += f"{CURSOR}: {gathered.cursor}\r\n".encode()
    return Reply(200, headers, gathered.body)


class JsonWriter:
    """Writes ``{"messages": [...]}``."""

    content_type = b"application/json"

    def __init__(self, queue: str) -> None:
        """``queue`` is the name without the account."""
        self._queue = queue
        self._parts: list[bytes] = []
        self.size_bytes = 0

    def add(self, messages: Sequence[ClaimedMessage]) -> None:
        """Take further messages."""
        if messages:
            self._parts.append(_encode([row(message, self._queue) for message in messages])[1:-1])
            self.size_bytes += len(self._parts[-1])

    def finish(self) -> bytes:
        """Return the body."""
        return b'{"messages":[%b]}' % b",".join(self._parts)


_encode = msgspec.json.Encoder().encode
