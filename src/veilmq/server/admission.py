"""What clients may make the server hold and do: limits of HTTP, a budget of bytes, and turns of the event loop.

A large body reserves its bytes before they are read. Until its signature is verified it counts in one half of the
budget, where every access key id, or every address without one, may take as much as it leaves free: one alone gets half
of that half, two a third each, and there is always room for another. Within a key id the same holds for its members: an
address, and whether the connection has sent a genuine request before, so that strangers who name a key do not displace
its holder. A share that holds nothing gets its first body as soon as there is room at all. Room that becomes free goes
to the shortest body that waits.

Replies that clients do not read are counted, each as a whole until all of it is sent. While they exceed half of the
budget, ``answers_full`` is set and no receive starts.

A connection that has more to do than others does it piece by piece (``LoopQueues``); a piece takes a few milliseconds
at most. Reading from a client that is not verified yet is paced by a timer: at most one segment (some 256 KB) in
``PACE_S``, of all such clients together. What refused clients still send is dropped in every other of these turns.
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
    """Sizes in bytes, durations in seconds on the event loop's clock.

    ``request_s_max`` holds for reading one whole request and for a client that does not take its replies;
    ``body_wait_s_max`` for a body longer than ``large_body_bytes`` until there is room for it (a chunked one reserves
    ``body_step_bytes`` at a time); ``linger_s_max`` for a refused client to stop sending, so that it can read why it
    was refused.
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
    """Which share of the unverified half a body counts in.

    ``key`` is an access key id or an address, ``member`` a part of it, ``None`` if it has none. A ``trusted`` body is
    read as fast as it comes. ``is_signed`` if the digest of the body will be needed, ``is_verified`` if the signature
    does not cover the body and is known to be genuine.
    """

    key: str
    member: tuple[str | None, bool] | None = None
    trusted: bool = True
    is_signed: bool = False
    is_verified: bool = False


class ByteBudget:
    """What all connections of a server hold together; belongs to one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.unverified = 0
        self.verified = 0
        self.answers = 0
        self.answers_full = False
        self._by_key: Counter[str] = Counter()
        self._by_member: Counter[Share] = Counter()
        self.waiting: dict[Hold, int] = {}  # the bytes that each is granted when they fit; in order
        self._granting = False
        self._on_room: dict[Callable[[], object], None] = {}

    def parts(self) -> dict[str, int]:
        """Return the bytes that are held, by what they are."""
        return {"unverified_bodies": self.unverified, "bodies": self.verified, "unread_answers": self.answers}

    def count_answers(self, change: int) -> None:
        """Count bytes that clients have not read, or have read after all."""
        self.answers += change
        full = self.answers > self.bytes_max // 2
        if self.answers_full and not full:
            self._grant_soon()
        self.answers_full = full
        if change < 0 and self.waiting:
            self._grant_soon()

    def on_room(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` once when answers are no longer full."""
        self._on_room[wake] = None

    def off_room(self, wake: Callable[[], object]) -> None:
        """Do not call ``wake`` any more."""
        self._on_room.pop(wake, None)

    def fits(self, hold: "Hold", more: int) -> bool:
        """Return whether ``hold`` may have ``more`` bytes now."""
        share = hold.share
        free = self.bytes_max // 2 - self.unverified - more
        if free < 0 or self.unverified + self.verified + self.answers + more > self.bytes_max:
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
        """Count ``more`` bytes of ``hold``, or fewer, where it stands."""
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
                del self.waiting[hold]
                self.change(hold, more)
                hold.granted()
        if not self.answers_full:
            woken, self._on_room = self._on_room, {}
            for wake in woken:
                wake()


class Hold:
    """The bytes of one body; ``digest`` is the SHA-256 of what has come of it, where that is signed."""

    __slots__ = ("_budget", "bytes", "digest", "granted", "is_verified", "share")

    def __init__(self, budget: ByteBudget, share: Share, granted: Callable[[], object]) -> None:
        """Hold nothing; ``granted`` is called when bytes that were waited for are there."""
        self._budget = budget
        self.share = share
        self.granted = granted
        self.bytes = 0
        self.digest: Any = None
        self.is_verified = share.is_verified

    def reserve(self, more: int) -> bool:
        """Take ``more`` bytes, or wait for them; return whether they are there."""
        if not self._budget.fits(self, more):
            self._budget.waiting[self] = more
            return False
        self._budget.waiting.pop(self, None)
        self._budget.change(self, more)
        return True

    def take(self, more: int) -> None:
        """Take bytes that have come already."""
        self._budget.change(self, more)

    def feed(self, piece: bytes | bytearray) -> None:
        """Have the next bytes of the body in the digest, if it is signed."""
        if self.share.is_signed:
            if self.digest is None:
                self.digest = sha256()
            self.digest.update(piece)

    def verify(self) -> None:
        """Leave the half for what is not verified: the signature was genuine."""
        held = self.bytes
        if not self.is_verified:
            self._budget.change(self, -held)
            self.is_verified = True
            self._budget.change(self, held)

    def release(self) -> None:
        """Give everything back; once is enough."""
        self._budget.waiting.pop(self, None)
        if self.bytes:
            self._budget.change(self, -self.bytes)


def _count(counter: Counter[Any], name: Any, more: int) -> None:
    counter[name] += more
    if not counter[name]:
        del counter[name]


TURN_S_MAX = 0.002
PACE_S = 0.002

Work = Callable[[], object]


class LoopQueues:
    """The queues of work of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._soon: deque[Work] = deque()
        self._unhurried: deque[Work] = deque()
        self._dropping: deque[Work] = deque()
        self._is_drop_next = False

    def soon(self, work: Work) -> None:
        """Do ``work`` in one of the next turns of the loop."""
        self._soon.append(work)
        if len(self._soon) == 1:
            self._loop.call_soon(self._take_turn)

    def unhurried(self, work: Work) -> None:
        """Do ``work`` when the clients that are not known have their turn."""
        self._queue_paced(self._unhurried, work)

    def dropping(self, work: Work) -> None:
        """Do ``work``, which drops what a refused client sent, in a turn that leaves the next one to others."""
        self._queue_paced(self._dropping, work)

    def _take_turn(self) -> None:
        end_s = perf_counter() + TURN_S_MAX
        try:
            for _ in range(len(self._soon)):
                _do_first(self._soon)
                if perf_counter() >= end_s:
                    break
        finally:  # a defect in one connection's work leaves that of others
            if self._soon:
                self._loop.call_soon(self._take_turn)

    def _queue_paced(self, queue: deque[Work], work: Work) -> None:
        queue.append(work)
        if len(self._unhurried) + len(self._dropping) == 1:
            self._loop.call_later(PACE_S, self._pace)

    def _pace(self) -> None:
        drops = self._dropping and (self._is_drop_next or not self._unhurried)
        self._is_drop_next = not drops
        try:
            _do_first(self._dropping if drops else self._unhurried)
        finally:
            if self._unhurried or self._dropping:
                self._loop.call_later(PACE_S, self._pace)


def _do_first(queue: deque[Work]) -> None:
    try:
        queue[0]()
    finally:
        queue.popleft()  # after it: what it queues must not begin a second turn
