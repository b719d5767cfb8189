"""Cold commands on SQLite: the port of ``store.transaction`` on the open batch, and what drives them to their end."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from veilmq.core import commands
from veilmq.core.commands import Command, NewMessage
from veilmq.core.errors import StoreFull, VeilmqError
from veilmq.core.limits import BATCH_ROW_BYTES, PRIORITY
from veilmq.core.looks import MessageState
from veilmq.core.receipts import Receipt
from veilmq.core.results import QueueCounts, SentMessage
from veilmq.core.settings import QueueSettings
from veilmq.store.claims import ClaimTransaction
from veilmq.store.cold import COLD, READS, Cold, Sweep
from veilmq.store.queues import Queue
from veilmq.store.sqlite import fair, fifo, groups, inspection, moving, standard, totals
from veilmq.store.sqlite.claimed import SqliteClaimed
from veilmq.store.sqlite.session import Session
from veilmq.store.sqlite.settling import end_leases, settle
from veilmq.store.sqlite.statements import SQL
from veilmq.store.transaction import Chosen, Given, Leased, QueueRow, Row, StoredMessage, Waiting


class SqliteTransaction(ClaimTransaction):
    """The open transaction of a batch, at the instant of its commands. No method suspends."""

    def __init__(self, session: Session, now_ms: int) -> None:
        """``session`` has the batch."""
        self._session = session
        self._now_ms = now_ms
        self.ids = session.ids
        self.may_send = session.options.may_send
        self.book = session.book
        self.options = session.options
        self.claimed = SqliteClaimed(session, now_ms)

    async def rows(self, query: str, *values: Any) -> Sequence[Row]:
        """Return the rows of a named query."""
        return self._session.rows(query, *values)

    async def run(self, query: str, *values: Any) -> None:
        """Run a named query that changes something."""
        self._session.run(query, *values)

    async def many(self, query: str, rows: Sequence[Row]) -> None:
        """Run a named query that changes something, once for each of ``rows``."""
        self._session.many(query, [tuple(row) for row in rows])
        self._session.write_bytes_left -= sum(len(each) for row in rows for each in row if isinstance(each, bytes))

    async def locked(self, query: str, *values: Any) -> Sequence[Row]:
        """Return the rows of a named query: no other transaction is open."""
        return self._session.rows(query, *values)

    async def unlocked(self, query: str, *values: Any) -> Sequence[Row]:
        """Return the rows of a named query: no other transaction is open."""
        return self._session.rows(query, *values)

    async def lock(self, kind: str, *key: Any) -> bool:
        """Do nothing: no other transaction is open."""
        return True

    async def now(self) -> int:
        """Return the instant of the batch."""
        return self._now_ms

    def shown(self, at_ms: int) -> int:
        """Return an instant of the store as users see it."""
        return at_ms + self._session.ahead_ms

    async def find(self, name: str) -> Queue | None:
        """Look up the queue of that full name."""
        return self._session.find(name)

    async def target(self, name: str, source: tuple[int, str]) -> Queue | None:
        """Do the same: there is one database."""
        return self._session.find(name)

    async def settings(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue."""
        found = self._session.find(name)
        return None if found is None else found.settings

    async def has_sources(self, name: str) -> bool:
        """Tell whether it is the dead-letter queue of any queue."""
        return self._session.row("queue_sources", name, "", 1) is not None

    async def counts(self, queue: QueueRow) -> QueueCounts:
        """Count the messages of a queue by state."""
        assert isinstance(queue, Queue)
        return totals.counts(self._session, queue, self._now_ms)

    async def retire(self, queue: QueueRow, *, is_deleted: bool) -> None:
        """Retire the partition of a queue."""
        self._session.run("retire_part", queue.partition, self._now_ms)
        self.schedule(Sweep)

    async def change(self, queue: QueueRow, settings: QueueSettings, modified_at_ms: int) -> None:
        """Give a queue other settings: what the old retention has ended is below its floor from now on."""
        assert isinstance(queue, Queue)
        session, now_ms = self._session, self._now_ms
        totals.settle_time(session, queue, now_ms)
        queue.floor_seq = queue.floor(now_ms)
        session.touch(queue)
        session.run("update_queue", queue.number, msgspec.json.encode(settings), modified_at_ms)
        self.changed(queue)

    def changed(self, queue: QueueRow) -> None:
        """Read the row of a queue again, and have its watch look at it."""
        assert isinstance(queue, Queue)
        if not self._session.reload(queue, self._now_ms):
            queue.notify(self._now_ms)
            return
        queue.free_place(self._now_ms)
        if queue.fifo:
            groups.notify(self._session, queue, self._now_ms, 1)

    def need_room(self) -> None:
        """Raise ``StoreFull`` where the disk is nearly full."""
        space = self._session.space
        if space.is_short and space.look_again(self._now_ms):
            raise StoreFull

    async def store(self, queue: QueueRow, messages: Sequence[NewMessage], ids: Sequence[bytes]) -> list[SentMessage]:
        """Store messages that were checked as if they were sent now; waiters hear of them."""
        session, found = self._session, self._settled(queue)
        given = commands.Send(queue=found.name, messages=tuple(messages), terms=Given(ids=tuple(ids)))
        answers: list[Any] = [None]
        send = fifo.send if found.fifo else standard.send
        send(session, found, [(0, given)], self._now_ms, answers)
        sent: list[SentMessage] = answers[0]
        assert all(type(each) is SentMessage for each in sent), "the queue takes them"
        session.write_bytes_left -= sum(len(new.body) + len(new.properties) + BATCH_ROW_BYTES for new in messages)
        return sent

    async def choose(self, queue: QueueRow, count: int, bytes_max: int) -> Chosen:
        """Return the first visible messages of a queue; none while those past their retention are being deleted."""
        session, found, now_ms = self._session, self._settled(queue), self._now_ms
        if now_ms >= found.expires_at_ms:
            return Chosen([], more=True)
        if found.fifo:
            rows = fifo.offered(session, found, count, now_ms)
        else:
            rows = standard.offered(session, found, count, now_ms, None)
        messages: list[Waiting] = []
        for row in rows:
            if bytes_max <= 0:
                break
            messages.append(Waiting(row[0], row[8], len(row[6]) + len(row[7]), row))
            bytes_max -= messages[-1].size_bytes
        return Chosen(messages, more=len(rows) == count or len(messages) < len(rows) or session.bytes_left <= 0)

    async def move(self, queue: QueueRow, target: QueueRow, messages: Sequence[Waiting]) -> int:
        """Move chosen messages to another queue of the type as new ones, visible at once; waiters hear of them."""
        session, now_ms = self._session, self._now_ms
        source, goal = session.queue(queue.name), self._settled(target)
        rows = [each.row for each in messages]
        moving.send_on(session, source, goal, rows, now_ms)
        if source.fifo:
            groups.refile(session, source, {row[11] for row in rows})
        elif source.shares:
            fair.taken(session, source, now_ms)
        goal.notify(now_ms)
        return len(rows)

    async def leased(self, queue: QueueRow, seqs: Sequence[int]) -> list[Leased]:
        """Return those of some messages that are in a queue and were received or have a delay of their own."""
        session, found, now_ms = self._session, self._settled(queue), self._now_ms
        session.flush()
        floor, query = found.floor(now_ms), SQL["ordered_leased" if found.fifo else "standard_leased"]
        leased: list[Leased] = []
        for *row, generation in session.executemany(query, [(found.partition, seq) for seq in seqs if seq >= floor]):
            seq, lane, receive_count, epoch, _, message_id, body, properties, *_, visible_at_ms = row
            leased.append(
                Leased(
                    receipt=Receipt(found.number, seq, generation, epoch, visible_at_ms),
                    receive_count=receive_count,
                    id=message_id,
                    body=body,
                    properties=properties,
                    priority=lane if lane <= PRIORITY.maximum else lane - PRIORITY.maximum,
                    looked_at_ms=now_ms,
                    row=row,
                )
            )
        return leased

    async def delete(self, queue: QueueRow, messages: Sequence[Leased]) -> None:
        """Delete messages in flight by their receipts."""
        receipts = tuple([self.book.issue(*each.receipt) for each in messages])
        delete = commands.Delete(queue=queue.name, receipts=receipts)
        settle(self._session, [(self._session.queue(queue.name), [(0, delete)])], self._now_ms, [None])

    async def bury(
        self, queue: QueueRow, target: QueueRow, messages: Sequence[Leased], new: Sequence[NewMessage]
    ) -> list[SentMessage]:
        """Move messages in flight to another queue of the type as dead letters."""
        session, now_ms = self._session, self._now_ms
        source, goal = session.queue(queue.name), session.queue(target.name)
        end_leases(session, source, [each.receipt for each in messages], now_ms)
        rows = [(*each.row[:7], its.properties, *each.row[8:]) for each, its in zip(messages, new, strict=True)]
        seqs = moving.bury(session, source, goal, rows, now_ms)
        if source.fifo:
            groups.refile(session, source, {row[11] for row in rows})
            groups.notify(session, source, now_ms, 1)
        elif source.shares:
            fair.ended(session, source, [(row[0], row[1], row[11]) for row in rows], now_ms)
        goal.notify(now_ms)
        return [
            SentMessage(id=row[5], sequence=seq if goal.fifo else None) for row, seq in zip(rows, seqs, strict=True)
        ]

    async def inspect(
        self, queue: QueueRow, state: MessageState | None, count: int, passed_max: int
    ) -> list[StoredMessage]:
        """Find the first ``count`` messages, or those in ``state``."""
        ours = self._settled(queue)
        found = inspection.find(self._session, ours, state, count, passed_max, self._now_ms)
        return inspection.stored(self._session, ours, found, self._now_ms)

    async def inspect_at(self, queue: QueueRow, seqs: Sequence[int]) -> list[StoredMessage]:
        """Find those of the messages ``seqs`` that are in the queue and were received."""
        ours = self._settled(queue)
        found = [(seq, None) for seq in seqs if seq >= ours.floor(self._now_ms)]
        return [each for each in inspection.stored(self._session, ours, found, self._now_ms) if each.receive_count > 0]

    async def offered(self, queue: QueueRow, count: int) -> list[StoredMessage]:
        """Find what a receive of ``count`` would take, in its order."""
        ours = self._settled(queue)
        found = inspection.offered(self._session, ours, count, self._now_ms)
        return inspection.stored(self._session, ours, found, self._now_ms)

    async def bodies(self, queue: QueueRow, seqs: Sequence[int]) -> Mapping[int, str]:
        """Return the bodies of messages by seq."""
        return {seq: body for seq in seqs for _, body, *_ in self._session.rows("message_row", seq)}

    def _settled(self, queue: QueueRow) -> Queue:
        """Return the queue at the present instant, without a slice of what is past its retention."""
        ours = self._session.queue(queue.name)
        totals.settle_time(self._session, ours, self._now_ms)
        return ours

    def after(self, call: Callable[[], object]) -> None:
        """Make ``call`` at once: the batch is committed with this command, or its caches are dropped."""
        call()

    def schedule(self, step: type[Command]) -> None:
        """Have slices of that work in the background done, from the next batch on."""
        self._session.schedulers[step].look()

    def notify(self, name: str) -> None:
        """Have the watch on a queue look at it; what it submits is part of the batch."""
        wake = self._session.wakes.get(name)
        if wake is not None:
            wake(self._now_ms)


def driven(cold: Cold, *, changes: bool) -> Callable[[Session, Any, int], object]:
    """Return the handler that drives a cold command to its end; an error undoes one that ``changes`` something."""

    def handle(session: Session, command: Any, now_ms: int) -> object:
        running = cold(SqliteTransaction(session, now_ms), command)
        if not changes:
            return end(running)
        session.write()
        accepted, changes_before = session.accepted.count, session.connection.total_changes()
        session.execute("SAVEPOINT cold")
        try:
            return end(running)
        except VeilmqError:
            if session.has_written(changes_before):
                session.execute("ROLLBACK TO cold")
                session.undo(accepted)
            raise
        finally:
            if session.connection.in_transaction:
                session.execute("RELEASE cold")

    return handle


def end(running: Coroutine[Any, Any, Any]) -> Any:
    """Drive a function over the port to its end; return its result."""
    try:
        running.send(None)
    except StopIteration as ended:
        return ended.value
    running.close()
    raise AssertionError("a cold command waits for something that is not the store's")


HANDLERS = {kind: driven(cold, changes=kind not in READS) for kind, cold in COLD.items()}
