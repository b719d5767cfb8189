"""What a codec makes of a request that it has understood; the same to the server whatever the protocol."""

from typing import Any, Protocol

from veilmq.core.commands import Command
from veilmq.wire.sqs.reply import Reply


class Call(Protocol):
    """The ``command`` to submit, and the way from its result to bytes.

    ``wait_s`` is how long an empty result may wait for a message: 0 unless this is a receive, ``None`` for as long as
    the queue itself says.
    """

    @property
    def command(self) -> Command:
        """Return what to ask of the engine."""

    @property
    def wait_s(self) -> int | None:
        """Return for how many seconds an empty result may wait."""

    def encode(self, result: Any) -> Reply:
        """Return the reply for the command's result or its ``VeilmqError``; may be asked more than once."""
