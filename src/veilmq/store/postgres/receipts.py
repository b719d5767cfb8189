"""Deletes and changes of visibility: what is done by receipt, those of one kind together in one statement."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from veilmq.core import visibility
from veilmq.core.commands import ChangeVisibility, Delete
from veilmq.core.errors import InternalError, LeaseTooLong, ReceiptInvalid, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import Receipt, ReceiptBook
from veilmq.core.results import LeaseChange, ReceiptState
from veilmq.store.postgres.catalog import Queue
from veilmq.store.postgres.coalescing import COLLISIONS, COLLISIONS_MAX, OnQueue, retention_ms
from veilmq.store.postgres.counts import InFlight, Totals
from veilmq.store.postgres.event_log import EventLog
from veilmq.store.postgres.fair import FairQueues
from veilmq.store.postgres.watches import Watches, wake_groups


class _Asked(NamedTuple):
    """One receipt that a command names; ``at`` and ``place`` are where its answer goes."""

    at: int
    place: int
    receipt: Receipt
    command: Any
    timeout_s: int = 0


class Receipts:
    """The commands ``Delete`` and ``ChangeVisibility``."""

    def __init__(
        self,
        *,
        on_queue: OnQueue,
        book: ReceiptBook,
        watches: Watches,
        in_flight: InFlight,
        log: EventLog,
        fair: FairQueues,
        totals: Totals,
    ) -> None:
        """``book`` has the receipts' keys; ``watches`` hears when what was changed becomes visible.

        ``in_flight`` hears of places that become free, ``log`` of deletes that come late, ``fair`` of what is
        in flight no more.
        """
        self._log = log
        self._totals = totals
        self._fair = fair
        self._in_flight = in_flight
        self._on_queue = on_queue
        self._book = book
        self._watches = watches

    async def delete(self, together: Sequence[Delete]) -> list[Any]:
        """Delete the messages of the receipts that act."""
        return await self._on_queue(self._delete, together, relaxed=True)

    async def change(self, together: Sequence[ChangeVisibility]) -> list[Any]:
        """Move the deadlines of the receipts that act."""
        return await self._on_queue(self._change, together, relaxed=True)

    async def _delete(self, connection: Any, queue: Queue, together: Sequence[Delete]) -> list[Any]:
        answers: list[list[Any]] = [[None] * len(command.receipts) for command in together]
        asked = [
            _Asked(at, place, receipt, command)
            for at, command in enumerate(together)
            for place, receipt in self._read(queue, command.receipts, answers[at])
        ]
        if self._fair.has(queue):
            await self._fair.current(connection, queue)
        for turn in _turns(asked):
            rows = await _until_met(partial(self._delete_once, connection, queue), turn)
            found = {row["seq"]: row for row in rows}
            for each in turn:
                answers[each.at][each.place] = _state(found.get(each.receipt.position))
            freed = [row for row in rows if _frees(row)]
            self._note_freed(queue, freed)
            if freed:
                self._fair.ended(queue, [row["seq"] for row in freed], freed[0]["now"])
            useless = _useless(turn, queue, found)
            self._totals.deleted[queue.number] += len(turn) - sum(map(len, useless.values()))
            await self._log.late(connection, queue, useless, earlier=_earlier(turn, found))
        if asked and queue.settings.fifo:
            await wake_groups(connection, queue, self._watches)
        return answers

    async def _change(self, connection: Any, queue: Queue, together: Sequence[ChangeVisibility]) -> list[Any]:
        answers: list[list[Any]] = [[None] * len(command.changes) for command in together]
        asked = [
            _Asked(at, place, receipt, command, command.changes[place].timeout_s)
            for at, command in enumerate(together)
            for place, receipt in self._read(queue, [each.receipt for each in command.changes], answers[at])
        ]
        if self._fair.has(queue):
            await self._fair.current(connection, queue)
        for turn in _turns(asked):
            rows = await _until_met(partial(self._change_once, connection, queue), turn)
            found = {row["seq"]: row for row in rows}
            for each in turn:
                answers[each.at][each.place] = self._changed(queue, each, found.get(each.receipt.position))
            self._note_freed(queue, [row for row in rows if _frees(row) and row["until"] <= row["now"]])
        if asked and queue.settings.fifo:
            await wake_groups(connection, queue, self._watches)
        return answers

    async def _delete_once(self, connection: Any, queue: Queue, turn: Sequence[_Asked]) -> list[Any]:
        return await _fetch(
            connection,
            self._log.sql(queue)["delete"],
            queue.partition,
            *_columns(turn),
            retention_ms(queue),
            *_liveness(turn, queue),
            *self._log.terms(queue),
        )

    async def _change_once(self, connection: Any, queue: Queue, turn: Sequence[_Asked]) -> list[Any]:
        return await _fetch(
            connection,
            self._log.sql(queue)["change"],
            queue.partition,
            *_columns(turn),
            [each.timeout_s * SECOND_MS for each in turn],
            [None if each.command.lease_s_max is None else each.command.lease_s_max * SECOND_MS for each in turn],
            [each.command.renew_receipt for each in turn],
            retention_ms(queue),
            *_liveness(turn, queue),
            *self._log.terms(queue),
        )

    def _read(self, queue: Queue, receipts: Sequence[str], answers: list[Any]) -> Iterator[tuple[int, Receipt]]:
        """Yield the genuine receipts with their places; put the error of each other one among ``answers``."""
        for place, text in enumerate(receipts):
            try:
                receipt = self._book.read(text)
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
            self._fair.moved(queue, row)
            self._watches.wake(queue.name, row["until"])
        return LeaseChange(
            state=state,
            visible_at_ms=row["until"],
            hidden_for_ms=asked.timeout_s * SECOND_MS,
            receipt=self._renewed(queue, asked.receipt, row) if asked.command.renew_receipt else None,
        )

    def _note_freed(self, queue: Queue, rows: list[Any]) -> None:
        if rows:
            self._in_flight.freed(queue, len(rows), rows[0]["now"])

    def _renewed(self, queue: Queue, receipt: Receipt, row: Any) -> str:
        return self._book.issue(queue.number, receipt.position, receipt.generation, row["epoch"], row["until"])


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


def _earlier(turn: Sequence[_Asked], found: dict[int, Any]) -> list[Receipt]:
    """Return the receipts that acted although a later receive superseded them."""
    return [each.receipt for each in turn if _state(found.get(each.receipt.position)) is ReceiptState.EARLIER]


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
