"""Sends: the messages of all commands that travel together are one statement.

A position is an instant in milliseconds, which the database knows, and a counter of the node, one for all that it
stores, so that of two messages of the same millisecond the later one has the higher position. It begins anywhere, so
that nodes seldom give the same, and goes round. Where two have given the same, the later one jumps and tries again.
"""

from collections.abc import Callable, Sequence
from random import getrandbits
from typing import Any

from msgspec.structs import replace

from veilmq.core import fifo
from veilmq.core.commands import NewMessage, Send
from veilmq.core.errors import InternalError, MessageTooLong, VeilmqError
from veilmq.core.ids import IdSource
from veilmq.core.limits import DEDUPLICATION_S, PRIORITY, SECOND_MS
from veilmq.core.receipts import ReceiptBook
from veilmq.core.results import SentMessage
from veilmq.store.postgres.catalog import Queue
from veilmq.store.postgres.coalescing import COLLISIONS, COLLISIONS_MAX, FIFO, STANDARD, OnQueue, PartitionRetired
from veilmq.store.postgres.counts import Totals
from veilmq.store.postgres.fair import FAIR, LANE, FairQueues, keys_of
from veilmq.store.postgres.watches import Watches, wake_groups

COUNTER_BITS = 20
_COUNTERS = 1 << COUNTER_BITS
_AT_ONCE_MS = -1  # of what no delay hides in a FIFO queue

Check = Callable[[NewMessage, Send, Queue], NewMessage]


class Positions:
    """The counter of one node."""

    def __init__(self) -> None:
        """Begin anywhere."""
        self._next = 0
        self.jump()

    def take(self, messages: int) -> int:
        """Return the first of so many numbers; the statement has them go round."""
        first, self._next = self._next, self._next + messages
        return first

    def jump(self) -> None:
        """Go on anywhere else, in the lower half: a counter that goes round gives a low number after a high one."""
        self._next = getrandbits(COUNTER_BITS - 1)


class StandardStoring:
    """Stores messages of standard queues for one node."""

    def __init__(self, *, positions: Positions, totals: Totals, fair: FairQueues | None = None) -> None:
        """``positions`` and ``totals`` are the node's; ``fair`` hears of messages that name groups, if any do."""
        self._fair = fair
        self._totals = totals
        self._positions = positions

    def check(self, new: NewMessage, command: Send, queue: Queue) -> NewMessage:
        """Return ``new`` if its queue takes it; raises ``MessageTooLong``."""
        if new.size_bytes > queue.settings.message_bytes_max:
            raise MessageTooLong(queue.settings.message_bytes_max)
        return new

    async def store(
        self, connection: Any, queue: Queue, asked: list[tuple[NewMessage, Send]], ids: list[bytes]
    ) -> list[Any]:
        """Return the stored row of each message, in their order; none where the partition was retired.

        Inserts with other counters where another node has sent with the same in the same millisecond.
        """
        for _ in range(COLLISIONS_MAX):
            try:
                return await self.insert(connection, queue, [each for each, _ in asked], ids)
            except COLLISIONS:
                self._positions.jump()
        raise InternalError

    async def insert(self, connection: Any, queue: Queue, new: list[NewMessage], ids: list[bytes]) -> list[Any]:
        """Do so once; raises what is among ``COLLISIONS``."""
        groups = keys_of(new)
        priorities = [
            each.priority if group is None else LANE + each.priority for each, group in zip(new, groups, strict=True)
        ]
        added = sorted(set(priorities) - {PRIORITY.default})
        if added:
            await connection.execute(STANDARD["add_priorities"], queue.partition, added)
        is_fair = any(group is not None for group in groups)
        first = self._positions.take(len(new))
        rows = await connection.fetch(
            (FAIR if is_fair else STANDARD)["send"],
            queue.partition,
            [number % _COUNTERS for number in range(first, first + len(new))],
            priorities,
            [(queue.settings.delay_s if each.delay_s is None else each.delay_s) * SECOND_MS for each in new],
            ids,
            [each.properties or None for each in new],
            [each.body for each in new],
            *([groups] if is_fair else []),
        )
        if not rows:
            return []
        self._totals.stored(queue, len(rows))
        by_id = {row["id"]: row for row in rows}
        stored = [by_id[each] for each in ids]
        if is_fair and self._fair is not None:
            self._fair.sent(queue, groups, stored)
        return stored


class FifoStoring:
    """Stores messages of FIFO queues for one node."""

    def __init__(self, *, positions: Positions, totals: Totals) -> None:
        """Both are the node's."""
        self._positions = positions
        self._totals = totals

    def check(self, new: NewMessage, command: Send, queue: Queue) -> NewMessage:
        """Return ``new`` if its queue takes it; raises what is wrong with it."""
        fifo.group_of(new, queue.settings)
        _key(new, command, queue)
        return new

    async def store(
        self, connection: Any, queue: Queue, asked: list[tuple[NewMessage, Send]], ids: list[bytes]
    ) -> list[Any]:
        """Return the row of each message, or of that whose duplicate it is; none where the partition was retired.

        Nodes that send the same ids in another order at one time may be in each other's way: one of them tries again.
        """
        new = [_delayed(each, command, queue) for each, command in asked]
        keys = [_key(each, command, queue) for each, command in asked]
        for _ in range(COLLISIONS_MAX):
            try:
                return await self.insert(connection, queue, new, keys, ids)
            except COLLISIONS:
                self._positions.jump()
        raise InternalError

    async def insert(
        self, connection: Any, queue: Queue, new: list[NewMessage], keys: list[bytes | None], ids: list[bytes]
    ) -> list[Any]:
        """Do so once, each remembered under its key; raises what is among ``COLLISIONS``."""
        rows: list[Any] = await connection.fetch(
            FIFO["send"],
            queue.partition,
            queue.origin,
            self._positions.take(len(new)),
            DEDUPLICATION_S * SECOND_MS,
            [each.group for each in new],
            keys,
            ids,
            [each.properties or None for each in new],
            [each.body for each in new],
            [None if each.delay_s is None else each.delay_s * SECOND_MS or _AT_ONCE_MS for each in new],
        )
        self._totals.stored(queue, sum(row["id"] == own for row, own in zip(rows, ids, strict=False)))
        return rows


