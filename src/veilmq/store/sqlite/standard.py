"""Standard queues: send and receive, for all commands of one queue in a batch at once; and what all receives do.

Sends insert all their rows with one statement a table. Receives take what they want together with one SELECT in the
order of visibility, share it out in the order in which they came, and mark it with one UPDATE: a message is never taken
twice by receives that are made together. A receive gives nothing that was sent by a command behind it in the batch
(``Taker.bound``), so a client that pipelines a receive and a send gets the answers of that order.

The ready list: messages that were never received have no row beside their own, but in runs. Messages that are sent
together have seqs that follow each other; those that are visible at once and have no group are one row of ``ready``,
and are taken from the front. A message gets its row in ``visibility`` with its first receive.
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
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue, checked
from veilmq.store.sqlite import fair
from veilmq.store.sqlite.database import SQL
from veilmq.store.sqlite.event_log import KIND
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.transaction import InternalSendOptions

GENERATION_BITS = 32
EXPIRED_PASSED_MAX = 1_000
"""How many expired messages, or groups of them, a receive passes over that are not deleted yet."""

Answers = list[Any]
LATER = object()
"""The answer of a command that the batch has no room for: the next one takes it."""

_ENDS_READ = 1_000  # until the first lease among delays

by_visibility = itemgetter(12, 0)  # of rows that are offered: visible_at and seq

SEES_ALL = 1 << 63


class Taker(Struct, frozen=True, gc=False):
    """A receive of a batch: where its answer goes, and the first seq that it must not see."""

    slot: int
    command: commands.Receive
    bound: int = SEES_ALL


# What receives give, in queues of both kinds.


def rounds(queue: Queue, takers: list[Taker], now_ms: int, answers: Answers) -> list[list[Taker]]:
    """Return which receives are made together; answer those that come too often.

    A receive with a timeout of 0, or rules that may say so, leaves messages visible, for the next one too: it ends a
    round. One with an attempt id, which may repeat an earlier answer, is a round of its own in a FIFO queue.
    """
    rules, throttle = queue.rules, queue.throttle
    own_timeout_s = queue.settings.visibility_timeout_s if rules is None else rules.classes[0].visibility_timeout_s
    found: list[list[Taker]] = []
    goes_on = False
    for taker in takers:
        command = taker.command
        if throttle is not None and command.requested_at_ms is None:
            try:
                throttle.admit(now_ms)
            except VeilmqError as error:
                answers[taker.slot] = error
                continue
        is_alone = command.attempt_id is not None and queue.fifo
        if not goes_on or is_alone:
            found.append([])
        found[-1].append(taker)
        goes_on = bool(own_timeout_s if command.timeout_s is None else command.timeout_s) and not is_alone
    return found


class DeadLetterSink:
    """The dead letters of a receive of one queue: so many, and so many bytes of them (``settling.sink_of``)."""

    def __init__(self, receives_max: int, move: Callable[[list[Row]], object]) -> None:
        self._receives_max = receives_max
        self._move = move
        self._dead: list[Row] = []
        self._bytes_left = limits.DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_over(self) -> bool:
        """Whether no more may be moved in this receive."""
        return len(self._dead) >= limits.DEAD_LETTERS_PER_RECEIVE or self._bytes_left <= 0

    def takes(self, row: Row) -> bool:
        """Tell whether the message of a row as it is offered is a dead letter."""
        if row[2] < self._receives_max:
            return False
        self._dead.append(row)
        self._bytes_left -= len(row[6]) + len(row[7])
        return True

    def move(self) -> None:
        """Move those that were taken to the dead-letter queue."""
        if self._dead:
            self._move(self._dead)


class Giving:
    """The messages that the receives of a round give, in queues of both kinds: leases, answers and totals.

    ``places`` is how many more messages may be in flight, when the round begins.
    """

    def __init__(self, session: Session, queue: Queue) -> None:
        self._session = session
        self._queue = queue
        self.places = self._left = queue.in_flight_max - queue.in_flight
        self._given: list[tuple[int, list[ReceivedMessage], bool]] = []
        self._marks: list[Row] = []
        self._leases: list[Row] = []  # of what is received for the first time from the ready list

    def give(self, takers: list[Taker], shares: list[list[Row]], answers: Answers) -> list[tuple[Row, int]]:
        """Lease the messages of its share to each receive; return all of them with their deadlines.

        Receives that get nothing because the batch has no room for more are left to the next one.
        """
        session, queue, marks, leases = self._session, self._queue, self._marks, self._leases
        given: list[tuple[Row, int]] = []
        is_cut = session.bytes_left <= 0
        for taker, share in zip(takers, shares, strict=True):
            if share:
                self._lease(taker, share, given)
            elif is_cut and taker.command.count and self._left > 0:
                answers[taker.slot] = LATER
                if queue.throttle is not None and taker.command.requested_at_ms is None:
                    queue.throttle.undo()  # the next batch counts it
            else:
                self._given.append((taker.slot, [], self._left <= 0))
        if leases:
            taken = sorted([(row[3], row[2]) for row in leases])
            first, last = dict(reversed(taken)), dict(taken)  # by lane
            runs = [(lane, first[lane], seq) for lane, seq in last.items()]
            cut(session, queue.partition, runs, in_front=session.now_ms < queue.expires_at_ms)
            session.stage(SQL["standard_lease"], leases)
        if marks:
            session.stage(SQL[f"{KIND[queue.fifo]}_mark"], marks)
        if given:
            queue.received += len(given)
            if not queue.dirty:
                session.mark_dirty(queue)
        return given

    def _lease(self, taker: Taker, rows: list[Row], given: list[tuple[Row, int]]) -> None:
        session, queue, now_ms, command = self._session, self._queue, self._session.now_ms, taker.command
        messages: list[ReceivedMessage] = []
        self._given.append((taker.slot, messages, self._left <= 0))
        timeout_s, requested_at_ms, rules = command.timeout_s, command.requested_at_ms, None
        if timeout_s is None:
            timeout_s, rules = queue.settings.visibility_timeout_s, queue.rules
        if requested_at_ms is None:
            requested_at_ms = now_ms
        end_ms = NEVER_MS if command.lease_s_max is None else requested_at_ms + command.lease_s_max * SECOND_MS
        visible_at_ms = min(now_ms + timeout_s * SECOND_MS, end_ms)
        begun = None if queue.log is None else session.events.received(queue, rows, requested_at_ms)
        issue, number, partition, fifo, log = session.book.issue, queue.number, queue.partition, queue.fifo, 0
        for row in rows:
            seq, lane, received, epoch, first_ms, message_id, body, properties, source, before, first, group, _ = row
            if rules is not None:
                timeout_s = rules.timeout_s(routing_key_of(properties, rules.attribute), received)
                visible_at_ms = min(now_ms + timeout_s * SECOND_MS, end_ms)
            generation = getrandbits(GENERATION_BITS) or 1  # 0 is that of what was never received
            if begun is not None:
                log = session.events.remember(begun[seq], visible_at_ms, generation)
            if epoch is None:
                epoch = 0
                self._leases.append((log, partition, seq, lane, visible_at_ms, generation, requested_at_ms, now_ms))
            else:
                self._marks.append((partition, group, seq, log, visible_at_ms, generation, requested_at_ms, now_ms))
            if received:
                queue.redelivered += 1
            messages.append(
                ReceivedMessage(
                    id=message_id,
                    receipt=issue(number, seq, generation, epoch + 1, visible_at_ms),
                    body=body,
                    properties=properties,
                    sent_at_ms=seq >> SEQ_SHIFT,
                    first_received_at_ms=(first_ms or now_ms) if first is None else first,
                    receive_count=received + 1 if before is None else received + 1 + before,
                    visible_at_ms=visible_at_ms,
                    priority=lane if lane <= PRIORITY.maximum else lane - PRIORITY.maximum,
                    sequence=seq if fifo else None,
                    source=source,
                )
            )
            given.append((row, visible_at_ms))
            if visible_at_ms > now_ms:
                queue.in_flight += 1
                if visible_at_ms < queue.hidden_until_ms:
                    queue.hidden_until_ms = visible_at_ms
        self._left -= len(messages)

    def answer(self, answers: Answers) -> None:
        """Put the answers into their places."""
        session, queue, settings = self._session, self._queue, self._queue.settings
        if self._given:
            queue.at_limit = self._given[-1][2]
        next_due_ms: int | None = -1  # not known yet
        for slot, messages, at_limit in self._given:
            due_ms: int | None = session.now_ms
            if queue.wake is not None or not messages:
                if next_due_ms == -1:
                    next_due_ms = next_due(session, queue)
                due_ms = next_due_ms
            answers[slot] = Received(
                messages=messages,
                next_due_ms=due_ms,
                receive_wait_s=settings.receive_wait_s,
                over_limit=at_limit and not messages and not queue.fifo,
                smq_base64=settings.smq_base64,
            )


def next_due(session: Session, queue: Queue) -> int | None:
    """Return the instant from which there is a message to receive; ``None`` when nothing is coming by itself.

    While messages past their retention are still to be deleted, that is now: they may take places, or block groups.
    """
    due_ms = now_ms = session.now_ms
    if now_ms < queue.expires_at_ms:
        if not queue.at_limit or queue.in_flight < queue.in_flight_max:
            due_ms = next_message_ms(session, queue)
        else:  # when the next lease ends, or an instant before that at which to look again
            due_ms = NEVER_MS
            for ends in ends_after(session, queue, now_ms, _ENDS_READ if queue.delayed else 1):
                leases = (end_ms for end_ms, receive_count, *_ in ends if receive_count)
                due_ms = min(due_ms, next(leases, ends[-1][0] if ends else NEVER_MS))
    return None if due_ms >= NEVER_MS else due_ms


def ends_after(session: Session, queue: Queue, at_ms: int, count: int) -> list[list[Row]]:
    """Return the next ``count`` ends of leases and delays behind ``at_ms``, by lane in a standard queue."""
    if queue.fifo:
        return [session.rows("ordered_ends_after", queue.partition, at_ms, count)]
    return [session.rows("standard_ends_after", queue.partition, lane, at_ms, count) for lane in queue.lanes]


def next_message_ms(session: Session, queue: Queue) -> int:
    """Return when the next message is visible, or the next group gives one, whatever the in-flight limit says."""
    now_ms, first_ms = session.now_ms, NEVER_MS
    if queue.fifo:
        for fixed_at_ms, *_ in session.rows("groups_fixed", queue.partition, NEVER_MS, 1):
            first_ms = fixed_at_ms
        for floating_seq, _ in session.rows("groups_floating", queue.partition, SEES_ALL - 1, 1):
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


Sends = list[tuple[int, commands.Send]]
"""The sends of a batch, each behind the place of its answer."""


def send(  # noqa: C901 (a call for each message is time)
    session: Session, queue: Queue, sends: Sends, answers: Answers
) -> list[int]:
    """Store the messages of ``sends``; return the first seq that each of them could use.

    Each answer is a list with a ``SentMessage`` or an error for each message.
    """
    now_ms, seq, next_id = session.now_ms, session.next_seq(), session.ids.next
    partition, delay_ms, size_max, wake = queue.partition, queue.delay_ms, queue.settings.message_bytes_max, queue.wake
    firsts: list[int] = []
    messages: list[Row] = []
    rows: list[Row] = []  # of ``visibility``
    runs: list[list[int]] = []  # of ``ready``
    run: list[int] = [partition, 0, 0, 0]  # lane, last seq, first seq
    due: list[int] = []  # when the first message of each command is visible
    for slot, command in sends:
        firsts.append(seq)
        answer: list[SentMessage | VeilmqError] = []
        answers[slot] = answer
        news: Sequence[Any] = command.messages
        options, due_ms, take_id = command.options, NEVER_MS, next_id
        if options is not None:
            if type(options) is InternalSendOptions:
                take_id = iter(options.ids).__next__
            try:
                news = checked(command.messages, options, queue.settings)
            except VeilmqError as error:
                answers[slot] = error
                continue
        for new in news:
            if options is None:
                if new.size_bytes > size_max:
                    answer.append(MessageTooLong(size_max))
                    continue
            elif isinstance(new, VeilmqError):  # it was checked as it was on the wire
                answer.append(new)
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
                    receipt = session.book.issue(queue.number, seq, 0, 0, visible_at_ms)
            answer.append(SentMessage(message_id, None, receipt))
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
    """Insert messages that are sent to ``queue`` together, the last seq of which is that before ``next_seq``."""
    if messages:
        session.stage(SQL["insert_message"], messages)
        session.last_seq = next_seq - 1
        queue.messages += len(messages)
        queue.sent += len(messages)
        queue.expires_at_ms = min(queue.expires_at_ms, session.now_ms + queue.retention_ms)
        session.mark_dirty(queue)


# Receives.


def receive(session: Session, queue: Queue, takers: list[Taker], answers: Answers, sink: DeadLetterSink | None) -> None:
    """Give messages to the ``takers`` of a round, first come, first served; ``sink`` has dead letters, if any moves."""
    giving = Giving(session, queue)
    shares = choose(session, queue, takers, giving.places, sink)
    given = giving.give(takers, shares, answers)
    if queue.has_groups:
        fair.received(session, queue, given)
    giving.answer(answers)


def choose(
    session: Session, queue: Queue, takers: list[Taker], places: int, sink: DeadLetterSink | None
) -> list[list[Row]]:
    """Return what each receive of a round gets while ``places`` more may be in flight, without what ``sink`` takes.

    So many dead letters, and expired messages, end the search. What a receive must not see may come before what it
    gets, by its priority or as its group is quiet: the next receives get that.
    """
    shares: list[list[Row]] = []
    behind: list[Row] = []  # what was sent behind the receives so far
    bytes_left, passed, is_over = session.bytes_left, 0, False
    floor = queue.floor(session.now_ms) if session.now_ms >= queue.expires_at_ms else 0
    offers = in_order(session, queue) if places > 0 else iter(())
    for taker in takers:
        bound, wanted = taker.bound, min(taker.command.count, places)
        share: list[Row] = []
        if behind:
            share = [row for row in behind if row[0] < bound][:wanted]
            behind = [row for row in behind if row not in share]
        if len(share) < wanted and not is_over:
            for row in offers:
                if row[0] < floor:
                    passed += 1
                elif sink is None or not sink.takes(row):
                    (share if row[0] < bound else behind).append(row)
                    bytes_left -= len(row[6]) + len(row[7]) + BATCH_ROW_BYTES
                is_over = bytes_left <= 0 or passed >= EXPIRED_PASSED_MAX or (sink is not None and sink.is_over)
                if len(share) >= wanted or is_over:
                    break
        places -= len(share)
        shares.append(share)
    del offers  # and with it its cursors
    session.bytes_left = bytes_left
    if sink is not None:
        sink.move()
    return shares


def in_order(session: Session, queue: Queue, sql: Mapping[str, str] = SQL, *, judges: bool = True) -> Iterator[Row]:
    """Return the visible messages in the order of receives, by the statements ``sql``; ``judges`` is for ``fair``."""
    if queue.has_groups:
        return fair.in_order(session, queue, sql, judges=judges)
    return chain.from_iterable(visible(session, queue, lane, -1, sql) for lane in queue.lanes)


# The ready list.


def visible(session: Session, queue: Queue, lane: int, count: int, sql: Mapping[str, str] = SQL) -> Iterator[Row]:
    """Yield the visible messages of a lane in the order of visibility, ``count`` of them or more; -1 for all."""
    now_ms, partition, seq = session.now_ms, queue.partition, queue.floor(session.now_ms)
    # What has returned stands behind a backlog of older messages: one statement gives all that comes before it.
    for row in session.execute(sql["ready_take"], (seq, partition, lane, now_ms, count)):
        yield row
        seq = row[0] + 1
    returned = session.execute(sql["standard_take"], (partition, lane, now_ms, count))
    first = next(returned, None)
    if first is not None:
        waiting = session.execute(sql["ready_take"], (seq, partition, lane, -1, count))
        yield from merge(chain((first,), returned), waiting, key=by_visibility)


def cut(session: Session, partition: int, runs: Iterable[Iterable[int]], *, in_front: bool = False) -> None:
    """Take runs (lane, first and last seq) from the ready list; ``in_front``: they are the first messages of it."""
    runs = sorted(map(tuple, runs), reverse=True)  # what stands before a later one is split off first
    if not in_front:
        session.many("split_ready", [(partition, lane, first) for lane, first, _ in runs])
    session.stage(SQL["cut_ready"], [(partition, *run) for run in runs])
    session.stage(SQL["cut_first_ready"], [(partition, lane, last) for lane, _, last in runs])


def runs_of(rows: Iterable[tuple[Any, int]]) -> list[list[Any]]:
    """Return the runs of messages (a lane or another place, and seq) that follow each other: it, first and last seq."""
    runs: list[list[Any]] = []
    for place, seq in rows:
        if runs and runs[-1][0] == place and runs[-1][2] == seq - 1:
            runs[-1][2] = seq
        else:
            runs.append([place, seq, seq])
    return runs
