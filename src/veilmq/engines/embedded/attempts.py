"""Attempts: a receive of a FIFO queue that can be repeated, because its answer may have been lost.

What a receive with an attempt id gave is remembered in the table ``attempt``: the positions, what fences their receipts
and the deadline. The same attempt id gives the same messages with the same receipts again, hidden anew from now on and
without another receive counted, as long as every one of them is as it was left: neither changed nor deleted nor visible
again (SQS API Reference, the receive's attempt id). The longest lease still counts from the first receive. Else the
attempt is void, and the receive an ordinary one, which is remembered in its place.
"""

from hashlib import blake2b

import msgspec

from veilmq.core import fifo, visibility
from veilmq.core.commands import Receive
from veilmq.core.receipts import ReceiptBook
from veilmq.core.results import Received, ReceivedMessage
from veilmq.engines.embedded.dead_letters import told
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import Lane
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.rows import Lease

_KEY_BYTES = 16


class _Attempt(msgspec.Struct, frozen=True, array_like=True):
    """What was given: receipts say ``issued_visible_at_ms``, the deadline in force is ``visible_at_ms``.

    Each is one instant for all messages, or a list of them: by the queue's rules their deadlines may differ.
    """

    issued_visible_at_ms: int | list[int]
    visible_at_ms: int | list[int]
    given: list[tuple[int, int, int]]  # position, generation, epoch


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Attempt).decode


class Attempts:
    """The attempts of all queues."""

    __slots__ = ("_book", "_journal")

    def __init__(self, *, journal: Journal, book: ReceiptBook) -> None:
        """``journal`` keeps them; ``book`` issued the receipts, and can again."""
        self._journal = journal
        self._book = book

    def note(self, queue: Queue, command: Receive, messages: list[ReceivedMessage], now_ms: int) -> None:
        """Remember what a receive gave; one that gave nothing is not worth it."""
        if messages:
            receipts = [self._book.read(message.receipt) for message in messages]
            given = [(receipt.position, receipt.generation, receipt.epoch) for receipt in receipts]
            deadlines_ms = _together([receipt.visible_at_ms for receipt in receipts])
            self._put(_key(queue, command), _Attempt(deadlines_ms, deadlines_ms, given), now_ms)

    def repeat(self, queue: Queue, command: Receive, now_ms: int) -> Received | None:
        """Give the same messages again, hidden from now on; ``None`` when there is nothing to repeat."""
        key = _key(queue, command)
        row = self._journal.attempts.get(key)
        if row is None or not fifo.is_repeatable(row[1], now_ms):
            return None
        attempt = _decode(row[0])
        until_ms = _apart(attempt.visible_at_ms, len(attempt.given))
        left = [_as_left(queue, given, at_ms, now_ms) for given, at_ms in zip(attempt.given, until_ms, strict=True)]
        found = [each for each in left if each is not None]
        if len(found) < len(left):
            return None
        for lane, lease in found:
            lane.move(lease, now_ms, self._deadline_ms(queue, command, lease, now_ms), supersede=False)
        queue.rouse_groups(now_ms)  # its timeout may be shorter than what was left
        visible_at_ms = _together([lease.visible_at_ms for _, lease in found])
        self._put(key, msgspec.structs.replace(attempt, visible_at_ms=visible_at_ms), row[1])
        issued_ms = _apart(attempt.issued_visible_at_ms, len(found))
        return Received(
            messages=[self._told(queue, *each, at_ms) for each, at_ms in zip(found, issued_ms, strict=True)],
            next_due_ms=queue.next_due_ms(now_ms),
            receive_wait_s=queue.settings.receive_wait_s,
            smq_base64=queue.settings.smq_base64,
        )

    def _deadline_ms(self, queue: Queue, command: Receive, lease: Lease, now_ms: int) -> int:
        deadline_ms = visibility.deadline_ms(now_ms, self._timeout_s(queue, command, lease))
        if command.lease_s_max is None:
            return deadline_ms
        return min(deadline_ms, visibility.lease_end_ms_max(lease.received_at_ms, command.lease_s_max))

    def _timeout_s(self, queue: Queue, command: Receive, lease: Lease) -> int:
        if command.timeout_s is not None:
            return command.timeout_s
        if queue.rules is None:
            return queue.settings.visibility_timeout_s
        receives_before = lease.receive_count - 1  # it is the same receive
        return queue.rules.timeout_s(self._journal.message_at(lease.position).properties, receives_before)

    def _told(self, queue: Queue, lane: Lane, lease: Lease, issued_visible_at_ms: int) -> ReceivedMessage:
        receipt = self._book.issue(queue.number, lease.position, lease.generation, lease.epoch, issued_visible_at_ms)
        return told(self._journal.message_at(lease.position), lease, lane, receipt)

    def _put(self, key: tuple[bytes], attempt: _Attempt, attempted_at_ms: int) -> None:
        self._journal.attempts.put(key, (_encode(attempt), attempted_at_ms))


def _key(queue: Queue, command: Receive) -> tuple[bytes]:
    return (blake2b(f"{queue.number} {command.attempt_id}".encode(), digest_size=_KEY_BYTES).digest(),)


def given_of(encoded: bytes) -> list[tuple[tuple[int, int, int], int, int]]:
    """Return what an attempt gave: position, generation and epoch, the receipt's deadline, and the one in force."""
    attempt = _decode(encoded)
    both_ms = (_apart(each_ms, len(attempt.given)) for each_ms in (attempt.issued_visible_at_ms, attempt.visible_at_ms))
    return list(zip(attempt.given, *both_ms, strict=True))


def _together(instants_ms: list[int]) -> int | list[int]:
    """Return the instants as one where they are."""
    return instants_ms[0] if len(set(instants_ms)) == 1 else instants_ms


def _apart(instants_ms: int | list[int], count: int) -> list[int]:
    """Return the instant of each of ``count`` messages."""
    return [instants_ms] * count if isinstance(instants_ms, int) else instants_ms


def _as_left(queue: Queue, given: tuple[int, int, int], visible_at_ms: int, now_ms: int) -> tuple[Lane, Lease] | None:
    """Return a message that was given, ``None`` unless it is still hidden as the receive left it."""
    position, generation, epoch = given
    found = queue.find(position, now_ms)
    if found is None:
        return None
    _, lease = found
    as_left = (lease.generation, lease.epoch, lease.visible_at_ms) == (generation, epoch, visible_at_ms)
    return found if as_left and now_ms < visible_at_ms else None
