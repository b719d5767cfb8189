"""One message on its way through this process, from its receive to its settle."""

from collections.abc import Callable

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.context import Context
from veilmq.consumer.leases import Lease
from veilmq.consumer.outcomes import Cause


class Delivery:
    """Mutable, and touched by the event loop's thread only; compared by identity."""

    __slots__ = ("cause", "context", "given_up", "interrupt", "lease", "message")

    def __init__(self, lease: Lease, context: Context) -> None:
        """Nothing has begun."""
        self.lease = lease
        self.message: ReceivedMessage = lease.message
        self.context = context
        self.cause: Cause | None = None
        self.interrupt: Callable[[Cause], object] | None = None
        """Set while the handler runs: stops it."""
        self.given_up = False
        """Set when the consumer stopped before the handler did: its end decides nothing any more."""

    @property
    def attempt(self) -> int:
        """Return which receive of the message this is, 1 for the first."""
        return self.message.receive_count

    def cancel(self, cause: Cause) -> None:
        """Stop the handler if it runs; the first cause counts."""
        if self.interrupt is None or self.cause is not None:
            return
        self.join(cause)
        self.interrupt(cause)

    def join(self, cause: Cause) -> None:
        """Take part in a cancellation that stops others too; a cause of its own counts first."""
        if self.cause is None:
            self.cause = cause
            self.context.stop(cause)
