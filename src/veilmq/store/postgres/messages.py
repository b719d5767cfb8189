"""Sends, and what is done by receipt (deletes, changes of visibility): those that travel together are one statement."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from veilmq.core import fifo, visibility
from veilmq.core.commands import ChangeVisibility, Delete, NewMessage, Send
from veilmq.core.errors import InternalError, LeaseTooLong, MessageTooLong, ReceiptInvalid, VeilmqError
from veilmq.core.limits import DEDUPLICATION_S, PRIORITY, SECOND_MS
from veilmq.core.receipts import Receipt
from veilmq.core.results import LeaseChange, ReceiptState, SentMessage
from veilmq.store.postgres.node import COUNTER_BITS, FAIR, LANE, Node, keys_of
from veilmq.store.postgres.queues import (
    COLLISIONS,
    COLLISIONS_MAX,
    FIFO,
    STANDARD,
    PartitionRetired,
    Queue,
    retention_ms,
    wake_groups,
)

_COUNTERS = 1 << COUNTER_BITS
_AT_ONCE_MS = -1  # of what no delay hides in a FIFO queue


async def insert(
    node: Node, connection: Any, queue: Queue, new: list[NewMessage], keys: list[bytes | None], ids: list[bytes]
) -> list[Any]:
    """Return the stored row of each message, in their order; none where the partition was retired.

    A FIFO queue remembers each under its key, and the row of a duplicate is that of the first. Raises what is among
    ``COLLISIONS``: where another node has sent with the same counter in the same millisecond, or the same ids in
    another order.
    """
    if queue.settings.fifo:
        rows: list[Any] = await connection.fetch(
            FIFO["send"],
            queue.partition,
            queue.origin,
            node.positions.take(len(new)),
            DEDUPLICATION_S * SECOND_MS,
            [each.group for each in new],
            keys,
            ids,
            [each.properties or None for each in new],
            [each.body for each in new],
            [None if each.delay_s is None else each.delay_s * SECOND_MS or _AT_ONCE_MS for each in new],
        )
        node.totals.stored(queue, sum(row["id"] == own for row, own in zip(rows, ids, strict=False)))
        return rows
    groups = keys_of(new)
    priorities = [
        each.priority if group is None else LANE + each.priority for each, group in zip(new, groups, strict=True)
    ]
    added = sorted(set(priorities) - {PRIORITY.default})
    if added:
        await connection.execute(STANDARD["add_priorities"], queue.partition, added)
    is_fair = any(group is not None for group in groups)
    first = node.positions.take(len(new))
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
    node.totals.stored(queue, len(rows))
    by_id = {row["id"]: row for row in rows}
    stored = [by_id[each] for each in ids]
    if is_fair:
        node.fair.sent(queue, groups, stored)
    return stored


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

    def __init__(self, node: Node) -> None:
        self._node = node

    async def send(self, together: Sequence[Send]) -> list[Any]:
        """Store the messages of all commands, each that its queue takes."""
        return await self._node.on_queue(self._send, together)

    async def _send(self, connection: Any, queue: Queue, together: Sequence[Send]) -> list[Any]:
        taken = [_taken(command, queue) for command in together]
        new = [
            (each, command)
            for answers, command in zip(taken, together, strict=True)
            if not isinstance(answers, VeilmqError)
            for each in answers
            if isinstance(each, NewMessage)
        ]
        rows = iter(await self._store(connection, queue, new) if new else ())
        return [
            answers
            if isinstance(answers, VeilmqError)
            else [self._sent(queue, command, next(rows)) if isinstance(each, NewMessage) else each for each in answers]
            for command, answers in zip(together, taken, strict=True)
        ]

    async def _store(self, connection: Any, queue: Queue, asked: list[tuple[NewMessage, Send]]) -> list[Any]:
        """Return the stored row of each message, in their order."""
        new, keys = [each for each, _ in asked], []
        if queue.settings.fifo:
            new = [_delayed(each, command, queue) for each, command in asked]
            keys = [_key(each, command, queue) for each, command in asked]
        ids = [self._node.ids.next() for _ in asked]
        for _ in range(COLLISIONS_MAX):
            try:
                rows = await insert(self._node, connection, queue, new, keys, ids)
                break
            except COLLISIONS:
                self._node.positions.jump()
        else:
            raise InternalError
        if not rows:
            raise PartitionRetired
        if queue.settings.fifo:
            await wake_groups(connection, queue, self._node.watches)
        else:
            self._node.watches.wake(queue.name, min(row["visible_at"] for row in rows))
        return rows

    def _sent(self, queue: Queue, command: Send, row: Any) -> SentMessage:
        sequence = row["seq"] if queue.settings.fifo else None
        if command.terms is None or not command.terms.receipts or row["visible_at"] == row["sent_at"]:
            return SentMessage(id=row["id"], sequence=sequence)
        receipt = self._node.book.issue(queue.number, row["seq"], 0, 0, row["visible_at"])
        return SentMessage(id=row["id"], sequence=sequence, receipt=receipt)


def _taken(command: Send, queue: Queue) -> Sequence[NewMessage | VeilmqError] | VeilmqError:
    """Return for each message what is to be stored, or why it is not; for all that go together, why none is."""
    if queue.settings.fifo and command.terms is None:
        try:
            fifo.check_together(command.messages, queue.settings)
        except VeilmqError as error:
            return error
    taken = [_checked(new, command, queue) for new in command.messages]
    if command.terms is None or not command.terms.together:
        return taken
    return next((each for each in taken if isinstance(each, VeilmqError)), taken)


def _checked(new: NewMessage, command: Send, queue: Queue) -> NewMessage | VeilmqError:
    try:
        if queue.settings.fifo:
            fifo.group_of(new, queue.settings)
            _key(new, command, queue)
        elif new.size_bytes > queue.settings.message_bytes_max:
            raise MessageTooLong(queue.settings.message_bytes_max)
        if command.terms is None or command.terms.decode is None or not queue.settings.smq_base64:
            return new
        return command.terms.decode(new)
    except VeilmqError as error:
        return error


class _Asked(NamedTuple):
    """One receipt that a command names; ``at`` and ``place`` are where its answer goes."""

    at: int
    place: int
    receipt: Receipt
    command: Any
    timeout_s: int = 0


class Receipts:
    """The commands ``Delete`` and ``ChangeVisibility``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def delete(self, together: Sequence[Delete]) -> list[Any]:
        """Delete the messages of the receipts that act."""
        return await self._node.on_queue(self._delete, together, relaxed=True)

    async def change(self, together: Sequence[ChangeVisibility]) -> list[Any]:
        """Move the deadlines of the receipts that act."""
        return await self._node.on_queue(self._change, together, relaxed=True)

    async def _delete(self, connection: Any, queue: Queue, together: Sequence[Delete]) -> list[Any]:
        answers: list[list[Any]] = [[None] * len(command.receipts) for command in together]
        asked = [
            _Asked(at, place, receipt, command)
            for at, command in enumerate(together)
            for place, receipt in self._read(queue, command.receipts, answers[at])
        ]
        if self._node.fair.has(queue):
            await self._node.fair.current(connection, queue)
        for turn in _turns(asked):
            rows = await _until_met(partial(self._delete_once, connection, queue), turn)
            found = {row["seq"]: row for row in rows}
            for each in turn:
                answers[each.at][each.place] = _state(found.get(each.receipt.position))
            freed = [row for row in rows if _frees(row)]
            self._note_freed(queue, freed)
            if freed:
                self._node.fair.ended(queue, [row["seq"] for row in freed], freed[0]["now"])
            useless = _useless(turn, queue, found)
            self._node.totals.deleted[queue.number] += len(turn) - sum(map(len, useless.values()))
            earlier = [
                each.receipt for each in turn if _state(found.get(each.receipt.position)) is ReceiptState.EARLIER
            ]
            await self._node.log.late(connection, queue, useless, earlier=earlier)
        if asked and queue.settings.fifo:
            await wake_groups(connection, queue, self._node.watches)
        return answers

    async def _change(self, connection: Any, queue: Queue, together: Sequence[ChangeVisibility]) -> list[Any]:
        answers: list[list[Any]] = [[None] * len(command.changes) for command in together]
        asked = [
            _Asked(at, place, receipt, command, command.changes[place].timeout_s)
            for at, command in enumerate(together)
            for place, receipt in self._read(queue, [each.receipt for each in command.changes], answers[at])
        ]
        if self._node.fair.has(queue):
            await self._node.fair.current(connection, queue)
        for turn in _turns(asked):
            rows = await _until_met(partial(self._change_once, connection, queue), turn)
            found = {row["seq"]: row for row in rows}
            for each in turn:
                answers[each.at][each.place] = self._changed(queue, each, found.get(each.receipt.position))
            self._note_freed(queue, [row for row in rows if _frees(row) and row["until"] <= row["now"]])
        if asked and queue.settings.fifo:
            await wake_groups(connection, queue, self._node.watches)
        return answers

    async def _delete_once(self, connection: Any, queue: Queue, turn: Sequence[_Asked]) -> list[Any]:
        return await _fetch(
            connection,
            self._node.log.sql(queue)["delete"],
            queue.partition,
            *_columns(turn),
            retention_ms(queue),
            *_liveness(turn, queue),
            *self._node.log.terms(queue),
        )

    async def _change_once(self, connection: Any, queue: Queue, turn: Sequence[_Asked]) -> list[Any]:
        return await _fetch(
            connection,
            self._node.log.sql(queue)["change"],
            queue.partition,
            *_columns(turn),
            [each.timeout_s * SECOND_MS for each in turn],
            [None if each.command.lease_s_max is None else each.command.lease_s_max * SECOND_MS for each in turn],
            [each.command.renew_receipt for each in turn],
            retention_ms(queue),
            *_liveness(turn, queue),
            *self._node.log.terms(queue),
        )

    def _read(self, queue: Queue, receipts: Sequence[str], answers: list[Any]) -> Iterator[tuple[int, Receipt]]:
        """Yield the genuine receipts with their places; put the error of each other one among ``answers``."""
        for place, text in enumerate(receipts):
            try:
                receipt = self._node.book.read(text)
                if receipt.queue != queue.number:
                    raise ReceiptInvalid
                yield place, receipt
            except ReceiptInvalid as error:
                answers[place] = error

    def _changed(self, queue: Queue, asked: _Asked, row: Any) -> LeaseChange | VeilmqError:
        state = _state(row)
        if not visibility.receipt_acts(state, only_live=_only_live(asked.command, queue)):
            return LeaseChange(state=state)
        if not row["is_short"]:
            return LeaseTooLong(asked.command.lease_s_max)
        if not queue.settings.fifo:
            self._node.fair.moved(queue, row)
            self._node.watches.wake(queue.name, row["until"])
        renewed = None
        if asked.command.renew_receipt:
            at = asked.receipt
            renewed = self._node.book.issue(queue.number, at.position, at.generation, row["epoch"], row["until"])
        return LeaseChange(
            state=state, visible_at_ms=row["until"], hidden_for_ms=asked.timeout_s * SECOND_MS, receipt=renewed
        )

    def _note_freed(self, queue: Queue, rows: list[Any]) -> None:
        if rows:
            self._node.in_flight.freed(queue, len(rows), rows[0]["now"])


