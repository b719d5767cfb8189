"""Forwards: messages in flight that go on to other queues, each by a send and a deletion in one transaction."""

from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import visibility
from veilmq.core.commands import NewMessage
from veilmq.core.errors import (
    DestinationRefused,
    GroupHeld,
    InternalError,
    QueueNotFound,
    ReceiptEnded,
    ReceiptInvalid,
    VeilmqError,
)
from veilmq.core.forwards import Forward, Forwarded, ForwardEntry, as_dead_letter, as_sent, refusal
from veilmq.core.limits import PRIORITY
from veilmq.core.receipts import Receipt, ReceiptBook
from veilmq.core.results import ReceiptState
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.event_log import EventLog
from veilmq.engines.postgres.fair_queues import LANE, FairQueues
from veilmq.engines.postgres.fifo_storing import FifoStoring, key_of
from veilmq.engines.postgres.fifo_taking import properties_of
from veilmq.engines.postgres.in_flight import InFlight
from veilmq.engines.postgres.next_visible import rouse_groups
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, FIFO, PartitionRetired, retention_ms, sql
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.standard_storing import StandardStoring
from veilmq.engines.postgres.totals import Totals
from veilmq.engines.postgres.watches import Watches


class _Going(NamedTuple):
    """A message that is forwarded: the place of its answer, its row in the intake, and what is sent to ``target``."""

    place: int
    row: Any
    target: Queue
    new: NewMessage
    is_dead: bool


class _Done(NamedTuple):
    """What a command did: its answers, and for each queue that messages came to when the first of them is visible."""

    answers: list[Any]
    due_ms: dict[str, tuple[Queue, int]]
    gone: list[int]
    now_ms: int


class Forwards:
    """The command ``Forward``."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        book: ReceiptBook,
        watches: Watches,
        in_flight: InFlight,
        positions: Positions,
        log: EventLog,
        fair: FairQueues,
        totals: Totals,
    ) -> None:
        """``book`` has the receipts' keys; the others hear of what has come and gone."""
        self._log = log
        self._totals = totals
        self._database = database
        self._catalog = catalog
        self._book = book
        self._watches = watches
        self._in_flight = in_flight
        self._fair = fair
        self._standard = StandardStoring(positions=positions, totals=totals, fair=fair)
        self._fifo = FifoStoring(positions=positions, totals=totals)

    async def forward(self, command: Forward) -> list[Any]:
        """Move the message of each live receipt."""
        async with self._database.connection() as connection:
            intake = await self._catalog.sure(connection, command.queue)
            done = await self._until_done(connection, intake, command)
            if done.gone:
                self._totals.deleted[intake.number] += len(done.gone)
                self._in_flight.freed(intake, len(done.gone), done.now_ms)
                self._fair.ended(intake, done.gone, done.now_ms)
            if done.gone and intake.settings.fifo:
                await rouse_groups(connection, intake, self._watches)
            for target, due_ms in done.due_ms.values():
                if target.settings.fifo:
                    await rouse_groups(connection, target, self._watches)
                else:
                    self._watches.wake(target.name, due_ms)
        return done.answers

    async def _until_done(self, connection: Any, intake: Queue, command: Forward) -> _Done:
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    return await self._forward(connection, intake, command)
            except (*COLLISIONS, PartitionRetired):
                continue
        raise InternalError

    async def _forward(self, connection: Any, intake: Queue, command: Forward) -> _Done:
        answers: list[Any] = [None] * len(command.entries)
        receipts = dict(self._read(intake, command, answers))
        positions = sorted({receipt.position for receipt in receipts.values()})
        if intake.settings.fifo:
            await connection.execute(FIFO["lock"], intake.partition, positions)
        rows = await connection.fetch(sql(intake)["found"], intake.partition, positions, retention_ms(intake))
        found = {row["seq"]: row for row in rows}
        going = [each async for each in self._going(connection, intake, command, receipts, found, answers)]
        due_ms = {}
        for target in {each.target.name: each.target for each in going}.values():
            here = [each for each in going if each.target.name == target.name]
            stored = await self._store(connection, target, here)
            self._totals.stored(target, -await _bury(connection, intake, target, here, stored))  # moved, not sent
            for each, row in zip(here, stored, strict=True):
                answers[each.place] = _forwarded(each, row)
            due_ms[target.name] = target, min(row["visible_at"] for row in stored)
        gone = [each.row["seq"] for each in going]
        if gone:
            await self._log.note(connection, intake, "delete", gone)
            await connection.execute(sql(intake)["remove"], intake.partition, gone, retention_ms(intake))
        return _Done(answers, due_ms, gone, rows[0]["now"] if rows else 0)

    def _read(self, intake: Queue, command: Forward, answers: list[Any]) -> Iterator[tuple[int, Receipt]]:
        """Yield the places of genuine receipts with what they say; put the error of others among ``answers``."""
        for place, entry in enumerate(command.entries):
            try:
                receipt = self._book.read(entry.receipt)
                if receipt.queue != intake.number:
                    raise ReceiptInvalid
                yield place, receipt
            except ReceiptInvalid as error:
                answers[place] = error

    async def _going(
        self,
        connection: Any,
        intake: Queue,
        command: Forward,
        receipts: dict[int, Receipt],
        found: dict[int, Any],
        answers: list[Any],
    ) -> Any:
        """Yield what is forwarded, in order; put the error of each other entry among ``answers``."""
        held: set[str] = set()
        targets: dict[str, Queue] = {}
        for place, receipt in receipts.items():
            row = found.get(receipt.position)
            if row is None:
                answers[place] = ReceiptEnded(ReceiptState.GONE)
                continue
            if not row["receive_count"]:
                answers[place] = ReceiptInvalid()  # it is of a delayed message, which is nobody's to work on
                continue
            try:
                if intake.settings.fifo and row["group_id"] in held:
                    raise GroupHeld
                _check_live(receipt, row)
                entry = command.entries[place]
                if entry.target not in targets:
                    targets[entry.target] = await self._target(connection, intake, entry.target)
                target = targets[entry.target]
                yield _Going(place, row, target, _as_new(intake, row, target, entry), entry.reasons is not None)
                del found[receipt.position]
            except VeilmqError as error:
                answers[place] = error
                if intake.settings.fifo:
                    held.add(row["group_id"])

    async def _target(self, connection: Any, intake: Queue, name: str) -> Queue:
        target = await self._catalog.target(connection, name, (intake.number, intake.name))
        if target is None:
            raise QueueNotFound(name)
        why = refusal(intake.name, intake.settings, name, target.settings)
        if why is not None:
            raise DestinationRefused(name, why)
        return target

    async def _store(self, connection: Any, target: Queue, here: list[_Going]) -> list[Any]:
        """Return the stored row of each message; raises ``PartitionRetired``."""
        new = [each.new for each in here]
        ids = [each.row["id"] for each in here]
        if target.settings.fifo:
            keys = [_key(each, target) for each in here]
            rows = await self._fifo.insert(connection, target, new, keys, ids)
        else:
            rows = await self._standard.insert(connection, target, new, ids)
        if not rows:
            raise PartitionRetired
        return rows


