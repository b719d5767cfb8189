"""Looks at a queue: its messages and leases as the journal has them, behind what is staged; nothing is changed."""

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from veilmq.core.looks import LOOKED_AT_MAX, LookAtLeases, LookAtQueue, MessageState, SeenLease, SeenMessage
from veilmq.core.properties import decode
from veilmq.core.receipts import ReceiptBook
from veilmq.engines import held
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.bounded import grown, within
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.claimable import ClaimableLane
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import FIFO
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.rows import LaneRow, Lease, MessageRow
from veilmq.engines.embedded.run import CLAIMED_MS, NEVER_MS

_LEASE_COLUMNS = len(Lease.__struct_fields__)
_NAMES_MAX = 10_000
_READ_BYTES_MAX = 16 << 20  # of messages whose groups one look finds out: some ten milliseconds


class _Found(NamedTuple):
    """A message that is shown, as far as it was read; ``came_at_ms`` is when it came to the queue."""

    lane: ClaimableLane
    position: int
    came_at_ms: int
    lease: Lease | None
    is_claimed: bool = False
    row: MessageRow | None = None

    def state(self, now_ms: int) -> MessageState:
        """Return where it is."""
        if self.is_claimed:
            return MessageState.IN_FLIGHT
        if self.lease is None or self.lease.visible_at_ms <= now_ms:
            return MessageState.VISIBLE
        return MessageState.IN_FLIGHT if self.lease.receive_count else MessageState.DELAYED

    @property
    def turn(self) -> tuple[bool, int]:
        """Return what says which of one state comes first."""
        return self.is_claimed, self.came_at_ms if self.lease is None else self.lease.visible_at_ms


class Looks:
    """The commands of ``core.looks``, but for peeks."""

    def __init__(self, *, catalog: Catalog, journal: Journal, book: ReceiptBook) -> None:
        """``catalog`` has the queues, ``journal`` their messages, ``book`` the keys of receipts."""
        self._catalog = catalog
        self._journal = journal
        self._book = book
        self._groups = _GroupNames(journal)

    def look(self, command: LookAtQueue, now_ms: int) -> list[SeenMessage]:
        """Show what there is of every lane, or what is in one state."""
        queue = self._catalog.queue(command.queue)
        queue.expire(now_ms)
        found = [each for lane in queue.lanes for each in self._found(lane, command, now_ms)]
        found.sort(key=attrgetter("came_at_ms" if command.state is None else "turn"))
        found = found[: command.count]
        if command.id is not None:
            found = [each for each in found if self._journal.rows("id_at", each.position)[0][0] == command.id]
        read = ((each, each.row or self._journal.message_at(each.position)) for each in found)
        shown = within(command.bytes_max, read, lambda each: each[1].body)
        return [self._seen(queue, *each, command, now_ms) for each in shown]

    def leases(self, command: LookAtLeases, now_ms: int) -> list[SeenLease]:
        """Show the leases that end first."""
        queue = self._catalog.queue(command.queue)
        queue.expire(now_ms)
        self._groups.begin()
        found = [
            each
            for lane in queue.lanes
            for each in self._hidden(lane, MessageState.IN_FLIGHT, (now_ms, CLAIMED_MS), command.count)
        ]
        found.sort(key=lambda each: each[0].visible_at_ms)
        del found[command.count :]
        known = {lease.position for lease, *_ in found}
        found += self._still_there(queue, [at for at in command.also if at not in known], now_ms)
        return [self._lease(*each, now_ms) for each in found]

    # Finding.

    def _found(self, lane: ClaimableLane, command: LookAtQueue, now_ms: int) -> Iterator[_Found]:
        state, count = command.state, command.count
        if state is None:
            return self._in_order(lane, count, now_ms)
        if state is not MessageState.VISIBLE:
            return self._hidden_messages(lane, state, count, now_ms)
        return self._not_hidden(lane, count, now_ms) if lane.kind == FIFO else _peeked(lane, command, now_ms)

    def _in_order(self, lane: ClaimableLane, count: int, now_ms: int) -> Iterator[_Found]:
        for start, end in _stretches(lane.row()):
            for is_claimed, at, came_at_ms, *lease in self._journal.rows("look_between", start, end, count):
                found = _waiting(lane, at, came_at_ms, now_ms) if lease[0] is None else Lease(*lease)
                yield _Found(lane, at, came_at_ms, found, bool(is_claimed))

    def _not_hidden(self, lane: ClaimableLane, count: int, now_ms: int) -> Iterator[_Found]:
        start, end = _stretches(lane.row())[0]
        terms = start, end, LOOKED_AT_MAX, now_ms - lane.delay_ms, now_ms, count
        for at, came_at_ms in self._journal.rows("visible_between", *terms):
            yield _Found(lane, at, came_at_ms, self._journal.lease_at(at))

    def _hidden_messages(self, lane: ClaimableLane, state: MessageState, count: int, now_ms: int) -> Iterator[_Found]:
        shown = 0
        for lease, *_ in self._hidden(lane, state, (now_ms, NEVER_MS), count):
            shown += 1
            yield _Found(lane, lease.position, 0, lease, lease.visible_at_ms == CLAIMED_MS)
        if state is MessageState.DELAYED:
            for at, came_at_ms, has_lease in lane.waiting(now_ms, LOOKED_AT_MAX + count):
                if not has_lease:
                    yield _Found(lane, at, 0, _waiting(lane, at, came_at_ms, now_ms))
        if state is MessageState.IN_FLIGHT and shown < count and lane.counters.claimed:
            ends = positions.direct_start(lane.number), positions.delayed_start(lane.number)
            for at, came_at_ms in self._journal.rows("claimed_without_lease", *ends, count - shown):
                yield _Found(lane, at, came_at_ms, None, is_claimed=True)

    def _hidden(
        self, lane: ClaimableLane, state: MessageState, hidden_ms: tuple[int, int], count: int
    ) -> Iterator[tuple[Lease, bytes, int]]:
        """Yield leases that end between those instants, each with the id of its message and the bytes of its body."""
        row = lane.row()
        alive = row.direct_floor, positions.delayed_start(lane.number), row.delayed_floor
        is_received = int(state is MessageState.IN_FLIGHT)
        terms = (lane.number, *hidden_ms, LOOKED_AT_MAX + count, is_received, *alive, count)
        for columns in self._journal.rows("hidden_leases", *terms):
            lease = Lease(*columns[:_LEASE_COLUMNS])
            if not lane.hides(lease.position):
                yield lease, *columns[_LEASE_COLUMNS:]

    def _still_there(self, queue: Queue, asked: list[int], now_ms: int) -> Iterator[tuple[Lease, bytes, int]]:
        for at in asked:
            found = queue.find(at, now_ms)
            if found is not None:
                ((message_id, body_bytes),) = self._journal.rows("id_at", at)
                yield found[1], message_id, body_bytes

    # Showing.

    def _seen(self, queue: Queue, found: _Found, row: MessageRow, command: LookAtQueue, now_ms: int) -> SeenMessage:
        lane, lease, is_claimed = found.lane, found.lease, found.is_claimed
        state = found.state(now_ms)
        receives = 0 if lease is None else lease.receive_count
        last = None if is_claimed or not receives else lease
        receipt = None
        if command.receipts and state is MessageState.IN_FLIGHT and last is not None:
            fence = (last.generation, last.epoch, last.visible_at_ms)
            receipt = self._book.issue(queue.number, row.position, *fence)
        return SeenMessage(
            id=row.id,
            body=row.body,
            properties=row.properties,
            sent_at_ms=row.sent_at_ms if row.first_sent_at_ms is None else row.first_sent_at_ms,
            receive_count=receives + (row.receives_before or 0),
            state=state,
            visible_at_ms=None if lease is None or is_claimed else lease.visible_at_ms,
            received_at_ms=None if last is None else _received_at_ms(last),
            first_received_at_ms=None if is_claimed else _first_received_at_ms(row, last),
            group=None if row.group_key is None else decode(row.properties).group,
            priority=lane.priority,
            receipt=receipt,
        )

    def _lease(self, lease: Lease, message_id: bytes, body_bytes: int, now_ms: int) -> SeenLease:
        return SeenLease(
            message_id=message_id,
            position=lease.position,
            generation=lease.generation,
            received_at_ms=_received_at_ms(lease),
            visible_at_ms=now_ms if lease.visible_at_ms == CLAIMED_MS else lease.visible_at_ms,
            receive_count=lease.receive_count,
            extensions=held.read(lease.log)[0] if lease.log else None,
            group=None if lease.group_key is None else self._groups.name(lease, body_bytes),
        )