async def _until_met(once: Callable[[Sequence[_Asked]], Awaitable[list[Any]]], turn: Sequence[_Asked]) -> list[Any]:
    """Return the rows of ``once``, which is repeated for those that somebody changed while it waited for them."""
    met: list[Any] = []
    for _ in range(COLLISIONS_MAX):
        rows = await once(turn)
        met += [row for row in rows if not row.get("is_missed")]
        missed = {row["seq"] for row in rows if row.get("is_missed")}
        if not missed:
            return met
        turn = [each for each in turn if each.receipt.position in missed]
    raise InternalError


async def _fetch(connection: Any, statement: str, *terms: Any) -> list[Any]:
    """Return the rows of a statement by itself, which is repeated when it was in another node's way."""
    for _ in range(COLLISIONS_MAX):
        try:
            rows: list[Any] = await connection.fetch(statement, *terms)
            return rows
        except COLLISIONS:
            continue
    raise InternalError


def _turns(asked: Sequence[_Asked]) -> Iterator[list[_Asked]]:
    """Split ``asked`` so that no message is named twice in a statement; positions rise in each."""
    left = list(asked)
    while left:
        first = {each.receipt.position: each for each in reversed(left)}
        yield sorted(first.values(), key=lambda each: each.receipt.position)
        left = [each for each in left if first[each.receipt.position] is not each]


