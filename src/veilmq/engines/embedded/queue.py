"""A queue in memory: its settings, its lanes, and how many messages may be in flight.

The quota counts what was received from this queue and is neither deleted nor visible again: not what is delayed, and
not what other queues have, its dead letters included. The counters of the lanes are never too low (time only lowers
them), so a receive looks at them as they are, and asks the index only when they say that the quota may be touched.
"""

from collections.abc import Callable
from typing import Protocol

from veilmq.core.commands import NewMessage
from veilmq.core.errors import StoreFull
from veilmq.core.limits import LEASE_S_MAX, PRIORITY, SECOND_MS
from veilmq.core.ports import Wake
from veilmq.core.results import QueueCounts
from veilmq.core.routing import RoutingTable
from veilmq.core.settings import QueueSettings
from veilmq.core.visibility import deadline_ms, lease_end_ms_max
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.claimable import ClaimableLane
from veilmq.engines.embedded.event_log import QueueLog
from veilmq.engines.embedded.lane import FAIR, FIFO, PLAIN, Lane, Taken
from veilmq.engines.embedded.rows import Lease, MessageRow
from veilmq.engines.embedded.run import CLAIMED_MS, NEVER_MS
from veilmq.engines.embedded.throttle import Throttle

_SWEEP_ROWS_MAX = 1_000
_SWEEP_ROWS_AT_LIMIT_MAX = 100


class Diversion(Protocol):
    """Where a receive sends messages that are not to be given out (``dead_letters.Redrive``)."""

    @property
    def is_over(self) -> bool:
        """Whether no more may be sent there in this receive."""

    def takes(self, taken: Taken) -> bool:
        """Send the message there if it is due; tell whether it was."""