async def _bury(connection: Any, intake: Queue, target: Queue, here: list[_Going], stored: list[Any]) -> int:
    """Give the dead letters among the messages just stored what they bring from their queue; return how many."""
    dead = [(each.row, row["seq"]) for each, row in zip(here, stored, strict=True) if each.is_dead]
    if dead:
        await connection.execute(
            sql(target)["bury"],
            target.partition,
            [seq for _, seq in dead],
            intake.name,
            [row["receives_before"] + row["receive_count"] for row, _ in dead],
            [row["first_received_at"] for row, _ in dead],
            [row["sent_at"] for row, _ in dead],
        )
    return len(dead)


def _key(going: _Going, target: Queue) -> bytes | None:
    """Return under what a message is remembered in a FIFO queue; one that is away remembers it by itself.

    A dead letter is not remembered: it is no earlier copy of what is sent there.
    """
    if target.away or going.is_dead:
        return None
    return key_of(going.row["group_id"], str(UUID(bytes=going.row["id"])), target)


def _check_live(receipt: Receipt, row: Any) -> None:
    current = (row["generation"], row["epoch"]) == (receipt.generation, receipt.epoch)
    state = visibility.receipt_state(current=current, visible_at_ms=row["visible_at"], now_ms=row["now"])
    if state is not ReceiptState.LIVE:
        raise ReceiptEnded(state)


def _as_new(intake: Queue, row: Any, target: Queue, entry: ForwardEntry) -> NewMessage:
    fifo = intake.settings.fifo
    sent = (
        row["body"],
        properties_of(intake, row),
        PRIORITY.default if fifo else row["priority"] % LANE,
        target.settings,
    )
    new = as_sent(*sent) if entry.reasons is None else as_dead_letter(*sent, entry.reasons)
    return replace(new, group=row["group_id"]) if fifo else new


def _forwarded(going: _Going, row: Any) -> Forwarded:
    if not going.target.settings.fifo or going.target.away:
        return Forwarded(id=row["id"])
    return Forwarded(id=row["id"], sequence=row["seq"], duplicate=row["id"] != going.row["id"])
