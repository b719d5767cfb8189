"""Forwards: messages in flight that go on to other queues, each by a send and a deletion in one transaction.

The row of the message leaves the lane that it is in, as by a delete with its receipt, and a new row joins the target,
as by a send of that moment but with the id that it has. Everything that could refuse it is looked at before.
"""

from veilmq.core.commands import NewMessage
from veilmq.core.errors import (
    DestinationRefused,
    GroupHeld,
    ReceiptEnded,
    ReceiptInvalid,
    StoreFull,
    VeilmqError,
)
from veilmq.core.forwards import Forward, Forwarded, ForwardEntry, as_dead_letter, as_sent, refusal
from veilmq.core.results import ReceiptState
from veilmq.core.visibility import deadline_ms
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.dead_letters import carried
from veilmq.engines.embedded.fifo_sends import FifoSends
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import Lane
from veilmq.engines.embedded.message_commands import MessageCommands, MessageGone
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.rows import Lease, MessageRow
from veilmq.engines.embedded.space import Space


class Forwards:
    """The command ``Forward``."""

    def __init__(self, *, catalog: Catalog, journal: Journal, space: Space, messages: MessageCommands) -> None:
        """``messages`` are the commands that the same messages are sent, received and deleted by."""
        self._catalog = catalog
        self._journal = journal
        self._space = space
        self._look_up = messages.look_up
        self._fifo_sends: FifoSends = messages.fifo_sends

    def forward(self, command: Forward, now_ms: int) -> list[Forwarded | VeilmqError]:
        """Move the message of each live receipt; needs room, as the journal has both rows for a while."""
        intake = self._catalog.queue(command.queue)
        if self._space.is_short and self._space.look_again(now_ms):
            raise StoreFull
        work = _Work(intake, now_ms)
        answers: list[Forwarded | VeilmqError] = []
        for entry in command.entries:
            try:
                answers.append(self._forward(work, entry))
            except MessageGone:
                answers.append(ReceiptEnded(ReceiptState.GONE))
            except VeilmqError as error:
                answers.append(error)
        work.tell()
        return answers

    def _forward(self, work: "_Work", entry: ForwardEntry) -> Forwarded:
        state, lane, lease = self._look_up(work.intake, entry.receipt, work.now_ms)
        if not lease.receive_count:
            raise ReceiptInvalid  # it is of a delayed message, which is nobody's to work on
        work.check_order(lease)
        try:
            if state is not ReceiptState.LIVE:
                raise ReceiptEnded(state)
            target = self._target(work.intake, entry.target)
            row = self._journal.message_at(lease.position)
            answer = self._arrive(work, entry, target, lane, row, lease)
        except VeilmqError:
            work.hold(lease)
            raise
        _delete(work.intake, lane, lease, work.now_ms)
        return answer

    def _arrive(
        self, work: "_Work", entry: ForwardEntry, target: Queue, lane: Lane, row: MessageRow, lease: Lease
    ) -> Forwarded:
        if entry.reasons is None:
            new = as_sent(row.body, row.properties, lane.priority, target.settings)
            answer = self._store(target, lane, new, row, work.now_ms)
            work.note(target, deadline_ms(work.now_ms, target.settings.delay_s))
            return answer
        new = as_dead_letter(row.body, row.properties, lane.priority, target.settings, entry.reasons)
        home = target.lane(lane.priority, lane.kind)
        sequence = home.next_sequence if target.settings.fifo else None
        home.add_moved(carried(row._replace(properties=new.properties), lease, work.intake), work.now_ms)
        work.note(target, work.now_ms)
        return Forwarded(id=row.id, sequence=sequence)

    def _target(self, intake: Queue, name: str) -> Queue:
        target = self._catalog.queue(name)
        why = refusal(intake.name, intake.settings, name, target.settings)
        if why is not None:
            raise DestinationRefused(name, why)
        return target

    def _store(self, target: Queue, lane: Lane, new: NewMessage, row: MessageRow, now_ms: int) -> Forwarded:
        if target.settings.fifo:
            assert row.group_key is not None, "it was in a FIFO queue"
            sent = self._fifo_sends.forward(target, new, row.id, row.group_key, now_ms)
            return Forwarded(id=sent.id, sequence=sent.sequence, duplicate=sent.id != row.id)
        target.store(target.lane(lane.priority, lane.kind), new, row.id, now_ms, row.group_key)
        return Forwarded(id=row.id)


def _delete(intake: Queue, lane: Lane, lease: Lease, now_ms: int) -> None:
    """Delete a message by its live receipt: its work, which was to be forwarded, is done."""
    if intake.log is not None:
        intake.log.deleted(lease)
    lane.remove(lease, now_ms)
    intake.deleted += 1
    if intake.at_limit:
        intake.give_place(now_ms)


class _Work:
    """One command at work: whom it has to tell, and which groups of a FIFO intake wait."""

    __slots__ = ("_due_ms", "_held", "intake", "now_ms")

    def __init__(self, intake: Queue, now_ms: int) -> None:
        self.intake = intake
        self.now_ms = now_ms
        self._due_ms: dict[Queue, int] = {}  # when the first message that came to a queue is visible there
        self._held: set[int | None] = set()

    def check_order(self, lease: Lease) -> None:
        """Raise ``GroupHeld`` for a message behind one of its group that was refused."""
        if lease.group_key in self._held:
            raise GroupHeld

    def hold(self, lease: Lease) -> None:
        """Let no message of the same group overtake this one, where order counts."""
        if self.intake.settings.fifo:
            self._held.add(lease.group_key)

    def note(self, target: Queue, due_ms: int) -> None:
        """Note that a message has come to ``target``, visible from ``due_ms`` on."""
        self._due_ms[target] = min(due_ms, self._due_ms.get(target, due_ms))

    def tell(self) -> None:
        """Rouse the watches of all queues that changed."""
        if self._due_ms and self.intake.settings.fifo:
            self.intake.rouse_groups(self.now_ms)
        for target, due_ms in self._due_ms.items():
            if target.settings.fifo:
                target.rouse_groups(self.now_ms)
            else:
                target.rouse(due_ms)
