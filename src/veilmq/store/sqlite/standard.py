"""Standard queues: send and receive, for all commands of one queue in a batch at once.

Sends insert all their rows with one statement a table. Receives take what all of them ask for with one SELECT in the
order of visibility, share it out in the order in which they came, and mark it with one UPDATE: a message is never taken
twice by receives that are made together.

A receive gives nothing that was sent by a command behind it in the batch (``Taker.bound``), so a client that pipelines
a receive and a send gets the answers of that order.
"""

from collections.abc import Generator, Mapping
from itertools import chain

from veilmq.core import commands
from veilmq.core.commands import NewMessage
from veilmq.core.errors import MessageTooLong, VeilmqError
from veilmq.core.fifo import group_of, id_of
from veilmq.core.limits import BATCH_ROW_BYTES, SECOND_MS
from veilmq.core.results import SentMessage
from veilmq.store.queues import NEVER_MS, Queue
from veilmq.store.sqlite import fair, ready
from veilmq.store.sqlite.giving import EXPIRED_PASSED_MAX, LATER, Answers, Giving, Taker
from veilmq.store.sqlite.moving import DeadLetterSink, sink_of
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.statements import SQL
from veilmq.store.transaction import Given

_INSERT_MESSAGE = SQL["insert_message"]
_INSERT = SQL["standard_insert"]
_INSERT_READY = SQL["insert_ready"]
_MARK = SQL["standard_mark"]


def send(
    session: Session, queue: Queue, sends: list[tuple[int, commands.Send]], now_ms: int, answers: Answers
) -> list[int]:
    """Store the messages of ``sends``; return the first seq that each of them could use.

    Each answer is a list with a ``SentMessage`` or an error for each message, or the error of the command.
    """
    first = session.next_seq(now_ms)
    messages: list[Row] = []
    rows: list[Row] = []
    runs: list[list[int]] = []
    firsts: list[int] = []
    due: list[int] = []
    for slot, command in sends:
        firsts.append(first + len(messages))
        try:
            answers[slot], due_ms = _add(session, queue, command, first, now_ms, messages, rows, runs)
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


def _add(
    session: Session,
    queue: Queue,
    command: commands.Send,
    first: int,
    now_ms: int,
    messages: list[Row],
    rows: list[Row],
    runs: list[list[int]],
) -> tuple[list[SentMessage | VeilmqError], int | None]:
    """Add the rows of one command; return its answer, and when the first of its messages is visible."""
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
        seq += 1
        if visible_at_ms <= now_ms:
            answer.append(SentMessage(id=message_id))
        else:
            answer.append(_delayed(session, queue, message_id, seq - 1, visible_at_ms, terms))
        if due_ms is None or visible_at_ms < due_ms:
            due_ms = visible_at_ms
    return answer, due_ms


def _delayed(
    session: Session,
    queue: Queue,
    message_id: bytes,
    seq: int,
    visible_at_ms: int,
    terms: commands.SendTerms | None,
) -> SentMessage:
    """Count a delayed message; return its answer, with a receipt where one is wanted."""
    queue.hide(visible_at_ms, received=False)
    receipt = None
    if terms is not None and terms.receipts:
        receipt = session.book.issue(queue.number, seq, 0, 0, visible_at_ms)
    return SentMessage(id=message_id, receipt=receipt)


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


def receive(session: Session, queue: Queue, takers: list[Taker], now_ms: int, answers: Answers) -> None:
    """Give the messages that the ``takers`` of a round ask for, first come, first served."""
    giving = Giving(session, queue, now_ms)
    wanted = 0
    for taker in takers:
        wanted += taker.command.count
    sink = sink_of(session, queue, now_ms) if queue.settings.receives_max else None
    wanted = min(wanted, giving.places)
    rows: list[Row] = []
    if wanted > 0:
        rows = offered(session, queue, wanted, now_ms, sink)
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
            answers[taker.slot] = LATER
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
        sink.notify()


def offered(session: Session, queue: Queue, wanted: int, now_ms: int, sink: DeadLetterSink | None) -> list[Row]:
    """Return up to ``wanted`` messages to give, in order: without what ``sink`` takes and what has expired."""
    if queue.shares or sink is not None or now_ms >= queue.expires_at_ms:
        return _sifted(session, queue, wanted, now_ms, sink)
    rows: list[Row] = []
    bytes_left = session.bytes_left
    for lane in queue.lanes:
        left = wanted - len(rows)
        for row in ready.visible(session, queue, lane, left, now_ms):
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
            yield from ready.visible(session, queue, lane, -1, now_ms, sql)


def next_message_ms(session: Session, queue: Queue, now_ms: int) -> int:
    """Return when the next message is visible, whatever the in-flight limit says; ``NEVER_MS``: none is coming."""
    first_ms = NEVER_MS
    for lane in queue.lanes:
        if session.row("ready_first", queue.partition, lane) is not None:
            return now_ms
        row = session.row("standard_first_visible", queue.partition, lane)
        if row is not None and row[0] < first_ms:
            first_ms = row[0]
            if first_ms <= now_ms:
                return now_ms
    return first_ms