def _delayed(new: NewMessage, command: Send, queue: Queue) -> NewMessage:
    """Return a message with the delay of its queue as its own, if the answer has a receipt: it says until when."""
    if new.delay_s is not None or command.terms is None or not command.terms.receipts or not queue.settings.delay_s:
        return new
    return replace(new, delay_s=queue.settings.delay_s)


def _key(new: NewMessage, command: Send, queue: Queue) -> bytes | None:
    """Return under what a message is remembered; ``None`` for one that is nobody's duplicate."""
    settings = queue.settings
    unrepeated = command.terms is not None and command.terms.unrepeated
    if unrepeated and new.dedup_id is None and not settings.content_deduplication:
        return None
    return key_of(new.group or "", fifo.id_of(new, settings), queue)


def key_of(group: str, dedup_id: str, queue: Queue) -> bytes:
    """Return the key under which ``queue`` stores that deduplication id."""
    return fifo.deduplication_key(queue.number, group, dedup_id, queue.settings)


class Sends:
    """The command ``Send``."""

    def __init__(
        self,
        *,
        on_queue: OnQueue,
        book: ReceiptBook,
        watches: Watches,
        positions: Positions,
        fair: FairQueues,
        totals: Totals,
    ) -> None:
        """``book`` has the receipts' keys; ``watches`` hears of what was stored, ``fair`` of that with groups."""
        self._on_queue = on_queue
        self._book = book
        self._watches = watches
        self._ids = IdSource()
        self._standard = StandardStoring(positions=positions, totals=totals, fair=fair)
        self._fifo = FifoStoring(positions=positions, totals=totals)

    async def send(self, together: Sequence[Send]) -> list[Any]:
        """Store the messages of all commands, each that its queue takes."""
        return await self._on_queue(self._send, together)

    async def _send(self, connection: Any, queue: Queue, together: Sequence[Send]) -> list[Any]:
        storing: StandardStoring | FifoStoring = self._fifo if queue.settings.fifo else self._standard
        taken = [_taken(command, queue, storing.check) for command in together]
        new = [
            (each, command)
            for answers, command in zip(taken, together, strict=True)
            if not isinstance(answers, VeilmqError)
            for each in answers
            if isinstance(each, NewMessage)
        ]
        rows = iter(await self._store(connection, queue, new, storing) if new else ())
        return [
            answers
            if isinstance(answers, VeilmqError)
            else [self._sent(queue, command, next(rows)) if isinstance(each, NewMessage) else each for each in answers]
            for command, answers in zip(together, taken, strict=True)
        ]

    async def _store(
        self, connection: Any, queue: Queue, new: list[tuple[NewMessage, Send]], storing: StandardStoring | FifoStoring
    ) -> list[Any]:
        """Return the stored row of each message, in their order."""
        rows = await storing.store(connection, queue, new, [self._ids.next() for _ in new])
        if not rows:
            raise PartitionRetired
        if queue.settings.fifo:
            await wake_groups(connection, queue, self._watches)
        else:
            self._watches.wake(queue.name, min(row["visible_at"] for row in rows))
        return rows

    def _sent(self, queue: Queue, command: Send, row: Any) -> SentMessage:
        sequence = row["seq"] if queue.settings.fifo else None
        if command.terms is None or not command.terms.receipts or row["visible_at"] == row["sent_at"]:
            return SentMessage(id=row["id"], sequence=sequence)
        receipt = self._book.issue(queue.number, row["seq"], 0, 0, row["visible_at"])
        return SentMessage(id=row["id"], sequence=sequence, receipt=receipt)


def _taken(command: Send, queue: Queue, check: Check) -> Sequence[NewMessage | VeilmqError] | VeilmqError:
    """Return for each message what is to be stored, or why it is not; for all that go together, why none is."""
    if queue.settings.fifo and command.terms is None:
        try:
            fifo.check_together(command.messages, queue.settings)
        except VeilmqError as error:
            return error
    taken = [_checked(new, command, queue, check) for new in command.messages]
    if command.terms is None or not command.terms.together:
        return taken
    return next((each for each in taken if isinstance(each, VeilmqError)), taken)


def _checked(new: NewMessage, command: Send, queue: Queue, check: Check) -> NewMessage | VeilmqError:
    try:
        checked = check(new, command, queue)
        if command.terms is None or command.terms.decode is None or not queue.settings.smq_base64:
            return checked
        return command.terms.decode(checked)
    except VeilmqError as error:
        return error
