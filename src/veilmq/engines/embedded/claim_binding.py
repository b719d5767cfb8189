"""Binding: what is visible becomes a claim's, a slice at a time.

Messages come in the order in which receives would give them; dead letters among them are moved as a receive does. A
stretch of messages that were never received costs the same whatever its length; of the others a slice takes no more
than so many. Shards are filled as the messages come, so that a message's shard is settled when it is bound.
"""

from typing import NamedTuple

from veilmq.core.limits import BATCH_ROW_BYTES, STORED_BYTES_MAX
from veilmq.engines.embedded.claim_store import GROUPED, BoundClaim, ClaimStore, Range
from veilmq.engines.embedded.claimable import ClaimableLane, Stretch
from veilmq.engines.embedded.dead_letters import DeadLetters, Redrive
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import FAIR, FIFO, PLAIN, Taken
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.queue import Queue

_STRETCH_EFFORT = 20
_COUNTED_PER_EFFORT = 5
_TAKEN_EFFORT = {PLAIN: 5, FAIR: 12, FIFO: 12}
"""What taking one message costs, in rows that are merely deleted: more where there are groups."""
_CHARACTERS_PER_EFFORT = 16_384
"""Of a body, which is read."""


class Wish(NamedTuple):
    """Up to so many messages, in shards of so many, and so many bytes of them."""

    messages: int
    shard_messages: int
    bytes: int | None = None


class Binding:
    """Binds slices."""

    def __init__(
        self, *, store: ClaimStore, journal: Journal, dead_letters: DeadLetters, options: EngineOptions
    ) -> None:
        """All are the state machine's own."""
        self._store = store
        self._journal = journal
        self._dead_letters = dead_letters
        self._effort_max = options.claim_slice_rows

    def bind(self, queue: Queue, claim: BoundClaim, wish: Wish, now_ms: int) -> bool:
        """Bind a slice; tell whether there may be more of what is wished."""
        redrive = self._dead_letters.redrive(queue, now_ms) if queue.settings.receives_max else None
        part = _Slice(self._effort_max, wish.messages - claim.messages)
        if wish.bytes is not None:
            part.bytes_left = wish.bytes - claim.bytes if claim.bytes >= 0 else 0
        while part.goes_on and (lane := queue.first_lane(now_ms)) is not None:
            stretch = lane.take_stretch(part.wanted, now_ms, part.bytes_left)
            if stretch is not None:
                part.count_stretch(stretch)
                self._add(claim, lane, stretch, wish, leased=False)
            elif not _take(lane, redrive, part, now_ms):
                break
        if queue.log is not None:
            queue.log.claimed([taken for _, taken in part.chosen])
        for lane, taken in part.chosen:
            lane.bind(taken[1], now_ms)
        for lane, stretch in part.chosen_stretches():
            self._add(claim, lane, stretch, wish, leased=True)
        if redrive is not None:
            redrive.tell()
        if part.bytes_left is not None and wish.bytes is not None:
            claim.bytes = wish.bytes - part.bytes_left
        if claim.messages:
            self._store.put_claim(claim)
        self._journal.batch_bytes += (self._effort_max - part.effort_left) * BATCH_ROW_BYTES
        return part.wanted > 0 and part.effort_left <= 0

    def _add(self, claim: BoundClaim, lane: ClaimableLane, stretch: Stretch, wish: Wish, *, leased: bool) -> None:
        if not claim.id:
            self._store.put_claim(claim)
        claim.messages += stretch.messages
        claim.by_lane[lane.number] = claim.by_lane.get(lane.number, 0) + stretch.messages
        if lane.kind != PLAIN:
            claim.grouped += stretch.messages
            self._store.add(claim, _range(stretch, GROUPED, leased=leased))
            return
        for piece in _pieces(stretch, wish.shard_messages - claim.filled if claim.shards else 0, wish.shard_messages):
            if not claim.shards or piece.messages > wish.shard_messages - claim.filled:
                claim.shards += 1
                claim.filled = 0
            claim.filled += piece.messages
            self._store.add(claim, _range(piece, claim.shards - 1, leased=leased))


class _Slice:
    """What a slice has taken, and how much more it may."""

    __slots__ = ("bytes_left", "chosen", "effort_left", "wanted")

    def __init__(self, effort: int, wanted: int) -> None:
        self.effort_left = effort
        self.wanted = wanted
        self.bytes_left: int | None = None  # no bound
        self.chosen: list[tuple[ClaimableLane, Taken]] = []  # hidden when all are chosen

    @property
    def goes_on(self) -> bool:
        """Whether it may take more."""
        fits = self.bytes_left is None or self.bytes_left >= STORED_BYTES_MAX  # whatever comes next
        return fits and self.wanted > 0 and self.effort_left > 0

    def count_stretch(self, stretch: Stretch) -> None:
        """Take note of a stretch; one with gaps was counted message by message."""
        self.wanted -= stretch.messages
        self.effort_left -= _STRETCH_EFFORT
        if self.bytes_left is not None:
            self.bytes_left -= stretch.bytes
            self.effort_left -= stretch.messages // _COUNTED_PER_EFFORT
        if stretch.end - stretch.start > stretch.messages:
            self.effort_left -= stretch.messages // _COUNTED_PER_EFFORT

    def chosen_stretches(self) -> list[tuple[ClaimableLane, Stretch]]:
        """Return the places of what was chosen, neighbours together."""
        stretches: list[tuple[ClaimableLane, Stretch]] = []
        for at, lane in sorted((taken[0].position, lane) for lane, taken in self.chosen):
            if stretches and stretches[-1][1].end == at and stretches[-1][0] is lane:
                start, _, messages, _ = stretches.pop()[1]
                stretches.append((lane, Stretch(start, at + 1, messages + 1)))
            else:
                stretches.append((lane, Stretch(at, at + 1, 1)))
        return stretches


def _take(lane: ClaimableLane, redrive: Redrive | None, part: _Slice, now_ms: int) -> bool:
    """Take one message, or move it away as a dead letter; tell whether there was one."""
    taken = lane.take(now_ms)
    if taken is None:
        return False
    part.effort_left -= _TAKEN_EFFORT[lane.kind] + len(taken[0].body) // _CHARACTERS_PER_EFFORT
    if redrive is None or not redrive.takes(taken):
        part.chosen.append((lane, taken))
        part.wanted -= 1
        if part.bytes_left is not None:
            part.bytes_left -= len(taken[0].body.encode()) + len(taken[0].properties)
    elif redrive.is_over:
        part.effort_left = 0
    return True


def _range(stretch: Stretch, shard: int, *, leased: bool) -> Range:
    return Range(stretch.start, stretch.end - 1, shard, stretch.messages, int(leased))


def _pieces(stretch: Stretch, room: int, size_max: int) -> list[Stretch]:
    """Cut a stretch for shards: what the last one has ``room`` for, the rest evenly; one with gaps is not cut."""
    if stretch.end - stretch.start > stretch.messages:
        return [stretch]
    sizes = [min(room, stretch.messages)] if room > 0 else []
    rest = stretch.messages - sum(sizes)
    parts = -(-rest // size_max)
    sizes += [rest // parts + (index < rest % parts) for index in range(parts)]
    starts = [stretch.start + sum(sizes[:index]) for index in range(len(sizes))]
    return [Stretch(start, start + size, size) for start, size in zip(starts, sizes, strict=True)]
