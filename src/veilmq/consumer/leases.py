"""Leases: what is known of one message from its receive to its confirmed settle, and what those of a handler share.

States: **HELD** until the deadline passes without proof that it was moved, then **SUSPECT**: somebody else may have the
message. Only an answer that came *before* the old deadline is proof; a later one is none, since a service may answer
200 to a receipt that does nothing. **LOST**: the server says so, or the queue is FIFO (there a late receipt is dead),
or the subscription is strict. **ENDED**: the twelve hours that the service allows are over. A lease that is not HELD
must not be released: that could make a message visible which another consumer works on.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import Enum
from typing import Protocol

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.measures import Measures, Renewing
from veilmq.consumer.policies import Measured, Policy


class LeaseState(Enum):
    """How sure it is that a message is still ours."""

    HELD = "held"
    SUSPECT = "suspect"
    LOST = "lost"
    ENDED = "ended"


class LeaseLost(Exception):
    """The message may be with another consumer: do nothing with it that cannot be done twice."""

    def __init__(self, state: LeaseState) -> None:
        """``state`` is what is known."""
        super().__init__(f"The lease is {state.value}; stop, and leave the message to whoever has it now.")
        self.state = state


class Watcher(Protocol):
    """Is told what happens to leases; called in the thread in which it happens, and must return soon."""

    def changed(self, lease: "Lease", state: LeaseState) -> object:
        """``lease`` is now in ``state``, which is not HELD."""

    def ending(self, lease: "Lease", left_s: float) -> object:
        """``lease`` ends for good in ``left_s`` seconds: the twelve hours of its message are nearly over."""


class Subscription:
    """What the leases of one handler have in common."""

    __slots__ = ("cap_s", "fifo", "live", "measured", "measures", "policy", "queue", "strict")

    def __init__(
        self, queue: str, policy: Policy, renewing: Renewing, *, fifo: bool, strict: bool, cap_s: float | None
    ) -> None:
        """Made by ``LeaseTable.subscribe``."""
        self.queue = queue
        self.policy = policy
        self.fifo = fifo
        self.strict = strict
        self.cap_s = cap_s
        self.live: dict[int, Lease] = {}
        self.measures = Measures(renewing, self._ages_s)
        self.measured = Measured()
        """What was observed lately; brought up to date with every receive and renewal."""

    def _ages_s(self, now_s: float) -> Iterator[float]:
        return (now_s - lease.received_at_s for lease in self.live.values())


class Lease:
    """One message in the hands of this process: to be read; instants are seconds of the consumer's clock."""

    __slots__ = (
        "begun_at_s",
        "closed",
        "deleting",
        "due_at_s",
        "expires_at_s",
        "fences",
        "final",
        "in_flight",
        "jitter",
        "message",
        "number",
        "on_renewed",
        "received_at_s",
        "renewals",
        "renewed_at_s",
        "requested_at_s",
        "started_at_s",
        "state",
        "subscription",
        "timeout_s",
        "tries",
        "wanted_at_s",
        "warned",
        "withdrawal",
    )

    def __init__(
        self,
        number: int,
        message: ReceivedMessage,
        subscription: Subscription,
        *,
        requested_at_s: float,
        timeout_s: int,
    ) -> None:
        """Made by ``LeaseTable.take``, which fills in the rest."""
        self.number = number
        self.message = message
        self.subscription = subscription
        self.requested_at_s = requested_at_s
        self.timeout_s = timeout_s
        self.state = LeaseState.HELD
        self.received_at_s = self.renewed_at_s = self.expires_at_s = requested_at_s
        self.due_at_s: float | None = None
        self.started_at_s: float | None = None
        self.begun_at_s: float | None = None
        self.wanted_at_s = 0.0
        self.tries = 0
        self.renewals = 0
        self.jitter = 0.0
        self.in_flight = self.closed = self.final = self.warned = self.deleting = False
        self.withdrawal: Future[bool] | None = None
        self.fences: list[Future[LeaseState]] = []
        self.on_renewed: Callable[[], object] | None = None
        """Called after each renewal, in the renewer's thread."""

    @property
    def measured(self) -> Measured:
        """What was observed lately of messages like this one, and of renewals."""
        return self.subscription.measured

    @property
    def is_renewable(self) -> bool:
        """Whether a renewal may do any good; that of a lease which is SUSPECT may still hide the message in time."""
        return (
            self.state in (LeaseState.HELD, LeaseState.SUSPECT)
            and self.withdrawal is None
            and not self.closed
            and not self.final
        )

    def remaining_s(self, now_s: float) -> float:
        """Return how long it lasts yet; negative when it has passed."""
        return self.expires_at_s - now_s

    def elapsed_s(self, now_s: float) -> float:
        """Return the seconds of the twelve hours that have passed."""
        return now_s - self.requested_at_s

    def state_at(self, now_s: float) -> LeaseState:
        """Return the state at ``now_s``, also when the renewer has not come to notice the deadline."""
        if self.state is LeaseState.HELD and now_s >= self.expires_at_s:
            return lapsed(self)
        return self.state


class Unwatched:
    """A ``Watcher`` that looks away."""

    def changed(self, lease: Lease, state: LeaseState) -> object:
        """Do nothing."""

    def ending(self, lease: Lease, left_s: float) -> object:
        """Do nothing."""


def lapsed(lease: Lease) -> LeaseState:
    """Return the state of a lease whose deadline has passed without proof."""
    subscription = lease.subscription
    if lease.final:
        return LeaseState.ENDED
    if subscription.strict or (subscription.fifo and not subscription.policy.server_decides):
        return LeaseState.LOST
    return LeaseState.SUSPECT