class _GroupNames:
    """Names of message groups by their keys: they stand behind the body of a message, which may be long."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: dict[int, str | None] = {}
        self._bytes_left = 0

    def begin(self) -> None:
        """Begin with another look."""
        self._bytes_left = _READ_BYTES_MAX

    def name(self, lease: Lease, body_bytes: int) -> str | None:
        """Return the group of a message; ``None`` if this look has read enough, and another one is to find it out."""
        key = lease.group_key
        assert key is not None, "it has a group"
        if key not in self._known:
            if self._bytes_left < 0:
                return None
            self._bytes_left -= body_bytes
            if len(self._known) >= _NAMES_MAX:
                self._known.clear()
            ((properties,),) = self._journal.rows("properties_at", lease.position)
            self._known[key] = decode(properties).group
        return self._known[key]


def _peeked(lane: ClaimableLane, command: LookAtQueue, now_ms: int) -> Iterator[_Found]:
    bytes_max = None if command.id is not None else command.bytes_max
    offered = grown(
        command.count, bytes_max, lambda count: lane.peek(count, now_ms, 0), lambda offered: offered[1].body
    )
    for _, row, lease in offered:
        yield _Found(lane, row.position, row.sent_at_ms, lease, row=row)


def _waiting(lane: ClaimableLane, position: int, came_at_ms: int, now_ms: int) -> Lease | None:
    """Return a lease of our making of a message that has none, and that its queue's delay hides."""
    until_ms = came_at_ms + lane.delay_ms
    return Lease(position, lane.number, until_ms) if until_ms > now_ms else None


def _stretches(row: LaneRow) -> tuple[tuple[int, int], tuple[int, int]]:
    return (row.direct_floor, row.direct_next), (row.delayed_floor, row.delayed_next)


def _received_at_ms(lease: Lease) -> int:
    """Return when the message was given: a wait before that is known for the first receive, and with an event log."""
    *_, waited_ms = held.read(lease.log)
    return max(lease.received_at_ms + waited_ms, lease.first_received_at_ms)


def _first_received_at_ms(row: MessageRow, lease: Lease | None) -> int | None:
    if row.first_received_at_ms is not None:
        return row.first_received_at_ms
    return None if lease is None else lease.first_received_at_ms
