"""FIFO queues: send and receive, for all commands of one queue in a batch, and the cursors of message groups.

Each group delivers its messages in sending order, and none while a received one is hidden. A receive therefore searches
for groups, by their cursors: the rows of ``ordered`` that precede those of the messages. A message without its own
delay follows that of the queue, which is added when the row is read, so a change of the queue's delay costs nothing. A
cursor has both the first such message and the first end of another delay, because either may come first.

The messages that a group has in flight are usually hidden until the same instant, and counted with the group. Those
that became visible earlier, by a change or a rule, are ``apart``, as are messages with their own delay. A delayed
message does not block its group: up to ``SKIPPED_MAX`` of them are skipped.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from heapq import merge
from itertools import chain

import msgspec
from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.commands import Received, ReceivedMessage, SentMessage
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import ATTEMPT_S, BATCH_ROW_BYTES, DEDUPLICATION_S, SECOND_MS
from veilmq.core.messages import dedup_id_of, deduplication_key, routing_key_of
from veilmq.store.sqlite import standard
from veilmq.store.sqlite.database import SQL, SQL_WITH_SIZES
from veilmq.store.sqlite.queues import Queue
from veilmq.store.sqlite.session import BODY, EPOCH, GROUP, PROPERTIES, SEQ, VISIBLE_AT, Row, Session
from veilmq.store.sqlite.standard import (
    DEFERRED,
    EXPIRED_SKIPPED_MAX,
    DeadLetterSink,
    NextId,
    ReceiveRequest,
    Results,
    Sends,
)
from veilmq.store.transaction import NEVER_MS, SEQ_SHIFT, checked

SKIPPED_MAX = 100

_GROUPS_MAX = 16_384
_KEY_BYTES = 16
_GENERATION = VISIBLE_AT + 1  # of a row of ``ordered_leased``
_DEDUPLICATION_MS, _ATTEMPT_MS = DEDUPLICATION_S * SECOND_MS, ATTEMPT_S * SECOND_MS


# Sends.


def send(session: Session, queue: Queue, sends: Sends, results: Results, next_id: NextId | None = None) -> list[int]:
    """Store the messages of ``sends`` that are not duplicates; see ``standard.send``."""
    first, take_id = session.next_seq(), next_id or session.ids.next
    first_seqs: list[int] = []
    messages: list[Row] = []
    rows: list[Row] = []
    for slot, command in sends:
        first_seqs.append(first + len(messages))
        try:
            results[slot] = _add(session, queue, command, first, take_id, messages, rows)
        except VeilmqError as error:
            results[slot] = error
    standard.insert(session, queue, messages, first + len(messages))
    if rows:
        session.stage(SQL["ordered_insert"], rows)
        run = (queue.partition, session.last_seq, session.last_seq - len(rows) + 1, len(rows))
        session.stage(SQL["insert_ordered_run"], [run])
        following = [row[:3] for row in rows if row[3] is None]
        session.executemany(SQL["admit_group"], following)
        if len(following) < len(rows):
            admit_delayed(session, queue, {row[1]: row[2] for row in rows if row[3] is not None})
    if queue.wake is not None:
        notify(session, queue, len(sends))
    return first_seqs


def _add(
    session: Session,
    queue: Queue,
    command: commands.Send,
    first: int,
    take_id: NextId,
    messages: list[Row],
    rows: list[Row],
) -> list[SentMessage | VeilmqError]:
    now_ms, options, settings = session.now_ms, command.options, queue.settings
    with_receipts = options is not None and options.receipts
    result: list[SentMessage | VeilmqError] = []
    for new in checked(command.messages, options, settings):
        seq, message_id = first + len(rows), take_id()
        if isinstance(new, VeilmqError):
            result.append(new)
            continue
        name, dedup_id = new.group or "", dedup_id_of(new, settings)
        if dedup_id is not None:
            key = deduplication_key(queue.number, name, dedup_id, settings)
            original = session.deduplication_log.find(key)
            if (
                original is not None
                and original.id != message_id  # else returned by a forward
                and now_ms < original.logged_at_ms + _DEDUPLICATION_MS
            ):
                result.append(SentMessage(id=original.id, sequence=original.sequence))
                continue
            session.deduplication_log.add(key, message_id, seq, now_ms)
        visible_at_ms = receipt = None  # follows the queue's delay
        if new.delay_s is not None:
            visible_at_ms = now_ms + new.delay_s * SECOND_MS
        elif with_receipts and queue.delay_ms:
            visible_at_ms = now_ms + queue.delay_ms  # as in its receipt
        if visible_at_ms is not None:
            queue.add_hidden(visible_at_ms, received=False)
            if with_receipts and visible_at_ms > now_ms:
                receipt = session.codec.issue(queue.number, seq, 0, 0, visible_at_ms)
        group = session.group_numbers.number(queue.partition, name, seq)
        messages.append((seq, group, message_id, new.properties, new.body))
        rows.append((queue.partition, group, seq, visible_at_ms))
        result.append(SentMessage(id=message_id, receipt=receipt, sequence=seq))
    return result


def admit_delayed(session: Session, queue: Queue, last: dict[int, int]) -> None:
    """Update the cursors of groups that have new messages with their own delay, given the last of each."""
    session.run_many("admit_delayed", [(queue.partition, group, seq) for group, seq in last.items()])
    update_cursors(session, queue, last)


# Receives.


def receive(
    session: Session, queue: Queue, requests: list[ReceiveRequest], results: Results, sink: DeadLetterSink | None
) -> None:
    """Deliver messages to the ``requests`` of a group, in order; ``sink`` takes dead letters, if any are moved."""
    slot, command = requests[0].slot, requests[0].command
    key = None
    if command.attempt_id is not None:
        key = blake2b(f"{queue.number} {command.attempt_id}".encode(), digest_size=_KEY_BYTES).digest()
        results[slot] = _repeat_attempt(session, queue, command, key)
        if results[slot] is not None:
            return
    shares, unsettled = distribute(session, queue, requests, queue.in_flight_max - queue.in_flight, sink)
    leased, replies = standard.lease(session, queue, requests, shares, results)
    blocks: dict[int, list[int]] = {}
    for row, visible_at_ms in leased:
        block = blocks.setdefault(row[GROUP], [visible_at_ms, row[SEQ], row[SEQ], 0])
        block[2] = row[SEQ]
        block[3] += 1
        if visible_at_ms != block[0]:
            unsettled.add(row[GROUP])
    if len(session.group_of) > _GROUPS_MAX:
        session.group_of.clear()
    session.group_of.update([(row[SEQ], row[GROUP]) for row, _ in leased])
    if blocks:
        session.executemany(SQL["block_group"], [(*block, queue.partition, group) for group, block in blocks.items()])
    if unsettled:
        update_cursors(session, queue, unsettled)
    standard.reply(session, queue, replies, results)
    if key is not None and results[slot] is not DEFERRED and results[slot].messages:
        receipts = [session.codec.read(message.receipt) for message in results[slot].messages]
        taken = [AttemptedMessage(*receipt[1:], receipt[4]) for receipt in receipts]
        store_attempt(session, key, taken, session.now_ms)


def distribute(
    session: Session, queue: Queue, requests: list[ReceiveRequest], capacity: int, sink: DeadLetterSink | None
) -> tuple[list[list[Row]], set[int]]:
    """Return the share of each receive, at most ``capacity`` in all, and the groups whose cursors need an update.

    One statement runs for one group after the other; the next group is read when the last one has no more. A group with
    only messages that a receive must not see, possibly after dead letters, is left to the next receive that may see
    them.
    """
    now_ms, wanted = session.now_ms, min(sum([request.command.count for request in requests]), capacity)
    shares: list[list[Row]] = [[] for _ in requests]
    share, end_seq, left, delivered = shares[0], 0, 0, False
    unseen: dict[int, int] = {}  # groups left to the next receives, with the first message of each
    first: dict[int, int] = {}  # those that were read again
    unsettled: set[int] = set()

    def groups() -> Iterator[Row]:
        """Yield the parameters of the statement for one group after the other, while a receive wants more."""
        nonlocal share, end_seq, left, delivered, unseen, first
        extra = 0 if sink is None else SKIPPED_MAX  # these may be dead letters
        floor, has_expired = queue.floor(now_ms), now_ms >= queue.expires_at_ms
        candidates = ready_groups(session, queue, wanted)
        for request, own_share in zip(requests, shares, strict=True):
            share, end_seq, left = own_share, request.end_seq, min(request.command.count, capacity)
            if unseen:
                seen = {group: seq for group, seq in unseen.items() if seq < end_seq}
                unseen = {group: seq for group, seq in unseen.items() if seq >= end_seq}
                candidates, first = chain(seen, candidates), first | seen
            while left > 0 and session.read_bytes_left > 0 and not (sink is not None and sink.is_full):
                group = next(candidates, None)
                if group is None:
                    break
                delivered, begin, most = False, first.get(group, floor), left + extra
                yield queue.partition, group, begin, most + SKIPPED_MAX, queue.delay_ms, now_ms, most
                if not delivered and not has_expired:  # else expired messages may block it until they are deleted
                    unsettled.add(group)

    for row in session.executemany(SQL["ordered_take"], groups()) if wanted > 0 else ():
        if left <= 0 or row[SEQ] >= end_seq:
            if not delivered:
                unseen[row[GROUP]] = row[SEQ]
            delivered = True  # the group has more than was wanted
        elif sink is None or sink.is_full or not sink.accept(row):
            delivered = True
            left -= 1
            capacity -= 1
            share.append(row)
            session.read_bytes_left -= len(row[BODY]) + len(row[PROPERTIES]) + BATCH_ROW_BYTES
    if sink is not None:
        sink.move()
    return shares, unsettled


def group_messages(session: Session, queue: Queue, group: int, count: int) -> Iterator[Row]:
    """Return up to ``count`` messages that a group may deliver, without their contents."""
    now_ms = session.now_ms
    place = queue.partition, group, queue.floor(now_ms), count + SKIPPED_MAX
    return session.execute(SQL_WITH_SIZES["ordered_take"], (*place, queue.delay_ms, now_ms, count))


class AttemptedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message of a receive attempt; its receipt has ``issued_visible_at_ms``, its deadline is ``visible_at_ms``."""

    seq: int
    generation: int
    epoch: int
    issued_visible_at_ms: int
    visible_at_ms: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[AttemptedMessage]).decode


