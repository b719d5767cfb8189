"""When a lease is renewed, for how long, and what is measured for that decision.

A policy is pure: the renewer calls it, clamps the result to what the service allows (``allowed_s``) and does it.
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
"""No renewal requests the last two seconds of the twelve hours: the server may have begun to count before us."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was observed lately, in seconds; ``None`` where nothing was yet.

    ``hold_s`` is the 99th percentile from receive to confirmed settle, of finished and of running work; ``renewal_s``
    that of renewals, retries included; ``lateness_s`` that of how late renewals began; ``call_s`` that of the single
    calls that got a reply.
    """

    hold_s: float | None = None
    renewal_s: float | None = None
    renewals: int = 0
    lateness_s: float | None = None
    call_s: float | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class LeaseTerms:
    """What a policy sees of a lease; instants are those of the consumer's clock.

    ``timeout_s`` is the visibility timeout with which the message was received, ``received_at_s`` when the reply with
    it came, ``started_at_s`` when its handler began. ``renewed_at_s`` is when the latest renewal was sent that was not
    refused, else ``received_at_s``; ``expires_at_s`` when the lease ends, for all that is known here. ``jitter`` is a
    number from 0 to 1, drawn anew for each renewal, ``measured`` what was observed lately of messages like this one.
    """

    timeout_s: int
    expires_at_s: float
    received_at_s: float = 0.0
    renewed_at_s: float = 0.0
    measured: Measured = field(default_factory=Measured)
    started_at_s: float | None = None
    jitter: float = 0.0


class RenewalPolicy:
    """How leases are kept. All methods are pure.

    ``timely_only``: renewals hold due leases only, instead of taking along the ones that are due next.
    ``queue_decides``: a receive for which the policy has no timeout names none, instead of the queue's own.
    ``server_decides``: a lease past its end counts as lost only when the server says so, in FIFO queues too.
    """

    timely_only = queue_decides = server_decides = False

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the visibility timeout that a receive should have; ``None``: that of the queue."""
        raise NotImplementedError

    def first_expiry_s(self, *, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
        """Return when a lease ends whose receive returned at ``answered_at_s``: at the earliest, for the way took time.

        That time is the measured one of a short call, a renewal's, and at most half of the lease.
        """
        return answered_at_s + timeout_s - min(measured.renewal_s or 0.0, timeout_s / 2)

    def renew_at_s(self, lease: LeaseTerms, now_s: float) -> float:
        """Return when to renew ``lease`` next, ``now_s`` or earlier for at once."""
        raise NotImplementedError

    def is_over(self, lease: LeaseTerms, at_s: float) -> bool:
        """Return whether the policy renews ``lease`` no more at ``at_s``: by default as long as the service allows."""
        return False

    def extension_s(self, lease: LeaseTerms, now_s: float) -> int:
        """Return for how many seconds from ``now_s`` on ``lease`` is to be renewed."""
        raise NotImplementedError


def allowed_s(wanted_s: int, *, elapsed_s: float) -> int:
    """Return how much of ``wanted_s`` may be requested ``elapsed_s`` after the receive was sent; 0 or less: nothing."""
    return min(wanted_s, int(LEASE_S_MAX - LIMIT_MARGIN_S - elapsed_s))


def checked_timeout_s(timeout_s: int) -> int:
    """Return ``timeout_s``, the visibility timeout of receives; raises ``ValueError`` for one that keeps nothing."""
    if not 1 <= timeout_s <= LEASE_S_MAX:
        raise ValueError(
            f"a visibility timeout of {timeout_s} s cannot be kept by renewals; use 1 to {LEASE_S_MAX} seconds"
        )
    return timeout_s


class Fixed(RenewalPolicy):
    """A heartbeat: leases of one length, renewed at one interval."""

    def __init__(self, lease: Span, every: Span | None = None) -> None:
        """``lease`` is whole seconds; ``every`` is shorter, half of it unless given. Raises ``ValueError``."""
        length_s = span_s(lease)
        self.lease_s = checked_timeout_s(int(length_s))
        self.every_s = self.lease_s / 2 if every is None else span_s(every)
        if length_s != self.lease_s or not 0 < self.every_s < self.lease_s:
            raise ValueError("a fixed lease is whole seconds, and its renewals come in shorter intervals")

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the length of the lease."""
        return self.lease_s

    def renew_at_s(self, lease: LeaseTerms, now_s: float) -> float:
        """Return the next beat."""
        return lease.renewed_at_s + self.every_s

    def extension_s(self, lease: LeaseTerms, now_s: float) -> int:
        """Return the length of the lease."""
        return self.lease_s


Draw = Callable[[], float]
"""Gives numbers from 0 to 1."""


SAMPLES_TRUSTED = 100
"""Renewals after which their measured latency replaces ``RENEWAL_S_SUPPOSED``."""
RENEWAL_S_SUPPOSED = 1.0


class Adaptive(RenewalPolicy):
    """The default policy: leases that fit the work, renewed early enough for the network; durations in seconds.

    The guard is how long before its end a lease is renewed: four times the slowest percent of renewals and of the
    delays with which they began, plus a second, and never less than a share of the lease. The length covers the slowest
    percent of holding times, so that most messages need no renewal at all; and no less than the age of the message
    itself, since work that has lasted for long tends to go on for as long again. A maximum bounds what a crash hides.
    """

    def __init__(
        self, *, shortest_s: int = 30, longest_s: int = 300, guard_s_min: float = 2.0, guard_share: float = 1 / 3
    ) -> None:
        """``guard_share`` of a lease is guard at least. Raises ``ValueError`` for bounds that contradict each other."""
        if not (1 <= shortest_s <= longest_s <= 43_200 and guard_s_min > 0 and 0 <= guard_share <= 0.5):
            raise ValueError("an adaptive lease needs 1 <= shortest_s <= longest_s <= 43200 and a guard below half")
        self.shortest_s = shortest_s
        self.longest_s = longest_s
        self.guard_s_min = guard_s_min
        self.guard_share = guard_share

    def guard_s(self, measured: Measured) -> float:
        """Return how long before the end of a lease its renewal begins at the latest, by what was measured."""
        renewal_s = measured.renewal_s or 0.0
        if measured.renewals < SAMPLES_TRUSTED:
            renewal_s = max(RENEWAL_S_SUPPOSED, renewal_s)
        wanted_s = 4 * (renewal_s + (measured.lateness_s or 0.0)) + 1
        return min(max(wanted_s, self.guard_s_min), self.longest_s / 3)

    def length_s(self, measured: Measured, *, age_s: float = 0.0) -> int:
        """Return how long a lease of a message that is ``age_s`` old should be."""
        guard_s = self.guard_s(measured)
        wanted_s = max(1.25 * (measured.hold_s or 0.0) + guard_s, age_s, self.shortest_s, 6 * guard_s)
        return min(math.ceil(wanted_s), self.longest_s)

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the length that fits what was held lately; ``None`` while nothing was."""
        return None if measured.hold_s is None else self.length_s(measured)

    def renew_at_s(self, lease: LeaseTerms, now_s: float) -> float:
        """Return an instant up to a quarter of the guard before the latest one, so that leases spread."""
        remaining_s = lease.expires_at_s - now_s
        guard_s = max(self.guard_s(lease.measured), self.guard_share * remaining_s) * (1 + lease.jitter / 4)
        return lease.expires_at_s - min(guard_s, remaining_s / 2)

    def extension_s(self, lease: LeaseTerms, now_s: float) -> int:
        """Return the length that fits what was held lately, and the message's own age."""
        return self.length_s(lease.measured, age_s=now_s - lease.received_at_s)


TICKS_PER_S = 10_000_000
AT_ONCE_TICKS = 4_000_000
BUFFER_TICKS_MAX = 100_000_000


class NServiceBusPolicy(RenewalPolicy):
    """The policy of NServiceBus.AmazonSQS, to the tick.

    With V the visibility timeout: wake ``min(half of what remains, 10 s)`` before the end, at once when less than 0.4 s
    remain; then request ``V + |W|`` seconds, W being the whole seconds that remain or have passed since. On time that
    moves the old end by V; too late it requests more than V on purpose. All arithmetic is in ticks of 100 ns.

    The renewals end a fixed time after processing began (five minutes by default), and that does not cancel the
    handler. What this project does otherwise on purpose is in the renewer (``docs/leases.md`` lists it).
    """

    timely_only = queue_decides = server_decides = True

    def __init__(
        self,
        *,
        max_auto_message_visibility_renewal_duration: Span = "5m",
        message_visibility_timeout: Span | None = None,
    ) -> None:
        """Raise ``ValueError`` for durations outside 0 to 12 hours, and for a timeout below one second.

        A renewal duration of 0 turns renewals off. ``message_visibility_timeout`` is sent with every receive, in whole
        seconds; ``None`` has the queue's own be read once, and nothing sent.
        """
        self.renewal_s = _within(
            "max_auto_message_visibility_renewal_duration", max_auto_message_visibility_renewal_duration
        )
        self.timeout_s: int | None = None
        if message_visibility_timeout is not None:
            self.timeout_s = checked_timeout_s(int(_within("message_visibility_timeout", message_visibility_timeout)))

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the timeout that was set, if any."""
        return self.timeout_s

    def first_expiry_s(self, *, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
        """Return the end as counted from the reply."""
        return answered_at_s + timeout_s

    def renew_at_s(self, lease: LeaseTerms, now_s: float) -> float:
        """Return the instant of the formula."""
        ticks = _ticks(lease.expires_at_s - now_s)
        if ticks < AT_ONCE_TICKS:
            return now_s
        return now_s + (ticks - min(ticks // 2, BUFFER_TICKS_MAX)) / TICKS_PER_S

    def is_over(self, lease: LeaseTerms, at_s: float) -> bool:
        """Return whether the renewal duration, counted from the handler's begin, has passed at ``at_s``."""
        if lease.started_at_s is None:
            return not self.renewal_s
        return at_s >= lease.started_at_s + self.renewal_s

    def extension_s(self, lease: LeaseTerms, now_s: float) -> int:
        """Return the length of the formula at ``now_s``."""
        return abs(_ticks(lease.expires_at_s - now_s)) // TICKS_PER_S + lease.timeout_s


def _ticks(duration_s: float) -> int:
    return round(duration_s * TICKS_PER_S)


WINDOW_S = 300.0
RATIO = 1.05
SHORTEST_S = 0.001
BUCKETS = 362
"""Twelve hours have a bucket; what is longer is counted there."""

_LOG_RATIO = math.log(RATIO)


class Durations:
    """Recent durations in seconds, counted on a logarithmic scale; not safe to use from two threads at once.

    Two windows are counted, the present one and the one before it, so that a quantile covers one to two windows and
    older values are forgotten. A quantile is the upper edge of its bucket: never too short, too long by 5 % at most.
    """

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        """Begin with no observation; the first window begins with the first of them."""
        self._window_s = window_s
        self._now = [0] * BUCKETS
        self._before = [0] * BUCKETS
        self._rotate_at_s: float | None = None
        self.count = 0
        """Observations in both windows, as of the latest ``add`` or ``quantile``."""

    def add(self, duration_s: float, *, now_s: float) -> None:
        """Count an observation made at ``now_s``."""
        self._rotate(now_s)
        self._now[bucket(duration_s)] += 1
        self.count += 1

    def quantile(self, share: float, *, now_s: float, running_s: Iterable[float] = ()) -> float | None:
        """Return the duration that ``share`` of the observations do not exceed, ``None`` when there is none.

        ``running_s`` are durations that are not over yet; they count as if they ended now.
        """
        self._rotate(now_s)
        counts = [early + late for early, late in zip(self._before, self._now, strict=True)]
        for duration_s in running_s:
            counts[bucket(duration_s)] += 1
        wanted = math.ceil(share * sum(counts))
        return SHORTEST_S * RATIO ** bisect_left([*accumulate(counts)], wanted) if wanted else None

    def _rotate(self, now_s: float) -> None:
        if self._rotate_at_s is None:
            self._rotate_at_s = now_s + self._window_s
        while now_s >= self._rotate_at_s:
            late_by = (now_s - self._rotate_at_s) // self._window_s
            self._before = self._now if late_by < 1 else [0] * BUCKETS
            self._now = [0] * BUCKETS
            self.count = sum(self._before)
            self._rotate_at_s += self._window_s * (late_by + 1)


def bucket(duration_s: float) -> int:
    """Return the place of ``duration_s`` on the scale."""
    if duration_s <= SHORTEST_S:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log(duration_s / SHORTEST_S) / _LOG_RATIO - 1e-9))


