"""The table of all leases of a process, with one heap by the instant at which each is due next.

The renewer takes what is ``due``, has it ``prepare``d right before it is sent, and brings back what was ``answered``;
whoever works on messages takes, starts, settles and withdraws. Threads may do all of that at once: a lock guards the
table, and no watcher is called while it is held.
"""

import itertools
import logging
import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.clock import Clock
from veilmq.consumer.due_heap import DueHeap
from veilmq.consumer.leases import Lease, LeaseState, Subscription, Unwatched, Watcher
from veilmq.consumer.measures import Renewing
from veilmq.consumer.policies import Draw, Policy, allowed_s, checked_timeout_s
from veilmq.consumer.promises import Promises
from veilmq.consumer.verdicts import Verdict
from veilmq.core.limits import LEASE_S_MAX, SQS_BATCH_ENTRIES_MAX

WARNED_S = 600.0
"""How long before the end of the twelve hours it is announced, unless a longer lease leaves less time."""
PAUSE_S = 0.1
PAUSE_S_MAX = 1.6
PAUSE_S_MAX_LATE = 15.0
"""Between tries for a lease that may be lost already."""

_log = logging.getLogger("veilmq.consumer")


@dataclass(frozen=True, slots=True)
class Asked:
    """One renewal on its way: ``lease`` is to be hidden for ``for_s`` from ``sent_at_s`` on.

    The ``last`` one asks for all that the twelve hours leave.
    """

    lease: Lease
    for_s: int
    sent_at_s: float
    last: bool