def store_attempt(session: Session, key: bytes, taken: list[AttemptedMessage], attempted_at_ms: int) -> None:
    session.run("put_attempt", key, _encode(taken), attempted_at_ms)


def _repeat_attempt(session: Session, queue: Queue, command: commands.Receive, key: bytes) -> Received | None:
    """Return the messages of an earlier attempt again, hidden from now on, or ``None`` if there are none to repeat.

    The same attempt id returns the same messages with the same receipts, without counting another receive, while each
    of them is unchanged, not deleted and still hidden (SQS API Reference, ReceiveMessage). The maximum lease counts
    from the first receive. Otherwise the receive is an ordinary one.
    """
    attempt, now_ms, floor = session.row("attempt", key), session.now_ms, queue.floor(session.now_ms)
    if attempt is None or now_ms >= attempt[1] + _ATTEMPT_MS:
        return None
    found: list[tuple[AttemptedMessage, Row]] = []
    for each in _decode(attempt[0]):
        row = session.row("ordered_leased", queue.partition, each.seq)
        fenced = each.epoch, each.visible_at_ms, each.generation
        if (
            row is None
            or (row[EPOCH], row[VISIBLE_AT], row[_GENERATION]) != fenced
            or each.visible_at_ms <= now_ms
            or each.seq < floor
        ):
            return None
        found.append((each, row))
    messages: list[ReceivedMessage] = []
    attempted: list[AttemptedMessage] = []
    for each, row in found:
        seq, lane, receive_count, epoch, first_here_ms, message_id, body, encoded, source = row[:9]
        receives_before, first_before_ms = row[9:11]
        group, was_visible_at_ms, _, received_at_ms = row[11:]
        timeout_s = command.timeout_s
        if timeout_s is None:
            timeout_s = queue.settings.visibility_timeout_s
            if queue.rules is not None:
                kind = routing_key_of(encoded, queue.rules.attribute)
                timeout_s = queue.rules.timeout_s(kind, receive_count - 1)  # the same receive
        visible_at_ms = now_ms + timeout_s * SECOND_MS
        if command.lease_s_max is not None:
            visible_at_ms = min(visible_at_ms, received_at_ms + command.lease_s_max * SECOND_MS)
        queue.remove_hidden(was_visible_at_ms, received=True)
        queue.add_hidden(visible_at_ms, received=True)
        session.run("ordered_change", queue.partition, group, seq, visible_at_ms, epoch, None)
        attempted.append(replace(each, visible_at_ms=visible_at_ms))
        messages.append(
            ReceivedMessage(
                id=message_id,
                receipt=session.codec.issue(queue.number, seq, each.generation, epoch, each.issued_visible_at_ms),
                body=body,
                properties=encoded,
                sent_at_ms=seq >> SEQ_SHIFT,
                first_received_at_ms=first_here_ms if first_before_ms is None else first_before_ms,
                receive_count=receive_count + (receives_before or 0),
                visible_at_ms=visible_at_ms,
                priority=lane,
                source=source,
                sequence=seq,
            )
        )
    store_attempt(session, key, attempted, attempt[1])
    session.dirty.add(queue)
    update_cursors(session, queue, {row[GROUP] for _, row in found})
    notify(session, queue)  # the new timeout may be shorter than the rest of the old one
    return Received(
        messages=messages,
        next_due_ms=standard.next_due(session, queue),
        receive_wait_s=queue.settings.receive_wait_s,
        smq_base64=queue.settings.smq_base64,
    )


