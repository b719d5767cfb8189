"""A lane of ordered groups: the messages of a FIFO queue.

Each group gives its messages in the order of their sending. While one that was received is hidden, its group gives
nothing; so of the groups, not of the messages, is there a run by the instant at which they may be had (``turns``): the
latest deadline of what the group has in flight, else the instant at which its first message was sent or its delay ends.
Whatever was given and came back stands before what was never given, so the order is restored by itself.

All messages take direct positions, and the order of positions is the order of a group. A message with a delay of its
own has a lease from the start. One without has none until it is received: it is due so long after its sending as the
queue's delay is at present, so a change of that delay leaves the order as it was. Either is passed over while its delay
runs: it does not block its group. No more than so many of a group are passed over; whoever mixes more long delays with
short ones waits for the first of them.

After a change of the queue's delay turns are filed too early or too late. One filed too early is filed again when it
comes up. Those filed too late are filed again in slices: the first with the change, the others by the janitor.

Taking and hiding are two steps, and only when all that a receive has taken of a group are hidden (or ended, or given
back) is its turn filed again.

Of a group that is soon drained again no row is ever written. Its turn begins without one and gets it when the lane has
moved on by so many messages, or when it leaves the memory, is claimed or has a large message. So after a start all that
is missing is found among the last so many small messages.
"""

from collections.abc import Iterator
from itertools import islice

from veilmq.core.limits import DELAY_S, SECOND_MS
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.fresh import BodyCache, Fresh, FreshRun
from veilmq.engines.embedded.grouped_lane import GroupedLane
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import NO_ROW, Taken
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.peekable import Offered
from veilmq.engines.embedded.rows import LaneRow, Lease, MessageRow
from veilmq.engines.embedded.run import CLAIMED_MS, NEVER_MS, Key
from veilmq.engines.embedded.turns import Turn

PASSED_OVER_MAX = 100
_TURNS_PER_TAKE = 200  # some 15 ms, where none of them is in memory
_SWEPT_MAX = 200  # some 15 ms: a group may have to be looked at for each message

_UNFILED_MAX = 512  # messages behind the first one of a turn without a row: some ten milliseconds at a start
_SMALL_MAX = 1_000  # characters of a body, and bytes of properties: reading the groups of larger ones takes long

_row = tuple.__new__


