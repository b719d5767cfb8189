"""Sends on other terms than those of SQS (``commands.SendTerms``): beside the short way that all others go.

Everything that could refuse a message is looked at before it is stored, so a command whose messages go together has
stored nothing when it raises.
"""

from msgspec.structs import replace

from veilmq.core import fifo
from veilmq.core.commands import NewMessage, SendTerms
from veilmq.core.errors import MessageTooLong, VeilmqError
from veilmq.core.ids import IdSource
from veilmq.core.receipts import ReceiptBook
from veilmq.core.results import SentMessage
from veilmq.engines.embedded import groups
from veilmq.engines.embedded.fifo_sends import FifoSends
from veilmq.engines.embedded.lane import Lane
from veilmq.engines.embedded.queue import Queue


class TermedSends:
    """Stores messages on terms, and issues the receipts of those that are delayed."""

    __slots__ = ("_book", "_fifo_sends", "_ids")

    def __init__(self, *, fifo_sends: FifoSends, ids: IdSource, book: ReceiptBook) -> None:
        """``fifo_sends`` is the one that all senders use: it knows what they have sent lately."""
        self._fifo_sends = fifo_sends
        self._ids = ids
        self._book = book

    def send(
        self, queue: Queue, messages: tuple[NewMessage, ...], terms: SendTerms, now_ms: int
    ) -> list[SentMessage | VeilmqError]:
        """Store each message that the queue takes, or all of them; then raises the error of the first one."""
        work = _Work(queue, terms, now_ms)
        if terms.together:
            checked = [work.checked(new) for new in messages]
            for new in checked:
                queue.lane_for(new)  # opened, if it has to be, before anything is stored
            sent: list[SentMessage | VeilmqError] = [self._store(work, new) for new in checked]
        else:
            sent = [self._try(work, new) for new in messages]
        work.tell()
        return sent

    def _try(self, work: "_Work", new: NewMessage) -> SentMessage | VeilmqError:
        try:
            return self._store(work, work.checked(new))
        except VeilmqError as error:
            return error

    def _store(self, work: "_Work", new: NewMessage) -> SentMessage:
        return self._store_ordered(work, new) if work.queue.settings.fifo else self._store_standard(work, new)

    def _store_standard(self, work: "_Work", new: NewMessage) -> SentMessage:
        message_id = self._ids.next()
        lane = work.queue.lane_for(new)
        group_key = None if new.group is None else groups.key_of(new.group)
        visible_at_ms = work.queue.store(lane, new, message_id, work.now_ms, group_key)
        work.note(visible_at_ms)
        receipt = self._receipt(work, lane) if visible_at_ms > work.now_ms else None
        return SentMessage(id=message_id, receipt=receipt)

    def _store_ordered(self, work: "_Work", new: NewMessage) -> SentMessage:
        """Store a message of a FIFO queue, if it is no duplicate; a duplicate has no receipt."""
        if work.terms.receipts and work.delays(new) and new.delay_s is None:
            new = replace(new, delay_s=work.queue.settings.delay_s)  # its receipt says until when it is delayed
        lane = work.queue.lane_for(new)
        next_sequence = lane.next_sequence
        send = self._fifo_sends.send_unrepeated if work.terms.unrepeated else self._fifo_sends.send_one
        sent = send(work.queue, new, work.now_ms)
        receipt = self._receipt(work, lane) if sent.sequence == next_sequence and work.delays(new) else None
        return SentMessage(id=sent.id, sequence=sent.sequence, receipt=receipt)

    def _receipt(self, work: "_Work", lane: Lane) -> str | None:
        """Return the receipt of the message that was just stored, where one is wanted and it is delayed."""
        lease = lane.find(lane.last_delayed) if work.terms.receipts else None
        if lease is None:
            return None
        return self._book.issue(work.queue.number, lease.position, lease.generation, lease.epoch, lease.visible_at_ms)


class _Work:
    """One command at work."""

    __slots__ = ("_due_ms", "now_ms", "queue", "terms")

    def __init__(self, queue: Queue, terms: SendTerms, now_ms: int) -> None:
        self.queue = queue
        self.terms = terms
        self.now_ms = now_ms
        self._due_ms: int | None = None

    def checked(self, new: NewMessage) -> NewMessage:
        """Return what is to be stored of a message; raises what is wrong with it. Its size is that on the wire."""
        settings = self.queue.settings
        if settings.fifo:
            fifo.group_of(new, settings)
            if not self.terms.unrepeated:
                fifo.id_of(new, settings)
        elif new.size_bytes > settings.message_bytes_max:
            raise MessageTooLong(settings.message_bytes_max)
        return self.terms.decode(new) if self.terms.decode is not None and settings.smq_base64 else new

    def delays(self, new: NewMessage) -> bool:
        """Tell whether a message is hidden at first."""
        return bool(self.queue.settings.delay_s if new.delay_s is None else new.delay_s)

    def note(self, visible_at_ms: int) -> None:
        """Take note of when a message that was stored is visible."""
        self._due_ms = visible_at_ms if self._due_ms is None else min(self._due_ms, visible_at_ms)

    def tell(self) -> None:
        """Rouse the queue's watch."""
        if self.queue.settings.fifo:
            self.queue.rouse_groups(self.now_ms)
        elif self._due_ms is not None:
            self.queue.rouse(self._due_ms)
