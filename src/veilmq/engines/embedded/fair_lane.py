"""A lane of groups that share fairly: the messages of a standard queue that name their message group.

Quiet groups come first, whatever the backlog of noisy ones (``core.fairness`` says who is noisy); among noisy ones the
group with the fewest messages in flight. Otherwise it is a lane like any other: messages come in the order in which
they became visible, a group blocks nobody, and messages of one group may be in flight together.

Never received messages are found by the turns of their groups, so a quiet group's new message is found at once behind
any number of others. What in memory tells who is noisy is lost with the process: after a restart the messages in flight
are counted again, processing times are learned anew. Of very many in flight not all are read then, so that no command
takes long: those that land last are counted, which say for the longest time who is noisy, and the others not any more.
"""

from itertools import islice

import msgspec

from veilmq.core.fairness import Fairness
from veilmq.core.limits import SECOND_MS
from veilmq.engines.embedded.aside import NOBODY, Aside
from veilmq.engines.embedded.fair_runs import FairRun, ReturnedRun
from veilmq.engines.embedded.fresh import BodyCache, Fresh
from veilmq.engines.embedded.grouped_lane import GroupedLane
from veilmq.engines.embedded.hidden import HiddenRun
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import NO_ROW, PLAIN, Taken
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.peekable import Offered, first_of
from veilmq.engines.embedded.rows import LaneRow, Lease, MessageRow
from veilmq.engines.embedded.run import CLAIMED_MS, NEVER_MS, ON_DISK, Run

NOISY_MS = NEVER_MS - 1
"""The standing of a lane in which only noisy groups have messages: behind all others of its priority."""

_REVIEW_MS = SECOND_MS
_FLIGHTS_READ_MAX = 3_000  # some ten milliseconds
_HIDDEN_READ_MAX = 50_000  # to find them among delayed messages, in the index alone: a few milliseconds


class Flight(msgspec.Struct, eq=False):
    """A message of a group in flight since an instant; it lands when it is visible."""

    visible_at_ms: int
    group_key: int
    since_ms: int


class Flights(Run[Flight]):
    """All of a lane's that this process knows of, in memory alone: the in-flight quota bounds them."""

    __slots__ = ()

    def _read_after(self, key: tuple[int, int], count: int) -> list[tuple[int, Flight]]:
        return []


