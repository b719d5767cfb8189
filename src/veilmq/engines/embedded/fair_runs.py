"""The two runs of a fair lane: as those of any lane, but that noisy groups step aside.

Who is noisy is asked when a group's turn or message comes up: nothing is reckoned for groups that nobody came to.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice

from veilmq.engines.embedded.aside import Aside
from veilmq.engines.embedded.hidden import Alive, HiddenRun
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.rows import Lease, MessageRow
from veilmq.engines.embedded.run import NEVER_MS, Key
from veilmq.engines.embedded.series import Series
from veilmq.engines.embedded.turns import Turn, Turns

_LOOKED_AT_MAX = 1_000  # returned messages, by a look that finds no quiet group's

StepsAside = Callable[[int], bool]
"""Whether a group, by its key, has to let others go first."""


class FairRun:
    """The messages that nobody has received yet, by the turns of their groups: who sent first has the first turn.

    It stands in for ``FreshRun``.
    """

    __slots__ = ("_aside", "_drained", "_series", "_steps_aside", "_turns", "_would_step_aside")

    def __init__(
        self,
        *,
        turns: Turns,
        series: Series,
        aside: Aside,
        steps_aside: StepsAside,
        would_step_aside: StepsAside,
        drained: Callable[[int], None],
    ) -> None:
        """``series`` are the positions of the messages; ``drained`` is told of each group that has none left.

        ``would_step_aside`` is what looks ask.
        """
        self._turns = turns
        self._series = series
        self._aside = aside
        self._steps_aside = steps_aside
        self._would_step_aside = would_step_aside
        self._drained = drained

    def append(self, row: MessageRow) -> None:
        """Add a message that was just sent."""
        turn = self._turn(row)
        if turn is None:
            turn = _new_turn(row)
            self._file(turn, row)
        self._turns.append(turn, row)

    def head(self) -> MessageRow | None:
        """Return the first message of the group whose turn it is, ``None`` when no group has one to give."""
        while (turn := self._turns.head()) is not None:
            group = turn.group_key
            if group in self._aside.turns:
                self._turns.set_aside(turn)  # the store was read on and has it still
            elif self._steps_aside(group):
                self._turns.set_aside(turn)
                self._turns.lend(turn)
                self._aside.turns[group] = turn
            elif (row := self._first(turn)) is None:
                self._end(turn)
            elif row.position != turn.head_position:
                self._file(turn, row)  # what it had before is deleted: it has a later turn
            else:
                return row
        return None

    def take(self) -> MessageRow:
        """Remove and return the head, which ``head`` must just have returned."""
        turn = self._turns.head()
        assert turn is not None, "there is a head"
        row = self._turns.pop(turn)
        following = self._first(turn)
        if following is None:
            self._end(turn)
        else:
            self._file(turn, following)
            self._turns.trim(turn)
        return row

    def put_back(self, row: MessageRow) -> None:
        """Undo a ``take``."""
        turn = self._turn(row) or _new_turn(row)
        self._turns.put_back(turn, row)
        self._file(turn, row)

    def first(self, count: int) -> list[MessageRow]:
        """Return the first so many messages of groups that need not wait; all stay."""
        quiet = (turn for turn in self._turns.in_order() if not self._waits(turn.group_key))
        found: list[MessageRow] = []
        candidates: list[tuple[int, int, MessageRow, Iterator[MessageRow]]] = []  # the next one of each turn met so far
        turn = next(quiet, None)
        while len(found) < count and (turn is not None or candidates):
            if turn is not None and (not candidates or (turn.visible_at_ms, turn.head_position) < candidates[0][:2]):
                _add(candidates, self.of_turn(turn, count))
                turn = next(quiet, None)
                continue
            *_, row, others = heappop(candidates)
            found.append(row)
            _add(candidates, others)
        return found

    def waiting(self) -> dict[int, Turn]:
        """Return the turns of groups that have to wait, by group."""
        met = {turn.group_key: turn for turn in self._turns.in_order() if self._waits(turn.group_key)}
        return met | self._aside.turns

    def of_turn(self, turn: Turn, count: int) -> Iterator[MessageRow]:
        """Yield the messages of one turn, read ``count`` at a time where they are not in memory; all stay."""
        for row, _ in self._turns.ahead(turn, self._series.floor, self._series.next, count):
            yield row

    def _waits(self, group: int) -> bool:
        return group in self._aside.turns or self._would_step_aside(group)

    def drop(self, positions: set[int]) -> None:
        """Forget the messages at ``positions``, which are deleted."""
        self._turns.empty_all()

    def skip_to(self, position: int) -> None:
        """Pass over everything before ``position``: each turn does when it comes up."""

    def clear(self) -> None:
        """Let go of the memory; the run is not used afterwards."""
        self._turns.clear()
        self._aside.clear()

    def _turn(self, row: MessageRow) -> Turn | None:
        group = _group(row)
        return self._aside.turns.get(group) or self._turns.of(group)

    def _first(self, turn: Turn) -> MessageRow | None:
        self._turns.cut(turn, self._series.floor)
        return self._turns.first(turn, self._series.next)

    def _file(self, turn: Turn, first: MessageRow) -> None:
        self._aside.turns.pop(turn.group_key, None)
        self._turns.file(turn, first.sent_at_ms, first.position)

    def _end(self, turn: Turn) -> None:
        self._turns.end(turn)
        self._drained(turn.group_key)


class ReturnedRun(HiddenRun):
    """The leases of a fair lane."""

    __slots__ = ("_aside", "_chosen", "_given", "_steps_aside", "_would_step_aside")

    def __init__(
        self,
        *,
        journal: Journal,
        lane: int,
        window_max: int,
        horizon: Key | None,
        alive: Alive,
        aside: Aside,
        steps_aside: StepsAside,
        would_step_aside: StepsAside,
    ) -> None:
        """As for ``HiddenRun``; messages that returned stand ``aside`` while their groups are noisy."""
        super().__init__(journal=journal, lane=lane, window_max=window_max, horizon=horizon, alive=alive)
        self._aside = aside
        self._chosen: int | None = None  # the head, where it stands aside
        self._given: set[int] = set()  # taken from there, and as before in the store until they are hidden or deleted
        self._steps_aside = steps_aside
        self._would_step_aside = would_step_aside

    def get(self, number: int) -> Lease | None:
        """Return the lease at that position, ``None`` when there is none."""
        return self._aside.leases.get(number) or super().get(number)

    def put(self, number: int, item: Lease) -> None:
        """Add a lease, or file it anew after its instant moved."""
        self._forget(number)
        super().put(number, item)

    def drop(self, number: int) -> None:
        """Remove the lease at that position."""
        self._forget(number)
        super().drop(number)

    def _forget(self, number: int) -> None:
        self._aside.leases.pop(number, None)
        self._given.discard(number)

    def head(self, until_ms: int = NEVER_MS) -> Lease | None:
        """Return the lease that is visible first; with ``until_ms``, the first one whose group need not wait."""
        lease = self._front(until_ms)
        waiting = self._aside.first_lease(self._aside.favoured)
        self._chosen = None
        if waiting is not None and (lease is None or waiting.visible_at_ms <= lease.visible_at_ms):
            self._chosen = waiting.position
            return waiting
        return lease

    def in_order(self, until_ms: int = NEVER_MS) -> Iterator[Lease]:
        """Yield the leases visible until then that need not wait, in order; all stay."""
        return (lease for lease, waits in self._ahead(until_ms) if not waits)

    def waiting(self, until_ms: int) -> dict[int, list[Lease]]:
        """Return the leases visible until then that have to wait, by group, in order.

        No more than so many are looked at, beside those that stand aside.
        """
        waiting: dict[int, list[Lease]] = {}
        met = [lease for lease, waits in islice(self._ahead(until_ms), _LOOKED_AT_MAX) if waits]
        for lease in sorted([*self._aside.leases.values(), *met], key=_order):
            assert lease.group_key is not None, "only groups wait"
            waiting.setdefault(lease.group_key, []).append(lease)
        return waiting

    def _ahead(self, until_ms: int) -> Iterator[tuple[Lease, bool]]:
        """Yield the leases that do not stand aside, and which of them would: no more than there is room for."""
        room = self._aside.room
        judged: dict[int | None, bool] = {None: False}
        for lease in super().in_order(until_ms):
            if lease.position in self._aside.leases or lease.position in self._given:
                continue
            group = lease.group_key
            if group is not None and group not in judged:
                judged[group] = self._would_step_aside(group)
            waits = room > 0 and judged[group]
            room -= waits
            yield lease, waits

    def take(self) -> Lease:
        """Remove and return the head, which ``head`` must just have returned."""
        if self._chosen is None:
            return super().take()
        self._given.add(self._chosen)
        return self._aside.leases.pop(self._chosen)

    def _front(self, until_ms: int) -> Lease | None:
        while (lease := super().head(until_ms)) is not None:
            if lease.position in self._aside.leases or lease.position in self._given:
                super().take()  # the store was read on and has it still
            elif until_ms < NEVER_MS and lease.group_key is not None and self._stands_back(lease.group_key):
                self._aside.add_lease(super().take())
            else:
                return lease
        return None

    def _stands_back(self, group: int) -> bool:
        return self._aside.room > 0 and self._steps_aside(group)


def _add(candidates: list[tuple[int, int, MessageRow, Iterator[MessageRow]]], rows: Iterator[MessageRow]) -> None:
    """Have the next one of ``rows`` among those to choose from."""
    row = next(rows, None)
    if row is not None:
        heappush(candidates, (row.sent_at_ms, row.position, row, rows))


def _order(lease: Lease) -> Key:
    return lease.visible_at_ms, lease.position


def _new_turn(row: MessageRow) -> Turn:
    return Turn(_group(row), row.sent_at_ms, row.position, row.position, whole=True)


def _group(row: MessageRow) -> int:
    assert row.group_key is not None, "a message of a fair lane has a group"
    return row.group_key
