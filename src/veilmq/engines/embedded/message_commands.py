"""The commands on messages: one handler each, found by command type in ``machine``. This is the hot path."""

from msgspec.structs import replace

from veilmq.core import commands, results, visibility
from veilmq.core.errors import MessageTooLong, ReceiptInvalid, StoreFull, VeilmqError
from veilmq.core.ids import IdSource
from veilmq.core.receipts import ReceiptBook
from veilmq.core.results import ReceiptState
from veilmq.engines.embedded import groups
from veilmq.engines.embedded.attempts import Attempts
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.dead_letters import DeadLetters, told
from veilmq.engines.embedded.fifo_sends import FifoSends
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import FAIR, Lane
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.rows import Lease
from veilmq.engines.embedded.run import CLAIMED_MS
from veilmq.engines.embedded.space import Space
from veilmq.engines.embedded.termed_sends import TermedSends


class MessageCommands:
    """Send, receive, delete and change visibility."""

    def __init__(
        self, *, catalog: Catalog, journal: Journal, dead_letters: DeadLetters, book: ReceiptBook, space: Space
    ) -> None:
        """``catalog`` has the queues, ``book`` the receipts' keys; ``space`` tells when the disk is nearly full."""
        self._catalog = catalog
        self._dead_letters = dead_letters
        self._book = book
        self._space = space
        self._ids = IdSource()
        self.fifo_sends = FifoSends(journal=journal, ids=self._ids)
        self._termed_sends = TermedSends(fifo_sends=self.fifo_sends, ids=self._ids, book=book)
        self._attempts = Attempts(journal=journal, book=book)

    def send(self, command: commands.Send, now_ms: int) -> list[results.SentMessage | VeilmqError]:
        """Store each message that the queue takes."""
        queue = self._catalog.queue(command.queue)
        if self._space.is_short and self._space.look_again(now_ms):
            raise StoreFull
        if command.terms is not None:
            return self._termed_sends.send(queue, command.messages, command.terms, now_ms)
        if queue.settings.fifo:
            return self.fifo_sends.send(queue, command.messages, now_ms)
        sent: list[results.SentMessage | VeilmqError] = []
        due_ms: int | None = None
        for new in command.messages:
            if new.size_bytes > queue.settings.message_bytes_max:
                sent.append(MessageTooLong(queue.settings.message_bytes_max))
                continue
            message_id = self._ids.next()
            if new.group is None:
                visible_at_ms = queue.store(queue.lane(new.priority), new, message_id, now_ms, None)
            else:
                lane = queue.lane(new.priority, FAIR)
                visible_at_ms = queue.store(lane, new, message_id, now_ms, groups.key_of(new.group))
            sent.append(results.SentMessage(id=message_id))
            due_ms = visible_at_ms if due_ms is None else min(due_ms, visible_at_ms)
        if due_ms is not None:
            queue.rouse(due_ms)
        return sent

    def receive(self, command: commands.Receive, now_ms: int) -> results.Received:
        """Lease what is visible, up to the number asked for."""
        queue = self._catalog.queue(command.queue)
        settings = queue.settings
        is_fifo = settings.fifo
        if (is_fifo or queue.throttle is not None) and (found := self._before(queue, command, now_ms)) is not None:
            return found
        timeout_s = settings.visibility_timeout_s if command.timeout_s is None else command.timeout_s
        visible_at_ms = visibility.deadline_ms(now_ms, timeout_s)
        requested_at_ms = now_ms if command.requested_at_ms is None else command.requested_at_ms
        if (bound_s := command.lease_s_max) is not None and (requested_at_ms < now_ms or timeout_s > bound_s):
            visible_at_ms = min(visible_at_ms, visibility.lease_end_ms_max(requested_at_ms, bound_s))
        rules = queue.rules if command.timeout_s is None else None
        redrive = self._dead_letters.redrive(queue, now_ms) if settings.receives_max else None
        take, issue = queue.receive, self._book.issue
        messages = [
            results.ReceivedMessage(
                id=row.id,
                receipt=receipt,
                body=row.body,
                properties=row.properties,
                sent_at_ms=row.sent_at_ms,
                first_received_at_ms=lease.first_received_at_ms,
                receive_count=lease.receive_count,
                visible_at_ms=lease.visible_at_ms,
                priority=lane.priority,
                sequence=lane.sequence_of(row.position) if is_fifo else None,
            )
            if row.source is None
            else told(row, lease, lane, receipt)
            for row, lease, lane in take(command.count, now_ms, visible_at_ms, requested_at_ms, redrive, rules, bound_s)
            for receipt in (issue(queue.number, row.position, lease.generation, lease.epoch, lease.visible_at_ms),)
        ]
        if redrive is not None:
            redrive.tell()
        return results.Received(
            messages=messages,
            next_due_ms=now_ms if messages and queue.wake is None else queue.next_due_ms(now_ms),
            receive_wait_s=settings.receive_wait_s,
            over_limit=not messages and queue.at_limit and not is_fifo,
            smq_base64=settings.smq_base64,
        )

    def _before(self, queue: Queue, command: commands.Receive, now_ms: int) -> results.Received | None:
        """Count a receive where receives are counted; return what an attempt with an id gives, else nothing."""
        if queue.throttle is not None and command.requested_at_ms is None:  # else it was counted before it waited
            queue.throttle.admit(now_ms)
        return self._attempt(queue, command, now_ms) if queue.settings.fifo and command.attempt_id is not None else None

    def _attempt(self, queue: Queue, command: commands.Receive, now_ms: int) -> results.Received:
        """Repeat the receive of the same attempt id, or receive and remember what that gave."""
        received = self._attempts.repeat(queue, command, now_ms)
        if received is None:
            requested_at_ms = now_ms if command.requested_at_ms is None else command.requested_at_ms
            # With the instant of its asking it is not counted again.
            received = self.receive(replace(command, attempt_id=None, requested_at_ms=requested_at_ms), now_ms)
            self._attempts.note(queue, command, received.messages, now_ms)
        return received

    def delete(self, command: commands.Delete, now_ms: int) -> list[ReceiptState | VeilmqError]:
        """Delete the message of each receipt that acts."""
        queue = self._catalog.queue(command.queue)
        only_live = command.only_live or queue.settings.fifo
        answers: list[ReceiptState | VeilmqError] = []
        for text in command.receipts:
            try:
                state, lane, lease = self.look_up(queue, text, now_ms, command.any_epoch, command.any_receive)
                if visibility.receipt_acts(state, only_live=only_live):
                    if queue.log is not None:
                        if state is ReceiptState.EARLIER:
                            queue.log.deleted_by_earlier(lease, self._book.read(text))
                        else:
                            queue.log.deleted(lease)
                    lane.remove(lease, now_ms)
                    queue.deleted += 1
                    if queue.at_limit:
                        queue.give_place(now_ms)
                elif queue.log is not None and queue.log.late(self._book.read(text), lease):
                    lane.move(lease, now_ms, lease.visible_at_ms, supersede=False)
                answers.append(state)
            except MessageGone:
                if queue.log is not None:
                    queue.log.late(self._book.read(text), None)
                answers.append(ReceiptState.GONE)
            except VeilmqError as error:
                answers.append(error)
        if queue.settings.fifo:
            queue.rouse_groups(now_ms)
        return answers

    def change_visibility(
        self, command: commands.ChangeVisibility, now_ms: int
    ) -> list[results.LeaseChange | VeilmqError]:
        """Move the deadline of each receipt that acts."""
        queue = self._catalog.queue(command.queue)
        answers: list[results.LeaseChange | VeilmqError] = []
        for change in command.changes:
            try:
                answers.append(self._change(queue, change, now_ms, command))
            except MessageGone:
                answers.append(results.LeaseChange(state=ReceiptState.GONE))
            except VeilmqError as error:
                answers.append(error)
        return answers

    def _change(
        self, queue: Queue, change: commands.VisibilityChange, now_ms: int, command: commands.ChangeVisibility
    ) -> results.LeaseChange:
        state, lane, lease = self.look_up(queue, change.receipt, now_ms, command.any_epoch, command.any_receive)
        if not visibility.receipt_acts(state, only_live=command.only_live or queue.settings.fifo):
            return results.LeaseChange(state=state)
        since_ms = lease.received_at_ms if lease.receive_count else now_ms  # nobody has asked for a delayed one yet
        visible_at_ms = visibility.changed_deadline_ms(now_ms, change.timeout_s, since_ms, command.lease_s_max)
        if queue.log is not None:
            queue.log.changed(lease, released=not change.timeout_s)
        lane.move(lease, now_ms, visible_at_ms, supersede=command.renew_receipt)
        if queue.settings.fifo:
            queue.rouse_groups(now_ms)
        else:
            queue.rouse(visible_at_ms)
        renewed: str | None = None
        if command.renew_receipt:
            renewed = self._book.issue(queue.number, lease.position, lease.generation, lease.epoch, visible_at_ms)
        return results.LeaseChange(
            state=state, visible_at_ms=visible_at_ms, hidden_for_ms=visible_at_ms - now_ms, receipt=renewed
        )

    def look_up(
        self, queue: Queue, text: str, now_ms: int, any_epoch: bool = False, any_receive: bool = False
    ) -> tuple[ReceiptState, Lane, Lease]:
        """Return what the receipt ``text`` is now, and what it is of; raises ``ReceiptInvalid`` and ``MessageGone``.

        With ``any_epoch``, a change alone does not supersede a receipt; with ``any_receive``, what is superseded is
        ``EARLIER`` in a standard queue, while no claim has the message.
        """
        number, position, generation, epoch, _ = self._book.read(text)
        if number != queue.number:
            raise ReceiptInvalid
        found = queue.find(position, now_ms)
        if found is None:
            raise MessageGone
        lane, lease = found
        current = lease.generation == generation and (lease.epoch == epoch or any_epoch)
        if any_receive and not current and lease.visible_at_ms < CLAIMED_MS and not queue.settings.fifo:
            return ReceiptState.EARLIER, lane, lease
        state = visibility.receipt_state(current=current, visible_at_ms=lease.visible_at_ms, now_ms=now_ms)
        return state, lane, lease


class MessageGone(Exception):
    """The receipt is genuine, and its message was deleted, purged, or is past its retention."""
