"""The leases of a process: states, deadlines, and when each is due for renewal.

**HELD** until the deadline passes without proof that it was moved, then **SUSPECT**: another consumer may have the
message. Only a reply that came *before* the old deadline is proof; a later one is none, since a service may reply 200
to a receipt that does nothing. **LOST**: the server says so, or the queue is FIFO (there a late receipt is dead), or
the subscription is strict. **ENDED**: the twelve hours that the service allows are over. A lease that is not HELD must
not be released: that could make a message visible which another consumer works on.

The renewer takes what is ``due``, calls ``prepare`` right before it is sent, and returns what was ``answered``; runners
take, start, settle and withdraw. Threads may do all of that at once: a lock guards the table, and no watcher is called
while it is held.
"""

import asyncio
import logging
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from operator import itemgetter
from typing import TypeVar

from veilmq.client.messages import Hidden, ReceivedMessage
from veilmq.consumer.clock import Clock
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
    checked_timeout_s,
    renewal_result,
)
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import LEASE_S_MAX, SQS_BATCH_ENTRIES_MAX

_log = logging.getLogger("veilmq.consumer")


def with_traceback(record: logging.LogRecord) -> bool:
    """Have each formatter of text write the field ``trace`` below the line, as it does the traceback of an exception.

    A filter of loggers, and lets all pass. The exception itself may have been raised in another process.
    """
    trace = getattr(record, "trace", "")
    if trace and record.exc_info is None:
        record.exc_text = trace.rstrip()
    return True


_log.addFilter(with_traceback)


class LeaseState(Enum):
    """How certain it is that this process still holds a message."""

    HELD = "held"
    SUSPECT = "suspect"
    LOST = "lost"
    ENDED = "ended"


class LeaseLost(Exception):
    """The message may be with another consumer: do nothing with it that cannot be done twice."""

    def __init__(self, state: LeaseState) -> None:
        """``state`` is what is known."""
        super().__init__(f"The lease is {state.value}; stop: another consumer may have the message.")
        self.state = state


class Watcher:
    """What a table calls as leases of a subscription change, in the thread where that happens; it must return soon."""

    def changed(self, lease: "Lease", state: LeaseState) -> object:
        """``lease`` is now in ``state``, which is not HELD."""

    def ending(self, lease: "Lease", left_s: float) -> object:
        """``lease`` ends for good in ``left_s`` seconds: the twelve hours of its message are nearly over."""

    def renewed(self, requests: "Sequence[RenewalRequest]", results: Sequence[RenewalResult]) -> object:
        """A call had these results, one for each request."""


FRESH_S = 5.0
"""Quantiles are read often and change slowly, so they are computed at most once in so many seconds."""


@dataclass(slots=True, eq=False)
class Subscription:
    """What the leases of one handler have in common: ``queue`` is a name or URL, as the client takes it.

    ``strict``: SUSPECT is LOST. After ``cap_s`` seconds of processing a lease is renewed no more. ``measured`` is what
    was measured recently; ``measure`` updates it with every receive and renewal.
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
        """Have the table hold its leases."""
        self.table.subscriptions.append(self)

    def measure(self, now_s: float) -> Measured:
        """Bring ``measured`` up to date, and return it."""
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
    """How long the message is ours: read it only. It renews itself; instants are seconds of the consumer's clock.

    Made by ``LeaseTable.take``. ``noticed`` is the state that its watcher knows.
    """

    message: ReceivedMessage
    subscription: Subscription
    requested_at_s: float
    noticed: LeaseState = LeaseState.HELD
    due_at_s: float | None = None
    begun_at_s: float | None = None
    wanted_at_s: float = 0.0
    tries: int = 0
    renewals: int = 0
    in_flight: bool = False
    closed: bool = False
    final: bool = False
    warned: bool = False
    deleting: bool = False
    withdrawal: "Future[bool] | None" = None
    fences: "list[Future[LeaseState]]" = field(default_factory=list)

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; negative when it has ended."""
        return self.expires_at_s - self.subscription.table.clock.now_s()

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT, LOST, or ENDED."""
        return self.state_at(self.subscription.table.clock.now_s())

    def confirm(self) -> None:
        """Renew the lease now and return when that proved it; raises ``LeaseLost``. Blocks."""
        self.subscription.table.confirm(self).result()

    async def confirmed(self) -> None:
        """``confirm`` for async handlers."""
        await asyncio.wrap_future(self.subscription.table.confirm(self))

    def log(self, level: int, text: str, *values: object, trace: str = "", exc_info: bool = False) -> None:
        """Log a line about the message, whose id is the first value, with fields for formatters of JSON.

        Formatters of text write ``trace`` below the line (``with_traceback``).
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
        """Whether a renewal may do any good; that of a lease which is SUSPECT may still hide the message in time."""
        going = self.withdrawal is None and not self.closed and not self.final
        return going and self.noticed in (LeaseState.HELD, LeaseState.SUSPECT)

    @property
    def may_release(self) -> bool:
        """Whether the message may be made visible: it is held, without a doubt."""
        return not self.closed and self.state is LeaseState.HELD

    def elapsed_s(self, now_s: float) -> float:
        """Return the seconds of the twelve hours that have passed."""
        return now_s - self.requested_at_s

    def state_at(self, now_s: float) -> LeaseState:
        """Return the state at ``now_s``, also when the renewer has not come to notice the deadline.

        A deadline that has passed without proof makes it SUSPECT, where a late receipt may still act.
        """
        if self.noticed is not LeaseState.HELD or now_s < self.expires_at_s:
            return self.noticed
        if self.final:
            return LeaseState.ENDED
        subscription = self.subscription
        dead = subscription.strict or (subscription.fifo and not subscription.policy.server_decides)
        return LeaseState.LOST if dead else LeaseState.SUSPECT


