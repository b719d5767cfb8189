"""A line: one subscription that is pushed, and what is known of the next message of its queue."""

from collections.abc import Callable

from veilmq.core.ports import Clock, Timer
from veilmq.core.topics import Subscription, push_queue
from veilmq.server.pushing.receivers import Receiver


class Line:
    """Knows when to ask; ``ready`` is called with the line when that is now, perhaps more than once."""

    __slots__ = ("_clock", "_due_ms", "_ready", "_timer", "asking", "queue", "receiver", "subscription")

    def __init__(
        self, subscription: Subscription, receiver: Receiver, *, clock: Clock, ready: Callable[["Line"], object]
    ) -> None:
        """Begin with nothing known."""
        self.subscription = subscription
        self.receiver = receiver
        self.queue = push_queue(subscription.topic, subscription.name)
        self.asking = False
        self._clock = clock
        self._ready = ready
        self._due_ms: int | None = None
        self._timer: Timer | None = None

    def wake(self, due_ms: int) -> None:
        """Hear that the queue has, or will have, a message at ``due_ms``."""
        if self._due_ms is None or due_ms < self._due_ms:
            self._due_ms = due_ms
            self.look()

    def ask(self) -> None:
        """Be asked: the answer says anew what is known."""
        self.asking = True
        self.rest()

    def look(self) -> None:
        """Be ready if there should be a message by now; if later, make sure to look then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due_ms is None or self.asking:
            return
        if self._due_ms <= self._clock.now_ms():
            self._ready(self)
        else:
            self._timer = self._clock.call_at(self._due_ms, self.look)

    def rest(self) -> None:
        """Forget what is known."""
        self._due_ms = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