class FairLane(GroupedLane):
    """The grouped messages of one incarnation of a standard queue at one priority."""

    __slots__ = ("_aside", "_by_turns", "_fairness", "_flights", "_now_ms", "_returns", "_review_at_ms", "_unread")

    def __init__(
        self, row: LaneRow, *, journal: Journal, cache: BodyCache, options: EngineOptions, stored: bool
    ) -> None:
        """All as for ``Lane``."""
        self._fairness = Fairness()
        self._aside = Aside()
        self._flights = Flights(window_max=NEVER_MS, horizon=None)
        self._unread = stored
        self._now_ms = 0
        self._review_at_ms = 0
        super().__init__(row, journal=journal, cache=cache, options=options, stored=stored)

    def _make_fresh(self, cache: BodyCache, options: EngineOptions, *, stored: bool) -> Fresh:
        self._by_turns = FairRun(
            turns=self._turns,
            series=self._direct,
            aside=self._aside,
            steps_aside=self._steps_aside,
            would_step_aside=self._would_step_aside,
            drained=self._drained,
        )
        return self._by_turns

    def _make_hidden(self, options: EngineOptions, *, stored: bool) -> HiddenRun:
        self._returns = ReturnedRun(
            journal=self._journal,
            lane=self.number,
            window_max=options.hidden_window_leases,
            horizon=ON_DISK if stored else None,
            alive=self._alive,
            aside=self._aside,
            steps_aside=self._steps_aside,
            would_step_aside=self._would_step_aside,
        )
        return self._returns

    # Sending.

    def _added(self, row: MessageRow) -> None:
        super()._added(row)
        assert row.group_key is not None, "a message of a fair lane has a group"
        self._fairness.sent(row.group_key, row.sent_at_ms)

    # Receiving.

    def visible_since_ms(self, now_ms: int) -> int:
        """Return when the message that would be taken first became visible, ``NOISY_MS`` if its group is noisy."""
        self._look(now_ms)
        since_ms = super().visible_since_ms(now_ms)
        return NOISY_MS if since_ms == NEVER_MS and self._aside else since_ms

    def next_due_ms(self, now_ms: int) -> int:
        """Return the instant from which the lane has a visible message: ``now_ms``, later, or ``NEVER_MS``."""
        self._look(now_ms)
        due_ms = super().next_due_ms(now_ms)
        return now_ms if self._aside else due_ms  # the groups that had the first turns may just have stepped aside

    def take(self, now_ms: int) -> Taken | None:
        """Take the quiet groups' message that became visible first; where there is none, a noisy group's."""
        self._look(now_ms)
        taken = super().take(now_ms)
        if taken is None and self._aside:
            taken = self._take_noisy(now_ms)
        if taken is not None:
            self._given(taken[1])
        return taken

    def _take_noisy(self, now_ms: int) -> Taken | None:
        """Take a message of the noisy group with the fewest in flight that has one."""
        messages = self.counters.messages
        while self._aside and self.counters.messages == messages:  # else too many are past their retention: enough
            self._aside.favoured = min(self._aside.groups(), key=self._need)
            self._bring_back_turn(self._aside.favoured)
            taken = super().take(now_ms)
            self._aside.favoured = NOBODY
            if taken is not None:
                return taken
        return None

    def _need(self, group: int) -> tuple[int, int]:
        """Return what says which of the noisy groups comes first."""
        return self._fairness.in_flight(group), group

    def peek(self, count: int, now_ms: int, receives_max: int) -> list[Offered]:
        """Return up to ``count`` messages in the order in which they would be taken: those of noisy groups last."""
        self._look(now_ms)
        offered = super().peek(count, now_ms, receives_max)
        if len(offered) < count:
            offered += self._peek_noisy(count - len(offered), now_ms, receives_max)
        return offered

    def _peek_noisy(self, count: int, now_ms: int, receives_max: int) -> list[Offered]:
        turns, leases = self._by_turns.waiting(), self._returns.waiting(now_ms)
        offered: list[Offered] = []
        for group in sorted(turns.keys() | leases.keys(), key=self._need):
            left = count - len(offered)
            if not left:
                break
            returned = self._with_rows(self._returned(leases.get(group, []), receives_max), left)
            rows = self._by_turns.of_turn(turns[group], left) if group in turns else iter(())
            mine = first_of(left, returned, self._unreceived(islice(rows, left)))
            offered += [(NOISY_MS, row, lease) for _, row, lease in mine]
        return offered

    def lease(self, lease: Lease, now_ms: int, visible_at_ms: int, requested_at_ms: int) -> None:
        """Hide a message that was taken, for one more receive."""
        super().lease(lease, now_ms, visible_at_ms, requested_at_ms)
        self._take_off(lease, now_ms)

    def move(self, lease: Lease, now_ms: int, visible_at_ms: int, *, supersede: bool) -> None:
        """Make the message visible at ``visible_at_ms``."""
        self._look(now_ms)
        super().move(lease, now_ms, visible_at_ms, supersede=supersede)
        if not lease.receive_count:
            return  # its delay was changed: nobody works on it
        flight = self._flights.get(lease.position)
        if flight is None:
            self._take_off(lease, now_ms)
        else:
            flight.visible_at_ms = visible_at_ms
            self._flights.put(lease.position, flight)

    def _come_back(self, lease: Lease, now_ms: int) -> None:
        super().move(lease, now_ms, now_ms, supersede=False)

    def remove(self, lease: Lease, now_ms: int) -> None:
        """Delete the message."""
        self._look(now_ms)
        super().remove(lease, now_ms)
        self._land(lease.position, now_ms)

    def _swept_off(self, swept: list[tuple[int, int]]) -> None:
        for position, _ in swept:
            self._land(position, self._now_ms)

    # Who is noisy.

    def _steps_aside(self, group: int) -> bool:
        return group != self._aside.favoured and self._fairness.is_noisy(group, self._others_in_flight(), self._now_ms)

    def _would_step_aside(self, group: int) -> bool:
        return self._fairness.would_be_noisy(group, self._others_in_flight(), self._now_ms)

    def _others_in_flight(self) -> int:
        return sum(lane.counters.in_flight for lane in self.neighbours if lane.kind == PLAIN)

    def _drained(self, group: int) -> None:
        if not self._aside.has(group):
            self._fairness.drained(group)

    def _given(self, lease: Lease) -> None:
        """See whether a message that had returned was the last one of a noisy group to give."""
        group = lease.group_key
        if lease.visible_at_ms == NO_ROW or group is None or not self._fairness.was_noisy(group):
            return
        if self._turns.of(group) is None:
            self._drained(group)

    def _bring_back(self, group: int) -> None:
        """Put the group's turn and its returned messages where those of quiet groups are.

        Not while a receive chooses: where the window of leases had to shrink, chosen ones would be read once more.
        """
        self._bring_back_turn(group)
        while (lease := self._aside.first_lease(group)) is not None:
            self._hidden.put(lease.position, lease)

    def _bring_back_turn(self, group: int) -> None:
        turn = self._aside.turns.pop(group, None)
        if turn is not None:
            self._turns.bring_back(turn)

    # The passing of time.

    def _look(self, now_ms: int) -> None:
        """Count out what landed since; now and then, look who is quiet again."""
        if self._unread:
            self._read_flights(now_ms)
        while (flight := self._flights.head(now_ms)) is not None:
            self._flights.take()
            ended_at_ms = flight.visible_at_ms
            self._fairness.ended(flight.group_key, ended_at_ms - flight.since_ms, ended_at_ms)
        if now_ms > self._now_ms:  # nothing is taken yet at this instant: counters and runs may be touched
            self._now_ms = now_ms
            for lane in self.neighbours:
                if lane.kind == PLAIN:
                    lane.catch_up(now_ms)
            if self._aside and now_ms >= self._review_at_ms:
                self._review_at_ms = now_ms + _REVIEW_MS
                self._review()

    def _review(self) -> None:
        for group in self._aside.groups():
            if not self._steps_aside(group):
                self._bring_back(group)

    def _take_off(self, lease: Lease, now_ms: int) -> None:
        assert lease.group_key is not None
        if lease.visible_at_ms == CLAIMED_MS:
            return  # claims take what they want, and are no work of a group
        self._fairness.received(lease.group_key, now_ms)
        self._flights.put(lease.position, Flight(lease.visible_at_ms, lease.group_key, now_ms))

    def _land(self, position: int, now_ms: int) -> None:
        flight = self._flights.get(position)
        if flight is not None:
            self._flights.drop(position)
            self._fairness.ended(flight.group_key, now_ms - flight.since_ms, now_ms)

    def _read_flights(self, now_ms: int) -> None:
        self._unread = False
        rows = self._journal.rows("flights", self.number, now_ms, CLAIMED_MS, _HIDDEN_READ_MAX, _FLIGHTS_READ_MAX)
        for position, visible_at_ms, group_key, received_at_ms in rows:
            self._fairness.received(group_key, now_ms)
            self._flights.put(position, Flight(visible_at_ms, group_key, received_at_ms))
