"""The leases of a process: their states, deadlines and renewals.

- **HELD**: until the deadline, which a successful renewal moves. A reply after the old deadline counts only if the
  server confirms that no other consumer received the message (PROVEN); a SUSPECT lease is then HELD again. Other
  services may reply 200 to a receipt that has no effect.
- **SUSPECT**: the deadline has passed, and another consumer may have the message.
- **LOST**: the server reports it; or the deadline has passed, with a strict subscription, or on a FIFO queue (which
  refuses a late receipt) unless the policy has ``server_decides``.
- **ENDED**: the service's limit of twelve hours is reached. ``confirm`` also raises it for a lease that was settled or
  withdrawn.

A lease that is not HELD must not be released: the message could become visible while another consumer processes it.

The renewer takes the leases that are ``due``, calls ``prepare`` right before each request and ``apply`` after the
reply; runners call ``take``, ``start``, ``settle`` and ``withdraw``. All methods are thread-safe: a lock guards the
table, and watchers are called without it.
"""

import asyncio
import logging
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from operator import itemgetter
from typing import Any

from veilmq.client.messages import Hidden, ReceivedMessage
from veilmq.consumer.clock import Clock, Threads
from veilmq.consumer.metrics import RenewalMetrics
from veilmq.consumer.renewal_policies import (
    SHARE,
    Draw,
    Durations,
    LeaseTerms,
    Measured,
    RenewalPolicy,
    RenewalResult,
    allowed_s,
    renewal_result,
)
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import LEASE_S_MAX, SQS_BATCH_ENTRIES_MAX

_log = logging.getLogger("veilmq.consumer")


def with_traceback(record: logging.LogRecord) -> bool:
    """Make text formatters print the field ``trace`` like a traceback: the exception may be from another process.

    A filter for loggers that rejects no record.
    """
    trace = getattr(record, "trace", "")
    if trace and record.exc_info is None:
        record.exc_text = trace.rstrip()
    return True


_log.addFilter(with_traceback)


class LeaseState(Enum):
    """Whether this process still holds a message."""

    HELD = "held"
    SUSPECT = "suspect"
    LOST = "lost"
    ENDED = "ended"


class LeaseLost(Exception):
    """Another consumer may have the message: cause no side effect that must not happen twice."""

    def __init__(self, state: LeaseState) -> None:
        super().__init__(state)
        self.state = state

    def __str__(self) -> str:
        return f"The lease is {self.state.value}; stop: another consumer may have the message."


class Watcher:
    """Callbacks for the leases of a subscription, in the thread that changes them; they must return soon."""

    def changed(self, lease: "Lease", state: LeaseState) -> object:
        """``lease`` became SUSPECT, LOST or ENDED. A return from SUSPECT to HELD is not reported."""

    def ending(self, lease: "Lease", left_s: float) -> object:
        """``lease`` reaches the limit of twelve hours in ``left_s`` seconds."""

    def renewed(self, requests: "Sequence[RenewalRequest]", results: Sequence[RenewalResult]) -> object:
        """A call renewed leases; there is one result for each request."""


FRESH_S = 5.0  # the minimum interval in which the quantiles, which change slowly, are computed


@dataclass(slots=True, eq=False)
class Subscription:
    """The shared properties of a handler's leases; ``queue`` is a name or a URL.

    With ``strict`` a lease past its deadline is LOST instead of SUSPECT. Renewals stop after ``cap_s`` seconds of
    processing. ``measure`` refreshes ``measured`` at receives and renewals.
    """

    table: "LeaseTable"
    queue: str
    policy: RenewalPolicy
    fifo: bool = False
    strict: bool = False
    cap_s: float | None = None
    watcher: Watcher = field(default_factory=Watcher)
    live: "dict[Lease, None]" = field(default_factory=dict)
    hold: Durations = field(default_factory=Durations)
    measured: Measured = field(default_factory=Measured)
    fresh_until_s: float = -math.inf

    def __post_init__(self) -> None:
        self.table.subscriptions.append(self)

    def measure(self, now_s: float) -> Measured:
        """Refresh and return ``measured``."""
        if now_s >= self.fresh_until_s:
            table = self.table
            running_s = (now_s - lease.received_at_s for lease in self.live)
            hold_s = self.hold.quantile(SHARE, now_s=now_s, running_s=running_s)
            self.measured = Measured(
                hold_s=self.measured.hold_s if hold_s is None else hold_s,
                renewal_s=table.renewal.quantile(SHARE, now_s=now_s),
                renewals=table.renewal.count,
                lateness_s=table.lateness.quantile(SHARE, now_s=now_s),
                call_s=table.call.quantile(SHARE, now_s=now_s),
            )
            self.fresh_until_s = now_s + FRESH_S
        return self.measured


