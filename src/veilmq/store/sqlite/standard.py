"""Standard queues: send and receive, for all commands of one queue in a batch; and what receives of both kinds share.

Sends insert all their rows with one statement per table. Receives select all their messages together, in order of
visibility, distribute them in the order of the receives, and lease them with one UPDATE, so receives of one batch never
get the same message. A receive does not see messages that a later command of the batch sends
(``ReceiveRequest.end_seq``), so a client that pipelines a receive and a send gets the results of that order.

The ready list: a message that was never received has no row in ``visibility``. Messages sent together have consecutive
seqs; a run of them that is visible at once and has no groups is one row of ``ready``, and is consumed from the front.
The first receive of a message creates its row in ``visibility``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain
from operator import itemgetter
from random import getrandbits
from typing import Any

from msgspec import Struct

from veilmq.core import commands, limits
from veilmq.core.commands import Received, ReceivedMessage, SentMessage
from veilmq.core.errors import MessageTooLong, VeilmqError
from veilmq.core.limits import BATCH_ROW_BYTES, PRIORITY, SECOND_MS
from veilmq.core.messages import routing_key_of
from veilmq.store.events import log_placed
from veilmq.store.sqlite import fair
from veilmq.store.sqlite.database import SQL
from veilmq.store.sqlite.queues import SEQ_MAX, Queue
from veilmq.store.sqlite.session import BODY, PROPERTIES, RECEIVE_COUNT, SEQ, VISIBLE_AT, Row, Session
from veilmq.store.transaction import NEVER_MS, SEQ_SHIFT, checked

GENERATION_BITS = 32
EXPIRED_SKIPPED_MAX = 1_000  # the most expired messages (of a FIFO queue: groups) that one receive skips

Results = list[Any]
Replies = list[tuple[int, list[ReceivedMessage], bool]]  # slots, messages, and whether the in-flight limit was reached
DEFERRED = object()  # the result of a command that the next batch applies, because this one is full

_ENDS_READ = 1_000  # ends of delays and leases to read, in search of the first lease

by_visibility = itemgetter(VISIBLE_AT, SEQ)

SEQ_END = SEQ_MAX + 1


class ReceiveRequest(Struct, frozen=True, gc=False):
    """A receive of a batch: the slot of its result, and the first seq that it must not see."""

    slot: int
    command: commands.Receive
    end_seq: int = SEQ_END


# Delivery, in queues of both kinds.


def split_receives(
    queue: Queue, requests: list[ReceiveRequest], now_ms: int, results: Results
) -> list[list[ReceiveRequest]]:
    """Split receives into groups that are applied together; refuse those over the rate limit.

    A receive with a timeout of 0, possibly by rules, leaves its messages visible to the next one, so it ends a group. A
    receive with an attempt id, which may repeat an earlier result, is alone in a FIFO queue.
    """
    rules, throttle = queue.rules, queue.throttle
    default_timeout_s = queue.settings.visibility_timeout_s if rules is None else rules.classes[0].visibility_timeout_s
    found: list[list[ReceiveRequest]] = []
    joins = False
    for request in requests:
        command = request.command
        if throttle is not None and command.requested_at_ms is None:
            try:
                throttle.admit(now_ms)
            except VeilmqError as error:
                results[request.slot] = error
                continue
        is_alone = command.attempt_id is not None and queue.fifo
        if not joins or is_alone:
            found.append([])
        found[-1].append(request)
        joins = bool(default_timeout_s if command.timeout_s is None else command.timeout_s) and not is_alone
    return found


class DeadLetterSink:
    """Collect the dead letters of a receive, up to a number and a size, and move them."""

    def __init__(self, receives_max: int, move: Callable[[list[Row]], object]) -> None:
        self._receives_max = receives_max
        self._move = move
        self._dead: list[Row] = []
        self._bytes_left = limits.DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_full(self) -> bool:
        return len(self._dead) >= limits.DEAD_LETTERS_PER_RECEIVE or self._bytes_left <= 0

    def accept(self, row: Row) -> bool:
        """Take the message if it is a dead letter; return whether it is."""
        if row[RECEIVE_COUNT] < self._receives_max:
            return False
        self._dead.append(row)
        self._bytes_left -= len(row[BODY]) + len(row[PROPERTIES])
        return True

    def move(self) -> None:
        """Move the collected messages to the dead-letter queue."""
        if self._dead:
            self._move(self._dead)


def lease(
    session: Session, queue: Queue, requests: list[ReceiveRequest], shares: list[list[Row]], results: Results
) -> tuple[list[tuple[Row, int]], Replies]:
    """Lease the messages of each share to its receive; return all rows with their deadlines, and the replies.

    Receives that get nothing because the batch is full are deferred to the next one.
    """
    now_ms, issue, number, fifo = session.now_ms, session.codec.issue, queue.number, queue.fifo
    leased: list[tuple[Row, int]] = []
    replies: Replies = []
    row_leases: list[Row] = []  # of messages that have a row
    ready_leases: list[tuple[Row, int]] = []  # of messages from the ready list: lane and lease, seq
    is_cut, capacity = session.read_bytes_left <= 0, queue.in_flight_max - queue.in_flight
    generation = getrandbits(GENERATION_BITS) or 1  # 0: never received. One for all, as they share no message
    for request, rows in zip(requests, shares, strict=True):
        command = request.command
        if is_cut and not rows and command.count and capacity > 0:
            results[request.slot] = DEFERRED
            if queue.throttle is not None and command.requested_at_ms is None:
                queue.throttle.undo()  # the next batch counts it
            continue
        messages: list[ReceivedMessage] = []
        replies.append((request.slot, messages, capacity <= 0))
        if not rows:
            continue
        timeout_s, requested_at_ms, rules = command.timeout_s, command.requested_at_ms, None
        if timeout_s is None:
            timeout_s, rules = queue.settings.visibility_timeout_s, queue.rules
        if requested_at_ms is None:
            requested_at_ms = now_ms
        end_ms = NEVER_MS if command.lease_s_max is None else requested_at_ms + command.lease_s_max * SECOND_MS
        visible_at_ms = min(now_ms + timeout_s * SECOND_MS, end_ms)
        first_log = log = 0 if queue.log is None else session.events.received(queue, rows, requested_at_ms)
        for row in rows:
            # ``here_ms`` and ``before_ms``: the first receive in this queue, and before it was moved
            seq, lane, received, epoch, here_ms, message_id, body, properties, source, before, before_ms, group, _ = row
            if rules is not None:
                timeout_s = rules.timeout_s(routing_key_of(properties, rules.attribute), received)
                visible_at_ms = min(now_ms + timeout_s * SECOND_MS, end_ms)
            if first_log:
                log = log_placed(first_log, len(messages))
            if epoch is None:
                epoch = 0
                ready_leases.append(((lane, visible_at_ms, generation, requested_at_ms, log), seq))
            else:
                row_leases.append(
                    (queue.partition, group, seq, log, visible_at_ms, generation, requested_at_ms, now_ms)
                )
            messages.append(
                ReceivedMessage(
                    id=message_id,
                    receipt=issue(number, seq, generation, epoch + 1, visible_at_ms),
                    body=body,
                    properties=properties,
                    sent_at_ms=seq >> SEQ_SHIFT,
                    first_received_at_ms=(here_ms or now_ms) if before_ms is None else before_ms,
                    receive_count=received + 1 if before is None else received + 1 + before,
                    visible_at_ms=visible_at_ms,
                    priority=lane if lane <= PRIORITY.maximum else lane - PRIORITY.maximum,
                    sequence=seq if fifo else None,
                    source=source,
                )
            )
            leased.append((row, visible_at_ms))
        capacity -= len(messages)
    if leased:
        hidden_until_ms = [at_ms for _, at_ms in leased if at_ms > now_ms]
        queue.in_flight += len(hidden_until_ms)
        queue.hidden_until_ms = min([queue.hidden_until_ms, *hidden_until_ms])
        queue.received += len(leased)
        queue.redelivered += sum([row[RECEIVE_COUNT] > 0 for row, _ in leased])
        session.dirty.add(queue)
        _write_leases(session, queue, row_leases, ready_leases)
    return leased, replies


def _write_leases(session: Session, queue: Queue, row_leases: list[Row], ready_leases: list[tuple[Row, int]]) -> None:
    if ready_leases:
        runs = to_runs(sorted(ready_leases))  # as each row costs a statement
        first = dict(sorted([(lease[0], seq) for lease, seq, _ in runs], reverse=True))  # by lane
        last = dict(sorted([(lease[0], seq) for lease, _, seq in runs]))
        taken = [(lane, first[lane], seq) for lane, seq in last.items()]
        remove_runs(session, queue.partition, taken, at_front=session.now_ms < queue.expires_at_ms)
        session.stage(SQL["lease_ready"], [(queue.partition, session.now_ms, *run, *lease) for lease, *run in runs])
    if row_leases:
        session.stage(SQL[f"{queue.kind}_lease"], row_leases)


def reply(session: Session, queue: Queue, replies: Replies, results: Results) -> None:
    """Store the results of receives in their slots, once the leases are written."""
    settings = queue.settings
    if replies:
        queue.at_limit = replies[-1][2]
    next_due_ms: int | None = -1  # not known yet
    for slot, messages, at_limit in replies:
        due_ms: int | None = session.now_ms
        if queue.wake is not None or not messages:
            if next_due_ms == -1:
                next_due_ms = next_due(session, queue)
            due_ms = next_due_ms
        results[slot] = Received(
            messages=messages,
            next_due_ms=due_ms,
            receive_wait_s=settings.receive_wait_s,
            over_limit=at_limit and not messages and not queue.fifo,
            smq_base64=settings.smq_base64,
        )


def next_due(session: Session, queue: Queue) -> int | None:
    """Return when a message can be received; ``None`` if at no known time.

    That is now if expired messages, not deleted yet, may use capacity or block groups.
    """
    due_ms = now_ms = session.now_ms
    if now_ms < queue.expires_at_ms:
        if not queue.at_limit or queue.in_flight < queue.in_flight_max:
            due_ms = next_message_ms(session, queue)
        else:  # the end of the next lease or of retention, or an earlier instant to check again
            due_ms = queue.expires_at_ms
            for ends in ends_after(session, queue, now_ms, _ENDS_READ if queue.delayed else 1):
                leases = (end_ms for end_ms, receive_count, *_ in ends if receive_count)
                due_ms = min(due_ms, next(leases, ends[-1][0] if ends else NEVER_MS))
    return None if due_ms >= NEVER_MS else due_ms


def ends_after(session: Session, queue: Queue, at_ms: int, count: int) -> list[list[Row]]:
    """Return the next ``count`` ends of leases and delays after ``at_ms``; of a standard queue, by lane."""
    if queue.fifo:
        return [session.rows("ordered_ends_after", queue.partition, at_ms, count)]
    return [session.rows("standard_ends_after", queue.partition, lane, at_ms, count) for lane in queue.lanes]


def next_message_ms(session: Session, queue: Queue) -> int:
    """Return when the next message becomes visible, or the next group available, regardless of the in-flight limit."""
    now_ms, first_ms = session.now_ms, NEVER_MS
    if queue.fifo:
        if queue.in_flight:  # retention may unblock a group
            first_ms = queue.expires_at_ms
        for fixed_at_ms, *_ in session.rows("groups_fixed", queue.partition, NEVER_MS, 1):
            first_ms = min(first_ms, fixed_at_ms)
        for floating_seq, _ in session.rows("groups_floating", queue.partition, SEQ_MAX, 1):
            first_ms = min(first_ms, (floating_seq >> SEQ_SHIFT) + queue.delay_ms)
        return max(now_ms, first_ms)
    for lane in queue.lanes:
        if session.row("ready_runs", queue.partition, lane, 0, 1) is not None:
            return now_ms
        row = session.row("standard_ends_after", queue.partition, lane, -1, 1)
        if row is not None and row[0] < first_ms:
            first_ms = row[0]
            if first_ms <= now_ms:
                return now_ms
    return first_ms


# Sends.


Sends = list[tuple[int, commands.Send]]  # the sends of a batch, each with the slot of its result
NextId = Callable[[], bytes]  # returns the id of the next message


def send(  # noqa: C901 (a call per message costs time)
    session: Session, queue: Queue, sends: Sends, results: Results, next_id: NextId | None = None
) -> list[int]:
    """Store messages; each result lists ids and errors. Return the first seq that each command could use."""
    now_ms, seq, take_id = session.now_ms, session.next_seq(), next_id or session.ids.next
    partition, delay_ms, size_max, wake = queue.partition, queue.delay_ms, queue.settings.message_bytes_max, queue.wake
    firsts: list[int] = []
    messages: list[Row] = []
    rows: list[Row] = []  # for ``visibility``
    runs: list[list[int]] = []  # for ``ready``
    run: list[int] = [partition, 0, 0, 0]  # lane, last seq, first seq
    due: list[int] = []  # when the first message of each command becomes visible
    for slot, command in sends:
        firsts.append(seq)
        result: list[SentMessage | VeilmqError] = []
        results[slot] = result
        new_messages: Sequence[Any] = command.messages
        options, due_ms = command.options, NEVER_MS
        if options is not None:
            try:
                new_messages = checked(command.messages, options, queue.settings)
            except VeilmqError as error:
                results[slot] = error
                continue
        for new in new_messages:
            if options is None:
                if new.size_bytes > size_max:
                    result.append(MessageTooLong(size_max))
                    continue
            elif isinstance(new, VeilmqError):
                result.append(new)
                continue
            visible_at_ms = now_ms + (delay_ms if new.delay_s is None else new.delay_s * SECOND_MS)
            lane, group, receipt = new.priority, None, None
            if new.group is not None:
                lane, group = fair.sent(session, queue, new.group, lane)
            if lane not in queue.lanes:
                queue.lanes = tuple(sorted({*queue.lanes, lane}))
            message_id = take_id()
            messages.append((seq, group, message_id, new.properties, new.body))
            if group is not None or visible_at_ms > now_ms:
                rows.append((partition, seq, lane, visible_at_ms, group))
            elif run[2] == seq - 1 and run[1] == lane:
                run[2] = seq
            else:
                run = [partition, lane, seq, seq]
                runs.append(run)
            if visible_at_ms > now_ms:
                queue.add_hidden(visible_at_ms, received=False)
                if options is not None and options.receipts:
                    receipt = session.codec.issue(queue.number, seq, 0, 0, visible_at_ms)
            result.append(SentMessage(message_id, None, receipt))
            seq += 1
            if visible_at_ms < due_ms:
                due_ms = visible_at_ms
        if due_ms < NEVER_MS:
            due.append(due_ms)
    insert(session, queue, messages, seq)
    if runs:
        session.stage(SQL["insert_ready"], [tuple(run) for run in runs])
    if rows:
        session.stage(SQL["standard_insert"], rows)
        if queue.has_groups:
            arrived = [(where, lane, group, at_ms, seq) for where, seq, lane, at_ms, group in rows if group is not None]
            session.stage(SQL["admit_fair_group"], arrived)
    if wake is not None:
        for due_ms in due:
            wake(due_ms)
    return firsts


def insert(session: Session, queue: Queue, messages: list[Row], next_seq: int) -> None:
    """Insert messages sent to ``queue`` together; their last seq is ``next_seq - 1``."""
    if messages:
        session.stage(SQL["insert_message"], messages)
        session.last_seq = next_seq - 1
        queue.messages += len(messages)
        queue.sent += len(messages)
        queue.expires_at_ms = min(queue.expires_at_ms, session.now_ms + queue.retention_ms)
        session.dirty.add(queue)


# Receives.


def receive(
    session: Session, queue: Queue, requests: list[ReceiveRequest], results: Results, sink: DeadLetterSink | None
) -> None:
    """Deliver messages to the ``requests`` of a group, in order; ``sink`` takes dead letters, if any are moved."""
    shares = distribute(session, queue, requests, queue.in_flight_max - queue.in_flight, sink)
    leased, replies = lease(session, queue, requests, shares, results)
    if queue.has_groups:
        fair.received(session, queue, leased)
    reply(session, queue, replies, results)


def distribute(
    session: Session, queue: Queue, requests: list[ReceiveRequest], capacity: int, sink: DeadLetterSink | None
) -> list[list[Row]]:
    """Return the share of each receive, at most ``capacity`` in all, without messages that ``sink`` accepts.

    A full sink and the limit of expired messages end the search. Messages that a receive must not see may precede its
    own, by priority or because their group is quiet; the following receives get them.
    """
    shares: list[list[Row]] = []
    unseen: list[Row] = []  # sent after the receives so far
    bytes_left, skipped, ends = session.read_bytes_left, 0, session.read_bytes_left <= 0
    floor = queue.floor(session.now_ms) if session.now_ms >= queue.expires_at_ms else 0
    candidates = in_order(session, queue) if capacity > 0 else iter(())
    for request in requests:
        end_seq, wanted = request.end_seq, min(request.command.count, capacity)
        share: list[Row] = []
        if unseen:
            share = [row for row in unseen if row[SEQ] < end_seq][:wanted]
            unseen = [row for row in unseen if row not in share]
        if len(share) < wanted and not ends:
            for row in candidates:
                if row[SEQ] < floor:
                    skipped += 1
                elif sink is None or not sink.accept(row):
                    (share if row[SEQ] < end_seq else unseen).append(row)
                    bytes_left -= len(row[BODY]) + len(row[PROPERTIES]) + BATCH_ROW_BYTES
                ends = bytes_left <= 0 or skipped >= EXPIRED_SKIPPED_MAX or (sink is not None and sink.is_full)
                if len(share) >= wanted or ends:
                    break
        capacity -= len(share)
        shares.append(share)
    del candidates  # closes its cursors
    session.read_bytes_left = bytes_left
    if sink is not None:
        sink.move()
    return shares


def in_order(session: Session, queue: Queue, sql: Mapping[str, str] = SQL, *, mark_noisy: bool = True) -> Iterator[Row]:
    """Return the visible messages in receive order, using the statements ``sql``; for ``mark_noisy`` see ``fair``."""
    if queue.has_groups:
        return fair.in_order(session, queue, sql, mark_noisy=mark_noisy)
    return chain.from_iterable(visible(session, queue, lane, -1, sql) for lane in queue.lanes)


# The ready list.


def visible(session: Session, queue: Queue, lane: int, count: int, sql: Mapping[str, str] = SQL) -> Iterator[Row]:
    """Yield the visible messages of a lane in order of visibility, at least ``count`` if there are; -1: all."""
    now_ms, partition, seq = session.now_ms, queue.partition, queue.floor(session.now_ms)
    # One statement reads the backlog of older messages up to the first returned one.
    for row in session.execute(sql["ready_take"], (seq, partition, lane, now_ms, count)):
        yield row
        seq = row[0] + 1
    returned = session.execute(sql["standard_take"], (partition, lane, now_ms, count))
    first = next(returned, None)
    if first is not None:
        waiting = session.execute(sql["ready_take"], (seq, partition, lane, -1, count))
        yield from merge(chain((first,), returned), waiting, key=by_visibility)


def remove_runs(session: Session, partition: int, runs: Iterable[Iterable[int]], *, at_front: bool = False) -> None:
    """Remove runs (lane, first and last seq) from the ready list; ``at_front``: they are its first messages."""
    runs = sorted(map(tuple, runs), reverse=True)  # splits off what precedes the later runs first
    if not at_front:
        session.run_many("split_ready", [(partition, lane, first) for lane, first, _ in runs])
    session.stage(SQL["remove_ready_runs"], [(partition, *run) for run in runs])
    session.stage(SQL["shorten_ready_run"], [(partition, lane, last) for lane, _, last in runs])


def to_runs(rows: Iterable[tuple[Any, int]]) -> list[list[Any]]:
    """Group (key, seq) pairs with equal keys and consecutive seqs into runs: key, first and last seq."""
    runs: list[list[Any]] = []
    for place, seq in rows:
        if runs and runs[-1][0] == place and runs[-1][2] == seq - 1:
            runs[-1][2] = seq
        else:
            runs.append([place, seq, seq])
    return runs