class FifoLane(GroupedLane):
    """The messages of one incarnation of a FIFO queue."""

    __slots__ = ("_is_new", "_late", "_taking", "_unfiled_max")

    def __init__(
        self, row: LaneRow, *, journal: Journal, cache: BodyCache, options: EngineOptions, stored: bool
    ) -> None:
        """All as for ``Lane``."""
        super().__init__(row, journal=journal, cache=cache, options=options, stored=stored)
        self._taking: dict[int, Turn] = {}
        self._unfiled_max = min(_UNFILED_MAX, options.ready_window_messages)
        self._late: tuple[Key, int] | None = None  # turns behind the key and up to that instant may be filed too late
        self._is_new = not stored
        if stored:
            self.delay_ms = DELAY_S.maximum * SECOND_MS  # by which turns may be filed

    def follow(self, delay_ms: int, now_ms: int) -> None:
        """Have messages without a delay of their own be due so long after their sending."""
        if delay_ms < self.delay_ms:
            until_ms = now_ms + self.delay_ms
            self._late = (now_ms, NEVER_MS), until_ms if self._late is None else max(until_ms, self._late[1])
        self.delay_ms = delay_ms
        if not self._is_new:
            self._is_new = True
            self._file_missing()

    def _file_late(self, count: int) -> int:
        """File a slice of the turns again that a change of the delay has left too late; return how many."""
        assert self._late is not None
        key, until_ms = self._late
        found = [turn for turn in self._turns.behind(key, count) if turn.visible_at_ms <= until_ms]
        self._late = ((found[-1].visible_at_ms, found[-1].head_position), until_ms) if len(found) == count else None
        for stored in found:
            turn = self._turns.of(stored.group_key)
            if turn is not None:
                self._file(turn)
        return len(found)

    def _file_missing(self) -> None:
        """Make the turns that have no row."""
        end = self._direct.next
        start = max(positions.direct_start(self.number), end - _UNFILED_MAX)
        for group_key, first, received_to in self._journal.rows("groups_without_turn", start, end, self.number):
            self._file(Turn(group_key, 0, max(first, received_to), first, held=None if received_to else {}))

    def _make_fresh(self, cache: BodyCache, options: EngineOptions, *, stored: bool) -> Fresh:
        """Return a run that stays empty: the turns find the messages."""
        end = self._direct.next
        return FreshRun(journal=self._journal, cache=cache, window_max=0, start=end, end=end)

    # Sending.

    def add(self, message_id: bytes, body: str, properties: bytes, now_ms: int, group_key: int | None = None) -> None:
        """Store a message that is visible as soon as its group's order lets it."""
        row: MessageRow = _row(
            MessageRow, (self._direct.next, message_id, now_ms, body, properties, group_key, None, None, None, None)
        )
        self._admit(row, now_ms + self.delay_ms, is_delayed=False)

    def add_moved(self, row: MessageRow, now_ms: int) -> None:
        """Store a message of another lane behind all others of its group; no delay hides it."""
        self._admit_delayed(row._replace(position=self._direct.next, sent_at_ms=now_ms), now_ms - 1)
        self.counters.moved += 1

    def add_delayed(
        self,
        message_id: bytes,
        body: str,
        properties: bytes,
        now_ms: int,
        visible_at_ms: int,
        group_key: int | None = None,
    ) -> None:
        """Store a message that is hidden until ``visible_at_ms``, which may be past, and does not block its group."""
        row = MessageRow(self._direct.next, message_id, now_ms, body, properties, group_key)
        self._admit_delayed(row, visible_at_ms)

    def _admit_delayed(self, row: MessageRow, visible_at_ms: int) -> None:
        self._admit(row, visible_at_ms, is_delayed=True)
        self._hide(Lease(row.position, self.number, visible_at_ms, group_key=row.group_key), self._journal.add_lease)

    def _admit(self, row: MessageRow, visible_at_ms: int, *, is_delayed: bool) -> None:
        assert row.group_key is not None
        self._direct.next += 1
        turn = self._turns.of(row.group_key)
        is_small = len(row.body) <= _SMALL_MAX and len(row.properties) <= _SMALL_MAX
        if turn is None:
            turn = Turn(row.group_key, visible_at_ms, row.position, row.position, whole=True, held={})
            self._turns.begin(turn)
        elif visible_at_ms < turn.visible_at_ms and (self.counters.delayed or self.delay_ms or self._late):
            self._hasten(turn, visible_at_ms, row.position)
        if self._turns.append(turn, row) and is_delayed:
            turn.delayed[row.position] = visible_at_ms
        if turn.unfiled and not is_small:
            self._turns.store(turn)
        self._turns.store_before(self._direct.next - self._unfiled_max)
        self._added(row)

    def _hasten(self, turn: Turn, visible_at_ms: int, position: int) -> None:
        """Let a group that waits for the end of a delay, and of no lease, give the message that is visible sooner."""
        if not any(lease.receive_count for lease in self._held(turn).values()):
            self._place(turn, visible_at_ms, position, rests=False)

    # Receiving.

    def next_due_ms(self, now_ms: int) -> int:
        """Return the instant from which a group may give a message: ``now_ms``, later, or ``NEVER_MS``."""
        turn = self._turns.head()
        return NEVER_MS if turn is None else max(now_ms, turn.visible_at_ms)

    def take(self, now_ms: int) -> Taken | None:
        """Take the next message of the group whose turn it is: all that it has, before the next group's."""
        self._hidden.head(now_ms)  # nothing else has the window of leases read on
        for _ in range(_TURNS_PER_TAKE):
            turn = self._turns.head(now_ms)
            if turn is None:
                return None
            turn = self._taking.get(turn.group_key, turn)
            taken = self._give(turn, now_ms)
            if taken is not None:
                self._taking[turn.group_key] = turn
                turn.taken += 1
                self._journal.batch_bytes += len(taken[0].body)
                return taken
            if turn.taken:
                self._turns.set_aside(turn)  # filed again when what was taken of it is hidden
            else:
                self._file(turn)
        return None

    def _give(self, turn: Turn, now_ms: int) -> Taken | None:
        if turn.floor != self._direct.floor:
            self._cut(turn)
        row = self._pass_over(turn, now_ms)
        held = self._held(turn)
        if held:
            position = min((at for at, lease in held.items() if self._due_ms(lease) <= now_ms), default=None)
            if position is not None:
                lease = held.pop(position)
                self.counters.unhide(lease)
                return self._journal.message_at(position), lease, self
        if row is None or row.sent_at_ms + self.delay_ms > now_ms:
            return None
        self._turns.pop(turn)
        return row, self._made_up(row), self

    def _made_up(self, row: MessageRow, delayed_until_ms: int | None = None) -> Lease:
        """Return a lease for a message never received: without a delay of its own, one with when it was sent."""
        if delayed_until_ms is None:
            return Lease(row.position, self.number, NO_ROW, received_at_ms=row.sent_at_ms, group_key=row.group_key)
        return Lease(row.position, self.number, delayed_until_ms, group_key=row.group_key)

    def _due_ms(self, lease: Lease) -> int:
        """Return from when on a message may be given, whose lease may be of our making."""
        return lease.visible_at_ms or lease.received_at_ms + self.delay_ms

    def peek(self, count: int, now_ms: int, receives_max: int) -> list[Offered]:
        """Return up to ``count`` messages in the order in which they would be taken: all of a group, then the next."""
        offered: list[Offered] = []
        for turn in islice(self._turns.in_order(now_ms), _TURNS_PER_TAKE):
            left = count - len(offered)
            if not left:
                break
            returned = self._returned(self._ahead(turn, now_ms, left), receives_max)
            offered += self._with_rows(returned, left)
        return offered

    def _ahead(self, turn: Turn, now_ms: int, count: int) -> Iterator[Lease]:
        """Yield what ``_give`` would give of a group, each as a lease; of what was never leased, one of our making."""
        held = [lease for _, lease in sorted(self._held(turn).items()) if _blocks(lease, self._direct.floor)]
        yield from (lease for lease in held if self._due_ms(lease) <= now_ms)
        passed_over = sum(self._due_ms(lease) > now_ms for lease in held)
        for row, delayed_until_ms in self._turns.ahead(turn, self._direct.floor, self._direct.next, count):
            lease = self._made_up(row, delayed_until_ms)
            if self._due_ms(lease) <= now_ms:
                yield lease
            elif passed_over >= PASSED_OVER_MAX:
                return
            else:
                passed_over += 1

    def lease(self, lease: Lease, now_ms: int, visible_at_ms: int, requested_at_ms: int) -> None:
        """Hide a message that was taken, and with it its group."""
        super().lease(lease, now_ms, visible_at_ms, requested_at_ms)
        turn = self._taking_turn(lease)
        self._held(turn)[lease.position] = lease
        self._settle(turn)

    def let_go(self, lease: Lease) -> None:
        """Delete a message that was taken."""
        super().let_go(lease)
        self._settle(self._taking_turn(lease))

    def give_back(self, taken: Taken) -> None:
        """Undo the ``take`` that was the last thing to happen to the lane."""
        _, lease, _ = taken
        turn = self._taking_turn(lease)
        self.counters.hide(lease)
        self._held(turn)[lease.position] = lease
        self._settle(turn)

    def _taking_turn(self, lease: Lease) -> Turn:
        assert lease.group_key is not None
        return self._taking[lease.group_key]

    def _settle(self, turn: Turn) -> None:
        turn.taken -= 1
        if not turn.taken:
            del self._taking[turn.group_key]
            self._file(turn)

    # Receipts.

    def move(self, lease: Lease, now_ms: int, visible_at_ms: int, *, supersede: bool) -> None:
        """Make the message visible at ``visible_at_ms``, and its group when none of it is hidden any more."""
        super().move(lease, now_ms, visible_at_ms, supersede=supersede)
        turn = self._turn_of(lease)
        if lease.position < turn.next_position:
            self._held(turn)[lease.position] = lease
        else:
            self._turns.empty(turn)  # the delay of a message that was not passed over yet
        self._file(turn)

    def remove(self, lease: Lease, now_ms: int) -> None:
        """Delete the message; the next one of its group follows when none of it is hidden any more."""
        super().remove(lease, now_ms)
        turn = self._turn_of(lease)
        if lease.position < turn.next_position:
            self._held(turn).pop(lease.position, None)
        else:
            self._turns.empty(turn)
        self._file(turn)

    def _turn_of(self, lease: Lease) -> Turn:
        assert lease.group_key is not None
        turn = self._turns.of(lease.group_key)
        assert turn is not None, "a group that has a message has a turn"
        return turn

    # One turn.

    def _file(self, turn: Turn) -> None:
        """Put the turn where it belongs by what its group has; end it when that is nothing."""
        if turn.floor != self._direct.floor:
            self._cut(turn)
        held = self._held(turn)
        if held:
            received = [lease.visible_at_ms for lease in held.values() if lease.receive_count]
            if received:
                self._place(turn, max(received), min(held), rests=True)
                return
        elif turn.whole and not turn.rows:
            self._turns.end(turn)
            return
        row = self._pass_over(turn)
        instants = [(self._due_ms(lease), lease.position) for lease in held.values()]
        if row is not None:
            instants.append((row.sent_at_ms + self.delay_ms, row.position))
        if instants:
            self._place(turn, *min(instants), rests=False)
        else:
            self._turns.end(turn)

    def _place(self, turn: Turn, visible_at_ms: int, head_position: int, *, rests: bool) -> None:
        self._turns.file(turn, visible_at_ms, head_position, rests=rests)
        self._turns.trim(turn)

    def _pass_over(self, turn: Turn, now_ms: int = 0) -> MessageRow | None:
        """Return the first message never given that ends the search: none is due before it, or it is by ``now_ms``.

        Those before it join the held ones.
        """
        while True:
            row = self._turns.first(turn, self._direct.next)
            if row is None or not (self.delay_ms or turn.delayed):
                return row
            lease = self._made_up(row, turn.delayed.get(row.position))
            if lease.visible_at_ms == NO_ROW and (
                not self.delay_ms or (turn.whole and not turn.delayed) or self._due_ms(lease) <= now_ms
            ):
                return row
            held = self._held(turn)
            if len(held) >= PASSED_OVER_MAX and self._due_ms(lease) >= min(map(self._due_ms, held.values())):
                return None
            self._turns.pop(turn)
            turn.delayed.pop(row.position, None)
            held[row.position] = lease

    def _held(self, turn: Turn) -> dict[int, Lease]:
        if turn.held is None:
            floor = self._direct.floor
            start = positions.direct_start(self.number) if self.counters.claimed else floor
            rows = self._journal.rows("group_leases", turn.group_key, start, turn.next_position)
            turn.held = {lease.position: lease for lease in (Lease(*row) for row in rows) if _blocks(lease, floor)}
        return turn.held

    def _cut(self, turn: Turn) -> None:
        """Take out of the turn what is past its retention."""
        floor = turn.floor = self._direct.floor
        if turn.held:
            turn.held = {position: lease for position, lease in turn.held.items() if _blocks(lease, floor)}
        self._turns.cut(turn, floor)

    # Time, and the end.

    def expire(self, now_ms: int, retention_s: int) -> None:
        """Put everything past its retention out of reach, and free the groups that it blocked.

        When more messages end at once than a command may delete, the janitor frees the groups of the others.
        """
        super().expire(now_ms, retention_s)
        if self._late is not None:
            key, until_ms = self._late
            self._late = (max(key, (now_ms, NEVER_MS)), until_ms) if until_ms > now_ms else None
        if not self.swept:
            self.sweep(_SWEPT_MAX)

    def sweep(self, rows_max: int) -> int:
        """Delete rows out of reach, fewer at once where groups have to be freed; file turns again that are late."""
        rows = 0 if self._late is None or self.queue is None else self._file_late(min(rows_max, _SWEPT_MAX))
        return rows + super().sweep(rows_max if self.queue is None else min(rows_max, _SWEPT_MAX))

    def _swept_off(self, swept: list[tuple[int, int]]) -> None:
        for group_key in {key for _, key in swept}:
            turn = self._turns.of(group_key)
            if turn is not None:
                self._file(turn)

    @property
    def swept(self) -> bool:
        """Whether nothing is left to sweep, and no turn filed too late."""
        return super().swept and (self._late is None or self.queue is None)

    @property
    def last_delayed(self) -> int:
        """Return the position of the message that was sent last."""
        return self._direct.next - 1

    @property
    def is_full(self) -> bool:
        """Whether all positions are used up."""
        return self._direct.next >= self._direct.end


def _blocks(lease: Lease, floor: int) -> bool:
    """Whether the message is one of its group still: within its retention, or claimed."""
    return lease.position >= floor or lease.visible_at_ms == CLAIMED_MS