@dataclass(slots=True, eq=False, kw_only=True)
class Lease(LeaseTerms):
    """The lease of one message, renewed automatically. Read-only outside this module, except ``deleting``.

    Created by ``LeaseTable.take``. Instants are seconds of the consumer's clock. While ``deleting``, an invalid receipt
    does not mean that the lease is lost.
    """

    message: ReceivedMessage
    subscription: Subscription
    requested_at_s: float
    known_state: LeaseState = LeaseState.HELD  # reported to the watcher
    due_at_s: float | None = None
    first_sent_at_s: float | None = None  # of the current renewal, which may be retried
    planned_at_s: float = 0.0
    tries: int = 0
    renewals: int = 0
    in_flight: bool = False
    closed: bool = False
    reaches_limit: bool = False  # lasts until the 12-hour limit: cannot be renewed again
    warned: bool = False
    deleting: bool = False
    withdrawal: "Future[bool] | None" = None
    confirmations: "list[Future[LeaseState]]" = field(default_factory=list)

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; negative after its end."""
        return self.expires_at_s - self.subscription.table.clock.now_s()

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT, LOST or ENDED."""
        return self.state_at(self.subscription.table.clock.now_s())

    def confirm(self) -> None:
        """Renew the lease, and return once the server has confirmed it. Raises ``LeaseLost``. Blocks."""
        self.subscription.table.confirm(self).result()

    async def confirmed(self) -> None:
        """``confirm`` for async handlers."""
        await asyncio.wrap_future(self.subscription.table.confirm(self))

    def log(self, level: int, text: str, *values: object, trace: str = "", exc_info: bool = False) -> None:
        """Log a line about the message; the first value of ``text`` is its id. Adds fields for JSON formatters.

        Text formatters print ``trace`` below the line (``with_traceback``).
        """
        fields = {
            "queue": self.subscription.queue,
            "message_id": self.message.id,
            "attempt": self.message.receive_count,
        }
        fields |= {"trace": trace} if trace else {}
        _log.log(level, text, self.message.id, *values, extra=fields, exc_info=exc_info or None, stacklevel=2)

    @property
    def is_renewable(self) -> bool:
        """Whether a renewal can help; for a SUSPECT lease it may still hide the message in time."""
        open_ = self.withdrawal is None and not self.closed and not self.reaches_limit
        return open_ and self.known_state in (LeaseState.HELD, LeaseState.SUSPECT)

    @property
    def may_release(self) -> bool:
        """Whether the message may be made visible: only if it is certainly held."""
        return not self.closed and self.state is LeaseState.HELD

    def elapsed_s(self, now_s: float) -> float:
        """Return how many seconds of the twelve hours have passed."""
        return now_s - self.requested_at_s

    def state_at(self, now_s: float) -> LeaseState:
        """Return the state at ``now_s``, even if the renewer has not processed the deadline yet."""
        if self.known_state is not LeaseState.HELD or now_s < self.expires_at_s:
            return self.known_state
        if self.reaches_limit:
            return LeaseState.ENDED
        subscription = self.subscription
        dead = subscription.strict or (subscription.fifo and not subscription.policy.server_decides)
        return LeaseState.LOST if dead else LeaseState.SUSPECT


WARNING_S = 600.0
"""How long before the 12-hour limit the watcher is warned; less if a renewal reaches further."""
RETRY_S = 0.1
RETRY_S_MAX = 1.6
RETRY_S_MAX_LATE = 15.0  # for leases that may already be lost


@dataclass(frozen=True, slots=True)
class RenewalRequest:
    """A renewal in flight, which hides the message of ``lease`` for ``for_s`` from ``sent_at_s``.

    The ``last`` one reaches up to the 12-hour limit.
    """

    lease: Lease
    for_s: int
    sent_at_s: float
    last: bool


