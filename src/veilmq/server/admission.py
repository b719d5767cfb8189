"""Admission: the limits of HTTP, a byte budget for bodies and replies, and fair queues on the event loop.

A large body reserves its bytes before it is read. Until its signature is verified it counts to one half of the budget.
In that half, every access key id (or address, if there is no key id) may use as much as it leaves free: one alone gets
half of that half, two a third each, so there is always room for another. Within a key id the same holds for its
members: an address, and whether the connection has sent a genuine request before. So strangers who send someone's key
id do not displace its holder. A share that holds nothing gets its first body as soon as anything is free. Freed bytes
go to the shortest waiting body.

Replies that clients have not read count too, each as a whole until all of it is sent. While they exceed half of the
budget, ``replies_full`` is set and no receive starts.

A connection with more work than others does it in pieces (``LoopQueues``) of a few milliseconds at most. Reading from
unverified clients is paced by a timer: at most one segment (some 256 KB) per ``PACE_S`` for all of them together. Every
other of these slots drops input of refused clients.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple

from veilmq.core import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Sizes in bytes, durations in seconds of the event loop's clock.

    ``request_s_max`` limits the reading of a whole request, and the time in which a client reads nothing of a reply;
    ``body_wait_s_max`` the wait for budget of a body longer than ``large_body_bytes`` (a chunked one reserves
    ``body_step_bytes`` at a time); ``linger_s_max`` the time in which a refused client must stop sending, so that it
    can read the refusal, and in which more of an incomplete request must arrive while the server drains.
    """

    head_bytes_max: int = limits.HTTP_HEAD_BYTES_MAX
    headers_max: int = limits.HTTP_HEADERS_MAX
    target_bytes_max: int = limits.HTTP_TARGET_BYTES_MAX
    body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX
    pipelined_max: int = limits.HTTP_PIPELINED_REQUESTS_MAX
    request_s_max: float = limits.HTTP_REQUEST_S_MAX
    idle_s_max: float = limits.HTTP_IDLE_S_MAX
    linger_s_max: float = 2.0
    large_body_bytes: int = limits.HTTP_LARGE_BODY_BYTES
    body_step_bytes: int = limits.HTTP_BODY_STEP_BYTES
    body_wait_s_max: float = limits.HTTP_BODY_WAIT_S_MAX


class Share(NamedTuple):
    """The share of the budget's unverified half to which a body counts.

    ``key`` is an access key id or an address, ``member`` a part of it, if it has parts. A ``trusted`` body is read
    without pacing. ``is_signed`` if the digest of the body is needed; ``is_verified`` if the signature does not cover
    the body and is known to be genuine.
    """

    key: str
    member: tuple[str | None, bool] | None = None
    trusted: bool = True
    is_signed: bool = False
    is_verified: bool = False


class ByteBudget:
    """The bytes that all connections of a server hold; belongs to one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.unverified = 0
        self.verified = 0
        self.unread_replies = 0
        self.replies_full = False
        self.on_replies_full: Callable[[], object] = bool  # called when ``replies_full`` becomes true
        self._by_key: Counter[str] = Counter()
        self._by_member: Counter[Share] = Counter()
        self.waiting: dict[Hold, int] = {}  # the bytes that each waits for, in order
        self._granting = False
        self._waiters: dict[Callable[[], object], None] = {}

    def parts(self) -> dict[str, int]:
        return {"unverified_bodies": self.unverified, "bodies": self.verified, "unread_answers": self.unread_replies}

    def count_replies(self, change: int) -> None:
        """Add to the bytes of unread replies; ``change`` may be negative."""
        self.unread_replies += change
        was_full, self.replies_full = self.replies_full, self.unread_replies > self.bytes_max // 2
        if change < 0 and (was_full or self.waiting):
            self._grant_soon()
        elif self.replies_full and not was_full:
            self.on_replies_full()

    def add_waiter(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` once when unread replies no longer fill their half."""
        self._waiters[wake] = None

    def remove_waiter(self, wake: Callable[[], object]) -> None:
        self._waiters.pop(wake, None)

    def fits(self, hold: "Hold", more: int) -> bool:
        """Return whether ``hold`` may have ``more`` bytes now."""
        share = hold.share
        free = self.bytes_max // 2 - self.unverified - more
        if free < 0 or self.unverified + self.verified + self.unread_replies + more > self.bytes_max:
            return False
        of_key = self._by_key[share.key]
        if of_key > hold.bytes and of_key + more > free:
            return False
        of_member = self._by_member[share]
        if share.member is None or of_member <= hold.bytes:
            return True
        of_key += more
        return of_member + more <= (free + of_key) // 2 - of_key

    def change(self, hold: "Hold", more: int) -> None:
        """Count ``more`` bytes of ``hold``; ``more`` may be negative."""
        hold.bytes += more
        if hold.is_verified:
            self.verified += more
        else:
            self.unverified += more
            _count(self._by_key, hold.share.key, more)
            _count(self._by_member, hold.share, more)
        if more < 0 and self.waiting:
            self._grant_soon()

    def _grant_soon(self) -> None:
        if not self._granting:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._granting = False
        for hold, more in sorted(self.waiting.items(), key=itemgetter(1)):
            if hold in self.waiting and self.fits(hold, more):
                hold.take(more)
        if not self.replies_full:
            woken, self._waiters = self._waiters, {}
            for wake in woken:
                wake()