class Queue:
    """One incarnation of a queue: ``number`` is never given again."""

    __slots__ = (
        "_open_lane",
        "at_limit",
        "created_at_ms",
        "deleted",
        "in_flight_max",
        "lanes",
        "log",
        "modified_at_ms",
        "name",
        "number",
        "received",
        "redelivered",
        "rules",
        "sent",
        "settings",
        "throttle",
        "wake",
    )

    def __init__(
        self,
        *,
        number: int,
        name: str,
        settings: QueueSettings,
        created_at_ms: int,
        modified_at_ms: int,
        in_flight_max: int,
        open_lane: Callable[["Queue", int, int], ClaimableLane],
        wake: Wake | None,
    ) -> None:
        """``open_lane(queue, priority, kind)`` makes a new lane; ``in_flight_max`` is the quota in force."""
        self.number = number
        self.name = name
        self.settings = settings
        self.created_at_ms = created_at_ms
        self.modified_at_ms = modified_at_ms
        self.lanes: list[ClaimableLane] = []  # by priority; of one priority, in the order they were opened
        self.received = self.deleted = 0  # since the start of the engine; by claims, lanes count
        self.redelivered = self.sent = 0  # in lanes that are no more
        self.wake = wake
        self.in_flight_max = in_flight_max
        self.at_limit = True
        """Whether the last receive found no place. True at first: of those that wait from before nobody knows it."""
        self._open_lane = open_lane
        self.log: QueueLog | None = None
        self.rules: RoutingTable | None = None
        """Which timeouts messages have of which a receive says none, where the queue has such rules."""
        self.throttle: Throttle | None = None
        """What counts the receives that are asked, where the queue bounds them."""

    def lane(self, priority: int, kind: int = PLAIN) -> ClaimableLane:
        """Return the lane that takes messages of ``priority`` and ``kind``; opens one where none has room."""
        for lane in reversed(self.lanes):
            if lane.priority == priority and lane.kind == kind:
                if not lane.is_full:
                    return lane
                break
        return self.adopt(self._open_lane(self, priority, kind))

    def lane_for(self, new: NewMessage) -> ClaimableLane:
        """Return the lane that takes a message; opens one where none has room."""
        if self.settings.fifo:
            return self.lane(PRIORITY.default, FIFO)  # all priorities share it: a group has one order
        return self.lane(new.priority, PLAIN if new.group is None else FAIR)

    def adopt(self, lane: ClaimableLane) -> ClaimableLane:
        """Put ``lane`` behind those of its priority that were opened before.

        The sequence numbers of lanes tell, which only rise from one to the next; the numbers of lanes go round. Where
        they are equal, which they never are in a FIFO queue, the lane comes last.
        """
        self.lanes.append(lane)
        lane.neighbours = self.lanes
        lane.log = self.log
        lane.follow(self.settings.delay_s * SECOND_MS, self.modified_at_ms)
        self.lanes.sort(key=lambda each: (each.priority, each.sequence_base))
        return lane

    def log_to(self, log: QueueLog | None) -> None:
        """Log the receipts of the queue there from now on; ``None`` for nowhere."""
        self.log = log
        for lane in self.lanes:
            lane.log = log

    def store(self, lane: Lane, new: NewMessage, message_id: bytes, now_ms: int, group_key: int | None) -> int:
        """Store a message in a lane of the queue, delayed where either says so; return when it is visible.

        In a FIFO queue a delay of its own, even of 0, is stored with it; the queue's is looked up when it matters.
        """
        delay_s = new.delay_s
        if delay_s is None and lane.kind != FIFO:
            delay_s = self.settings.delay_s
        if delay_s is None or (delay_s == 0 and lane.kind != FIFO):
            lane.add(message_id, new.body, new.properties, now_ms, group_key)
            return now_ms + lane.delay_ms
        visible_at_ms = deadline_ms(now_ms, delay_s) if delay_s else now_ms - 1
        lane.add_delayed(message_id, new.body, new.properties, now_ms, visible_at_ms, group_key)
        return visible_at_ms

    def take_over(self, taken: Taken, row: MessageRow, now_ms: int) -> bool:
        """Store ``row``, what has become of a message taken in another queue, which loses it.

        False, with nothing done, when no lane is left that could be opened for it.
        """
        _, lease, lane = taken
        try:
            home = self.lane(lane.priority, lane.kind)
        except StoreFull:
            return False
        lane.let_go(lease)
        home.add_moved(row, now_ms)
        return True

    def part_with_lanes(self) -> list[ClaimableLane]:
        """Retire all lanes and return them: every message is deleted."""
        lanes, self.lanes = self.lanes, []
        for lane in lanes:
            counters = lane.counters
            self.redelivered += counters.redelivered
            self.sent += counters.sent(lane.row())
            self.received += counters.bound
            self.deleted += counters.acknowledged
            lane.retire()
        return lanes

    def expire(self, now_ms: int) -> None:
        """Put everything past its retention out of reach."""
        for lane in self.lanes:
            if now_ms >= lane.expires_at_ms:
                self._expire(lane, now_ms)

    def _expire(self, lane: Lane, now_ms: int) -> None:
        messages = lane.counters.messages
        lane.expire(now_ms, self.settings.retention_s)
        if lane.counters.messages < messages:
            self.ended(now_ms)

    def ended(self, now_ms: int) -> None:
        """Tell the watch that messages were deleted for their age: they may have taken places, or blocked groups."""
        self.give_place(now_ms)
        if self.settings.fifo:
            self.rouse_groups(now_ms)

    def receive(
        self,
        count: int,
        now_ms: int,
        visible_at_ms: int,
        requested_at_ms: int,
        diversion: Diversion | None = None,
        rules: RoutingTable | None = None,
        lease_s_max: int | None = LEASE_S_MAX,
    ) -> list[Taken]:
        """Take up to ``count`` visible messages and hide them; all are chosen before the first one is hidden.

        Lower priorities come first, and within one the messages that became visible first. Never more are taken than
        the quota has places for; ``at_limit`` tells whether it had none. What ``diversion`` takes is not given out.
        With ``rules``, each message is hidden for the timeout of its class, and not until ``visible_at_ms``: not beyond
        the longest lease, if there is one, which is counted from the asking.
        """
        self.expire(now_ms)
        self.at_limit = False
        places = self.in_flight_max
        for lane in self.lanes:
            places -= lane.counters.in_flight
        if places < count:
            count = min(count, self._places(now_ms))
        chosen: list[Taken] = []
        while len(chosen) < count:
            first = self.first_lane(now_ms)
            taken = None if first is None else first.take(now_ms)
            if taken is None:
                break
            if diversion is None or not diversion.takes(taken):
                chosen.append(taken)
            elif diversion.is_over:
                break
        if self.log is not None:
            self.log.received(chosen, requested_at_ms)
        for row, lease, home in chosen:
            if rules is not None:
                timeout_s = rules.timeout_s(row.properties, lease.receive_count)
                visible_at_ms = deadline_ms(now_ms, timeout_s)
                if lease_s_max is not None:
                    visible_at_ms = min(visible_at_ms, lease_end_ms_max(requested_at_ms, lease_s_max))
            home.lease(lease, now_ms, visible_at_ms, requested_at_ms)
        self.received += len(chosen)
        return chosen

    def take(self, now_ms: int) -> Taken | None:
        """Take the message that a receive would give out first, for another purpose; ``None`` when there is none."""
        lane = self.first_lane(now_ms)
        return None if lane is None else lane.take(now_ms)

    def _places(self, now_ms: int) -> int:
        """Return how many more messages may be in flight; note when it is none.

        Exact, but for many messages that passed their retention at once and that the janitor has not come to yet.
        """
        in_flight = 0
        for lane in self.lanes:
            if lane.sweep(_SWEEP_ROWS_AT_LIMIT_MAX):
                self.rouse(now_ms)  # there may be places for others too
            in_flight += lane.catch_up(now_ms).in_flight
        self.at_limit = in_flight >= self.in_flight_max
        return max(0, self.in_flight_max - in_flight)

    def give_place(self, now_ms: int) -> None:
        """Tell the watch of a place that became free otherwise than by the end of a lease."""
        if self.at_limit:
            self.at_limit = False
            self.rouse(now_ms)

    def first_lane(self, now_ms: int) -> ClaimableLane | None:
        """Return the lane that gives the next message; ``None`` when none has a message to give."""
        if len(self.lanes) <= 1:
            return self.lanes[0] if self.lanes else None
        if self.settings.fifo:  # another lane follows when one is full: order is kept by coming to its end first
            return next((lane for lane in self.lanes if lane.counters.messages), None)
        since = [(lane.priority, lane.visible_since_ms(now_ms), lane) for lane in self.lanes]
        ready = [each for each in since if each[1] != NEVER_MS]
        return min(ready, key=lambda each: each[:2])[2] if ready else None

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return the instant from which there is a message to receive; ``None`` when nothing is coming by itself.

        At the quota that is the end of a lease in flight, or an instant before it at which to look again.
        """
        if self.at_limit:
            due_ms = min((lane.next_place_ms(now_ms) for lane in self.lanes), default=NEVER_MS)
        else:
            due_ms = self.next_message_ms(now_ms)
        return None if due_ms >= CLAIMED_MS else due_ms

    def next_message_ms(self, now_ms: int) -> int:
        """Return when the next message is visible, whatever the quota says; ``CLAIMED_MS`` or later: none is coming."""
        if self.settings.fifo:
            first = self.first_lane(now_ms)
            return NEVER_MS if first is None else first.next_due_ms(now_ms)
        due_ms = NEVER_MS
        for lane in self.lanes:
            due_ms = min(due_ms, lane.next_due_ms(now_ms))
            if due_ms == now_ms:
                break
        return due_ms

    def counts(self, now_ms: int) -> QueueCounts:
        """Tell how many messages are in which state."""
        self.expire(now_ms)
        visible = in_flight = delayed = 0
        redelivered, sent, received, deleted = self.redelivered, self.sent, self.received, self.deleted
        oldest_ms = []
        for lane in self.lanes:
            if lane.sweep(_SWEEP_ROWS_MAX):  # rows that the janitor has not come to yet would be counted
                self.ended(now_ms)
            counters = lane.catch_up(now_ms)
            in_flight += counters.in_flight + counters.claimed - counters.doomed
            waiting = lane.count_waiting(now_ms)
            delayed += counters.delayed + waiting
            redelivered += counters.redelivered
            sent += counters.sent(lane.row())
            received += counters.bound
            deleted += counters.acknowledged
            visible += counters.messages - counters.in_flight - counters.delayed - counters.claimed - waiting
            if (sent_at_ms := lane.oldest_sent_at_ms()) is not None:
                oldest_ms.append(sent_at_ms)
        return QueueCounts(
            visible=visible,
            in_flight=in_flight,
            delayed=delayed,
            oldest_sent_at_ms=min(oldest_ms, default=None),
            redelivered=redelivered,
            sent=sent,
            received=received,
            deleted=deleted,
        )

    def find(self, position: int, now_ms: int) -> tuple[Lane, Lease] | None:
        """Return the message at ``position`` with its lane, ``None`` when it is gone."""
        number = positions.lane_of(position)
        for lane in self.lanes:
            if lane.number == number:
                if now_ms >= lane.expires_at_ms:
                    self._expire(lane, now_ms)
                lease = lane.find(position)
                return None if lease is None else (lane, lease)
        return None

    def rouse_groups(self, now_ms: int) -> None:
        """Tell the watch when the next group of a FIFO queue may give a message; of places, the next receive knows."""
        if self.wake is not None:
            due_ms = self.next_message_ms(now_ms)
            if due_ms < CLAIMED_MS:
                self.wake(due_ms)

    def rouse(self, due_ms: int) -> None:
        """Tell the watch that there may be a message at ``due_ms``."""
        if self.wake is not None:
            self.wake(due_ms)
