"""Staging in bulk: the messages of a request, read a few at a time, and the command that they make together.

Whoever reads them (the server) does so between other requests, so that no step takes long.
"""

from collections.abc import Callable

from msgspec.structs import replace

from veilmq.core import limits
from veilmq.core.commands import Command, NewMessage
from veilmq.core.publications import Stage
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.errors import INVALID_REQUEST
from veilmq.wire.v1.outgoing import Pieces


class BulkStage(Command, frozen=True, kw_only=True):
    """Stage what a request has. Answers as ``Stage``, or with the ``SqsError`` that reading raises.

    ``first`` is the command without its messages. ``read`` begins to read them; it may have to import what it needs,
    and then takes long.
    """

    first: Stage
    read: Callable[[], Pieces]

    @property
    def queue(self) -> str:
        """Return the full name of the queue."""
        return self.first.queue

    def whole(self, messages: list[NewMessage]) -> Stage:
        """Return the command with all that was read; raises ``SqsError`` where that is too much for one."""
        size_bytes = sum([message.size_bytes for message in messages])
        if size_bytes > limits.STAGE_BYTES_MAX:
            raise SqsError(
                INVALID_REQUEST,
                f"{size_bytes:,} bytes of messages are too many for one call; "
                f"send {limits.STAGE_BYTES_MAX:,} at the most.",
            )
        return replace(self.first, messages=tuple(messages))