T = TypeVar("T")

WARNED_S = 600.0
"""How long before the end of the twelve hours it is announced, unless a longer lease leaves less time."""
RETRY_S = 0.1
RETRY_S_MAX = 1.6
RETRY_S_MAX_LATE = 15.0
"""Between tries for a lease that may be lost already."""


@dataclass(frozen=True, slots=True)
class RenewalRequest:
    """One renewal on its way: ``lease`` is to be hidden for ``for_s`` from ``sent_at_s`` on.

    The ``last`` one requests all that the twelve hours leave.
    """

    lease: Lease
    for_s: int
    sent_at_s: float
    last: bool


class LeaseTable:
    """Every message that this process holds."""

    def __init__(self, clock: Clock, *, draw: Draw = random.random) -> None:
        """``draw`` gives the jitter of renewals and of pauses."""
        self.clock = clock
        self.call, self.renewal, self.lateness = Durations(), Durations(), Durations()
        """How long the renewals of one renewer take, as ``Measured`` has them."""
        self.metrics = RenewalMetrics()
        self.alarm = clock.alarm()
        """Rings when something has become due earlier than was known."""
        self._draw = draw
        self._lock = threading.Lock()
        self._known_s = math.inf  # what next_due_s returned, or an earlier instant for which the alarm rang
        self.subscriptions: list[Subscription] = []
        self._calls: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return sum(len(subscription.live) for subscription in self.subscriptions)

    def receive_timeout_s(self, subscription: Subscription) -> int | None:
        """Return the visibility timeout that the next receive should have; ``None``: that of the queue."""
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
        """Hold ``messages``, which one receive returned: requested and answered at these instants of the clock.

        ``timeout_s`` is the visibility timeout in force: the one that was sent, else the queue's own. Raises
        ``ValueError`` for one below a second, which no renewal can keep.
        """
        checked_timeout_s(timeout_s)
        with self._deciding():
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
        """Note that the handler of ``lease`` starts now."""
        lease.started_at_s = self.clock.now_s()

    def settle(self, lease: Lease) -> None:
        """Forget ``lease``: its delete or release is confirmed, or it was given up. Harmless when done before.

        A renewal that is on its way is not waited for, and its result has no effect.
        """
        with self._deciding():
            if not lease.closed:
                now_s = self.clock.now_s()
                lease.subscription.hold.add(now_s - lease.received_at_s, now_s=now_s)
                lease.closed = True
                lease.due_at_s = None
                del lease.subscription.live[lease]
                self._fail_fences(lease, LeaseState.ENDED)
                if lease.withdrawal is not None:
                    self._quiet(lease)

    def withdraw(self, lease: Lease) -> "Future[bool]":
        """Renew ``lease`` no more; the future gives, when no renewal of it is on its way, whether it may be released.

        A renewal would undo a release that overtook it. Check once more (``may_release``) before the release is sent.
        """
        with self._deciding():
            if lease.withdrawal is None:
                lease.withdrawal = Future()
                if not lease.in_flight:
                    self._quiet(lease)
            return lease.withdrawal

    def confirm(self, lease: Lease) -> "Future[LeaseState]":
        """Renew ``lease`` at once; the future gives HELD when that proved it, and raises ``LeaseLost`` otherwise."""
        with self._deciding():
            fence: Future[LeaseState] = Future()
            lease.fences.append(fence)
            if not lease.is_renewable or lease.noticed is not LeaseState.HELD:
                self._fail_fences(lease, LeaseState.ENDED if lease.noticed is LeaseState.HELD else lease.noticed)
            elif not lease.in_flight:
                self._schedule(lease, self.clock.now_s())
        return fence

    def open_leases(self) -> list[Lease]:
        """Return all leases that are open, oldest first."""
        with self._lock:
            return [lease for subscription in self.subscriptions for lease in subscription.live]

    def next_due_s(self) -> float | None:
        """Return when something is due next; ``None`` when nothing is."""
        with self._lock:
            planned = (lease.due_at_s for subscription in self.subscriptions for lease in subscription.live)
            self._known_s = min((at_s for at_s in planned if at_s is not None), default=math.inf)
            return None if self._known_s == math.inf else self._known_s

    def due(self) -> list[list[Lease]]:
        """Return what is to be renewed now, in batches of one queue each, filled with what would be due next."""
        with self._deciding():
            now_s = self.clock.now_s()
            groups = [self._due(subscription, now_s) for subscription in self.subscriptions]
        return [
            group[first : first + SQS_BATCH_ENTRIES_MAX]
            for group in groups
            for first in range(0, len(group), SQS_BATCH_ENTRIES_MAX)
        ]

    def prepare(self, batch: Sequence[Lease]) -> list[RenewalRequest]:
        """Return the requests for the leases of ``batch`` at this very instant, without those that ended meanwhile."""
        with self._deciding():
            now_s = self.clock.now_s()
            return [request for lease in batch if (request := self._prepare(lease, now_s)) is not None]

    def answered(self, requests: Sequence[RenewalRequest], results: Sequence[RenewalResult]) -> None:
        """Apply the results, which came just now, one for each request in order."""
        with self._deciding():
            now_s = self.clock.now_s()
            if any(result is not RenewalResult.AGAIN for result in results):
                self.call.add(now_s - requests[0].sent_at_s, now_s=now_s)
            for request, result in zip(requests, results, strict=True):
                request.lease.in_flight = False
                self._answered(request, result, now_s)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Hold the lock; afterwards make the ``_calls`` that were put off meanwhile: they may wake any thread."""
        with self._lock:
            yield
            calls, self._calls = self._calls, []
        for call in calls:
            try:
                call()
            except Exception:  # noqa: BLE001 - the other calls must go on
                _log.exception("a watcher of leases failed")

    def _plan(self, lease: Lease, now_s: float) -> None:
        """Schedule the next renewal of ``lease``, or its end where there will be none."""
        lease.jitter, lease.measured = self._draw(), lease.subscription.measured
        at_s = lease.subscription.policy.renew_at_s(lease, now_s)
        ends = self._is_over(lease, at_s) or at_s > lease.expires_at_s > now_s
        self._schedule(lease, lease.expires_at_s if ends else at_s)

    def _schedule(self, lease: Lease, at_s: float) -> None:
        lease.due_at_s = at_s
        if at_s < self._known_s:
            self._known_s = at_s
            self.alarm.ring()

    def _is_over(self, lease: Lease, at_s: float) -> bool:
        """Return whether ``lease`` will be renewed no more at ``at_s``: by its policy, by its cap, or at its end."""
        cap_s, started_at_s = lease.subscription.cap_s, lease.started_at_s
        capped = cap_s is not None and started_at_s is not None and at_s >= started_at_s + cap_s
        return lease.final or capped or lease.subscription.policy.is_over(lease, at_s)

    def _notice_end(self, lease: Lease, now_s: float) -> None:
        if (state := lease.state_at(now_s)) is not lease.noticed:
            self._change(lease, state)

    def _due(self, subscription: Subscription, now_s: float) -> list[Lease]:
        """Take what is due, and fill its last ten with leases that are past the half and due next."""
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
            self._notice_end(lease, now_s)
            if lease.is_renewable and not self._is_over(lease, now_s):
                lease.wanted_at_s, lease.due_at_s = at_s, None
                group.append(lease)
            elif is_due:
                lease.due_at_s = None
                if lease.is_renewable and now_s < lease.expires_at_s:
                    self._schedule(lease, lease.expires_at_s)
        return group

    def _prepare(self, lease: Lease, now_s: float) -> RenewalRequest | None:
        self._notice_end(lease, now_s)
        if not lease.is_renewable:
            return None
        subscription = lease.subscription
        lease.measured = subscription.measure(now_s)
        wanted_s = max(1, subscription.policy.extension_s(lease, now_s))
        for_s = allowed_s(min(wanted_s, LEASE_S_MAX), elapsed_s=lease.elapsed_s(now_s))
        left_s = LEASE_S_MAX - lease.elapsed_s(now_s)
        if not lease.warned and left_s <= WARNED_S + for_s:
            lease.warned = True
            self._calls.append(partial(subscription.watcher.ending, lease, left_s))
        if for_s < wanted_s and now_s + for_s <= lease.expires_at_s:
            self._finish(lease, now_s)
            return None
        self._calls.append(partial(self.metrics.margin.add, lease.expires_at_s - now_s))
        late_s = now_s - lease.wanted_at_s
        if not lease.tries and late_s >= 0:  # one that is renewed before it is due is not late, nor is a retry
            self.lateness.add(late_s, now_s=now_s)
            self._calls.append(partial(self.metrics.lateness.add, late_s))
        lease.begun_at_s = now_s if lease.begun_at_s is None else lease.begun_at_s
        lease.in_flight = True
        return RenewalRequest(lease, for_s, now_s, last=for_s < wanted_s)

    def _finish(self, lease: Lease, now_s: float) -> None:
        """Let ``lease`` run out: the service keeps it no longer than it is kept already."""
        lease.final = True
        self._fail_fences(lease, LeaseState.ENDED)
        self._schedule(lease, max(now_s, lease.expires_at_s))

    def _answered(self, request: RenewalRequest, result: RenewalResult, now_s: float) -> None:
        lease = request.lease
        if lease.closed:
            return
        if result is not RenewalResult.PROVEN:
            self._notice_end(lease, now_s)
        if result is RenewalResult.GONE and not lease.deleting:
            self._change(lease, LeaseState.LOST)
        if lease.withdrawal is not None:
            self._quiet(lease)
        elif not lease.is_renewable:
            return
        elif result is RenewalResult.AT_LIMIT:
            self._finish(lease, now_s)
        elif result in (RenewalResult.AGAIN, RenewalResult.GONE):  # GONE: it met our own delete, whose reply decides
            self._retry(lease, now_s)
        else:
            if result is RenewalResult.PROVEN:  # however late: the server knows that it was received by no one else
                lease.noticed = LeaseState.HELD
            self._renewed(request, now_s)

    def _renewed(self, request: RenewalRequest, now_s: float) -> None:
        lease = request.lease
        self.renewal.add(now_s - (lease.begun_at_s or request.sent_at_s), now_s=now_s)
        lease.begun_at_s, lease.tries = None, 0
        lease.renewals += 1
        lease.final = request.last
        lease.renewed_at_s = request.sent_at_s
        lease.expires_at_s = request.sent_at_s + request.for_s
        if lease.noticed is LeaseState.HELD:  # else it had passed before, and this proves nothing
            fences, lease.fences = lease.fences, []
            for fence in fences:
                self._calls.append(partial(_resolve, fence.set_result, lease.noticed))
        self._plan(lease, now_s)

    def _retry(self, lease: Lease, now_s: float) -> None:
        lease.tries += 1
        held = lease.noticed is LeaseState.HELD
        pause_s = min(RETRY_S * 2 ** min(lease.tries - 1, 20), RETRY_S_MAX if held else RETRY_S_MAX_LATE)
        at_s = now_s + pause_s * (0.5 + self._draw())
        self._schedule(lease, min(at_s, lease.expires_at_s) if held else at_s)

    def _change(self, lease: Lease, state: LeaseState) -> None:
        lease.noticed = state
        self._fail_fences(lease, state)
        self._calls.append(partial(lease.subscription.watcher.changed, lease, state))

    def _quiet(self, lease: Lease) -> None:
        """Resolve what waits for ``lease``: no renewal of it is on its way, and none will be."""
        lease.due_at_s = None
        self._fail_fences(lease, LeaseState.ENDED)
        withdrawal = lease.withdrawal
        assert withdrawal is not None
        self._calls.append(lambda: _resolve(withdrawal.set_result, lease.may_release))

    def _fail_fences(self, lease: Lease, state: LeaseState) -> None:
        """Fail the futures that wait for a proof of ``lease``: it is in ``state``."""
        fences, lease.fences = lease.fences, []
        for fence in fences:
            self._calls.append(partial(_resolve, fence.set_exception, LeaseLost(state)))


def _resolve(set_value: Callable[[T], object], value: T) -> None:
    """Resolve a future, unless that was done, or its handler was cancelled in its fence."""
    with suppress(InvalidStateError):
        set_value(value)


PATIENCE_S_USUAL = 5.0
PATIENCE_S_LAST = 2.0
"""Not halved any more: what is left of a lease then goes to one try."""
PATIENCE_S_LEAST = 0.5
"""For a batch with a lease that is nearly over, or is."""


class Renewer:
    """Renews what is due in a ``LeaseTable``; ``run_due`` does it once, ``start`` for as long as the process lives.

    It sleeps until the next lease is due, and sends what is due in batches with a timeout for each entry. Each call has
    a timeout of its own: long enough for the slowest recent calls, and never past the end of the first lease of the
    batch, so that a connection which drops everything costs a try and not the lease.
    """

    def __init__(
        self, table: LeaseTable, change: Callable[..., Sequence[Exception | Hidden | None]], *, calls_max: int = 4
    ) -> None:
        """``change`` is ``QueueClient.change_visibility_batch``, of a client with connections of its own.

        Nothing else may keep a renewal waiting. When more than one batch is due, up to ``calls_max`` calls are under
        way at once.
        """
        self._table = table
        self._change = change
        self._calls = ThreadPoolExecutor(calls_max, "veilmq-renewal") if calls_max > 1 else None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="veilmq-renewer", daemon=True)

    def start(self) -> None:
        """Begin to renew, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the call that is on its way; leases are not touched. Harmless before ``start``."""
        self._stopping = True
        self._table.alarm.ring()
        if self._thread.is_alive():
            self._thread.join()
        if self._calls is not None:
            self._calls.shutdown()

    def run_due(self) -> None:
        """Renew all that is due, and notice what has ended; returns when every call has a reply or was given up."""
        batches = self._table.due()
        if self._calls is None or len(batches) < 2:
            for batch in batches:
                self._renew(batch)
        else:
            list(self._calls.map(self._renew, batches))

    def _run(self) -> None:
        while not self._stopping:
            self._table.alarm.wait_until(self._table.next_due_s())
            try:
                if not self._stopping:
                    self.run_due()
            except Exception:  # noqa: BLE001 - every lease depends on this thread
                _log.exception("a renewal failed; renewing continues")

    def _renew(self, batch: Sequence[Lease]) -> None:
        requests = self._table.prepare(batch)
        if not requests:
            return
        subscription = batch[0].subscription
        changes = [VisibilityChange(receipt=one.lease.message.receipt, timeout_s=one.for_s) for one in requests]
        replies: Sequence[Exception | Hidden | None]
        try:
            replies = self._change(subscription.queue, changes, patience_s=patience_s(requests))
        except Exception as error:  # noqa: BLE001 - it says nothing about a lease, and the thread goes on
            replies = [error] * len(requests)
            results = [RenewalResult.AGAIN] * len(requests)
        else:
            results = [
                renewal_result(reply, requested_s=one.for_s, elapsed_s=one.lease.elapsed_s(one.sent_at_s))
                for one, reply in zip(requests, replies, strict=True)
            ]
            # What the server granted counts from when the request was sent: no clocks have to agree then, and it is
            # early by the way there at most. More than was requested does not count.
            requests = [
                replace(one, for_s=int(reply.for_s)) if isinstance(reply, Hidden) and reply.for_s < one.for_s else one
                for one, reply in zip(requests, replies, strict=True)
            ]
        self._table.answered(requests, results)
        subscription.watcher.renewed(requests, results)
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        self._table.metrics.called(results, errors, self._table.clock.now_s() - requests[0].sent_at_s)


def patience_s(requests: Sequence[RenewalRequest]) -> float:
    """Return how long to wait for the reply to ``requests``, in seconds: longer with each try, up to half of the rest.

    The last seconds of a lease are waited for to the end.
    """
    first = requests[0].lease
    left_s = min(one.lease.remaining for one in requests)
    usual_s = max(PATIENCE_S_USUAL, 4 * (first.measured.call_s or 0.0)) * 2.0 ** min(first.tries, 10)
    return max(PATIENCE_S_LEAST, min(usual_s, max(left_s / 2, PATIENCE_S_LAST), left_s))