# The cursors of groups.


def ready_groups(session: Session, queue: Queue, count: int) -> Iterator[int]:
    """Yield ``count`` or more groups in the order in which they became ready; some may only have expired messages."""
    session.flush()
    partition, delay_ms, now_ms = queue.partition, queue.delay_ms, session.now_ms
    count += SKIPPED_MAX if now_ms < queue.expires_at_ms else EXPIRED_SKIPPED_MAX
    fixed = session.execute(SQL["groups_fixed"], (partition, now_ms, count))
    floating = session.execute(SQL["groups_floating"], (partition, (now_ms - delay_ms + 1) << SEQ_SHIFT, count))
    seen: set[int] = set()
    for _, _, group in merge(fixed, (((seq >> SEQ_SHIFT) + delay_ms, seq, group) for seq, group in floating)):
        if group not in seen:
            seen.add(group)
            yield group


def update_cursors(session: Session, queue: Queue, groups: Iterable[int]) -> None:
    """Recompute the cursors of ``groups``; a group without messages loses its cursor."""
    session.flush()
    partition = queue.partition
    keys: list[Row] = [(partition, group) for group in groups]
    ended = session.change_many("end_group", keys)
    left = [key for key, has_ended in zip(keys, ended, strict=True) if not has_ended]
    put: list[Row] = []
    apart: list[Row] = []
    for group, received_before, own_to, seq, visible_at_ms in session.executemany(SQL["ordered_first_of_group"], left):
        if visible_at_ms is None and seq > received_before and seq > own_to:
            put.append((partition, group, None, seq, seq, 0, 0, 0))
        else:
            put.append((partition, group, *_cursor(session, partition, group, received_before, own_to, apart)))
    session.run_many("ordered_set_apart", apart)
    session.run_many("put_group_cursor", put)


