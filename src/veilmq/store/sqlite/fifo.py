"""FIFO queues: send and receive, for all commands of one queue in a batch at once, and the cursors of groups.

Each group gives its messages in the order of their sending. While one that was received is hidden, its group gives
nothing. So a receive looks for groups, not for messages, and takes from one after the other: each group that has any
has a cursor, the row of ``ordered`` before its messages. ``fixed_at`` is the latest deadline of what the group has
received; without such a message, the first instant at which a delay of a message's own ends. A message without a delay
of its own follows the queue's: ``floating_seq`` is the first of them, and the delay is added when the row is read, so
that a change of it costs nothing. Either may come first once the delay changes, so a cursor has both whatever the delay
is; ``own_to`` says how far into the group there may be a message with a delay of its own.

Messages that a group has in flight are counted with it, as they are hidden until one instant, ``fixed_at``; those that
became visible earlier, by a change or a rule, are ``apart``, and so are messages with a delay of their own.

A delayed message does not block its group: it is passed over, up to ``PASSED_OVER_MAX`` of them.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from veilmq.core import commands, visibility
from veilmq.core.commands import NewMessage, SendTerms
from veilmq.core.errors import VeilmqError
from veilmq.core.fifo import check_together, deduplication_key, group_of, id_of, is_duplicate, is_repeatable
from veilmq.core.limits import BATCH_ROW_BYTES, SECOND_MS
from veilmq.core.results import Received, ReceivedMessage, SentMessage
from veilmq.store.queues import FIFO_PRIORITY, NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite.database import SQL
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.standard import (
    EXPIRED_PASSED_MAX,
    LATER,
    Answers,
    DeadLetterSink,
    Giving,
    Taker,
    checked,
    next_due,
    put_off,
)
from veilmq.store.transaction import Given

PASSED_OVER_MAX = 100

_INSERT_MESSAGE = SQL["insert_message"]
_INSERT = SQL["ordered_insert"]
_INSERT_RUN = SQL["insert_ordered_run"]
_TAKE = SQL["ordered_take"]
_MARK = SQL["ordered_mark"]
_BLOCK = SQL["block_group"]
_ADMIT = SQL["admit_group"]
_CURSORS = SQL["group_cursors"]
_PUT_CURSOR = SQL["put_group_cursor"]
_OF_GROUP = SQL["ordered_of_group"]
_END_GROUP = SQL["end_group"]
_FIRST_OF_GROUP = SQL["ordered_first_of_group"]

_FIXED, _HEAD, _FLOATING, _RECEIVED_TO, _OWN_TO = range(5)  # of a cursor; and in_flight
_GROUPS_REMEMBERED_MAX = 65_536
_KEY_BYTES = 16


# Sends.


def send(
    session: Session, queue: Queue, sends: list[tuple[int, commands.Send]], now_ms: int, answers: Answers
) -> list[int]:
    """Store the messages of ``sends`` that are no duplicates; return the first seq that each of them could use.

    Each answer is a list with a ``SentMessage`` or an error for each message, or the error of the command.
    """
    first = session.next_seq(now_ms)
    messages: list[Row] = []
    rows: list[Row] = []
    firsts: list[int] = []
    for slot, command in sends:
        firsts.append(first + len(rows))
        try:
            answers[slot] = _add(session, queue, command, first, now_ms, messages, rows)
        except VeilmqError as error:
            answers[slot] = error
    if rows:
        session.stage(_INSERT_MESSAGE, messages)
        session.stage(_INSERT, rows)
        session.last_seq = first + len(rows) - 1
        queue.add_sent(len(rows), now_ms)
        session.touch(queue)
        session.stage(_INSERT_RUN, [(queue.partition, session.last_seq, first, len(rows))])
        _admit(session, queue, [row[1:] for row in rows])
    if queue.wake is not None:
        notify(session, queue, now_ms, len(sends))
    return firsts


def _add(
    session: Session,
    queue: Queue,
    command: commands.Send,
    first: int,
    now_ms: int,
    messages: list[Row],
    rows: list[Row],
) -> list[SentMessage | VeilmqError]:
    """Add the rows of one command; return its answer. Raises what is wrong with all of it."""
    terms = command.terms
    next_id = session.ids.next if type(terms) is not Given else iter(terms.ids).__next__
    if terms is None:
        check_together(command.messages, queue.settings)
    answer: list[SentMessage | VeilmqError] = []
    for new in command.messages if terms is None else checked(queue, command.messages, terms):
        seq = first + len(rows)
        try:
            if isinstance(new, VeilmqError):
                raise new
            sent = _accept(session, queue, new, next_id(), seq, now_ms, terms)
        except VeilmqError as error:
            answer.append(error)
            continue
        if sent.sequence == seq:  # else it repeats another one
            assert new.group is not None, "a message of a FIFO queue has a group"
            wants_receipt = terms is not None and terms.receipts
            visible_at_ms = None  # it follows the queue's delay
            if new.delay_s is not None:
                visible_at_ms = now_ms + new.delay_s * SECOND_MS
            elif wants_receipt and queue.delay_ms:
                visible_at_ms = now_ms + queue.delay_ms  # as its receipt says
            if visible_at_ms is not None:
                queue.hide(visible_at_ms, received=False)
                if wants_receipt and visible_at_ms > now_ms:
                    sent = replace(sent, receipt=session.book.issue(queue.number, seq, 0, 0, visible_at_ms))
            group = session.group_numbers.number(queue.partition, new.group, seq)
            messages.append((seq, group, sent.id, new.properties, new.body))
            rows.append((queue.partition, group, seq, visible_at_ms))
        answer.append(sent)
    return answer


def _accept(
    session: Session, queue: Queue, new: NewMessage, message_id: bytes, seq: int, now_ms: int, terms: SendTerms | None
) -> SentMessage:
    """Return the answer of a message that is to be stored as ``seq``, or that of the one that it repeats."""
    settings = queue.settings
    group = group_of(new, settings)
    if terms is not None and terms.unrepeated and new.dedup_id is None and not settings.content_deduplication:
        return SentMessage(id=message_id, sequence=seq)
    key = deduplication_key(queue.number, group, id_of(new, settings), settings)
    before = session.accepted.find(key)
    if before is not None and before.id != message_id and is_duplicate(before.accepted_at_ms, now_ms):
        return SentMessage(id=before.id, sequence=before.sequence)  # else it is new, or comes back by a forward
    session.accepted.add(key, message_id, seq, now_ms)
    return SentMessage(id=message_id, sequence=seq)


def _admit(session: Session, queue: Queue, arrivals: list[tuple[int, int, int | None]]) -> None:
    """Bring the cursors of groups up to new messages: group, seq, and the end of a delay of their own."""
    partition = queue.partition
    if all(visible_at_ms is None for _, _, visible_at_ms in arrivals):
        session.executemany(_ADMIT, [(partition, group, seq) for group, seq, _ in arrivals])
        return
    groups = {group for group, _, _ in arrivals}
    cursors: dict[int, list[Any]] = {
        row[0]: list(row[1:]) for row in session.executemany(_CURSORS, [(partition, group) for group in groups])
    }
    changed: set[int] = set()
    for group, seq, visible_at_ms in arrivals:
        cursor = cursors.setdefault(group, [None, seq, None, 0, 0, 0])
        if visible_at_ms is not None:
            cursor[_OWN_TO] = seq
            changed.add(group)
        if cursor[_RECEIVED_TO]:
            continue  # what was received says when the group goes on
        if visible_at_ms is None:
            if cursor[_FLOATING] is None:
                cursor[_FLOATING] = seq
                changed.add(group)
        elif cursor[_FIXED] is None or visible_at_ms < cursor[_FIXED]:
            cursor[_FIXED], cursor[_HEAD] = visible_at_ms, seq
    if changed:
        session.executemany(_PUT_CURSOR, [(partition, group, *cursors[group]) for group in changed])


# Receives.


def receive(
    session: Session, queue: Queue, takers: list[Taker], now_ms: int, answers: Answers, sink: DeadLetterSink | None
) -> None:
    """Give messages to the ``takers`` of a round, first come, first served; ``sink`` has dead letters, if any moves."""
    slot, command, _ = takers[0]
    if command.attempt_id is None:
        _receive(session, queue, takers, now_ms, answers, sink)
        return
    key = blake2b(f"{queue.number} {command.attempt_id}".encode(), digest_size=_KEY_BYTES).digest()
    answers[slot] = _repeat(session, queue, command, key, now_ms)
    if answers[slot] is None:
        _receive(session, queue, takers, now_ms, answers, sink)
        if answers[slot] is not LATER and answers[slot].messages:
            receipts = [session.book.read(message.receipt) for message in answers[slot].messages]
            put_attempt(session, key, [Taken(*receipt[1:], receipt[4]) for receipt in receipts], now_ms)


def _receive(
    session: Session, queue: Queue, takers: list[Taker], now_ms: int, answers: Answers, sink: DeadLetterSink | None
) -> None:
    giving = Giving(session, queue, now_ms)
    choice = _Choice(session, queue, takers, giving.places, sink, now_ms)
    wanted = min(sum([taker.command.count for taker in takers]), giving.places)
    if wanted > 0:
        choice.choose(wanted)
    is_cut = session.bytes_left <= 0
    blocks: dict[int, list[int]] = {}
    for taker, share in zip(takers, choice.shares, strict=True):
        if is_cut and not share and taker.command.count and giving.places > 0:
            put_off(queue, taker, answers)
            continue
        for row, visible_at_ms in zip(share, giving.give(taker, share), strict=True):
            block = blocks.get(row[11])
            if block is None:
                blocks[row[11]] = [visible_at_ms, row[0], row[0], 1]
            else:
                block[2] = row[0]
                block[3] += 1
                if visible_at_ms != block[0]:
                    choice.unsettled.add(row[11])
    if len(session.group_of) > _GROUPS_REMEMBERED_MAX:
        session.group_of.clear()
    session.group_of.update([(row[0], row[11]) for share in choice.shares for row in share])
    giving.mark(_MARK)
    if blocks:
        session.executemany(_BLOCK, [(*block, queue.partition, group) for group, block in blocks.items()])
    if choice.unsettled:
        refile(session, queue, choice.unsettled)
    giving.answer(answers, next_message_ms)
    if sink is not None:
        sink.notify(now_ms)


def offered(session: Session, queue: Queue, wanted: int, now_ms: int) -> list[Row]:
    """Return up to ``wanted`` messages that receives would give, in order."""
    taker = Taker(0, commands.Receive(queue=queue.name, count=wanted))
    choice = _Choice(session, queue, [taker], wanted, None, now_ms)
    choice.choose(wanted)
    refile(session, queue, choice.unsettled)
    return choice.shares[0]


class _Choice:
    """What the receives of a round get: ``shares`` has the rows of each. ``unsettled`` are groups to be filed anew."""

    def __init__(
        self, session: Session, queue: Queue, takers: list[Taker], places: int, sink: DeadLetterSink | None, now_ms: int
    ) -> None:
        """``places`` is how many more messages may be in flight."""
        self._session = session
        self._queue = queue
        self._takers = takers
        self._places = places
        self._sink = sink
        self._now_ms = now_ms
        self._at = 0  # the receive that gets the next message
        self._left = min(takers[0].command.count, places)
        self._gave = False  # whether the last group gave anything
        self.shares: list[list[Row]] = [[] for _ in takers]
        self.unsettled: set[int] = set()

    def choose(self, wanted: int) -> None:
        """Go through the groups that are able to give; dead letters move at the end."""
        session, sink, shares = self._session, self._sink, self.shares
        dead: list[Row] = []
        # One statement, run for one group after the other: the next is looked up when the last has nothing more.
        for row in session.executemany(_TAKE, self._groups(wanted)):
            if self._left <= 0 or row[0] >= self._takers[self._at].bound:
                self._gave = True  # it has more than was wanted
            elif sink is not None and not sink.is_over and sink.takes(row):
                dead.append(row)
            else:
                self._gave = True
                self._left -= 1
                self._places -= 1
                shares[self._at].append(row)
                session.bytes_left -= len(row[6]) + len(row[7]) + BATCH_ROW_BYTES
        if dead:
            assert sink is not None
            sink.move(dead)
            self.unsettled.update([row[11] for row in dead])

    def _groups(self, wanted: int) -> Iterator[Row]:
        """Yield the parameters of the statement for one group after another, while a receive wants more."""
        partition, delay_ms, now_ms, sink = self._queue.partition, self._queue.delay_ms, self._now_ms, self._sink
        beyond = 0 if sink is None else PASSED_OVER_MAX  # so many may be dead letters
        floor, has_expired = self._queue.floor(now_ms), now_ms >= self._queue.expires_at_ms
        for group in ready(self._session, self._queue, wanted, now_ms):
            while self._left <= 0:
                self._at += 1
                if self._at >= len(self._takers):
                    return
                self._left = min(self._takers[self._at].command.count, self._places)
            if self._places <= 0 or self._session.bytes_left <= 0 or (sink is not None and sink.is_over):
                return
            self._gave = False
            left = self._left + beyond
            yield partition, group, floor, left + PASSED_OVER_MAX, delay_ms, now_ms, left
            if not self._gave and not has_expired:  # else it may wait for what has expired to be deleted
                self.unsettled.add(group)


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """A message that an attempt gave; its receipt says ``issued_visible_at_ms``, its deadline is ``visible_at_ms``."""

    seq: int
    generation: int
    epoch: int
    issued_visible_at_ms: int
    visible_at_ms: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Taken]).decode


def put_attempt(session: Session, key: bytes, taken: list[Taken], attempted_at_ms: int) -> None:
    """Keep what an attempt gave."""
    session.run("put_attempt", key, _encode(taken), attempted_at_ms)


def _repeat(session: Session, queue: Queue, command: commands.Receive, key: bytes, now_ms: int) -> Received | None:
    """Give the messages of an earlier attempt again, hidden from now on; ``None``: there is nothing to repeat.

    The same attempt id gives the same messages with the same receipts, without another receive counted, as long as each
    of them is as it was left: neither changed nor deleted nor visible again (SQS API Reference, ReceiveMessage). The
    longest lease still counts from the first receive. Otherwise the receive is an ordinary one.
    """
    row = session.row("attempt", key)
    if row is None or not is_repeatable(row[1], now_ms):
        return None
    floor, found = queue.floor(now_ms), []
    for each in _decode(row[0]):
        left: Any = None if each.seq < floor else session.row("ordered_find", queue.partition, each.seq)
        if left is None or left[1] != each.visible_at_ms or left[1] <= now_ms:
            return None
        if left[3:5] != (each.generation, each.epoch):
            return None
        found.append((each, left))
    messages: list[ReceivedMessage] = []
    kept: list[Taken] = []
    for each, left in found:
        stored: Any = session.row("message_row", each.seq)
        message_id, body, encoded, source, before, first_ms = stored
        visible_at_ms = _repeated_until_ms(queue, command, left, encoded, now_ms)
        queue.unhide(left[1], received=True)
        queue.hide(visible_at_ms, received=True)
        session.run("ordered_change", visible_at_ms, each.epoch, queue.partition, left[6], each.seq)
        kept.append(replace(each, visible_at_ms=visible_at_ms))
        receipt = session.book.issue(queue.number, each.seq, each.generation, each.epoch, each.issued_visible_at_ms)
        messages.append(
            ReceivedMessage(
                id=message_id,
                receipt=receipt,
                body=body,
                properties=encoded,
                sent_at_ms=each.seq >> SEQ_SHIFT,
                first_received_at_ms=left[7] if first_ms is None else first_ms,
                receive_count=left[2] + (before or 0),
                visible_at_ms=visible_at_ms,
                priority=FIFO_PRIORITY,
                source=source,
                sequence=each.seq,
            )
        )
    put_attempt(session, key, kept, row[1])
    session.touch(queue)
    refile(session, queue, {left[6] for _, left in found})
    notify(session, queue, now_ms, 1)  # its timeout may be shorter than what was left
    return Received(
        messages=messages,
        next_due_ms=next_due(session, queue, now_ms, next_message_ms),
        receive_wait_s=queue.settings.receive_wait_s,
        smq_base64=queue.settings.smq_base64,
    )


def _repeated_until_ms(queue: Queue, command: commands.Receive, left: Any, encoded: bytes, now_ms: int) -> int:
    timeout_s = queue.settings.visibility_timeout_s if command.timeout_s is None else command.timeout_s
    if command.timeout_s is None and queue.rules is not None:
        timeout_s = queue.rules.timeout_s(encoded, left[2] - 1)  # it is the same receive
    deadline_ms = visibility.deadline_ms(now_ms, timeout_s)
    if command.lease_s_max is None:
        return deadline_ms
    return min(deadline_ms, visibility.lease_end_ms_max(left[5], command.lease_s_max))


# The cursors of groups.


def ready(session: Session, queue: Queue, count: int, now_ms: int) -> list[int]:
    """Return ``count`` groups that may give a message and some more, in the order in which they became able to.

    While messages past their retention are still to be deleted, groups may have no others.
    """
    partition, delay_ms = queue.partition, queue.delay_ms
    count += PASSED_OVER_MAX if now_ms < queue.expires_at_ms else EXPIRED_PASSED_MAX
    fixed = session.rows("groups_fixed", partition, now_ms, count)
    floating = session.rows("groups_floating", partition, (now_ms - delay_ms + 1) << SEQ_SHIFT, count)
    if not fixed:
        return [group for _, group in floating]
    ready = [*fixed, *(((seq >> SEQ_SHIFT) + delay_ms, seq, group) for seq, group in floating)]
    ready.sort()
    return list(dict.fromkeys([group for _, _, group in ready]))


def refile(session: Session, queue: Queue, groups: Iterable[int]) -> None:
    """Find anew from when each of ``groups`` gives its next message; a group without messages loses its cursor."""
    session.flush()
    partition = queue.partition
    put: list[Row] = []
    apart: list[Row] = []
    for group, received_before, own_to, seq, visible_at_ms in session.executemany(
        _FIRST_OF_GROUP, _not_ended(session, partition, groups)
    ):
        if visible_at_ms is None and seq > received_before and seq > own_to:
            put.append((partition, group, None, seq, seq, 0, 0, 0))
        else:
            put.append((partition, group, *_cursor(session, partition, group, received_before, own_to, apart)))
    session.many("ordered_set_apart", apart)
    session.many("put_group_cursor", put)


def _not_ended(session: Session, partition: int, groups: Iterable[int]) -> list[Row]:
    """Delete the cursors of groups without messages; return the keys of the other groups."""
    changes = session.connection.changes
    left: list[Row] = []

    def keys() -> Iterator[Row]:
        for group in groups:
            key = partition, group
            yield key
            if not changes():  # of the statement that has just run with these values: the group goes on
                left.append(key)

    session.executemany(_END_GROUP, keys())
    return left


def _cursor(session: Session, partition: int, group: int, received_before: int, own_to: int, apart: list[Row]) -> Row:
    """Return what the cursor of a group has to say; ``apart`` gets what its messages have to."""
    block_ms, received_to = -1, 0
    fixed_at: int | None = None
    head = 0
    floating: int | None = None
    waiting = 0
    received: list[tuple[int, int, int]] = []
    found = session.execute(_OF_GROUP, (partition, group))
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
        if seq >= received_before and (waiting > PASSED_OVER_MAX or (floating is not None and seq >= own_to)):
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


def next_message_ms(session: Session, queue: Queue, now_ms: int) -> int:
    """Return when the next group gives a message, whatever the in-flight limit says; ``NEVER_MS``: none does."""
    fixed = session.row("group_ends_after", queue.partition, -1, 1)
    floating = session.row("first_floating", queue.partition)
    due_ms = NEVER_MS if fixed is None else int(fixed[0])
    if floating is not None and floating[0] is not None:
        due_ms = min(due_ms, (floating[0] >> SEQ_SHIFT) + queue.delay_ms)
    return max(now_ms, due_ms)


def notify(session: Session, queue: Queue, now_ms: int, times: int) -> None:
    """Tell the watch when the next group gives a message, once for each of ``times`` commands that may free one."""
    if queue.wake is not None:
        due_ms = next_message_ms(session, queue, now_ms)
        if due_ms < NEVER_MS:
            for _ in range(times):
                queue.notify(due_ms)
