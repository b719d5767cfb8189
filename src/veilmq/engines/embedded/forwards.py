"""Forwards: messages in flight that go on to other queues, each by a send and a deletion in one transaction.

The row of the message leaves the lane that it is in, as by a delete with its receipt, and a new row joins the target,
as by a send of that moment but with the id that it has. Everything that could refuse it is looked at before.
"""

from veilmq.core import properties
from veilmq.core.commands import NewMessage
from veilmq.core.errors import DestinationRefused, GroupHeld, MessageTooLong, ReceiptEnded, StoreFull, VeilmqError
from veilmq.core.forwards import Forward, Forwarded, ForwardEntry
from veilmq.core.properties import attributes_bytes
from veilmq.core.results import ReceiptState
from veilmq.core.visibility import deadline_ms
from veilmq.engines.embedded.catalog import Catalog
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
        work.check_order(lease)
        try:
            if state is not ReceiptState.LIVE:
                raise ReceiptEnded(state)
            target = self._target(work.intake, entry.target)
            row = self._journal.message_at(lease.position)
            answer = self._store(target, lane, _as_new(row, lane, target), row, work.now_ms)
        except VeilmqError:
            work.hold(lease)
            raise
        _delete(work.intake, lane, lease, work.now_ms)
        work.targets[target] = None
        return answer

    def _target(self, intake: Queue, name: str) -> Queue:
        target = self._catalog.queue(name)
        if target is intake:
            raise DestinationRefused(name, f"Messages of {name} cannot be forwarded to itself; name another queue.")
        if target.settings.fifo != intake.settings.fifo:
            raise DestinationRefused(
                name, f"The queue {name} is of another type than {intake.name}: both are FIFO queues, or neither is."
            )
        return target

    def _store(self, target: Queue, lane: Lane, new: NewMessage, row: MessageRow, now_ms: int) -> Forwarded:
        if target.settings.fifo:
            assert row.group_key is not None, "it was in a FIFO queue"
            sent = self._fifo_sends.forward(target, new, row.id, row.group_key, now_ms)
            return Forwarded(id=sent.id, sequence=sent.sequence, duplicate=sent.id != row.id)
        target.store(target.lane(lane.priority, lane.kind), new, row.id, now_ms, row.group_key)
        return Forwarded(id=row.id)


def _as_new(row: MessageRow, lane: Lane, target: Queue) -> NewMessage:
    """Return what is sent to ``target``; raises ``MessageTooLong``."""
    carried = properties.decode(row.properties)
    size_bytes = len(row.body.encode()) + attributes_bytes(carried.attributes)
    if size_bytes > target.settings.message_bytes_max:
        raise MessageTooLong(target.settings.message_bytes_max)
    return NewMessage(
        body=row.body,
        size_bytes=size_bytes,
        properties=row.properties,
        priority=lane.priority,
        group=carried.group,
        dedup_id=carried.dedup_id,
    )


def _delete(intake: Queue, lane: Lane, lease: Lease, now_ms: int) -> None:
    """Delete a message by its live receipt: its work, which was to be forwarded, is done."""
    if intake.log is not None:
        intake.log.deleted(lease)
    lane.remove(lease, now_ms)
    if intake.at_limit:
        intake.give_place(now_ms)


class _Work:
    """One command at work: whom it has to tell, and which groups of a FIFO intake wait."""

    __slots__ = ("_held", "intake", "now_ms", "targets")

    def __init__(self, intake: Queue, now_ms: int) -> None:
        self.intake = intake
        self.now_ms = now_ms
        self.targets: dict[Queue, None] = {}  # a set in order
        self._held: set[int | None] = set()

    def check_order(self, lease: Lease) -> None:
        """Raise ``GroupHeld`` for a message behind one of its group that was refused."""
        if lease.group_key in self._held:
            raise GroupHeld

    def hold(self, lease: Lease) -> None:
        """Let no message of the same group overtake this one, where order counts."""
        if self.intake.settings.fifo:
            self._held.add(lease.group_key)

    def tell(self) -> None:
        """Rouse the watches of all queues that changed."""
        if self.targets and self.intake.settings.fifo:
            self.intake.rouse_groups(self.now_ms)
        for target in self.targets:
            if target.settings.fifo:
                target.rouse_groups(self.now_ms)
            else:
                target.rouse(deadline_ms(self.now_ms, target.settings.delay_s))