def _columns(turn: Sequence[_Asked]) -> tuple[list[Any], ...]:
    """Return positions, generations, epochs, and which count whatever their epoch."""
    return (
        [each.receipt.position for each in turn],
        [each.receipt.generation for each in turn],
        [each.receipt.epoch for each in turn],
        [each.command.any_epoch for each in turn],
    )


def _liveness(turn: Sequence[_Asked], queue: Queue) -> list[list[bool]]:
    """Return which act only while they live, and which although superseded; in FIFO queues all live, or do not act."""
    if queue.settings.fifo:
        return []
    return [[each.command.only_live for each in turn], [each.command.any_receive for each in turn]]


def _useless(turn: Sequence[_Asked], queue: Queue, found: dict[int, Any]) -> dict[ReceiptState, list[Receipt]]:
    """Return the receipts that delete nothing, by what they are."""
    useless: dict[ReceiptState, list[Receipt]] = {}
    for each in turn:
        state = _state(found.get(each.receipt.position))
        if not visibility.receipt_acts(state, only_live=_only_live(each.command, queue)):
            useless.setdefault(state, []).append(each.receipt)
    return useless


def _frees(row: Any) -> bool:
    """Tell whether a receipt that acts met its message in flight."""
    return _state(row) in (ReceiptState.LIVE, ReceiptState.EARLIER) and bool(row["visible_at"] > row["now"])


def _only_live(command: Any, queue: Queue) -> bool:
    return bool(command.only_live or queue.settings.fifo)


def _state(row: Any) -> ReceiptState:
    if row is None:
        return ReceiptState.GONE
    if not row["is_current"] and row.get("is_earlier"):
        return ReceiptState.EARLIER
    return visibility.receipt_state(current=row["is_current"], visible_at_ms=row["visible_at"], now_ms=row["now"])
