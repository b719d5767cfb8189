"""FIFO queues: send and receive, for all commands of one queue in a batch at once, and the cursors of groups.

Each group gives its messages in the order of their sending. While one that was received is hidden, its group gives
nothing. So a receive looks for groups, not for messages (``groups``), and takes from one after the other.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.commands import NewMessage
from veilmq.core.errors import VeilmqError
from veilmq.core.fifo import check_together, deduplication_key, group_of, id_of, is_duplicate
from veilmq.core.limits import BATCH_ROW_BYTES, SECOND_MS
from veilmq.core.results import SentMessage
from veilmq.store.queues import Queue
from veilmq.store.sqlite import attempts, groups
from veilmq.store.sqlite.giving import LATER, Answers, Giving, Taker
from veilmq.store.sqlite.groups import PASSED_OVER_MAX
from veilmq.store.sqlite.moving import DeadLetterSink, sink_of
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.standard import checked
from veilmq.store.sqlite.statements import SQL
from veilmq.store.transaction import Given

_INSERT_MESSAGE = SQL["insert_message"]
_INSERT = SQL["ordered_insert"]
_GROUPS_REMEMBERED_MAX = 65_536
_INSERT_RUN = SQL["insert_ordered_run"]
_TAKE = SQL["ordered_take"]
_MARK = SQL["ordered_mark"]
_BLOCK = SQL["block_group"]


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
        groups.admit(session, queue, [row[1:] for row in rows])
    if queue.wake is not None:
        groups.notify(session, queue, now_ms, len(sends))
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
            visible_at_ms = _own_visible_at_ms(queue, new, now_ms, wants_receipt)
            if visible_at_ms is not None:
                queue.hide(visible_at_ms, received=False)
                if wants_receipt and visible_at_ms > now_ms:
                    sent = replace(sent, receipt=session.book.issue(queue.number, seq, 0, 0, visible_at_ms))
            group = session.group_numbers.number(queue.partition, new.group, seq)
            messages.append((seq, group, sent.id, new.properties, new.body))
            rows.append((queue.partition, group, seq, visible_at_ms))
        answer.append(sent)
    return answer


def _own_visible_at_ms(queue: Queue, new: NewMessage, now_ms: int, wants_receipt: bool) -> int | None:
    """Return when the delay of a message ends, ``None`` where it follows the queue's: a receipt says until when."""
    if new.delay_s is not None:
        return now_ms + new.delay_s * SECOND_MS
    return now_ms + queue.delay_ms if wants_receipt and queue.delay_ms else None


def _accept(
    session: Session,
    queue: Queue,
    new: NewMessage,
    message_id: bytes,
    seq: int,
    now_ms: int,
    terms: commands.SendTerms | None,
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


def receive(session: Session, queue: Queue, takers: list[Taker], now_ms: int, answers: Answers) -> None:
    """Give the messages that the ``takers`` of a round ask for, first come, first served."""
    slot, command, _ = takers[0]
    if command.attempt_id is None:
        _receive(session, queue, takers, now_ms, answers)
        return
    answers[slot] = attempts.repeat(session, queue, command, now_ms)
    if answers[slot] is None:
        _receive(session, queue, takers, now_ms, answers)
        if answers[slot] is not LATER:
            attempts.note(session, queue, command, answers[slot].messages, now_ms)


def _receive(session: Session, queue: Queue, takers: list[Taker], now_ms: int, answers: Answers) -> None:
    giving = Giving(session, queue, now_ms)
    sink = sink_of(session, queue, now_ms) if queue.settings.receives_max else None
    choice = _Choice(session, queue, takers, giving.places, sink, now_ms)
    wanted = min(sum([taker.command.count for taker in takers]), giving.places)
    if wanted > 0:
        choice.choose(wanted)
    is_cut = session.bytes_left <= 0
    blocks: dict[int, list[int]] = {}
    for taker, share in zip(takers, choice.shares, strict=True):
        if is_cut and not share and taker.command.count and giving.places > 0:
            answers[taker.slot] = LATER
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
        groups.refile(session, queue, choice.unsettled)
    giving.answer(answers, groups.next_message_ms)
    if sink is not None:
        sink.notify()


def offered(session: Session, queue: Queue, wanted: int, now_ms: int) -> list[Row]:
    """Return up to ``wanted`` messages that receives would give, in order."""
    taker = Taker(0, commands.Receive(queue=queue.name, count=wanted))
    choice = _Choice(session, queue, [taker], wanted, None, now_ms)
    choice.choose(wanted)
    groups.refile(session, queue, choice.unsettled)
    return choice.shares[0]


class _Choice:
    """What the receives of a round get: ``shares`` has the rows of each. ``unsettled`` are groups to be filed anew."""

    __slots__ = (
        "_at",
        "_gave",
        "_left",
        "_now_ms",
        "_places",
        "_queue",
        "_session",
        "_sink",
        "_takers",
        "shares",
        "unsettled",
    )

    def __init__(
        self,
        session: Session,
        queue: Queue,
        takers: list[Taker],
        places: int,
        sink: DeadLetterSink | None,
        now_ms: int,
    ) -> None:
        """``places`` is how many more messages may be in flight."""
        self._session = session
        self._queue = queue
        self._takers = takers
        self._places = places
        self._sink = sink
        self._now_ms = now_ms
        self._at = 0  # the receive whose turn it is
        self._left = min(takers[0].command.count, places)
        self._gave = False  # whether the group that was asked last gave anything
        self.shares: list[list[Row]] = [[] for _ in takers]
        self.unsettled: set[int] = set()

    def choose(self, wanted: int) -> None:
        """Go through the groups that are able to give; dead letters move at the end."""
        session, sink, shares = self._session, self._sink, self.shares
        dead: list[Row] = []
        # One statement, run for one group after the other: the next is asked for when the last has nothing more.
        for row in session.executemany(_TAKE, self._asks(wanted)):
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

    def _asks(self, wanted: int) -> Iterator[Row]:
        """Yield what to ask of one group after another, while a receive wants more."""
        partition, delay_ms, now_ms, sink = self._queue.partition, self._queue.delay_ms, self._now_ms, self._sink
        beyond = 0 if sink is None else PASSED_OVER_MAX  # so many may be dead letters
        floor, has_expired = self._queue.floor(now_ms), now_ms >= self._queue.expires_at_ms
        for group in groups.ready(self._session, self._queue, wanted, now_ms):
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
