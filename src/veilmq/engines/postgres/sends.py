"""Sends: the messages of all commands that travel together are one statement."""

from collections.abc import Callable, Sequence
from typing import Any

from veilmq.core import fifo
from veilmq.core.commands import NewMessage, Send
from veilmq.core.errors import VeilmqError
from veilmq.core.ids import IdSource
from veilmq.core.receipts import ReceiptBook
from veilmq.core.results import SentMessage
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.fair_queues import FairQueues
from veilmq.engines.postgres.fifo_storing import FifoStoring
from veilmq.engines.postgres.next_visible import rouse_groups
from veilmq.engines.postgres.on_queue import OnQueue, PartitionRetired
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.standard_storing import StandardStoring
from veilmq.engines.postgres.totals import Totals
from veilmq.engines.postgres.watches import Watches

Check = Callable[[NewMessage, Send, Queue], NewMessage]


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
            for each in _stored(answers)
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
            await rouse_groups(connection, queue, self._watches)
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


def _stored(answers: Sequence[NewMessage | VeilmqError] | VeilmqError) -> Sequence[NewMessage | VeilmqError]:
    return () if isinstance(answers, VeilmqError) else answers


def _checked(new: NewMessage, command: Send, queue: Queue, check: Check) -> NewMessage | VeilmqError:
    try:
        checked = check(new, command, queue)
        if command.terms is None or command.terms.decode is None or not queue.settings.smq_base64:
            return checked
        return command.terms.decode(checked)
    except VeilmqError as error:
        return error