class LeaseTable:
    """Every message in the hands of this process."""

    def __init__(self, clock: Clock, *, watcher: Watcher | None = None, draw: Draw = random.random) -> None:
        """``draw`` gives the jitter of renewals and of pauses."""
        self.clock = clock
        self.renewing = Renewing()
        self.alarm = clock.alarm()
        """Rings when something has become due earlier than was known."""
        self._watcher: Watcher = watcher or Unwatched()
        self._draw = draw
        self._lock = threading.Lock()
        self._heap = DueHeap()
        self._looked_s = math.inf  # what next_due_s has answered, or an earlier instant of which the alarm has told
        self._numbers = itertools.count()
        self._subscriptions: list[Subscription] = []
        self._news: list[Callable[[], object]] = []
        self._promises = Promises(self._tell)

    def __len__(self) -> int:
        """Return how many leases are open."""
        return sum(len(subscription.live) for subscription in self._subscriptions)

    def subscribe(
        self, queue: str, policy: Policy, *, fifo: bool = False, strict: bool = False, cap_s: float | None = None
    ) -> Subscription:
        """Begin to hold messages of ``queue`` (a name or URL, as the client takes it) by ``policy``.

        ``strict``: SUSPECT is LOST. After ``cap_s`` seconds of processing a lease is renewed no more.
        """
        subscription = Subscription(queue, policy, self.renewing, fifo=fifo, strict=strict, cap_s=cap_s)
        with self._lock:
            self._subscriptions.append(subscription)
        return subscription

    def receive_timeout_s(self, subscription: Subscription) -> int | None:
        """Return the visibility timeout that the next receive should have; ``None``: that of the queue."""
        with self._lock:
            subscription.measured = subscription.measures.at(self.clock.now_s())
            return subscription.policy.receive_timeout_s(subscription.measured)

    def take(
        self,
        subscription: Subscription,
        messages: Sequence[ReceivedMessage],
        *,
        requested_at_s: float,
        answered_at_s: float,
        timeout_s: int,
    ) -> list[Lease]:
        """Hold ``messages``, which one receive brought: asked for and answered at these instants of the clock.

        ``timeout_s`` is the visibility timeout in force: the one that was sent, else the queue's own. Raises
        ``ValueError`` for one below a second, which no renewal can keep.
        """
        checked_timeout_s(timeout_s)
        with self._deciding():
            leases = [
                Lease(next(self._numbers), message, subscription, requested_at_s=requested_at_s, timeout_s=timeout_s)
                for message in messages
            ]
            subscription.measured = subscription.measures.at(answered_at_s)
            for lease in leases:
                self._take(lease, answered_at_s)
        return leases

    def start(self, lease: Lease) -> None:
        """Note that the handler of ``lease`` begins now."""
        lease.started_at_s = self.clock.now_s()

    def settle(self, lease: Lease) -> None:
        """Forget ``lease``: its delete or release is confirmed, or it was given up. Harmless when done before.

        A renewal that is on its way is not waited for, and whatever answers it means nothing any more.
        """
        with self._deciding():
            if not lease.closed:
                now_s = self.clock.now_s()
                lease.subscription.measures.hold.add(now_s - lease.received_at_s, now_s=now_s)
                self._close(lease)

    def withdraw(self, lease: Lease) -> "Future[bool]":
        """Renew ``lease`` no more; the future tells, when no renewal of it is on its way, whether it may be released.

        A release that overtook a renewal would be undone by it. Look once more (``may_release``) before it is sent.
        """
        with self._deciding():
            if lease.withdrawal is None:
                lease.withdrawal = Future()
                if not lease.in_flight:
                    self._quiet(lease)
            return lease.withdrawal

    def may_release(self, lease: Lease) -> bool:
        """Tell whether making the message of ``lease`` visible can harm nobody: it is held, without a doubt."""
        return not lease.closed and lease.state_at(self.clock.now_s()) is LeaseState.HELD

    def confirm(self, lease: Lease) -> "Future[LeaseState]":
        """Renew ``lease`` at once; the future gives HELD when that proved it, and raises ``LeaseLost`` otherwise."""
        with self._deciding():
            fence = self._promises.proof(lease)
            if lease.closed or lease.withdrawal is not None or lease.state is not LeaseState.HELD:
                self._promises.broken(lease, lease.state)
            elif not lease.in_flight:
                self._schedule(lease, self.clock.now_s())
        return fence

    def open_leases(self) -> list[Lease]:
        """Return all leases that are open, oldest first."""
        with self._lock:
            return [lease for subscription in self._subscriptions for lease in subscription.live.values()]

    def next_due_s(self) -> float | None:
        """Return when something is due next; ``None`` when nothing is."""
        with self._lock:
            self._heap.shrink(len(self))
            first_s = self._heap.first_s()
            self._looked_s = math.inf if first_s is None else first_s
            return first_s

    def due(self) -> list[list[Lease]]:
        """Return what is to be renewed now, in batches of one queue each, filled with what would be due next."""
        with self._deciding():
            now_s = self.clock.now_s()
            groups: dict[str, list[Lease]] = {}
            while (lease := self._pop_due(now_s)) is not None:
                if self._is_to_renew(lease, now_s):
                    groups.setdefault(lease.subscription.queue, []).append(lease)
            for group in groups.values():
                self._fill(group, now_s)
        return [
            group[first : first + SQS_BATCH_ENTRIES_MAX]
            for group in groups.values()
            for first in range(0, len(group), SQS_BATCH_ENTRIES_MAX)
        ]

    def prepare(self, batch: Sequence[Lease]) -> list[Asked]:
        """Return what to ask for the leases of ``batch`` at this very instant, without those that ended meanwhile."""
        with self._deciding():
            now_s = self.clock.now_s()
            return [asked for lease in batch if (asked := self._prepare(lease, now_s)) is not None]

    def answered(self, asked: Sequence[Asked], verdicts: Sequence[Verdict]) -> None:
        """Take in the answers, which came just now, one for each renewal in order."""
        with self._deciding():
            now_s = self.clock.now_s()
            if any(answer is not Verdict.AGAIN for answer in verdicts):
                self.renewing.call.add(now_s - asked[0].sent_at_s, now_s=now_s)
            for renewal, answer in zip(asked, verdicts, strict=True):
                renewal.lease.in_flight = False
                self._answered(renewal, answer, now_s)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Hold the lock; afterwards tell whoever watches what was decided."""
        with self._lock:
            yield
            news, self._news = self._news, []
        for tell in news:
            try:
                tell()
            except Exception:  # noqa: BLE001 - whoever watches may raise anything, and the others are to be told
                _log.exception("whoever watches leases failed")

    def _tell(self, tell: Callable[[], object]) -> None:
        self._news.append(tell)

    def _take(self, lease: Lease, answered_at_s: float) -> None:
        subscription = lease.subscription
        lease.received_at_s = lease.renewed_at_s = answered_at_s
        lease.expires_at_s = subscription.policy.first_expiry_s(
            answered_at_s=answered_at_s, timeout_s=lease.timeout_s, measured=subscription.measured
        )
        subscription.live[lease.number] = lease
        self._plan(lease, self.clock.now_s())

    def _plan(self, lease: Lease, now_s: float) -> None:
        """Schedule the next renewal of ``lease``, or its end where there will be none."""
        lease.jitter = self._draw()
        at_s = lease.subscription.policy.renew_at_s(lease, now_s)
        ends = self._is_over(lease, at_s) or at_s > lease.expires_at_s > now_s
        self._schedule(lease, lease.expires_at_s if ends else at_s)

    def _schedule(self, lease: Lease, at_s: float) -> None:
        self._heap.put(lease, at_s)
        if at_s < self._looked_s:
            self._looked_s = at_s
            self.alarm.ring()

    def _pop_due(self, now_s: float) -> Lease | None:
        first_s = self._heap.first_s()
        return None if first_s is None or first_s > now_s else self._heap.pop()

    def _is_over(self, lease: Lease, at_s: float) -> bool:
        """Tell whether ``lease`` will be renewed no more at ``at_s``: by its policy, by its cap, or at its end."""
        cap_s, started_at_s = lease.subscription.cap_s, lease.started_at_s
        capped = cap_s is not None and started_at_s is not None and at_s >= started_at_s + cap_s
        return lease.final or capped or lease.subscription.policy.is_over(lease, at_s)

    def _is_to_renew(self, lease: Lease, now_s: float) -> bool:
        self._notice_end(lease, now_s)
        if not lease.is_renewable:
            return False
        over = self._is_over(lease, now_s)
        if over and now_s < lease.expires_at_s:
            self._schedule(lease, lease.expires_at_s)
        return not over

    def _notice_end(self, lease: Lease, now_s: float) -> None:
        state = lease.state_at(now_s)
        if state is not lease.state:
            self._change(lease, state)

    def _fill(self, group: list[Lease], now_s: float) -> None:
        """Bring ``group`` to a multiple of ten with leases of its queue that are past the half and due next."""
        policy, queue = group[0].subscription.policy, group[0].subscription.queue
        missing = -len(group) % SQS_BATCH_ENTRIES_MAX
        passed: list[Lease] = []
        while missing and not policy.timely_only and len(passed) < SQS_BATCH_ENTRIES_MAX:
            if self._heap.first_s() is None:
                break
            lease = self._heap.pop()
            if lease.subscription.queue == queue and _is_past_half(lease, now_s) and not self._is_over(lease, now_s):
                group.append(lease)
                missing -= 1
            else:
                passed.append(lease)
        for lease in passed:
            self._heap.put(lease, lease.wanted_at_s)

    def _prepare(self, lease: Lease, now_s: float) -> Asked | None:
        self._notice_end(lease, now_s)
        if not lease.is_renewable:
            return None
        subscription = lease.subscription
        subscription.measured = subscription.measures.at(now_s)
        wanted_s = max(1, subscription.policy.extension_s(lease, now_s))
        for_s = allowed_s(min(wanted_s, LEASE_S_MAX), elapsed_s=lease.elapsed_s(now_s))
        self._warn(lease, now_s, for_s)
        if for_s < wanted_s and now_s + for_s <= lease.expires_at_s:
            self._finish(lease, now_s)
            return None
        if not lease.tries and lease.wanted_at_s <= now_s:
            self.renewing.lateness.add(now_s - lease.wanted_at_s, now_s=now_s)
        lease.begun_at_s = now_s if lease.begun_at_s is None else lease.begun_at_s
        lease.in_flight = True
        return Asked(lease, for_s, now_s, last=for_s < wanted_s)

    def _warn(self, lease: Lease, now_s: float, for_s: int) -> None:
        left_s = LEASE_S_MAX - lease.elapsed_s(now_s)
        if not lease.warned and left_s <= WARNED_S + for_s:
            lease.warned = True
            self._tell(partial(self._watcher.ending, lease, left_s))

    def _finish(self, lease: Lease, now_s: float) -> None:
        """Let ``lease`` run out: the service keeps it no longer than it is kept already."""
        lease.final = True
        self._promises.broken(lease, LeaseState.ENDED)
        self._schedule(lease, max(now_s, lease.expires_at_s))

    def _answered(self, asked: Asked, answer: Verdict, now_s: float) -> None:
        lease = asked.lease
        if lease.closed:
            return
        if answer is not Verdict.PROVEN:
            self._notice_end(lease, now_s)
        if answer is Verdict.GONE and not lease.deleting:
            self._change(lease, LeaseState.LOST)
        if lease.withdrawal is not None:
            self._quiet(lease)
        elif lease.is_renewable:
            self._follow_up[answer](self, asked, now_s)

    def _renewed(self, asked: Asked, now_s: float) -> None:
        lease = asked.lease
        self.renewing.renewal.add(now_s - (lease.begun_at_s or asked.sent_at_s), now_s=now_s)
        lease.begun_at_s, lease.tries = None, 0
        lease.renewals += 1
        lease.final = asked.last
        lease.renewed_at_s = asked.sent_at_s
        lease.expires_at_s = asked.sent_at_s + asked.for_s
        self._promises.proven(lease)
        if lease.on_renewed is not None:
            self._tell(lease.on_renewed)
        self._plan(lease, now_s)

    def _proven(self, asked: Asked, now_s: float) -> None:
        """Believe the server, which knows: the message was nobody else's, however late this is."""
        asked.lease.state = LeaseState.HELD
        self._renewed(asked, now_s)

    def _again(self, asked: Asked, now_s: float) -> None:
        lease = asked.lease
        lease.tries += 1
        held = lease.state is LeaseState.HELD
        pause_s = min(PAUSE_S * 2 ** min(lease.tries - 1, 20), PAUSE_S_MAX if held else PAUSE_S_MAX_LATE)
        at_s = now_s + pause_s * (0.5 + self._draw())
        self._schedule(lease, min(at_s, lease.expires_at_s) if held else at_s)

    def _at_limit(self, asked: Asked, now_s: float) -> None:
        self._finish(asked.lease, now_s)

    _follow_up: ClassVar[Mapping[Verdict, Callable[["LeaseTable", Asked, float], None]]] = {
        Verdict.RENEWED: _renewed,
        Verdict.PROVEN: _proven,
        Verdict.AGAIN: _again,
        Verdict.GONE: _again,  # it met our own delete, whose answer tells
        Verdict.AT_LIMIT: _at_limit,
    }

    def _change(self, lease: Lease, state: LeaseState) -> None:
        lease.state = state
        self._promises.broken(lease, state)
        self._tell(partial(self._watcher.changed, lease, state))

    def _quiet(self, lease: Lease) -> None:
        """Tell that no renewal of ``lease`` is on its way, and none will be."""
        lease.due_at_s = None
        self._promises.broken(lease, LeaseState.ENDED)
        self._promises.quiet(lease, self.may_release)

    def _close(self, lease: Lease) -> None:
        lease.closed = True
        lease.due_at_s = None
        del lease.subscription.live[lease.number]
        self._promises.broken(lease, LeaseState.ENDED)
        if lease.withdrawal is not None:
            self._quiet(lease)


def _is_past_half(lease: Lease, now_s: float) -> bool:
    """Tell whether ``lease`` may be renewed now and half the time until it would be due anyway has passed."""
    return lease.is_renewable and now_s - lease.renewed_at_s > (lease.wanted_at_s - lease.renewed_at_s) / 2
