"""Attempts: a receive of a FIFO queue that can be repeated, because its answer may have been lost.

What a receive with an attempt id gave is remembered in the table ``attempt``: the positions, what fences their receipts
and the deadline. The same attempt id gives the same messages with the same receipts again, hidden anew from now on and
without another receive counted, as long as every one of them is as it was left: neither changed nor deleted nor visible
again (SQS API Reference, the receive's attempt id). The twelve hours still count from the first receive. Else the
attempt is void, and the receive an ordinary one, which is remembered in its place.
"""

from hashlib import blake2b

import msgspec

from veilmq.core import fifo, visibility
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import Lane, Taken
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.rows import Lease

_KEY_BYTES = 16


class _Attempt(msgspec.Struct, frozen=True, array_like=True):
    """What was given: receipts say ``issued_visible_at_ms``, the deadline in force is ``visible_at_ms``."""

    issued_visible_at_ms: int
    visible_at_ms: int
    given: list[tuple[int, int, int]]  # position, generation, epoch


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Attempt).decode


class Attempts:
    """The attempts of all queues."""

    __slots__ = ("_journal",)

    def __init__(self, *, journal: Journal) -> None:
        """``journal`` keeps them."""
        self._journal = journal

    def note(self, queue: Queue, attempt_id: str, taken: list[Taken], now_ms: int) -> None:
        """Remember what a receive gave; one that gave nothing is not worth it."""
        if taken:
            deadline_ms = taken[0][1].visible_at_ms
            given = [(lease.position, lease.generation, lease.epoch) for _, lease, _ in taken]
            self._put(queue, attempt_id, _Attempt(deadline_ms, deadline_ms, given), now_ms)

    def repeat(self, queue: Queue, attempt_id: str, timeout_s: int, now_ms: int) -> tuple[list[Taken], int] | None:
        """Give the same messages again, hidden for ``timeout_s`` from now; ``None`` when there is nothing to repeat.

        With the messages comes the deadline that their receipts say.
        """
        row = self._journal.attempts.get(_key(queue, attempt_id))
        if row is None or not fifo.is_repeatable(row[1], now_ms):
            return None
        attempt = _decode(row[0])
        left = [_as_left(queue, given, attempt.visible_at_ms, now_ms) for given in attempt.given]
        found = [each for each in left if each is not None]
        if len(found) < len(left):
            return None
        visible_at_ms = min(
            visibility.deadline_ms(now_ms, timeout_s), visibility.lease_end_ms_max(found[0][1].received_at_ms)
        )
        for lane, lease in found:
            lane.move(lease, visible_at_ms, supersede=False)
        self._put(queue, attempt_id, msgspec.structs.replace(attempt, visible_at_ms=visible_at_ms), row[1])
        taken = [(self._journal.message_at(lease.position), lease, lane) for lane, lease in found]
        return taken, attempt.issued_visible_at_ms

    def _put(self, queue: Queue, attempt_id: str, attempt: _Attempt, attempted_at_ms: int) -> None:
        self._journal.attempts.put(_key(queue, attempt_id), (_encode(attempt), attempted_at_ms))


def _key(queue: Queue, attempt_id: str) -> tuple[bytes]:
    return (blake2b(f"{queue.number} {attempt_id}".encode(), digest_size=_KEY_BYTES).digest(),)


def _as_left(queue: Queue, given: tuple[int, int, int], visible_at_ms: int, now_ms: int) -> tuple[Lane, Lease] | None:
    """Return a message that was given, ``None`` unless it is still hidden as the receive left it."""
    position, generation, epoch = given
    found = queue.find(position, now_ms)
    if found is None:
        return None
    _, lease = found
    as_left = (lease.generation, lease.epoch, lease.visible_at_ms) == (generation, epoch, visible_at_ms)
    return found if as_left and now_ms < visible_at_ms else None
