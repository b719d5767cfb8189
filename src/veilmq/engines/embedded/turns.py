"""The turns of a lane: one for each group that has messages, in the order in which the groups are served.

A turn says from when on its group's next message is visible, and where those of its messages begin that were never
given. It is a row of the table ``turn``, and as the turns are a run, the number of groups shows neither in memory nor
in the cost of a step. Turns of the same instant come in the order of their groups' first messages.

The row of a new turn may be left out for a while: few messages later it is often gone (``begin``).

A turn in memory also has a window of its group's next messages. All windows of a lane share the bounds that the window
of a lane without groups has (messages, bytes, and the bytes of all lanes). Where there is no room, the messages are
read when their turn comes.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from veilmq.core.limits import READY_WINDOW_BYTES
from veilmq.engines.embedded.fresh import ROW_BYTES, BodyCache
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.rows import Lease, MessageRow
from veilmq.engines.embedded.run import CLAIMED_MS, NEVER_MS, Key, Run

_ROWS_PER_READ = 32


class Turn(msgspec.Struct, eq=False):
    """One group, from when on its next message is visible, and where those begin that were never given.

    ``head_position`` is the group's first message, and the number of the turn in the run.

    ``rows`` are the first messages from ``next_position`` on, ``whole`` tells that there are no others; ``delayed`` has
    the instants at which the delays of those among them end that have one. The rest is for lanes that keep order:
    ``held`` are the leases before ``next_position`` (``None``: not read yet), but for the ``taken`` ones that a receive
    has chosen and not hidden yet; ``floor`` is where retention had come when the turn was last looked at; and a turn
    ``rests`` while something of its group is in flight. An ``unfiled`` one has no row.
    """

    group_key: int
    visible_at_ms: int
    next_position: int
    head_position: int
    rows: list[MessageRow] = []
    whole: bool = False
    delayed: dict[int, int] = {}
    held: dict[int, Lease] | None = None
    taken: int = 0
    floor: int = 0
    rests: bool = False
    unfiled: bool = False


class Turns(Run[Turn]):
    """The turns of one lane by the instant from which on they may be had, found by their groups."""

    __slots__ = ("_bytes", "_cache", "_groups", "_journal", "_lane", "_resting", "_rows", "_rows_max", "_unfiled")

    def __init__(
        self,
        *,
        journal: Journal,
        cache: BodyCache,
        lane: int,
        window_max: int,
        rows_max: int,
        horizon: Key | None,
    ) -> None:
        """``rows_max`` bounds the messages in memory; the others are as for ``Run`` and ``FreshRun``."""
        super().__init__(window_max=window_max, horizon=horizon)
        self._journal = journal
        self._cache = cache
        self._lane = lane
        self._groups: dict[int, Turn] = {}  # those in memory
        self._unfiled: deque[tuple[int, Turn]] = deque()  # begun without a row, with their first positions
        self._resting: dict[int, Turn] = {}  # with windows that are lent, the one that rests longest first
        self._rows = 0
        self._rows_max = rows_max
        self._bytes = 0

    def _read_after(self, key: Key, count: int) -> list[tuple[int, Turn]]:
        visible_at_ms, head_position = key
        rows = self._journal.rows("turns_at_instant", self._lane, visible_at_ms, head_position, count)
        if len(rows) < count:
            rows += self._journal.rows("turns_after_instant", self._lane, visible_at_ms, count - len(rows))
        return [(turn.head_position, turn) for turn in (Turn(*row) for row in rows)]

    def _refill(self, horizon: Key) -> None:
        super()._refill(horizon)
        self._groups = {turn.group_key: turn for turn in (*self._items.values(), *self._behind.values())}

    def _let_go(self, items: Iterable[Turn]) -> None:
        for turn in items:
            self._groups.pop(turn.group_key, None)
            self.empty(turn)
            if turn.unfiled:
                self.store(turn)

    def _put_behind(self, number: int, item: Turn) -> None:
        if item.unfiled:
            self.store(item)
        super()._put_behind(number, item)

    # The order.

    def of(self, group_key: int) -> Turn | None:
        """Return the turn of a group, ``None`` when it has none."""
        turn = self._groups.get(group_key)
        if turn is None and self._horizon is not None:
            row = self._journal.turns.get((self._lane, group_key))
            return None if row is None else Turn(group_key, *row)
        return turn

    def behind(self, key: Key, count: int) -> list[Turn]:
        """Return up to ``count`` turns behind ``key`` in order, as the store has them; all have rows then."""
        self.store_before(NEVER_MS)
        return [turn for _, turn in self._read_after(key, count)]

    def begin(self, turn: Turn) -> None:
        """File the turn of a group that had none, without its row.

        It is found again by the group's messages, so whoever calls this has to ``store`` it, or end it, before too
        many others are sent: ``store_before``. It is stored by itself when it leaves the memory.
        """
        turn.unfiled = True
        self._unfiled.append((turn.head_position, turn))
        self.file(turn, turn.visible_at_ms, turn.head_position)

    def store_before(self, position: int) -> None:
        """Store what was begun with a message before ``position``."""
        unfiled = self._unfiled
        while unfiled and unfiled[0][0] < position:
            _, turn = unfiled.popleft()
            if turn.unfiled:
                self.store(turn)

    def store(self, turn: Turn) -> None:
        """Stage the turn's row."""
        turn.unfiled = False
        row = (turn.visible_at_ms, turn.next_position, turn.head_position)
        self._journal.turns.put((self._lane, turn.group_key), row)

    def file(self, turn: Turn, visible_at_ms: int, head_position: int, *, rests: bool = False) -> None:
        """Put the turn where it now belongs, in memory and for the disk; one of claimed messages never without a row.

        One that ``rests`` lends the room of its window to others.
        """
        if turn.head_position != head_position:
            self.drop(turn.head_position)
            turn.head_position = head_position
        turn.visible_at_ms = visible_at_ms
        group_key = turn.group_key
        if not turn.unfiled or visible_at_ms >= CLAIMED_MS:
            self.store(turn)
        self._groups[group_key] = turn
        turn.rests = rests
        if rests and turn.rows:
            self._resting[group_key] = turn
        elif self._resting:
            self._resting.pop(group_key, None)
        self.put(head_position, turn)

    def set_aside(self, turn: Turn) -> None:
        """Take the turn out of the order in memory until it is filed again."""
        self.drop(turn.head_position)
        self._groups.pop(turn.group_key, None)

    def end(self, turn: Turn) -> None:
        """Remove the turn of a group that has no messages left."""
        self.empty(turn)
        self.set_aside(turn)
        if turn.unfiled:
            turn.unfiled = False
        else:
            self._journal.turns.remove((self._lane, turn.group_key))

    def clear(self) -> None:
        """Let go of the memory; the turns are not used afterwards."""
        for _, turn in self._unfiled:
            turn.unfiled = False
        self._unfiled.clear()
        self._let_go((*self._items.values(), *self._behind.values(), *self._resting.values()))
        self._items, self._behind = {}, {}

    # The window of a turn.

    def append(self, turn: Turn, row: MessageRow) -> bool:
        """Keep a message that was just sent if all before it are kept and there is room; tell whether it is."""
        size = ROW_BYTES + len(row.body) + len(row.properties)
        if not (turn.whole and turn.group_key in self._groups and self._has_room(size) and turn.whole):
            turn.whole = False  # the room that was made may have been its own
            return False
        turn.rows.append(row)
        self._count(size, 1)
        if turn.rests:
            self._resting[turn.group_key] = turn
        return True

    def first(self, turn: Turn, end: int) -> MessageRow | None:
        """Return the group's first message from ``next_position`` on, before the position ``end``."""
        if not turn.rows and not turn.whole:
            self._fill(turn, end)
        return turn.rows[0] if turn.rows else None

    def ahead(self, turn: Turn, floor: int, end: int, count: int) -> Iterator[tuple[MessageRow, int | None]]:
        """Yield the group's messages between the positions ``floor`` and ``end``, as ``first`` would give them.

        Each comes with the instant at which its delay ends, where it has one. The turn stays as it is; what it does not
        have in memory is read, ``count`` rows at a time, and not kept.
        """
        position = max(turn.next_position, floor)
        for row in turn.rows:
            if row.position >= position:
                yield row, turn.delayed.get(row.position)
                position = row.position + 1
        is_whole = turn.whole
        while not is_whole:
            found = self._journal.rows("group_messages", turn.group_key, position, end, count)
            for delayed_until_ms, *columns in found:
                row = MessageRow(*columns)
                yield row, delayed_until_ms
                position = row.position + 1
            is_whole = len(found) < count

    def bring_back(self, turn: Turn) -> None:
        """Put a turn that was set aside, and is as it was, back into the order; its row is still in the store."""
        self._groups[turn.group_key] = turn
        self._resting.pop(turn.group_key, None)
        self.put(turn.head_position, turn)

    def pop(self, turn: Turn) -> MessageRow:
        """Remove and return the first message, which must be in memory; the turn goes on behind it."""
        row = turn.rows.pop(0)
        turn.next_position = row.position + 1
        self._count(ROW_BYTES + len(row.body) + len(row.properties), -1)
        return row

    def cut(self, turn: Turn, floor: int) -> None:
        """Take what stands before the position ``floor`` out of the turn: it is past its retention."""
        while turn.rows and turn.rows[0].position < floor:
            turn.delayed.pop(self.pop(turn).position, None)
        turn.next_position = max(turn.next_position, floor)

    def put_back(self, turn: Turn, row: MessageRow) -> None:
        """Undo a ``pop``."""
        turn.rows.insert(0, row)
        turn.next_position = row.position
        self._count(_size(row), 1)

    def trim(self, turn: Turn) -> None:
        """Let go of the turn's window if there is less room than all windows take."""
        if self._cache.bytes_left < 0 or self._bytes > READY_WINDOW_BYTES or self._rows > self._rows_max:
            self.empty(turn)

    def empty(self, turn: Turn) -> None:
        """Let go of the turn's window; it is read again when it is needed."""
        if self._resting and self._resting.get(turn.group_key) is turn:
            del self._resting[turn.group_key]
        if turn.rows:
            for row in turn.rows:
                self._count(_size(row), -1)
            turn.rows = []
            turn.whole = False
        if turn.delayed:
            turn.delayed = {}

    def lend(self, turn: Turn) -> None:
        """Let others have the room of the turn's window when they need it; the turn may be aside."""
        if turn.rows:
            self._resting[turn.group_key] = turn

    def empty_all(self) -> None:
        """Let go of all windows: some of what they hold was deleted."""
        for turn in (*self._groups.values(), *self._resting.values()):
            self.empty(turn)

    def _fill(self, turn: Turn, end: int) -> None:
        """Read the next messages: as many as there is room for, and always one."""
        self._resting.pop(turn.group_key, None)
        count = min(_ROWS_PER_READ, self._rows_max)
        read = 0
        for delayed_until_ms, *columns in self._journal.stream(
            "group_messages", turn.group_key, turn.next_position, end, count
        ):
            row = MessageRow(*columns)
            if turn.rows and not self._has_room(_size(row)):
                return
            read += 1
            turn.rows.append(row)
            self._count(_size(row), 1)
            if delayed_until_ms is not None:
                turn.delayed[row.position] = delayed_until_ms
        turn.whole = read < count

    def _has_room(self, size: int) -> bool:
        while not self._fits(size):
            if not self._resting:
                return False
            self.empty(next(iter(self._resting.values())))
        return True

    def _fits(self, size: int) -> bool:
        return (
            self._rows < self._rows_max and size <= self._cache.bytes_left and self._bytes + size <= READY_WINDOW_BYTES
        )

    def _count(self, size: int, rows: int) -> None:
        """Count a message of that size in (``rows`` 1) or out (-1)."""
        self._rows += rows
        self._bytes += rows * size
        self._cache.bytes_left -= rows * size


def _size(row: MessageRow) -> int:
    return ROW_BYTES + len(row.body) + len(row.properties)
