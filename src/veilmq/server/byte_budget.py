"""The budget of bytes that clients make a server hold: large bodies on their way in, and answers that are not read.

A large body reserves its bytes before they are read. Until its signature is verified it stands in one half of the
budget, where every access key id, or every address without one, may take as much as it leaves free: one alone gets half
of that half, two a third each, and there is always room for another. Within a key id the same holds for its members: an
address, and whether the connection has sent a genuine request before, so that strangers that merely name a key do not
displace its holder. A share that holds nothing gets its first body as soon as there is room at all. Room that becomes
free goes to the shortest body that waits: the first request of a client, behind many long ones of strangers at the same
address, is read in the time of one of them, not of all.

Answers that clients do not read are counted, each as a whole until all of it is sent. While they exceed half of the
budget, ``answers_full`` is set and no receive starts.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple, Protocol


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


class Addressed(Protocol):
    """What comes from an address."""

    def source_ip(self) -> str | None:
        """Return the address, ``None`` where there is none."""


def by_address(head: Addressed) -> Share:
    """Share among addresses: everyone is as good as another."""
    return Share(head.source_ip() or "")


class ByteBudget:
    """What all connections of a server hold together; belongs to one event loop."""

    __slots__ = (
        "_by_key",
        "_by_member",
        "_granting",
        "_on_room",
        "answers",
        "answers_full",
        "bytes_max",
        "unverified",
        "verified",
        "waiting",
    )

    def __init__(self, bytes_max: int) -> None:
        """Hold nothing yet."""
        self.bytes_max = bytes_max
        self.unverified = 0
        self.verified = 0
        self.answers = 0
        self.answers_full = False
        self._by_key: Counter[str] = Counter()
        self._by_member: Counter[Share] = Counter()
        self.waiting: dict[Hold, int] = {}  # in the order in which they began to wait
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
        """Tell whether ``hold`` may have ``more`` bytes now."""
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

    def wait(self, hold: "Hold", more: int) -> None:
        """Have ``hold`` granted ``more`` bytes when they fit."""
        self.waiting[hold] = more

    def leave(self, hold: "Hold") -> None:
        """Take back what ``hold`` waits for, if it does."""
        self.waiting.pop(hold, None)

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
        """Take ``more`` bytes, or wait for them; tell whether they are there."""
        if not self._budget.fits(self, more):
            self._budget.wait(self, more)
            return False
        self._budget.leave(self)
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

    def hex_digest(self) -> bytes | None:
        """Return the digest of a whole body in hexadecimal, ``None`` if there is none."""
        return None if self.digest is None else self.digest.hexdigest().encode()

    def verify(self) -> None:
        """Leave the half for what is not verified: the signature was genuine."""
        held = self.bytes
        if not self.is_verified:
            self._budget.change(self, -held)
            self.is_verified = True
            self._budget.change(self, held)

    def release(self) -> None:
        """Give everything back; once is enough."""
        self._budget.leave(self)
        if self.bytes:
            self._budget.change(self, -self.bytes)


def _count(counter: Counter[Any], name: Any, more: int) -> None:
    counter[name] += more
    if not counter[name]:
        del counter[name]