SHARE = 0.99


class RenewalResult(Enum):
    """What became of one renewal."""

    RENEWED = "renewed"
    PROVEN = "proven"
    """Renewed, and the server confirms that no other consumer received the message: proof even when it comes late."""
    GONE = "gone"
    """The receipt is not the message's any more: deleted, received by another, or never valid."""
    AT_LIMIT = "at limit"
    """The twelve hours leave no room for it; the lease itself is fine."""
    AGAIN = "again"
    """Nothing is known; try again."""


_LIMIT_WORDS = "beyond the limit"


def renewal_result(answer: Exception | Hidden | None, *, requested_s: int, elapsed_s: float) -> RenewalResult:
    """Return what ``answer`` to a renewal for ``requested_s`` means, ``elapsed_s`` after the receive was sent.

    ``None`` is success of SQS, ``Hidden`` of veilmq's server; less than a second keeps nothing. Services have one code
    for several conditions: the lease is gone, the value is out of range, the twelve hours are over. So the request
    decides first: where it was invalid, the error says nothing about the lease. Then the code, and only then the words.
    What does not surely mean a loss is tried again, throttling under any status included.
    """
    if answer is None:
        return RenewalResult.RENEWED
    if isinstance(answer, Hidden):
        return RenewalResult.PROVEN if answer.for_s >= 1 else RenewalResult.AGAIN
    if not isinstance(answer, ClientError) or answer.status >= 500:
        return RenewalResult.AGAIN
    if not 1 <= requested_s <= LEASE_S_MAX or elapsed_s + requested_s > LEASE_S_MAX:
        return RenewalResult.AT_LIMIT
    if plain_code(answer.code) not in DEAD_RECEIPT_CODES:
        return RenewalResult.AGAIN
    return RenewalResult.AT_LIMIT if _LIMIT_WORDS in answer.message.lower() else RenewalResult.GONE


def plain_code(code: str) -> str:
    """Return ``code`` without the name space and the ``Exception`` that some protocols put around it."""
    return code.rpartition(".")[2].removesuffix("Exception")


def _within(name: str, span: Span) -> float:
    try:
        length_s = span_s(span)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if length_s > LEASE_S_MAX:
        raise ValueError(f"{name} is {length_s:g} s; it must be from 0 to {LEASE_S_MAX} seconds (12 hours)")
    return length_s