def _cursor(session: Session, partition: int, group: int, received_before: int, own_to: int, apart: list[Row]) -> Row:
    """Return the columns of the cursor of a group; add changes of its messages' ``apart`` to that list."""
    block_ms, received_to = -1, 0
    fixed_at: int | None = None
    head = 0
    floating: int | None = None
    waiting = 0
    received: list[tuple[int, int, int]] = []
    found = session.execute(SQL["ordered_of_group"], (partition, group))
    for seq, visible_at_ms, receive_count, is_apart in found:
        if receive_count:
            block_ms = max(block_ms, visible_at_ms)
            received_to = seq
            received.append((seq, visible_at_ms, is_apart))
        else:
            waiting += 1
            if visible_at_ms is None:
                floating = floating or seq
            elif fixed_at is None or visible_at_ms < fixed_at:
                fixed_at, head = visible_at_ms, seq
        if seq >= received_before and (waiting > SKIPPED_MAX or (floating is not None and seq >= own_to)):
            break
    found.close()
    if not received:
        return fixed_at, head if fixed_at is not None else floating, floating, 0, own_to, 0
    in_flight = 0
    for seq, visible_at_ms, is_apart in received:
        differs = int(visible_at_ms < block_ms)
        in_flight += 1 - differs
        if differs != is_apart:
            apart.append((differs, partition, group, seq))
    return block_ms, received[0][0], None, received_to, own_to, in_flight


def notify(session: Session, queue: Queue, times: int = 1) -> None:
    """Notify the watch of when the next group is ready, once for each of ``times`` commands that may have freed one."""
    if queue.wake is not None and (due_ms := standard.next_message_ms(session, queue)) < NEVER_MS:
        for _ in range(times):
            queue.wake(due_ms)