class LeaseTable:
    """The leases of all messages that this process holds."""

    def __init__(self, clock: Clock, *, draw: Draw = random.random) -> None:
        """``draw`` returns the jitter of renewals and retries."""
        self.clock = clock
        self.call, self.renewal, self.lateness = Durations(), Durations(), Durations()  # see Measured
        self.metrics = RenewalMetrics()
        self.alarm = clock.alarm()  # rings if the next due instant becomes earlier
        self._draw = draw
        self._lock = threading.Lock()
        self._next_due_s = math.inf  # as returned by next_due_s, or an earlier instant for which the alarm rang
        self.subscriptions: list[Subscription] = []
        self._callbacks: list[Callable[[], object]] = []  # called after the lock is released

    def receive_timeout_s(self, subscription: Subscription) -> int | None:
        """Return the visibility timeout for the next receive; ``None`` for the queue's."""
        with self._lock:
            return subscription.policy.receive_timeout_s(subscription.measure(self.clock.now_s()))

    def take(
        self,
        subscription: Subscription,
        messages: Sequence[ReceivedMessage],
        *,
        requested_at_s: float,
        answered_at_s: float,
        timeout_s: int,
    ) -> list[Lease]:
        """Add and return leases for ``messages`` of one receive, whose visibility timeout was ``timeout_s``."""
        with self._updating():
            measured = subscription.measure(answered_at_s)
            expires_at_s = subscription.policy.first_expiry_s(
                answered_at_s=answered_at_s, timeout_s=timeout_s, measured=measured
            )
            leases = [
                Lease(
                    message=message,
                    subscription=subscription,
                    requested_at_s=requested_at_s,
                    received_at_s=answered_at_s,
                    renewed_at_s=answered_at_s,
                    expires_at_s=expires_at_s,
                    timeout_s=timeout_s,
                    measured=measured,
                )
                for message in messages
            ]
            for lease in leases:
                subscription.live[lease] = None
                self._plan(lease, self.clock.now_s())
        return leases

    def start(self, lease: Lease) -> None:
        """Record that the handler of ``lease`` starts now."""
        lease.started_at_s = self.clock.now_s()

    def settle(self, lease: Lease) -> None:
        """Close ``lease`` after its delete or release, or because it is abandoned. Idempotent.

        The result of a renewal in flight will be ignored.
        """
        with self._updating():
            if not lease.closed:
                now_s = self.clock.now_s()
                lease.subscription.hold.add(now_s - lease.received_at_s, now_s=now_s)
                lease.closed = True
                del lease.subscription.live[lease]
                self._finish_withdrawal(lease)

    def withdraw(self, lease: Lease) -> "Future[bool]":
        """Stop renewing ``lease``. Once no renewal is in flight, the future returns whether it may be released.

        A renewal that arrives after the release would hide the message again. Check ``may_release`` again before
        sending the release.
        """
        with self._updating():
            if lease.withdrawal is None:
                lease.withdrawal = Future()
                if not lease.in_flight:
                    self._finish_withdrawal(lease)
            return lease.withdrawal

    def confirm(self, lease: Lease) -> "Future[LeaseState]":
        """Renew ``lease`` now. The future returns HELD once confirmed, and raises ``LeaseLost`` otherwise."""
        with self._updating():
            confirmation: Future[LeaseState] = Future()
            lease.confirmations.append(confirmation)
            if not lease.is_renewable or lease.known_state is not LeaseState.HELD:
                state = lease.known_state
                self._fail_confirmations(lease, LeaseState.ENDED if state is LeaseState.HELD else state)
            elif not lease.in_flight:
                self._schedule(lease, self.clock.now_s())
        return confirmation

    def open_leases(self) -> list[Lease]:
        """Return all open leases, of each subscription the oldest first."""
        with self._lock:
            return [lease for subscription in self.subscriptions for lease in subscription.live]

    def next_due_s(self) -> float | None:
        """Return when the next lease is due; ``None`` if none is."""
        with self._lock:
            planned = (lease.due_at_s for subscription in self.subscriptions for lease in subscription.live)
            self._next_due_s = min((at_s for at_s in planned if at_s is not None), default=math.inf)
            return None if self._next_due_s == math.inf else self._next_due_s

    def due(self) -> list[list[Lease]]:
        """Return the leases to renew now, in batches for one queue each, filled up with those that are due next."""
        with self._updating():
            now_s = self.clock.now_s()
            groups = [self._due(subscription, now_s) for subscription in self.subscriptions]
        return [
            group[first : first + SQS_BATCH_ENTRIES_MAX]
            for group in groups
            for first in range(0, len(group), SQS_BATCH_ENTRIES_MAX)
        ]

    def prepare(self, batch: Sequence[Lease]) -> list[RenewalRequest]:
        """Return requests for the leases of ``batch`` as of now, without leases that have ended meanwhile."""
        with self._updating():
            now_s = self.clock.now_s()
            return [request for lease in batch if (request := self._prepare(lease, now_s)) is not None]

    def apply(self, requests: Sequence[RenewalRequest], results: Sequence[RenewalResult]) -> None:
        """Apply the results of a call that has just returned, one for each request."""
        with self._updating():
            now_s = self.clock.now_s()
            if any(result is not RenewalResult.AGAIN for result in results):
                self.call.add(now_s - requests[0].sent_at_s, now_s=now_s)
            for request, result in zip(requests, results, strict=True):
                request.lease.in_flight = False
                self._apply(request, result, now_s)

    @contextmanager
    def _updating(self) -> Iterator[None]:
        """Hold the lock; then call the ``_callbacks`` without it, because they may wake other threads."""
        with self._lock:
            yield
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - call the remaining ones
                _log.exception("a watcher of leases failed")

    def _plan(self, lease: Lease, now_s: float) -> None:
        """Schedule the next renewal of ``lease``, or its end if it will not be renewed."""
        lease.jitter, lease.measured = self._draw(), lease.subscription.measured
        at_s = lease.subscription.policy.renew_at_s(lease, now_s)
        ends = self._is_over(lease, at_s) or at_s > lease.expires_at_s > now_s
        self._schedule(lease, lease.expires_at_s if ends else at_s)

    def _schedule(self, lease: Lease, at_s: float) -> None:
        lease.due_at_s = at_s
        if at_s < self._next_due_s:
            self._next_due_s = at_s
            self.alarm.ring()

    def _is_over(self, lease: Lease, at_s: float) -> bool:
        """Return whether the policy, the cap or the 12-hour limit forbids a renewal at ``at_s``."""
        cap_s, started_at_s = lease.subscription.cap_s, lease.started_at_s
        capped = cap_s is not None and started_at_s is not None and at_s >= started_at_s + cap_s
        return lease.reaches_limit or capped or lease.subscription.policy.is_over(lease, at_s)

    def _check_deadline(self, lease: Lease, now_s: float) -> None:
        if (state := lease.state_at(now_s)) is not lease.known_state:
            self._change_state(lease, state)

    def _due(self, subscription: Subscription, now_s: float) -> list[Lease]:
        """Return the due leases. Fill up their last batch with leases due next of which half has passed."""
        planned = [(lease.due_at_s, lease) for lease in subscription.live if lease.due_at_s is not None]
        if not any(at_s <= now_s for at_s, _ in planned):
            return []
        group: list[Lease] = []
        for at_s, lease in sorted(planned, key=itemgetter(0)):
            is_due = at_s <= now_s
            if not is_due and (subscription.policy.timely_only or not len(group) % SQS_BATCH_ENTRIES_MAX):
                break
            if not is_due and now_s - lease.renewed_at_s <= (at_s - lease.renewed_at_s) / 2:
                continue
            self._check_deadline(lease, now_s)
            if lease.is_renewable and (lease.confirmations or not self._is_over(lease, now_s)):
                lease.planned_at_s, lease.due_at_s = at_s, None
                group.append(lease)
            elif is_due:
                lease.due_at_s = None
                if lease.is_renewable and now_s < lease.expires_at_s:
                    self._schedule(lease, lease.expires_at_s)
        return group

    def _prepare(self, lease: Lease, now_s: float) -> RenewalRequest | None:
        self._check_deadline(lease, now_s)
        if lease.in_flight or not lease.is_renewable:  # in flight: a fence has renewed it since it was due
            return None
        subscription = lease.subscription
        lease.measured = subscription.measure(now_s)
        wanted_s = max(1, subscription.policy.extension_s(lease, now_s))
        for_s = allowed_s(min(wanted_s, LEASE_S_MAX), elapsed_s=lease.elapsed_s(now_s))
        left_s = LEASE_S_MAX - lease.elapsed_s(now_s)
        if not lease.warned and left_s <= WARNING_S + for_s:
            lease.warned = True
            self._callbacks.append(partial(subscription.watcher.ending, lease, left_s))
        if for_s < wanted_s and now_s + for_s <= max(now_s, lease.expires_at_s):
            self._let_expire(lease, now_s)
            return None
        self._callbacks.append(partial(self.metrics.margin.add, lease.expires_at_s - now_s))
        late_s = now_s - lease.planned_at_s
        if not lease.tries and late_s >= 0:  # neither early renewals nor retries count as late
            self.lateness.add(late_s, now_s=now_s)
            self._callbacks.append(partial(self.metrics.lateness.add, late_s))
        lease.first_sent_at_s = now_s if lease.first_sent_at_s is None else lease.first_sent_at_s
        lease.in_flight = True
        return RenewalRequest(lease, for_s, now_s, last=for_s < wanted_s)

    def _let_expire(self, lease: Lease, now_s: float) -> None:
        """Stop renewing ``lease``, which already reaches the 12-hour limit."""
        lease.reaches_limit = True
        self._fail_confirmations(lease, LeaseState.ENDED)
        self._schedule(lease, max(now_s, lease.expires_at_s))

    def _apply(self, request: RenewalRequest, result: RenewalResult, now_s: float) -> None:
        lease = request.lease
        if lease.closed:
            return
        if result is not RenewalResult.PROVEN:
            self._check_deadline(lease, now_s)
        if result is RenewalResult.GONE and not lease.deleting:
            self._change_state(lease, LeaseState.LOST)
        if lease.withdrawal is not None:
            self._finish_withdrawal(lease)
        elif not lease.is_renewable:
            return
        elif result is RenewalResult.AT_LIMIT:
            self._let_expire(lease, now_s)
        elif result in (RenewalResult.AGAIN, RenewalResult.GONE):  # GONE: the reply to our own delete decides
            self._retry(lease, now_s)
        else:
            if result is RenewalResult.PROVEN:  # even a late reply proves that there was no other receive
                lease.known_state = LeaseState.HELD
            self._renewed(request, now_s)

    def _renewed(self, request: RenewalRequest, now_s: float) -> None:
        lease = request.lease
        self.renewal.add(now_s - (lease.first_sent_at_s or request.sent_at_s), now_s=now_s)
        lease.first_sent_at_s, lease.tries = None, 0
        lease.renewals += 1
        lease.reaches_limit = request.last
        lease.renewed_at_s = request.sent_at_s
        lease.expires_at_s = request.sent_at_s + request.for_s
        confirmations, lease.confirmations = lease.confirmations, []  # a lease past its deadline has none
        for confirmation in confirmations:
            self._callbacks.append(partial(_resolve, confirmation.set_result, lease.known_state))
        self._plan(lease, now_s)

    def _retry(self, lease: Lease, now_s: float) -> None:
        lease.tries += 1
        held = lease.known_state is LeaseState.HELD
        pause_s = min(RETRY_S * 2 ** min(lease.tries - 1, 20), RETRY_S_MAX if held else RETRY_S_MAX_LATE)
        at_s = now_s + pause_s * (0.5 + self._draw())
        self._schedule(lease, min(at_s, lease.expires_at_s) if held else at_s)

    def _change_state(self, lease: Lease, state: LeaseState) -> None:
        lease.known_state = state
        self._fail_confirmations(lease, state)
        self._callbacks.append(partial(lease.subscription.watcher.changed, lease, state))

    def _finish_withdrawal(self, lease: Lease) -> None:
        """Resolve the futures of ``lease``, which gets no more renewals."""
        lease.due_at_s = None
        self._fail_confirmations(lease, LeaseState.ENDED)
        if (withdrawal := lease.withdrawal) is not None:
            self._callbacks.append(lambda: _resolve(withdrawal.set_result, lease.may_release))

    def _fail_confirmations(self, lease: Lease, state: LeaseState) -> None:
        confirmations, lease.confirmations = lease.confirmations, []
        for confirmation in confirmations:
            self._callbacks.append(partial(_resolve, confirmation.set_exception, LeaseLost(state)))


