"""Renewal policies: when a lease is renewed and for how long; the measurements that they use.

Policies are pure. The renewer calls them, and limits the result to what the service allows (``allowed_s``).
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate

from veilmq.client.messages import DEAD_RECEIPT_CODES, ClientError, Hidden
from veilmq.consumer.clock import Span, span_s
from veilmq.core.limits import LEASE_S_MAX

LIMIT_MARGIN_S = 2
"""Renewals stay two seconds below the 12-hour limit, because the server may have started to count earlier."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Recent 99th percentiles in seconds; ``None`` before the first observation.

    ``hold_s`` is from receive to confirmed settle, including running work; ``renewal_s`` is of renewals including
    retries; ``lateness_s`` is how late renewals began; ``call_s`` is of single calls with a reply.
    """

    hold_s: float | None = None
    renewal_s: float | None = None
    renewals: int = 0
    lateness_s: float | None = None
    call_s: float | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class LeaseTerms:
    """The input of a policy for one lease; instants are of the consumer's clock.

    ``timeout_s`` is the visibility timeout of the receive, ``received_at_s`` when its reply arrived, ``started_at_s``
    when the handler started. ``renewed_at_s`` is when the last successful renewal was sent, at first ``received_at_s``;
    ``expires_at_s`` is the end of the lease as known here. ``jitter`` is a new random number from 0 to 1 for each
    renewal. ``measured`` is of the same subscription.
    """

    timeout_s: int
    expires_at_s: float
    received_at_s: float = 0.0
    renewed_at_s: float = 0.0
    measured: Measured = field(default_factory=Measured)
    started_at_s: float | None = None
    jitter: float = 0.0


class RenewalPolicy:
    """The base class of policies. All methods are pure.

    ``timely_only``: batches of renewals are not filled up with leases that are due next.
    ``queue_decides``: a receive without a timeout from the policy sends none, instead of the queue's.
    ``server_decides``: a lease past its end is lost only if the server reports it, even on a FIFO queue.
    """

    timely_only = queue_decides = server_decides = False

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the visibility timeout for a receive; ``None`` for the queue's."""
        raise NotImplementedError

    def first_expiry_s(self, *, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
        """Return the earliest end of a lease whose receive returned at ``answered_at_s``.

        The lease began at the server, before the reply arrived. The latency of a renewal, a short call, is subtracted
        for that, up to half of the lease.
        """
        return answered_at_s + timeout_s - min(measured.renewal_s or 0.0, timeout_s / 2)

    def renew_at_s(self, lease: LeaseTerms, now_s: float) -> float:
        """Return when to renew ``lease`` next; ``now_s`` or earlier means now."""
        raise NotImplementedError

    def is_over(self, lease: LeaseTerms, at_s: float) -> bool:
        """Return whether ``lease`` is not renewed at ``at_s`` or later; by default only the service limits renewals."""
        return False

    def extension_s(self, lease: LeaseTerms, now_s: float) -> int:
        """Return the length of a renewal of ``lease``, in seconds from ``now_s``."""
        raise NotImplementedError


def allowed_s(wanted_s: int, *, elapsed_s: float) -> int:
    """Limit ``wanted_s`` to what the service allows ``elapsed_s`` after the receive was sent; may be 0 or negative."""
    return min(wanted_s, int(LEASE_S_MAX - LIMIT_MARGIN_S - elapsed_s))


def checked_timeout_s(timeout_s: int) -> int:
    """Return ``timeout_s``. Raises ``ValueError`` if renewals cannot keep a visibility timeout of this length."""
    if not 1 <= timeout_s <= LEASE_S_MAX:
        raise ValueError(
            f"a visibility timeout of {timeout_s} s cannot be kept by renewals; use 1 to {LEASE_S_MAX} seconds"
        )
    return timeout_s


class Fixed(RenewalPolicy):
    """A heartbeat: leases of a fixed length, renewed at a fixed interval."""

    def __init__(self, lease: Span, every: Span | None = None) -> None:
        """``lease`` is whole seconds; ``every`` must be shorter and defaults to half. Raises ``ValueError``."""
        length_s = span_s(lease)
        self.lease_s = checked_timeout_s(int(length_s))
        self.every_s = self.lease_s / 2 if every is None else span_s(every)
        if length_s != self.lease_s or not 0 < self.every_s < self.lease_s:
            raise ValueError("a fixed lease is whole seconds, and its renewals come in shorter intervals")

    def receive_timeout_s(self, measured: Measured) -> int | None:
        return self.lease_s

    def renew_at_s(self, lease: LeaseTerms, now_s: float) -> float:
        return lease.renewed_at_s + self.every_s

    def extension_s(self, lease: LeaseTerms, now_s: float) -> int:
        return self.lease_s


Draw = Callable[[], float]
"""Returns numbers from 0 to 1."""


SAMPLES_MIN = 100
"""Renewals after which their measured latency replaces ``RENEWAL_S_ASSUMED``."""
RENEWAL_S_ASSUMED = 1.0


class Adaptive(RenewalPolicy):
    """The default policy: leases that fit the work, renewed early enough for the network; durations in seconds.

    A lease is renewed one *guard* before its end: four times the 99th percentiles of the duration and of the lateness
    of renewals, plus one second, and at least a share of the lease. The length of a lease covers the 99th percentile
    of holding times, so that most messages need no renewal, and at least the age of the message, since work that has
    lasted long tends to last as long again. The maximum limits how long a crash hides messages.
    """

    def __init__(
        self, *, shortest_s: int = 30, longest_s: int = 300, guard_s_min: float = 2.0, guard_share: float = 1 / 3
    ) -> None:
        """The guard is at least ``guard_share`` of a lease. Raises ``ValueError`` for contradictory bounds."""
        if not (1 <= shortest_s <= longest_s <= LEASE_S_MAX and guard_s_min > 0 and 0 <= guard_share <= 0.5):
            raise ValueError("an adaptive lease needs 1 <= shortest_s <= longest_s <= 43200 and a guard below half")
        self.shortest_s = shortest_s
        self.longest_s = longest_s
        self.guard_s_min = guard_s_min
        self.guard_share = guard_share

    def guard_s(self, measured: Measured) -> float:
        """Return the shortest time before the end of a lease at which its renewal begins."""
        renewal_s = measured.renewal_s or 0.0
        if measured.renewals < SAMPLES_MIN:
            renewal_s = max(RENEWAL_S_ASSUMED, renewal_s)
        wanted_s = 4 * (renewal_s + (measured.lateness_s or 0.0)) + 1
        return min(max(wanted_s, self.guard_s_min), self.longest_s / 3)

    def length_s(self, measured: Measured, *, age_s: float = 0.0) -> int:
        """Return the length of a lease for a message that has been held for ``age_s``."""
        guard_s = self.guard_s(measured)
        wanted_s = max(1.25 * (measured.hold_s or 0.0) + guard_s, age_s, self.shortest_s, 6 * guard_s)
        return min(math.ceil(wanted_s), self.longest_s)

    def receive_timeout_s(self, measured: Measured) -> int | None:
        return None if measured.hold_s is None else self.length_s(measured)

    def renew_at_s(self, lease: LeaseTerms, now_s: float) -> float:
        """Jitter makes the guard up to a quarter longer, which spreads renewals."""
        remaining_s = lease.expires_at_s - now_s
        guard_s = max(self.guard_s(lease.measured), self.guard_share * remaining_s) * (1 + lease.jitter / 4)
        return lease.expires_at_s - min(guard_s, remaining_s / 2)

    def extension_s(self, lease: LeaseTerms, now_s: float) -> int:
        return self.length_s(lease.measured, age_s=now_s - lease.received_at_s)


TICKS_PER_S = 10_000_000
AT_ONCE_TICKS = 4_000_000
BUFFER_TICKS_MAX = 100_000_000


class NServiceBusPolicy(RenewalPolicy):
    """The policy of NServiceBus.AmazonSQS, exact to the tick (100 ns), in which all arithmetic is done.

    With visibility timeout V, it renews ``min(half of the remaining time, 10 s)`` before the end, or now if less than
    0.4 s remain. It requests ``V + |W|`` seconds; W is the whole seconds until or since the end. In time, this moves
    the end by V; too late, it requests more than V on purpose.

    Renewals end a fixed time after processing began (default: five minutes) without cancelling the handler.
    ``docs/leases.md`` lists the intentional differences, which are in the renewer.
    """

    timely_only = queue_decides = server_decides = True

    def __init__(
        self,
        *,
        max_auto_message_visibility_renewal_duration: Span = "5m",
        message_visibility_timeout: Span | None = None,
    ) -> None:
        """A renewal duration of 0 turns renewals off. Raises ``ValueError`` for durations outside 0 to 12 hours.

        ``message_visibility_timeout``, in whole seconds and at least 1, is sent with each receive. With ``None``, the
        queue's timeout is read once and receives send none.
        """
        self.renewal_s = _checked_span_s(
            "max_auto_message_visibility_renewal_duration", max_auto_message_visibility_renewal_duration
        )
        self.timeout_s: int | None = None
        if message_visibility_timeout is not None:
            timeout_s = _checked_span_s("message_visibility_timeout", message_visibility_timeout)
            self.timeout_s = checked_timeout_s(int(timeout_s))

    def receive_timeout_s(self, measured: Measured) -> int | None:
        return self.timeout_s

    def first_expiry_s(self, *, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
        return answered_at_s + timeout_s

    def renew_at_s(self, lease: LeaseTerms, now_s: float) -> float:
        ticks = _ticks(lease.expires_at_s - now_s)
        if ticks < AT_ONCE_TICKS:
            return now_s
        return now_s + (ticks - min(ticks // 2, BUFFER_TICKS_MAX)) / TICKS_PER_S

    def is_over(self, lease: LeaseTerms, at_s: float) -> bool:
        if lease.started_at_s is None:
            return not self.renewal_s
        return at_s >= lease.started_at_s + self.renewal_s

    def extension_s(self, lease: LeaseTerms, now_s: float) -> int:
        return abs(_ticks(lease.expires_at_s - now_s)) // TICKS_PER_S + lease.timeout_s


def _ticks(duration_s: float) -> int:
    return round(duration_s * TICKS_PER_S)


WINDOW_S = 300.0
RATIO = 1.05
SHORTEST_S = 0.001
BUCKETS = 362
"""The last bucket holds twelve hours and more."""

_LOG_RATIO = math.log(RATIO)


class Durations:
    """A logarithmic histogram of recent durations in seconds; not thread-safe.

    It has two windows, the current and the previous one, so a quantile covers one to two windows. A quantile is the
    upper edge of its bucket: never too short, and too long by at most 5 %.
    """

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._current = [0] * BUCKETS
        self._previous = [0] * BUCKETS
        self._rotate_at_s: float | None = None
        self.count = 0
        """Observations in both windows at the last ``add`` or ``quantile``."""

    def add(self, duration_s: float, *, now_s: float) -> None:
        """Count an observation made at ``now_s``."""
        self._rotate(now_s)
        self._current[bucket(duration_s)] += 1
        self.count += 1

    def quantile(self, share: float, *, now_s: float, running_s: Iterable[float] = ()) -> float | None:
        """Return the quantile ``share`` of the observations; ``None`` if there are none.

        ``running_s`` are unfinished durations; they count with their present length.
        """
        self._rotate(now_s)
        counts = [previous + current for previous, current in zip(self._previous, self._current, strict=True)]
        for duration_s in running_s:
            counts[bucket(duration_s)] += 1
        rank = math.ceil(share * sum(counts))
        return SHORTEST_S * RATIO ** bisect_left([*accumulate(counts)], rank) if rank else None

    def _rotate(self, now_s: float) -> None:
        if self._rotate_at_s is None:
            self._rotate_at_s = now_s + self._window_s
        while now_s >= self._rotate_at_s:
            late_by = (now_s - self._rotate_at_s) // self._window_s
            self._previous = self._current if late_by < 1 else [0] * BUCKETS
            self._current = [0] * BUCKETS
            self.count = sum(self._previous)
            self._rotate_at_s += self._window_s * (late_by + 1)


def bucket(duration_s: float) -> int:
    """Return the index of the bucket of ``duration_s``."""
    if duration_s <= SHORTEST_S:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log(duration_s / SHORTEST_S) / _LOG_RATIO - 1e-9))


SHARE = 0.99
"""The quantile that ``Measured`` has."""


class RenewalResult(Enum):
    """The result of one renewal."""

    RENEWED = "renewed"
    PROVEN = "proven"
    """Renewed, and the server confirms that no other consumer received the message; valid even if the reply is late."""
    GONE = "gone"
    """The receipt is dead: the message was deleted or received again, or the receipt was never valid."""
    AT_LIMIT = "at limit"
    """Refused because of the 12-hour limit; the lease is still held."""
    AGAIN = "again"
    """Unknown; try again."""


_LIMIT_WORDS = "beyond the limit"


def renewal_result(reply: Exception | Hidden | None, *, requested_s: int, elapsed_s: float) -> RenewalResult:
    """Classify the ``reply`` to a renewal for ``requested_s``, sent ``elapsed_s`` after the receive.

    ``None`` is a success of SQS, ``Hidden`` one of veilmq's server; less than one second is no lease. Services use one
    code for a dead receipt, a value out of range and the 12-hour limit. So the request is checked first: if it was
    invalid, the error does not concern the lease. The code comes next, the message last. Unless an error certainly
    means a loss, the renewal is retried, also after throttling with any status.
    """
    if reply is None:
        return RenewalResult.RENEWED
    if isinstance(reply, Hidden):
        return RenewalResult.PROVEN if reply.for_s >= 1 else RenewalResult.AGAIN
    if not isinstance(reply, ClientError) or reply.status >= 500:
        return RenewalResult.AGAIN
    if not 1 <= requested_s <= LEASE_S_MAX or elapsed_s + requested_s > LEASE_S_MAX:
        return RenewalResult.AT_LIMIT
    if plain_code(reply.code) not in DEAD_RECEIPT_CODES:
        return RenewalResult.AGAIN
    return RenewalResult.AT_LIMIT if _LIMIT_WORDS in reply.message.lower() else RenewalResult.GONE


def plain_code(code: str) -> str:
    """Return ``code`` without the namespace and the suffix ``Exception`` that some protocols add."""
    return code.rpartition(".")[2].removesuffix("Exception")


def _checked_span_s(name: str, span: Span) -> float:
    try:
        length_s = span_s(span)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if length_s > LEASE_S_MAX:
        raise ValueError(f"{name} is {length_s:g} s; it must be from 0 to {LEASE_S_MAX} seconds (12 hours)")
    return length_s
