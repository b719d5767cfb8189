"""The catalog: which queues and lanes there are, in memory and in the journal alike.

Loading it reads the rows of queues and lanes and nothing of the backlog. Lane numbers go round: each is given again
only after all others, when the janitor has long swept what stood under it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping

import msgspec

from veilmq.core.errors import QueueNotFound, StoreFull
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Wake
from veilmq.core.routing import RoutingTable, read_table
from veilmq.core.settings import QueueSettings
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.claimable import ClaimableLane
from veilmq.engines.embedded.event_log import EventLog
from veilmq.engines.embedded.fair_lane import FairLane
from veilmq.engines.embedded.fifo_lane import FifoLane
from veilmq.engines.embedded.fresh import BodyCache
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import FAIR, FIFO, PLAIN
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.rows import LaneRow, QueueRow
from veilmq.engines.embedded.throttle import throttle_of

_LAST_LANE = "last_lane"
_NEXT_SEQUENCE = "next_sequence"

_KINDS = {PLAIN: ClaimableLane, FAIR: FairLane, FIFO: FifoLane}


class Catalog:
    """All queues of one store by full name, and the lanes that were retired but are not swept yet."""

    def __init__(
        self, *, journal: Journal, options: EngineOptions, wakes: Mapping[str, Wake], events: EventLog
    ) -> None:
        """Load what ``journal`` has; ``events`` is the log of all queues.

        ``wakes`` has the watch of each watched name, whether the queue exists or not.
        """
        self._journal = journal
        self.events = events
        self._wakes = wakes
        self._options = options
        self._cache = BodyCache(bytes_max=options.body_cache_bytes)
        self._queues: dict[str, Queue] = {}
        self._names: list[str] = []  # sorted
        self._sources: dict[str, list[str]] = {}  # who names a queue as its dead-letter queue, sorted
        self._lane_numbers: set[int] = set()
        self._last_lane: int = journal.meta().get(_LAST_LANE, 0)
        self._next_sequence: int = journal.meta().get(_NEXT_SEQUENCE, 1)
        self.retired: dict[int, ClaimableLane] = {}
        self.unsettled = True
        """Whether the janitor may find work that it does not know of."""
        self._load()

    def _load(self) -> None:
        by_number: dict[int, Queue] = {}
        for row in self._journal.queues():
            by_number[row.number] = self._add(row)
        for lane_row in self._journal.lanes():
            self._lane_numbers.add(lane_row.number)
            lane = self._lane(lane_row, stored=True)
            if lane_row.queue is None:
                self.retired[lane.number] = lane
                lane.log = self.events.retired.get(lane.number)
            else:
                by_number[lane_row.queue].adopt(lane)

    def _add(self, row: QueueRow) -> Queue:
        settings = msgspec.json.decode(row.settings, type=QueueSettings)
        queue = Queue(
            number=row.number,
            name=row.name,
            settings=settings,
            created_at_ms=row.created_at_ms,
            modified_at_ms=row.modified_at_ms,
            in_flight_max=self._in_flight_max(settings),
            open_lane=self._open_lane,
            wake=self._wakes.get(row.name),
        )
        queue.log = self.events.of(row.name, settings)
        queue.rules = _rules(settings)
        queue.throttle = throttle_of(settings)
        self._queues[row.name] = queue
        self._names.insert(bisect_left(self._names, row.name), row.name)
        self._add_source(queue)
        return queue

    # Queues.

    def find(self, name: str) -> Queue | None:
        """Return the queue of that full name, if there is one."""
        return self._queues.get(name)

    def queue(self, name: str) -> Queue:
        """Return the queue of that full name; raises ``QueueNotFound``."""
        try:
            return self._queues[name]
        except KeyError:
            raise QueueNotFound(name) from None

    def queues(self) -> list[Queue]:
        """Return all queues."""
        return list(self._queues.values())

    def names(self, *, prefix: str = "", after: str = "", count: int | None = None) -> list[str]:
        """Return up to ``count`` full names that begin with ``prefix`` and follow ``after``, in order."""
        names = self._names
        start = max(bisect_left(names, prefix), bisect_right(names, after))
        end = len(names) if count is None else start + count
        return [name for name in names[start:end] if name.startswith(prefix)]

    def sources(self, queue: str, *, after: str = "", count: int | None = None) -> list[str]:
        """Return up to ``count`` names of queues whose dead-letter queue is ``queue``, in order, after ``after``."""
        names = self._sources.get(queue, [])
        start = bisect_right(names, after)
        return names[start : None if count is None else start + count]

    def _add_source(self, queue: Queue) -> None:
        target = queue.settings.dead_letter_queue
        if target:
            insort(self._sources.setdefault(target, []), queue.name)

    def _drop_source(self, queue: Queue) -> None:
        target = queue.settings.dead_letter_queue
        if target:
            self._sources[target].remove(queue.name)
            if not self._sources[target]:
                del self._sources[target]

    def create(self, name: str, settings: QueueSettings, now_ms: int) -> Queue:
        """Add a queue that does not exist yet."""
        encoded = msgspec.json.encode(settings)
        number = self._journal.insert_queue(name, encoded, now_ms)
        return self._add(QueueRow(number, name, encoded, now_ms, now_ms))

    def change(self, queue: Queue, settings: QueueSettings, now_ms: int) -> None:
        """Give ``queue`` other settings."""
        self._drop_source(queue)
        queue.settings = settings
        queue.log_to(self.events.of(queue.name, settings))
        queue.rules = _rules(settings)
        queue.throttle = throttle_of(settings, queue.throttle)
        self._add_source(queue)
        queue.in_flight_max = self._in_flight_max(settings)
        queue.give_place(now_ms)
        queue.modified_at_ms = now_ms
        for lane in queue.lanes:
            lane.expires_at_ms = 0  # found anew by the retention now in force
            lane.follow(settings.delay_s * SECOND_MS, now_ms)
        self.unsettled = True
        self._journal.update_queue(queue.number, msgspec.json.encode(settings), now_ms)

    def delete(self, queue: Queue) -> None:
        """Remove ``queue`` with its messages, at once whatever their number."""
        self.empty(queue)
        self._drop_source(queue)
        self._journal.delete_queue(queue.number)
        del self._queues[queue.name]
        del self._names[bisect_left(self._names, queue.name)]

    def empty(self, queue: Queue) -> None:
        """Delete all messages of ``queue``, at once whatever their number."""
        self._pass_sequences(queue.lanes)
        for lane in queue.part_with_lanes():
            self.retired[lane.number] = lane
            if queue.log is not None:
                lane.log = queue.log.retire(lane.number)
        self.unsettled = True

    def _in_flight_max(self, settings: QueueSettings) -> int:
        if settings.in_flight_max is not None:
            return settings.in_flight_max
        return self._options.fifo_in_flight_max if settings.fifo else self._options.in_flight_max

    # Lanes.

    def _open_lane(self, queue: Queue, priority: int, kind: int) -> ClaimableLane:
        if len(self._lane_numbers) >= positions.LANES_MAX:
            raise StoreFull  # more queues, or purges not swept yet, than there are numbers
        number = self._last_lane
        while True:
            number = (number + 1) % positions.LANES_MAX
            if number not in self._lane_numbers:
                break
        self._last_lane = number
        self._lane_numbers.add(number)
        self._journal.put_meta(_LAST_LANE, number)
        direct, delayed = positions.direct_start(number), positions.delayed_start(number)
        self._pass_sequences(queue.lanes)
        base = self._next_sequence
        row = LaneRow(number, queue.number, priority, direct, direct, delayed, delayed, 0, 0, 0, 0, kind, base)
        return self._lane(row, stored=False)

    def _lane(self, row: LaneRow, *, stored: bool) -> ClaimableLane:
        return _KINDS[row.kind](row, journal=self._journal, cache=self._cache, options=self._options, stored=stored)

    def _pass_sequences(self, lanes: list[ClaimableLane]) -> None:
        """Have every lane opened from now on count from behind the sequence numbers of ``lanes``.

        So they rise in a queue across purges, and even across its deletion, without a look at what was there.
        """
        next_sequence = max((lane.next_sequence for lane in lanes if lane.kind == FIFO), default=0)
        if next_sequence > self._next_sequence:
            self._next_sequence = next_sequence
            self._journal.put_meta(_NEXT_SEQUENCE, next_sequence)

    def forget(self, lane: ClaimableLane) -> None:
        """Remove a retired lane that was swept."""
        del self.retired[lane.number]
        self._lane_numbers.discard(lane.number)
        self._journal.delete_lane(lane)
        if lane.log is not None:
            lane.log.forget(lane.number)


def _rules(settings: QueueSettings) -> RoutingTable | None:
    return read_table(settings.visibility_rules) if settings.visibility_rules else None
