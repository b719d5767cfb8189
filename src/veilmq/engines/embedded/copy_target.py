"""A data folder as the target of a copy from another kind of store.

Rows are written as the engine would have left them, into a folder that takes its name when the doctor finds it sound:
what was interrupted is no data folder. Messages get positions of their own, in the order in which they came, so no
receipt issued before acts here: the key of receipts is a new one, and they are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Self

from veilmq.core.topics import push_queue
from veilmq.engines.copying import CopiedMessage, CopiedQueue, Remembered
from veilmq.engines.embedded import groups, positions
from veilmq.engines.embedded.folder import open_journal
from veilmq.engines.embedded.lane import FAIR, FIFO, PLAIN
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.rows import LaneRow, Lease, MessageRow
from veilmq.engines.embedded.unfinished import Unfinished

_SEQUENCE_SHIFT = 20
"""Sequence numbers of the other store are instants and a counter of so many bits; ours go on behind them."""


@dataclass(slots=True)
class _Lane:
    """A lane that is being filled: the next position of what was sent directly, and of what is delayed."""

    number: int
    queue: int
    priority: int
    kind: int
    direct: int = field(init=False)
    delayed: int = field(init=False)
    messages: int = 0

    def __post_init__(self) -> None:
        self.direct = positions.direct_start(self.number)
        self.delayed = positions.delayed_start(self.number)

    def place(self, message: CopiedMessage) -> int:
        """Return the position of the next message."""
        self.messages += 1
        if self.kind != FIFO and message.receive_count == 0 and message.visible_at_ms > message.came_at_ms:
            self.delayed += 1
            return self.delayed - 1
        self.direct += 1
        return self.direct - 1


class FolderTarget:
    """``engines.copying.Target`` of a folder that does not exist yet; as a context manager it removes what it left."""

    keeps_receipts = False

    def __init__(self, folder: Path) -> None:
        """Raises ``FolderError`` where ``folder`` exists."""
        self._unfinished = Unfinished(folder)
        self._journal = open_journal(self._unfinished.folder, EngineOptions())
        self._queues: dict[str, int] = {}
        self._lanes: dict[tuple[int, int, int], _Lane] = {}
        self._numbers = count(1)
        self._now_ms = 0
        self._last_queue = 0

    def __enter__(self) -> Self:
        """Have it open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what was not finished."""
        self._journal.close()
        self._unfinished.remove()

    async def begin(self, values: dict[str, bytes], *, now_ms: int, last_queue: int) -> None:
        """See ``Target``."""
        self._now_ms = now_ms
        self._last_queue = last_queue
        for name, value in values.items():
            self._journal.put_meta(name, value)

    async def add_queue(self, queue: CopiedQueue) -> None:
        """See ``Target``."""
        told = queue.number, queue.name, queue.encoded, queue.created_at_ms, queue.modified_at_ms
        self._journal.write("add_queue", *told)
        self._queues[queue.name] = queue.number

    async def add_messages(self, queue: CopiedQueue, messages: Sequence[CopiedMessage]) -> None:
        """See ``Target``."""
        for each in messages:
            self._add(queue, each)
        self._journal.flush()

    def _add(self, queue: CopiedQueue, message: CopiedMessage) -> None:
        group = message.group
        group_key = None if group is None else groups.key_of(group)
        lane = self._lane(queue, message.priority, group)
        position = lane.place(message)
        is_moved = message.source is not None
        self._journal.add_message(
            MessageRow(
                position=position,
                id=message.id,
                sent_at_ms=message.came_at_ms,
                body=message.body,
                properties=message.properties,
                group_key=group_key,
                source=message.source,
                first_sent_at_ms=message.sent_at_ms if is_moved and not queue.settings.fifo else None,
                receives_before=message.receives_before if is_moved else None,
                first_received_at_ms=message.first_received_at_ms if is_moved else None,
            )
        )
        if message.has_history:
            self._journal.add_lease(_lease(message, position, lane.number, group_key))

    def _lane(self, queue: CopiedQueue, priority: int, group: str | None) -> _Lane:
        kind = FIFO if queue.settings.fifo else PLAIN if group is None else FAIR
        key = queue.number, priority, kind
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(next(self._numbers), queue.number, priority, kind)
        return lane

    async def remember(self, remembered: Remembered) -> None:
        """See ``Target``."""
        for accepted_at_ms, together in groupby(remembered.accepted, key=attrgetter("accepted_at_ms")):
            for each in together:
                self._journal.accepted.add(each.key, each.id, each.sequence, accepted_at_ms)
            self._journal.flush()
        for move in remembered.moves:
            self._journal.write("add_move", *move)
        for pause in remembered.pauses:
            self._journal.write("put_pause", *pause)
        for topic in remembered.topics:
            self._journal.write("add_topic", *topic)
        topics = {topic.number: topic.name for topic in remembered.topics}
        for number, name, encoded, is_pushed, *times in remembered.subscriptions:
            queue = self._queues[push_queue(topics[number], name)] if is_pushed else None
            self._journal.write("add_subscription", number, name, encoded, queue, *times)

    async def finish(self) -> None:
        """See ``Target``; raises ``FolderError`` when the doctor finds fault with it."""
        for lane in self._lanes.values():
            self._complete(lane)
        self._journal.put_meta("last_lane", len(self._lanes))
        self._journal.put_meta(
            "next_sequence", self._sequence_base + max((each.messages for each in self._lanes.values()), default=0)
        )
        self._journal.write("drop_numbers")
        self._journal.write("number_behind", self._last_queue)
        self._journal.finish(self._now_ms)
        self._journal.commit()
        self._journal.close()
        self._unfinished.check()
        self._unfinished.name()

    @property
    def _sequence_base(self) -> int:
        return (self._now_ms + 1) << _SEQUENCE_SHIFT

    def _complete(self, lane: _Lane) -> None:
        """Add the turns and the leases that the engine expects, and the lane itself."""
        direct = lane.number, positions.direct_start(lane.number), lane.direct
        if lane.kind == PLAIN:
            self._journal.write("lease_before_leased", *direct)
        elif lane.kind == FAIR:
            self._journal.write("turns_by_fairness", *direct)
        else:
            self._journal.write("turns_in_order", *direct)
        ((in_flight, delayed),) = self._journal.rows("count_leased", lane.number, self._now_ms)
        start, delayed_start = positions.direct_start(lane.number), positions.delayed_start(lane.number)
        base = self._sequence_base if lane.kind == FIFO else 0
        row = LaneRow(
            lane.number, lane.queue, lane.priority, start, lane.direct, delayed_start, lane.delayed,
            lane.messages, in_flight, delayed, self._now_ms, lane.kind, base, 0,
        )  # fmt: skip
        self._journal.write("put_lane", *row)


def _lease(message: CopiedMessage, position: int, lane: int, group_key: int | None) -> Lease:
    first_here = message.received_at_ms if message.source is not None else message.first_received_at_ms
    return Lease(
        position=position,
        lane=lane,
        visible_at_ms=message.visible_at_ms,
        receive_count=message.receive_count,
        generation=message.generation,
        epoch=message.epoch,
        received_at_ms=message.received_at_ms,
        first_received_at_ms=(first_here or 0) if message.receive_count else 0,
        group_key=group_key,
        log=message.log,
    )