class Hold:
    """The bytes of one body; ``digest`` is the SHA-256 of those received, if the body is signed."""

    __slots__ = ("_budget", "bytes", "digest", "granted", "is_verified", "share")

    def __init__(self, budget: ByteBudget, share: Share, granted: Callable[[], object]) -> None:
        """Hold nothing; ``granted`` is called when a wait for a reservation ends."""
        self._budget = budget
        self.share = share
        self.granted = granted
        self.bytes = 0
        self.digest: Any = None
        self.is_verified = share.is_verified

    def reserve(self, more: int) -> bool:
        """Reserve ``more`` bytes, or wait for them; return whether they are reserved."""
        if not self._budget.fits(self, more):
            self._budget.waiting[self] = more
            return False
        self.take(more)
        return True

    def take(self, more: int) -> None:
        """Count bytes that are reserved or have arrived, which ends a wait."""
        self._budget.change(self, more)
        if self._budget.waiting.pop(self, None) is not None:
            self.granted()

    def feed(self, piece: bytes | bytearray) -> None:
        """Add the next bytes of the body to the digest, if it is signed."""
        if self.share.is_signed:
            if self.digest is None:
                self.digest = sha256()
            self.digest.update(piece)

    def verify(self) -> None:
        """Move the bytes out of the unverified half, after the signature was found genuine."""
        held = self.bytes
        if not self.is_verified:
            self._budget.change(self, -held)
            self.is_verified = True
            self._budget.change(self, held)

    def release(self) -> None:
        """Release all bytes; idempotent."""
        self._budget.waiting.pop(self, None)
        if self.bytes:
            self._budget.change(self, -self.bytes)


def _count(counter: Counter[Any], name: Any, more: int) -> None:
    counter[name] += more
    if not counter[name]:
        del counter[name]


SLICE_S_MAX = 0.002
PACE_S = 0.002

Work = Callable[[], object]


class LoopQueues:
    """Queues of callbacks on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._soon: deque[Work] = deque()
        self._paced: deque[Work] = deque()
        self._paced_drops: deque[Work] = deque()
        self._drop_next = False

    def soon(self, work: Work) -> None:
        """Call ``work`` in one of the next iterations of the loop."""
        self._soon.append(work)
        if len(self._soon) == 1:
            self._loop.call_soon(self._run_soon)

    def paced(self, work: Work) -> None:
        """Call ``work`` in the paced slots of unverified clients."""
        self._queue_paced(self._paced, work)

    def paced_drop(self, work: Work) -> None:
        """Call ``work``, which drops input of a refused client, in at most every other slot while others wait."""
        self._queue_paced(self._paced_drops, work)

    def _run_soon(self) -> None:
        end_s = perf_counter() + SLICE_S_MAX
        try:
            for _ in range(len(self._soon)):
                _run_first(self._soon)
                if perf_counter() >= end_s:
                    break
        finally:  # an exception of one connection must not stop the others
            if self._soon:
                self._loop.call_soon(self._run_soon)

    def _queue_paced(self, queue: deque[Work], work: Work) -> None:
        queue.append(work)
        if len(self._paced) + len(self._paced_drops) == 1:
            self._loop.call_later(PACE_S, self._run_paced)

    def _run_paced(self) -> None:
        drops = self._paced_drops and (self._drop_next or not self._paced)
        self._drop_next = not drops
        try:
            _run_first(self._paced_drops if drops else self._paced)
        finally:
            if self._paced or self._paced_drops:
                self._loop.call_later(PACE_S, self._run_paced)


def _run_first(queue: deque[Work]) -> None:
    try:
        queue[0]()
    finally:
        queue.popleft()  # after the call: what it queues must not schedule a second run