def _resolve(set_value: Callable[[Any], object], value: object) -> None:
    """Resolve a future, unless it is resolved or its handler was cancelled while it waited."""
    with suppress(InvalidStateError):
        set_value(value)


CALL_TIMEOUT_S_USUAL = 5.0
CALL_TIMEOUT_S_LAST = 2.0
"""Below this, one try gets the rest of the lease instead of half."""
CALL_TIMEOUT_S_MIN = 0.5


@contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - every lease depends on the renewer's threads
        _log.exception("a renewal failed; renewing continues")


class Renewer:
    """Renews the due leases of a ``LeaseTable``: ``run_due`` once, ``start`` continuously in a thread.

    It sleeps until the next lease is due, and sends due leases in batches with a timeout for each entry. A call without
    a reply does not delay the others. The timeout of each call fits the slowest recent calls and ends before the first
    lease of the batch, so that a dead connection costs a try and not the lease.
    """

    def __init__(
        self, table: LeaseTable, change: Callable[..., Sequence[Exception | Hidden | None]], *, calls_max: int = 4
    ) -> None:
        """``change`` is ``QueueClient.change_visibility_batch`` of a client that only the renewer uses.

        Otherwise other requests could delay a renewal. Up to ``calls_max`` batches are in flight at once.
        """
        self._table = table
        self._change = change
        self._calls = Threads("veilmq-renewal", calls_max) if calls_max > 1 else None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="veilmq-renewer", daemon=True)

    def start(self) -> None:
        """Start the renewer's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, without waiting for replies; leases are left as they are. Does nothing before ``start``."""
        self._stopping = True
        self._table.alarm.ring()
        if self._thread.is_alive():
            self._thread.join()
        if self._calls is not None:
            self._calls.close()

    def run_due(self) -> None:
        """Renew the due leases and update those that have ended. Waits for replies only if ``calls_max`` is 1."""
        for batch in self._table.due():
            if self._calls is None:
                self._renew(batch)
            else:
                self._calls.submit(partial(self._renew, batch))

    def _run(self) -> None:
        while not self._stopping:
            self._table.alarm.wait_until(self._table.next_due_s())
            with _logged():
                if not self._stopping:
                    self.run_due()

    @_logged()
    def _renew(self, batch: Sequence[Lease]) -> None:
        requests = self._table.prepare(batch)
        if not requests:
            return
        subscription = batch[0].subscription
        changes = [VisibilityChange(receipt=one.lease.message.receipt, timeout_s=one.for_s) for one in requests]
        replies: Sequence[Exception | Hidden | None]
        try:
            replies = self._change(subscription.queue, changes, call_timeout_s=call_timeout_s(requests))
        except Exception as error:  # noqa: BLE001 - leases are unaffected, and the thread must continue
            replies = [error] * len(requests)
            results = [RenewalResult.AGAIN] * len(requests)
        else:
            results = [
                renewal_result(reply, requested_s=one.for_s, elapsed_s=one.lease.elapsed_s(one.sent_at_s))
                for one, reply in zip(requests, replies, strict=True)
            ]
            # Count the granted time from the send. That needs no common clock, and is early by the network latency
            # at most. A grant of more than was requested is ignored.
            requests = [
                replace(one, for_s=int(reply.for_s)) if isinstance(reply, Hidden) and reply.for_s < one.for_s else one
                for one, reply in zip(requests, replies, strict=True)
            ]
        self._table.apply(requests, results)
        subscription.watcher.renewed(requests, results)
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        self._table.metrics.add(results, errors, self._table.clock.now_s() - requests[0].sent_at_s)


def call_timeout_s(requests: Sequence[RenewalRequest]) -> float:
    """Return the timeout of a call: it grows with each try, up to half of the time that is left of the first lease.

    In the last seconds of a lease it is all of that time. Leases that have ended do not shorten it for the others.
    """
    first = requests[0].lease
    left_s = min((left for one in requests if (left := one.lease.remaining) > 0), default=CALL_TIMEOUT_S_LAST)
    usual_s = max(CALL_TIMEOUT_S_USUAL, 4 * (first.measured.call_s or 0.0)) * 2.0 ** min(first.tries, 10)
    return max(CALL_TIMEOUT_S_MIN, min(usual_s, max(left_s / 2, CALL_TIMEOUT_S_LAST), left_s))
