"""Receive attempts: a receive of a FIFO queue that can be repeated, because its answer may have been lost.

What a receive with an attempt id gave is kept in ``attempt``. The same attempt id gives the same messages with the same
receipts again, hidden anew from now on and without another receive counted, as long as every one of them is as it was
left: neither changed nor deleted nor visible again (SQS API Reference, the receive's attempt id). The longest lease
still counts from the first receive. Otherwise the receive is an ordinary one, which is kept in its place.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from veilmq.core import visibility
from veilmq.core.commands import Receive
from veilmq.core.fifo import is_repeatable
from veilmq.core.results import Received, ReceivedMessage
from veilmq.store.queues import FIFO_PRIORITY, SEQ_SHIFT, Queue
from veilmq.store.sqlite import groups
from veilmq.store.sqlite.giving import next_due
from veilmq.store.sqlite.session import Session

_KEY_BYTES = 16


class Given(msgspec.Struct, frozen=True, array_like=True):
    """A message that was given; its receipt says ``issued_visible_at_ms``, its deadline is ``visible_at_ms``."""

    seq: int
    generation: int
    epoch: int
    issued_visible_at_ms: int
    visible_at_ms: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Given]).decode


def put(session: Session, key: bytes, given: list[Given], attempted_at_ms: int) -> None:
    """Keep what an attempt gave."""
    session.run("put_attempt", key, _encode(given), attempted_at_ms)


def note(session: Session, queue: Queue, command: Receive, messages: list[ReceivedMessage], now_ms: int) -> None:
    """Keep what a receive gave, if it gave anything."""
    if messages:
        receipts = [session.book.read(message.receipt) for message in messages]
        given = [Given(seq, generation, epoch, at_ms, at_ms) for _, seq, generation, epoch, at_ms in receipts]
        put(session, _key(queue, command), given, now_ms)


def repeat(session: Session, queue: Queue, command: Receive, now_ms: int) -> Received | None:
    """Give the same messages again, hidden from now on; ``None`` when there is nothing to repeat."""
    key = _key(queue, command)
    row = session.row("attempt", key)
    if row is None or not is_repeatable(row[1], now_ms):
        return None
    given = _decode(row[0])
    floor = queue.floor(now_ms)
    found: list[Any] = []
    for each in given:
        left = None if each.seq < floor else session.row("ordered_find", queue.partition, each.seq)
        if left is None or left[1] != each.visible_at_ms or left[1] <= now_ms:
            return None
        if left[3:5] != (each.generation, each.epoch):
            return None
        found.append(left)
    messages: list[ReceivedMessage] = []
    kept: list[Given] = []
    for each, left in zip(given, found, strict=True):
        stored = session.row("message_row", each.seq)
        assert stored is not None, "a message has a row as long as it is in flight"
        visible_at_ms = _deadline_ms(queue, command, left, stored[2], now_ms)
        queue.unhide(left[1], received=True)
        queue.hide(visible_at_ms, received=True)
        session.run("ordered_change", visible_at_ms, each.epoch, queue.partition, left[6], each.seq)
        kept.append(msgspec.structs.replace(each, visible_at_ms=visible_at_ms))
        messages.append(_message(session, queue, each, left, stored, visible_at_ms))
    put(session, key, kept, row[1])
    session.touch(queue)
    groups.refile(session, queue, {left[6] for left in found})
    groups.notify(session, queue, now_ms, 1)  # its timeout may be shorter than what was left
    return Received(
        messages=messages,
        next_due_ms=next_due(session, queue, now_ms, groups.next_message_ms),
        receive_wait_s=queue.settings.receive_wait_s,
        smq_base64=queue.settings.smq_base64,
    )


def _deadline_ms(queue: Queue, command: Receive, left: Any, properties: bytes, now_ms: int) -> int:
    timeout_s = queue.settings.visibility_timeout_s if command.timeout_s is None else command.timeout_s
    if command.timeout_s is None and queue.rules is not None:
        timeout_s = queue.rules.timeout_s(properties, left[2] - 1)  # it is the same receive
    deadline_ms = visibility.deadline_ms(now_ms, timeout_s)
    if command.lease_s_max is None:
        return deadline_ms
    return min(deadline_ms, visibility.lease_end_ms_max(left[5], command.lease_s_max))


def _message(
    session: Session, queue: Queue, each: Given, left: Any, stored: Any, visible_at_ms: int
) -> ReceivedMessage:
    message_id, body, properties, source, before, first_ms = stored
    return ReceivedMessage(
        id=message_id,
        receipt=session.book.issue(queue.number, each.seq, each.generation, each.epoch, each.issued_visible_at_ms),
        body=body,
        properties=properties,
        sent_at_ms=each.seq >> SEQ_SHIFT,
        first_received_at_ms=left[7] if first_ms is None else first_ms,
        receive_count=left[2] + (before or 0),
        visible_at_ms=visible_at_ms,
        priority=FIFO_PRIORITY,
        source=source,
        sequence=each.seq,
    )


def _key(queue: Queue, command: Receive) -> bytes:
    return blake2b(f"{queue.number} {command.attempt_id}".encode(), digest_size=_KEY_BYTES).digest()
