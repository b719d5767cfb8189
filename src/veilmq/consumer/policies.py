"""When a lease is renewed, and for how long: pure functions of the lease and of the instant, nothing else.

A policy decides; the renewer asks it, clamps what it wants to what the service allows (``allowed_s``) and does it. A
lease is read through ``Terms``; policies never change one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from veilmq.core.limits import LEASE_S_MAX

LIMIT_MARGIN_S = 2
"""No renewal asks for the last two seconds of the twelve hours: the server may have begun to count before us."""

Duration = float | timedelta
"""Seconds, or a ``timedelta``."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was observed lately, in seconds; ``None`` where nothing was yet.

    ``hold_s`` is the 99th percentile from receive to confirmed settle, of finished and of running work; ``renewal_s``
    that of renewals, retries included; ``lateness_s`` that of how late renewals began; ``call_s`` that of the single
    calls which were answered.
    """

    hold_s: float | None = None
    renewal_s: float | None = None
    renewals: int = 0
    lateness_s: float | None = None
    call_s: float | None = None


class Terms(Protocol):
    """What a policy sees of a lease; instants are those of the consumer's clock."""

    @property
    def timeout_s(self) -> int:
        """The visibility timeout with which the message was received."""

    @property
    def received_at_s(self) -> float:
        """When the answer with the message came."""

    @property
    def started_at_s(self) -> float | None:
        """When its handler began; ``None`` while it waits for its turn."""

    @property
    def renewed_at_s(self) -> float:
        """When the latest renewal was sent that was not refused, else ``received_at_s``."""

    @property
    def expires_at_s(self) -> float:
        """When it ends, for all that is known here."""

    @property
    def jitter(self) -> float:
        """A number from 0 to 1, drawn anew for each renewal."""

    @property
    def measured(self) -> Measured:
        """What was observed lately of messages like this one, and of renewals."""


class Policy(Protocol):
    """How leases are kept. All methods are pure."""

    @property
    def timely_only(self) -> bool:
        """Whether renewals hold due leases only, instead of taking along the ones that are due next."""

    @property
    def queue_decides(self) -> bool:
        """Whether a receive for which the policy has no timeout names none, instead of the queue's own."""

    @property
    def server_decides(self) -> bool:
        """Whether a lease past its end counts as lost only when the server says so, in FIFO queues too."""

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the visibility timeout that a receive should have; ``None``: that of the queue."""

    def first_expiry_s(self, *, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
        """Return when a lease ends whose receive was answered at ``answered_at_s``."""

    def renew_at_s(self, lease: Terms, now_s: float) -> float:
        """Return when to renew ``lease`` next, ``now_s`` or earlier for at once."""

    def is_over(self, lease: Terms, at_s: float) -> bool:
        """Tell whether the policy renews ``lease`` no more at ``at_s``, whatever becomes of it."""

    def extension_s(self, lease: Terms, now_s: float) -> int:
        """Return for how many seconds from ``now_s`` on ``lease`` is to be renewed."""


def seconds(duration: Duration) -> float:
    """Return ``duration`` in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def allowed_s(wanted_s: int, *, elapsed_s: float) -> int:
    """Return as much of ``wanted_s`` as may be asked ``elapsed_s`` after the receive was sent; 0 or less: nothing."""
    return min(wanted_s, int(LEASE_S_MAX - LIMIT_MARGIN_S - elapsed_s))


def checked_timeout_s(timeout_s: int) -> int:
    """Return ``timeout_s``, the visibility timeout of receives; raises ``ValueError`` for one that keeps nothing."""
    if not 1 <= timeout_s <= LEASE_S_MAX:
        raise ValueError(
            f"a visibility timeout of {timeout_s} s cannot be kept by renewals; use 1 to {LEASE_S_MAX} seconds"
        )
    return timeout_s


def expiry_s(*, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
    """Return when a lease ends at the earliest: counted from the answer, less the time that it may have taken to come.

    That time is the measured one of a short call, a renewal's, and at most half of the lease.
    """
    return answered_at_s + timeout_s - min(measured.renewal_s or 0.0, timeout_s / 2)


class Fixed:
    """A heartbeat: leases of one length, renewed at one interval."""

    timely_only = False
    queue_decides = False
    server_decides = False

    def __init__(self, lease: Duration, every: Duration | None = None) -> None:
        """``lease`` is whole seconds; ``every`` is shorter, half of it unless given. Raises ``ValueError``."""
        length_s = seconds(lease)
        self.lease_s = checked_timeout_s(int(length_s))
        self.every_s = self.lease_s / 2 if every is None else seconds(every)
        if length_s != self.lease_s or not 0 < self.every_s < self.lease_s:
            raise ValueError("a fixed lease is whole seconds, and its renewals come in shorter intervals")

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the length of the lease."""
        return self.lease_s

    def first_expiry_s(self, *, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
        """Return the end as counted from the answer, less the time that it may have taken to come."""
        return expiry_s(answered_at_s=answered_at_s, timeout_s=timeout_s, measured=measured)

    def renew_at_s(self, lease: Terms, now_s: float) -> float:
        """Return the next beat."""
        return lease.renewed_at_s + self.every_s

    def is_over(self, lease: Terms, at_s: float) -> bool:
        """Return ``False``: it renews as long as the service allows."""
        return False

    def extension_s(self, lease: Terms, now_s: float) -> int:
        """Return the length of the lease."""
        return self.lease_s


Draw = Callable[[], float]
"""Gives numbers from 0 to 1."""
