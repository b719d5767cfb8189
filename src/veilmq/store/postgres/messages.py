"""Sends, and what is done by receipt (deletes, changes of visibility): those that travel together are one statement."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from veilmq.core.commands import ChangeVisibility, Delete, LeaseChange, Send, SentMessage
from veilmq.core.errors import InternalError, LeaseTooLong, ReceiptInvalid, ReceiptState, VeilmqError
from veilmq.core.limits import DEDUPLICATION_S, PRIORITY, SECOND_MS
from veilmq.core.messages import NewMessage, check_together, dedup_id_of, deduplication_key
from veilmq.core.receipts import Receipt, receipt_acts, receipt_state
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
from veilmq.store.queues import checked

_COUNTERS = 1 << COUNTER_BITS
AT_ONCE_MS = -1
"""The delay of what no delay hides in a FIFO queue."""


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
            [None if each.delay_s is None else each.delay_s * SECOND_MS or AT_ONCE_MS for each in new],
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


def _key(new: NewMessage, command: Send, queue: Queue) -> bytes | None:
    """Return under what a message is remembered; ``None`` for one that is no duplicate of any."""
    settings = queue.settings
    is_optional = command.options is not None and command.options.dedup_id_optional
    if is_optional and new.dedup_id is None and not settings.content_deduplication:
        return None
    return key_of(new.group or "", dedup_id_of(new, settings), queue)


def key_of(group: str, dedup_id: str, queue: Queue) -> bytes:
    """Return the key under which ``queue`` stores that deduplication id."""
    return deduplication_key(queue.number, group, dedup_id, queue.settings)


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

    async def _store(self, connection: Any, queue: Queue, sends: list[tuple[NewMessage, Send]]) -> list[Any]:
        """Return the stored row of each message, in their order."""
        new, keys = [each for each, _ in sends], []
        if queue.settings.fifo:
            keys = [_key(each, command, queue) for each, command in sends]
            if queue.settings.delay_s:  # an answer with a receipt says until when, so the delay is the message's own
                new = [
                    replace(each, delay_s=queue.settings.delay_s)
                    if each.delay_s is None and command.options is not None and command.options.receipts
                    else each
                    for each, command in sends
                ]
        ids = [self._node.ids.next() for _ in sends]
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
        sequence, receipt = row["seq"] if queue.settings.fifo else None, None
        if command.options is not None and command.options.receipts and row["visible_at"] != row["sent_at"]:
            receipt = self._node.book.issue(queue.number, row["seq"], 0, 0, row["visible_at"])
        return SentMessage(id=row["id"], sequence=sequence, receipt=receipt)


def _taken(command: Send, queue: Queue) -> Sequence[NewMessage | VeilmqError] | VeilmqError:
    """Return for each message what is to be stored, or why it is not; for all that go together, why none is."""
    try:
        if queue.settings.fifo and command.options is None:
            check_together(command.messages, queue.settings)
        return checked(command.messages, command.options, queue.settings)
    except VeilmqError as error:
        return error


class _ReceiptRequest(NamedTuple):
    """One receipt that a command names; its answer goes to ``place`` among ``answers``."""

    answers: list[Any]
    place: int
    receipt: Receipt
    command: Any
    timeout_s: int


class Receipts:
    """The commands ``Delete`` and ``ChangeVisibility``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def delete(self, together: Sequence[Delete]) -> list[Any]:
        """Delete the messages of the receipts that act."""
        return await self._node.on_queue(partial(self._settle, "delete"), together, relaxed=True)

    async def change(self, together: Sequence[ChangeVisibility]) -> list[Any]:
        """Move the deadlines of the receipts that act."""
        return await self._node.on_queue(partial(self._settle, "change"), together, relaxed=True)

    async def _settle(self, statement: str, connection: Any, queue: Queue, together: Sequence[Any]) -> list[Any]:
        node = self._node
        answers: list[list[Any]] = []
        requests = list(self._read(queue, together, answers))
        if node.fair.has(queue):
            await node.fair.refresh(connection, queue)
        for turn in _distinct(requests):
            found = await self._rows(statement, connection, queue, turn)
            freed = [row for row in found.values() if _frees(row)]
            if statement == "delete":
                await self._deleted(connection, queue, turn, found, freed)
            else:
                freed = [row for row in freed if row["until"] <= row["now"]]
                for each in turn:
                    each.answers[each.place] = self._changed(queue, each, found.get(each.receipt.position))
            if freed:
                node.in_flight.freed(queue, len(freed), freed[0]["now"])
        if requests and queue.settings.fifo:
            await wake_groups(connection, queue, node.watches)
        return answers

    def _read(self, queue: Queue, together: Sequence[Any], answers: list[list[Any]]) -> Iterator[_ReceiptRequest]:
        """Yield the genuine receipts; put the error of each other one among the ``answers``."""
        for command in together:
            if isinstance(command, Delete):
                named = [(text, 0) for text in command.receipts]
            else:
                named = [(each.receipt, each.timeout_s) for each in command.changes]
            of_command: list[Any] = [None] * len(named)
            answers.append(of_command)
            for place, (text, timeout_s) in enumerate(named):
                try:
                    receipt = self._node.book.read(text)
                    if receipt.queue != queue.number:
                        raise ReceiptInvalid
                    yield _ReceiptRequest(of_command, place, receipt, command, timeout_s)
                except ReceiptInvalid as error:
                    of_command[place] = error

    async def _rows(self, name: str, connection: Any, queue: Queue, turn: Sequence[_ReceiptRequest]) -> dict[int, Any]:
        """Return the row of each message that was there, by its position.

        The statement is repeated when it was in another node's way, and for rows that were changed while it waited.
        """
        statement = self._node.log.sql(queue)[name]
        found: dict[int, Any] = {}
        for _ in range(2 * COLLISIONS_MAX):
            try:
                rows = await connection.fetch(statement, queue.partition, *self._terms(name, queue, turn))
            except COLLISIONS:
                continue
            found |= {row["seq"]: row for row in rows}
            missed = {row["seq"] for row in rows if row.get("is_missed")}
            if not missed:
                return found
            found = {seq: row for seq, row in found.items() if seq not in missed}
            turn = [each for each in turn if each.receipt.position in missed]
        raise InternalError

    def _terms(self, name: str, queue: Queue, turn: Sequence[_ReceiptRequest]) -> Iterator[Any]:
        """Yield the terms of a statement, behind the partition, in its order."""
        yield [each.receipt.position for each in turn]
        yield [each.receipt.generation for each in turn]
        yield [each.receipt.epoch for each in turn]
        yield [each.command.any_epoch for each in turn]
        if name == "change":
            yield [each.timeout_s * SECOND_MS for each in turn]
            yield [None if each.command.lease_s_max is None else each.command.lease_s_max * SECOND_MS for each in turn]
            yield [each.command.renew_receipt for each in turn]
        yield retention_ms(queue)
        if not queue.settings.fifo:  # where all live, or do not act
            yield [each.command.only_live for each in turn]
            yield [each.command.any_receive for each in turn]
        yield from self._node.log.terms(queue)

    async def _deleted(
        self, connection: Any, queue: Queue, turn: Sequence[_ReceiptRequest], found: dict[int, Any], freed: list[Any]
    ) -> None:
        useless: dict[ReceiptState, list[Receipt]] = {}
        earlier: list[Receipt] = []
        for each in turn:
            state = each.answers[each.place] = _state(found.get(each.receipt.position))
            if state is ReceiptState.EARLIER:
                earlier.append(each.receipt)
            if not receipt_acts(state, only_live=_only_live(each.command, queue)):
                useless.setdefault(state, []).append(each.receipt)
        if freed:
            self._node.fair.ended(queue, [row["seq"] for row in freed], freed[0]["now"])
        self._node.totals.deleted[queue.number] += len(turn) - sum(map(len, useless.values()))
        await self._node.log.late(connection, queue, useless, earlier=earlier)

    def _changed(self, queue: Queue, request: _ReceiptRequest, row: Any) -> LeaseChange | VeilmqError:
        state = _state(row)
        if not receipt_acts(state, only_live=_only_live(request.command, queue)):
            return LeaseChange(state=state)
        if not row["is_short"]:
            return LeaseTooLong(request.command.lease_s_max)
        until_ms: int = row["until"]
        if not queue.settings.fifo:
            self._node.fair.moved(queue, row)
            self._node.watches.wake(queue.name, until_ms)
        renewed, at = None, request.receipt
        if request.command.renew_receipt:
            renewed = self._node.book.issue(queue.number, at.position, at.generation, row["epoch"], until_ms)
        hidden_for_ms = request.timeout_s * SECOND_MS
        return LeaseChange(state=state, visible_at_ms=until_ms, hidden_for_ms=hidden_for_ms, receipt=renewed)


def _distinct(requests: Sequence[_ReceiptRequest]) -> Iterator[list[_ReceiptRequest]]:
    """Split ``requests`` so that no message is named twice in a statement; positions rise in each."""
    left = list(requests)
    while left:
        first = {each.receipt.position: each for each in reversed(left)}
        yield sorted(first.values(), key=lambda each: each.receipt.position)
        left = [each for each in left if first[each.receipt.position] is not each]


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
    return receipt_state(current=row["is_current"], visible_at_ms=row["visible_at"], now_ms=row["now"])
