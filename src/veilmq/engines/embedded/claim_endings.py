"""Endings: messages of claims that were acknowledged are deleted, those of claims that were lost or released return.

What a claim is changes at once; its messages follow in slices. The first slice is the command's own, so that small
claims end with it; the others are steps that ``mover.Mover`` asks for. A slice takes the next ranges of the claim, and
cuts off what it has done, in the same transaction.
"""

from veilmq.core.limits import BATCH_ROW_BYTES
from veilmq.engines.embedded.claim_store import ACKNOWLEDGED, BoundClaim, ClaimStore, Range
from veilmq.engines.embedded.claimable import ClaimableLane, Stretch
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import FAIR, FIFO, PLAIN
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.queue import Queue

_RANGE_EFFORT = 4  # what a range costs beside its messages, in rows that are merely deleted
_DELETED_EFFORT = {PLAIN: 2, FAIR: 2, FIFO: 5}
_BACK_EFFORT = {PLAIN: 2, FAIR: 2, FIFO: 5}


class Endings:
    """The claims of one store that end."""

    def __init__(self, *, store: ClaimStore, journal: Journal, options: EngineOptions) -> None:
        """All are the state machine's own."""
        self._store = store
        self._journal = journal
        self._effort_max = options.claim_slice_rows
        self._left: dict[int, BoundClaim] = {}

    def __bool__(self) -> bool:
        """Whether any claim has messages left."""
        return bool(self._left)

    def has(self, claim: BoundClaim) -> bool:
        """Whether the claim has messages left."""
        return claim.id in self._left

    def begin(self, claim: BoundClaim, queue: Queue | None) -> None:
        """Take a claim that has its last state; ``queue`` is its own, ``None`` where that is gone."""
        self._left[claim.id] = claim
        if claim.state == ACKNOWLEDGED and queue is not None:
            for lane in queue.lanes:
                lane.counters.doomed += claim.by_lane.get(lane.number, 0)

    def step(self, queues: dict[int, Queue], now_ms: int) -> None:
        """Do one slice for the claim that has waited longest."""
        for claim in self._left.values():
            self.advance(claim, queues.get(claim.queue), now_ms)
            break

    def advance_of(self, queue: Queue, now_ms: int) -> bool:
        """Do one slice for a claim of ``queue``, for whose groups somebody waits; tell whether there was one."""
        claim = next((each for each in self._left.values() if each.queue == queue.number), None)
        if claim is not None:
            self.advance(claim, queue, now_ms)
        return claim is not None

    def advance(self, claim: BoundClaim, queue: Queue | None, now_ms: int) -> None:
        """Do one slice for a claim."""
        effort_left = self._effort_max
        lanes = {} if queue is None else {lane.number: lane for lane in queue.lanes}
        while effort_left > 0 and (parts := self._store.ranges(claim, max(1, effort_left // _RANGE_EFFORT))):
            for part in parts:
                effort_left -= _RANGE_EFFORT + self._end(claim, part, lanes.get(part.lane), effort_left, now_ms)
                if effort_left <= 0:
                    break
        if effort_left > 0 or not self._store.ranges(claim, 1):
            self._finish(claim)
        self._journal.batch_bytes += (self._effort_max - effort_left) * BATCH_ROW_BYTES
        if queue is not None:
            tell(queue, now_ms)

    def _end(self, claim: BoundClaim, part: Range, lane: ClaimableLane | None, effort_left: int, now_ms: int) -> int:
        """Do what may be done of a range; return what it cost, in rows that are merely deleted."""
        if lane is None:  # it was purged, and its messages with it
            self._store.drop(part)
            return 0
        if claim.state == ACKNOWLEDGED:
            effort = _DELETED_EFFORT[lane.kind] if part.leased else 1
            end, weight = self._journal.slice_from(part.first, part.last + 1, max(1, effort_left // effort))
            done = _delete(lane, part, end, now_ms)
        else:
            effort = _BACK_EFFORT[lane.kind]
            done = _bring_back(lane, claim, part, max(1, effort_left // effort), now_ms)
            weight = done.messages
        self._store.cut(part, done.end, part.messages - done.messages)
        return weight * effort

    def _finish(self, claim: BoundClaim) -> None:
        del self._left[claim.id]
        if claim.source is None:
            self._store.delete_claim(claim)


def tell(queue: Queue, now_ms: int) -> None:
    """Tell the queue's watch that messages returned, that groups are free, or that more may be claimed."""
    if queue.settings.fifo:
        queue.rouse_groups(now_ms)
    else:
        queue.rouse(now_ms)


def _delete(lane: ClaimableLane, part: Range, end: int, now_ms: int) -> Stretch:
    if part.leased:
        return lane.delete_leased(part.first, end, now_ms)
    return lane.delete(part.first, end)


def _bring_back(lane: ClaimableLane, claim: BoundClaim, part: Range, count: int, now_ms: int) -> Stretch:
    if part.leased:
        return lane.bring_back_leased(part.first, part.last + 1, count, now_ms)
    return lane.bring_back(part.first, part.last + 1, count, claim.bound_at_ms, now_ms)
