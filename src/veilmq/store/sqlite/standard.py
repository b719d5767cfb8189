"""Standard queues: send and receive, for all commands of one queue in a batch at once; and what all receives do.

Sends insert all their rows with one statement a table. Receives take what they want together with one SELECT in the
order of visibility, share it out in the order in which they came, and mark it with one UPDATE: a message is never taken
twice by receives that are made together. A receive gives nothing that was sent by a command behind it in the batch
(``Taker.bound``), so a client that pipelines a receive and a send gets the answers of that order.

The ready list: messages that were never received have no row beside their own, but in runs. Messages that are sent
together have seqs that follow each other; those that are visible at once and have no group are one row of ``ready``,
and are taken from the front. A message gets its row in ``visibility`` with its first receive.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from heapq import merge
from itertools import chain
from operator import itemgetter
from random import getrandbits
from typing import Any, NamedTuple

from veilmq.core import commands
from veilmq.core.commands import NewMessage
from veilmq.core.errors import MessageTooLong, VeilmqError
from veilmq.core.fifo import group_of, id_of
from veilmq.core.limits import (
    BATCH_ROW_BYTES,
    DEAD_LETTER_BYTES_PER_RECEIVE,
    DEAD_LETTERS_PER_RECEIVE,
    PRIORITY,
    SECOND_MS,
)
from veilmq.core.results import Received, ReceivedMessage, SentMessage
from veilmq.core.routing import RoutingTable
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair
from veilmq.store.sqlite.database import SQL
from veilmq.store.sqlite.event_log import Lease
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.transaction import Given

_INSERT_MESSAGE = SQL["insert_message"]
_INSERT = SQL["standard_insert"]
_INSERT_READY = SQL["insert_ready"]
_MARK = SQL["standard_mark"]
_LEASE = SQL["standard_lease"]
_CUT = SQL["cut_ready"]
_CUT_FIRST = SQL["cut_first_ready"]
_LOGGED = {
    SQL[name]: SQL[name].replace("SET log = 0", "SET log = ?").replace("VALUES (0", "VALUES (?")
    for name in ("standard_lease", "standard_mark", "ordered_mark")
}
"""The statements of leases by what they are where nothing is logged."""

GENERATION_BITS = 32
EXPIRED_PASSED_MAX = 1_000
"""How many expired messages, or groups of them, a receive passes over that are not deleted yet."""

Answers = list[Any]
LATER = object()
"""The answer of a command that the batch has no room for: the next one takes it."""

_ENDS_READ = 1_000  # until the first lease among delays

by_visibility = itemgetter(12, 0)  # of rows that are offered: visible_at and seq


class Taker(NamedTuple):
    """A receive of a batch: where its answer goes, and the first seq that it must not see; 1 << 63: it sees all."""

    slot: int
    command: commands.Receive
    bound: int = 1 << 63


# What receives give, in queues of both kinds.


def rounds(queue: Queue, takers: list[Taker], now_ms: int, answers: Answers) -> list[list[Taker]]:
    """Return which receives are made together; answer those that come too often.

    A receive with a timeout of 0 leaves its messages visible, for the next one too: it ends a round. One with an
    attempt id, which may repeat an earlier answer, is a round of its own in a FIFO queue.
    """
    own_timeout_s, throttle = queue.settings.visibility_timeout_s, queue.throttle
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
        if goes_on and not is_alone:
            found[-1].append(taker)
        else:
            found.append([taker])
        goes_on = bool(own_timeout_s if command.timeout_s is None else command.timeout_s) and not is_alone
    return found


def put_off(queue: Queue, taker: Taker, answers: Answers) -> None:
    """Leave a receive to the next batch, which counts it anew."""
    answers[taker.slot] = LATER
    if queue.throttle is not None and taker.command.requested_at_ms is None:
        queue.throttle.take_back()


class DeadLetterSink:
    """Where a receive of one queue sends its dead letters (``settling.sink_of``): so many, and so many bytes of them.

    ``move`` moves rows as receives are offered them; ``target`` is the dead-letter queue.
    """

    def __init__(self, target: Queue, receives_max: int, move: Callable[[list[Row]], object]) -> None:
        self.target = target
        self.move = move
        self._receives_max = receives_max
        self._left = DEAD_LETTERS_PER_RECEIVE
        self._bytes_left = DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_over(self) -> bool:
        """Whether no more may be sent there in this receive."""
        return self._left <= 0 or self._bytes_left <= 0

    def takes(self, row: Row) -> bool:
        """Tell whether the message of a row as it is offered is a dead letter; the caller has it moved."""
        if row[2] < self._receives_max:
            return False
        self._left -= 1
        self._bytes_left -= len(row[6]) + len(row[7])
        return True

    def notify(self, now_ms: int) -> None:
        """Wake the watch of the dead-letter queue if any message was moved there."""
        if self._left < DEAD_LETTERS_PER_RECEIVE:
            self.target.notify(now_ms)


class Giving:
    """The messages that the receives of a round give, in queues of both kinds: leases, answers and totals.

    ``places`` is how many more messages may be in flight, when the round begins.
    """

    def __init__(self, session: Session, queue: Queue, now_ms: int) -> None:
        self._session = session
        self._queue = queue
        self._now_ms = now_ms
        self.places = self._left = queue.in_flight_max - queue.in_flight
        self._issue = session.book.issue
        self._own_timeout_s = queue.settings.visibility_timeout_s
        self._given: list[tuple[int, list[ReceivedMessage], bool]] = []
        self._marks: list[Row] = []
        self._logged: dict[int, Lease] = {}
        self._leases: list[Row] = []  # of what is received for the first time from the ready list

    def give(self, taker: Taker, rows: list[Row]) -> list[int]:
        """Lease the messages of ``rows`` to ``taker``; return their deadlines."""
        queue, now_ms = self._queue, self._now_ms
        slot, command, _ = taker
        at_limit = self._left <= 0
        if not rows:
            self._given.append((slot, [], at_limit))
            return []
        visible_at_ms, requested_at_ms, rules = self._terms(command)
        if queue.log is not None:
            self._logged |= self._session.events.received(queue, rows, requested_at_ms, now_ms)
        issue, number, partition, marks, fifo = self._issue, queue.number, queue.partition, self._marks, queue.fifo
        messages: list[ReceivedMessage] = []
        leases = self._leases
        for row in rows:
            seq, lane, receive_count, epoch, first_ms, message_id, body, properties, source, before, first, group, _ = (
                row
            )
            if rules is not None:
                deadline_ms = now_ms + rules.timeout_s(properties, receive_count) * SECOND_MS
                visible_at_ms = _bounded_ms(command, requested_at_ms, deadline_ms)
            generation = getrandbits(GENERATION_BITS) or 1  # 0 is that of what was never received
            if fifo:
                marks.append((visible_at_ms, generation, requested_at_ms, now_ms, partition, group, seq))
            elif epoch is None:
                epoch = 0
                leases.append((partition, seq, lane, visible_at_ms, generation, requested_at_ms, now_ms))
            else:
                marks.append((visible_at_ms, generation, requested_at_ms, now_ms, partition, seq))
            if receive_count:
                queue.redelivered += 1
            messages.append(
                ReceivedMessage(
                    id=message_id,
                    receipt=issue(number, seq, generation, epoch + 1, visible_at_ms),
                    body=body,
                    properties=properties,
                    sent_at_ms=seq >> SEQ_SHIFT,
                    first_received_at_ms=(first_ms or now_ms) if first is None else first,
                    receive_count=receive_count + 1 if before is None else receive_count + 1 + before,
                    visible_at_ms=visible_at_ms,
                    priority=lane if lane <= PRIORITY.maximum else lane - PRIORITY.maximum,
                    sequence=seq if fifo else None,
                    source=source,
                )
            )
            if visible_at_ms > now_ms:
                queue.in_flight += 1
                if visible_at_ms < queue.hidden_until_ms:
                    queue.hidden_until_ms = visible_at_ms
        self._left -= len(messages)
        self._given.append((slot, messages, at_limit))
        return [message.visible_at_ms for message in messages]

    def _terms(self, command: commands.Receive) -> tuple[int, int, RoutingTable | None]:
        """Return until when a receive hides, when it was requested, and the rules that say it for each message."""
        timeout_s, rules, now_ms = command.timeout_s, None, self._now_ms
        if timeout_s is None:
            timeout_s, rules = self._own_timeout_s, self._queue.rules
        visible_at_ms = now_ms + timeout_s * SECOND_MS
        requested_at_ms, bound_s = command.requested_at_ms, command.lease_s_max
        if requested_at_ms is None:
            requested_at_ms = now_ms
        if bound_s is not None and (requested_at_ms < now_ms or timeout_s > bound_s):
            visible_at_ms = _bounded_ms(command, requested_at_ms, visible_at_ms)
        return visible_at_ms, requested_at_ms, rules

    def mark(self, query: str) -> None:
        """Write the leases."""
        session, queue, marks, leases = self._session, self._queue, self._marks, self._leases
        lease = _LEASE
        if leases:
            cut(session, queue, [(row[2], row[1]) for row in leases], self._now_ms)
        if queue.log is not None:
            query, lease, logged, remember = _LOGGED[query], _LOGGED[lease], self._logged, session.events.remember
            marks = [(remember(logged[row[-1]], row[0], row[1]), *row) for row in marks]
            leases = [(remember(logged[row[1]], row[3], row[4]), *row) for row in leases]
        if marks:
            session.stage(query, marks)
        if leases:
            session.stage(lease, leases)
        if marks or leases:
            queue.received += len(marks) + len(leases)
            if not queue.touched:
                session.touch(queue)

    def answer(self, answers: Answers, next_message_ms: Callable[[Session, Queue, int], int]) -> None:
        """Put the answers into their places; ``next_message_ms`` is that of ``next_due``."""
        queue, settings, now_ms = self._queue, self._queue.settings, self._now_ms
        watched = queue.wake is not None
        if self._given:
            queue.at_limit = self._given[-1][2]
        next_due_ms: int | None = -1  # not known yet
        for slot, messages, at_limit in self._given:
            due_ms: int | None = now_ms
            if watched or not messages:
                if next_due_ms == -1:
                    next_due_ms = next_due(self._session, queue, now_ms, next_message_ms)
                due_ms = next_due_ms
            answers[slot] = Received(
                messages=messages,
                next_due_ms=due_ms,
                receive_wait_s=settings.receive_wait_s,
                over_limit=at_limit and not messages and not queue.fifo,
                smq_base64=settings.smq_base64,
            )


def _bounded_ms(command: commands.Receive, requested_at_ms: int, deadline_ms: int) -> int:
    """Return a deadline, or the end of the longest lease that a receive may give."""
    bound_s = command.lease_s_max
    return deadline_ms if bound_s is None else min(deadline_ms, requested_at_ms + bound_s * SECOND_MS)


def next_due(
    session: Session, queue: Queue, now_ms: int, next_message_ms: Callable[[Session, Queue, int], int]
) -> int | None:
    """Return the instant from which there is a message to receive; ``None`` when nothing is coming by itself.

    ``next_message_ms`` says it whatever the in-flight limit is. While messages past their retention are still to be
    deleted, that is now: they may take places, or block groups.
    """
    if now_ms >= queue.expires_at_ms:
        return now_ms
    if queue.at_limit and queue.in_flight >= queue.in_flight_max:
        due_ms = _next_place_ms(session, queue, now_ms)
    else:
        due_ms = next_message_ms(session, queue, now_ms)
    return None if due_ms >= NEVER_MS else due_ms


def _next_place_ms(session: Session, queue: Queue, now_ms: int) -> int:
    """Return when the next lease ends, or an instant before that at which to look again."""
    asks: list[tuple[str, tuple[int, ...]]] = [("standard_ends_after", (lane,)) for lane in queue.lanes]
    if queue.fifo:
        asks = [("ordered_ends_after", ()), ("group_ends_after", ())]
    first_ms = NEVER_MS
    for query, lane in asks:
        ends = session.rows(query, queue.partition, *lane, now_ms, _ENDS_READ)
        leases = (end_ms for end_ms, receive_count in ends if receive_count)
        first_ms = min(first_ms, next(leases, ends[-1][0] if ends else NEVER_MS))
    return first_ms


# Sends.


def send(
    session: Session, queue: Queue, sends: list[tuple[int, commands.Send]], now_ms: int, answers: Answers
) -> list[int]:
    """Store the messages of ``sends``; return the first seq that each of them could use.

    Each answer is a list with a ``SentMessage`` or an error for each message, or the error of the command.
    """
    first = session.next_seq(now_ms)
    made: _Made = ([], [], [])
    messages, rows, runs = made
    firsts: list[int] = []
    due: list[int] = []
    for slot, command in sends:
        firsts.append(first + len(messages))
        try:
            answers[slot], due_ms = _add(session, queue, command, first, now_ms, made)
        except VeilmqError as error:
            answers[slot] = error
            continue
        if due_ms is not None:
            due.append(due_ms)
    if messages:
        session.stage(_INSERT_MESSAGE, messages)
        if runs:
            session.stage(_INSERT_READY, [tuple(run) for run in runs])
        if rows:
            session.stage(_INSERT, rows)
            if queue.shares:
                fair.admit(session, rows)
        session.last_seq = first + len(messages) - 1
        queue.add_sent(len(messages), now_ms)
        session.touch(queue)
        wake = queue.wake
        if wake is not None:
            for due_ms in due:
                wake(due_ms)
    return firsts


_Made = tuple[list[Row], list[Row], list[list[int]]]
"""Rows of ``message``, of ``visibility``, and of ``ready``."""


def _add(
    session: Session, queue: Queue, command: commands.Send, first: int, now_ms: int, made: _Made
) -> tuple[list[SentMessage | VeilmqError], int | None]:
    """Add the rows of one command to ``made``; return its answer, and when the first of its messages is visible."""
    messages, rows, runs = made
    terms, partition, size_max = command.terms, queue.partition, queue.settings.message_bytes_max
    next_id = session.ids.next if type(terms) is not Given else iter(terms.ids).__next__
    queue_visible_at_ms = now_ms + queue.delay_ms
    seq = first + len(messages)
    answer: list[SentMessage | VeilmqError] = []
    due_ms: int | None = None
    for new in command.messages if terms is None else checked(queue, command.messages, terms):
        if isinstance(new, VeilmqError):
            answer.append(new)
            continue
        if terms is None and new.size_bytes > size_max:  # else it was checked as it was on the wire
            answer.append(MessageTooLong(size_max))
            continue
        visible_at_ms = queue_visible_at_ms if new.delay_s is None else now_ms + new.delay_s * SECOND_MS
        lane, group = new.priority, None
        if new.group is not None:
            lane, group = fair.sent(session, queue, new.group, lane, now_ms)
        if lane not in queue.lanes:
            queue.lanes = tuple(sorted({*queue.lanes, lane}))
        message_id = next_id()
        messages.append((seq, group, message_id, new.properties, new.body))
        if group is not None or visible_at_ms > now_ms:
            rows.append((partition, seq, lane, visible_at_ms, group))
        elif runs and runs[-1][2] == seq - 1 and runs[-1][1] == lane:
            runs[-1][2] = seq
        else:
            runs.append([partition, lane, seq, seq])
        receipt = None
        if visible_at_ms > now_ms:
            queue.hide(visible_at_ms, received=False)
            if terms is not None and terms.receipts:
                receipt = session.book.issue(queue.number, seq, 0, 0, visible_at_ms)
        answer.append(SentMessage(id=message_id, receipt=receipt))
        seq += 1
        if due_ms is None or visible_at_ms < due_ms:
            due_ms = visible_at_ms
    return answer, due_ms


def checked(
    queue: Queue, messages: tuple[NewMessage, ...], terms: commands.SendTerms
) -> list[NewMessage | VeilmqError]:
    """Return what is to be stored of each message, or its error in its place; raises it where all go together."""
    settings = queue.settings
    decode = terms.decode if settings.smq_base64 else None
    found: list[NewMessage | VeilmqError] = []
    for new in messages:
        try:
            if new.size_bytes > settings.message_bytes_max:
                raise MessageTooLong(settings.message_bytes_max)
            if settings.fifo:
                group_of(new, settings)
                if not terms.unrepeated:
                    id_of(new, settings)
            found.append(new if decode is None else decode(new))
        except VeilmqError as error:
            if terms.together:
                raise
            found.append(error)
    return found


# Receives.


def receive(
    session: Session, queue: Queue, takers: list[Taker], now_ms: int, answers: Answers, sink: DeadLetterSink | None
) -> None:
    """Give messages to the ``takers`` of a round, first come, first served; ``sink`` has dead letters, if any moves."""
    giving = Giving(session, queue, now_ms)
    wanted = 0
    for taker in takers:
        wanted += taker.command.count
    wanted = min(wanted, giving.places)
    rows = offered(session, queue, wanted, now_ms, sink) if wanted > 0 else []
    start, left = 0, giving.places
    for taker in takers:
        count = min(taker.command.count, left)
        mine = rows[start : start + count]
        if mine and mine[-1][0] >= taker.bound:  # sent behind this receive: the next one's
            mine = [row for row in rows[start:] if row[0] < taker.bound][:count]
            seqs = {row[0] for row in mine}
            rows, start = [row for row in rows[start:] if row[0] not in seqs], 0
        else:
            start += len(mine)
        if not mine and count > 0 and session.bytes_left <= 0:
            put_off(queue, taker, answers)
            continue
        left -= len(mine)
        deadlines = giving.give(taker, mine)
        if queue.shares:
            fair.received(session, queue, mine, deadlines, now_ms)
    giving.mark(_MARK)
    if queue.shares:
        fair.taken(session, queue, now_ms)
    giving.answer(answers, next_message_ms)
    if sink is not None:
        sink.notify(now_ms)


def offered(session: Session, queue: Queue, wanted: int, now_ms: int, sink: DeadLetterSink | None) -> list[Row]:
    """Return up to ``wanted`` messages to give, in order: without what ``sink`` takes and what has expired."""
    if queue.shares or sink is not None or now_ms >= queue.expires_at_ms:
        return _sifted(session, queue, wanted, now_ms, sink)
    rows: list[Row] = []
    bytes_left = session.bytes_left
    for lane in queue.lanes:
        left = wanted - len(rows)
        for row in visible(session, queue, lane, left, now_ms):
            rows.append(row)
            left -= 1
            bytes_left -= len(row[6]) + len(row[7]) + BATCH_ROW_BYTES
            if left <= 0 or bytes_left <= 0:
                break
        if len(rows) >= wanted or bytes_left <= 0:
            break
    session.bytes_left = bytes_left
    return rows


def _sifted(session: Session, queue: Queue, wanted: int, now_ms: int, sink: DeadLetterSink | None) -> list[Row]:
    """Return the same where each row has to be looked at; so many dead letters, and expired ones, end the search."""
    rows: list[Row] = []
    dead: list[Row] = []
    floor, passed = queue.floor(now_ms), 0
    offers = in_order(session, queue, now_ms)
    for row in offers:
        if row[0] < floor:
            passed += 1
        elif sink is not None and sink.takes(row):
            dead.append(row)
        else:
            rows.append(row)
            session.bytes_left -= len(row[6]) + len(row[7]) + BATCH_ROW_BYTES
        if len(rows) >= wanted or session.bytes_left <= 0 or passed >= EXPIRED_PASSED_MAX:
            break
        if sink is not None and sink.is_over:
            break
    offers.close()  # and with it its cursors
    if queue.shares:
        fair.touch(session, queue, chain(rows, dead))
    if dead:
        assert sink is not None
        sink.move(dead)
    return rows


def in_order(
    session: Session, queue: Queue, now_ms: int, sql: Mapping[str, str] = SQL, *, judges: bool = True
) -> Generator[Row, None, None]:
    """Yield the visible messages in the order of receives, by the statements ``sql``; ``judges`` is for ``fair``."""
    if queue.shares:
        yield from fair.in_order(session, queue, now_ms, sql, judges=judges)
    else:
        for lane in queue.lanes:
            yield from visible(session, queue, lane, -1, now_ms, sql)


def next_message_ms(session: Session, queue: Queue, now_ms: int) -> int:
    """Return when the next message is visible, whatever the in-flight limit says; ``NEVER_MS``: none is coming."""
    first_ms = NEVER_MS
    for lane in queue.lanes:
        if session.row("ready_first", queue.partition, lane) is not None:
            return now_ms
        row = session.row("standard_ends_after", queue.partition, lane, -1, 1)
        if row is not None and row[0] < first_ms:
            first_ms = row[0]
            if first_ms <= now_ms:
                return now_ms
    return first_ms


# The ready list.


def visible(
    session: Session, queue: Queue, lane: int, count: int, now_ms: int, sql: Mapping[str, str] = SQL
) -> Iterator[Row]:
    """Yield the visible messages of a lane in the order of visibility, ``count`` of them or more; -1 for all.

    Mostly the ready list has some and no message has returned, which one statement finds out.
    """
    alone = session.execute(sql["ready_take_alone"], (queue.floor(now_ms), queue.partition, lane, now_ms, count))
    first = next(alone, None)
    if first is not None:
        return chain((first,), alone)
    returned = session.execute(sql["standard_take"], (queue.partition, lane, now_ms, count))
    first = next(returned, None)
    if first is None:
        return returned
    waiting = waiting_in(session, queue, lane, count, now_ms, sql)
    return merge(chain((first,), returned), waiting, key=by_visibility)


def waiting_in(
    session: Session, queue: Queue, lane: int, count: int, now_ms: int, sql: Mapping[str, str] = SQL
) -> Iterator[Row]:
    """Yield the messages of the ready list alone, without what has passed its retention."""
    return session.execute(sql["ready_take"], (queue.floor(now_ms), queue.partition, lane, count))


def cut(session: Session, queue: Queue, rows: list[tuple[int, int]], now_ms: int) -> None:
    """Take messages (lane and seq), which are the first of their lanes, from the ready list."""
    partition = queue.partition
    spans: dict[int, list[int]] = {}
    for lane, seq in rows:
        span = spans.get(lane)
        if span is None:
            spans[lane] = [seq, seq]
        elif seq > span[1]:
            span[1] = seq
        elif seq < span[0]:
            span[0] = seq
    if now_ms >= queue.expires_at_ms:  # before the first one there may be some that are past their retention
        session.many("split_ready", [(partition, lane, first) for lane, (first, _) in spans.items()])
    session.stage(_CUT, [(partition, lane, first, last) for lane, (first, last) in spans.items()])
    session.stage(_CUT_FIRST, [(partition, lane, last) for lane, (_, last) in spans.items()])


def take(session: Session, queue: Queue, rows: list[tuple[int, int]]) -> None:
    """Take messages (lane and seq) from the ready list, wherever they are."""
    spans: list[list[int]] = []
    for lane, seq in sorted(rows):
        if spans and spans[-1][::2] == [lane, seq - 1]:
            spans[-1][2] = seq
        else:
            spans.append([lane, seq, seq])
    for lane, first, last in spans:
        session.run("split_ready", queue.partition, lane, first)
        session.run("cut_ready", queue.partition, lane, first, last)
        session.run("cut_first_ready", queue.partition, lane, last)
