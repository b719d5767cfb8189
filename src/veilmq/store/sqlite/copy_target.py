"""A data folder as the target of a copy from another kind of store.

Rows are written as the operations would have left them, into a folder that takes its name when the doctor finds it
sound: what was interrupted is no data folder. A message keeps its position as its seq where that is one of the instant
of its sending, as positions on PostgreSQL are, and no other message has it. Elsewhere it gets the next free one, and
receipts find it by what ``renumbered`` has.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from veilmq.store.copying import SLICE, CopiedAttempt, CopiedMessage, CopiedQueue, Remembered
from veilmq.store.queues import SEQ_SHIFT
from veilmq.store.sqlite import groups
from veilmq.store.sqlite.attempts import Given, put
from veilmq.store.sqlite.fair import GROUPED
from veilmq.store.sqlite.folder import FolderError, open_connection
from veilmq.store.sqlite.options import EngineOptions
from veilmq.store.sqlite.session import Row, Session, group_hash
from veilmq.store.sqlite.statements import SQL
from veilmq.store.sqlite.unfinished import Unfinished


class FolderTarget:
    """``store.copying.Target`` of a folder that does not exist yet; as a context manager it removes what it left."""

    def __init__(self, folder: Path) -> None:
        """Raises ``FolderError`` where ``folder`` exists."""
        self._unfinished = Unfinished(folder)
        try:
            self._connection = open_connection(self._unfinished.folder, EngineOptions())
        except FolderError:
            self._unfinished.remove()
            raise
        for name in ("journal_mode", "synchronous"):
            self._connection.pragma(name, "OFF")  # what is interrupted is removed
        self._session: Session
        self._now_ms = 0
        self._last_seq = self._taken_seq = 0  # of the queue that is being filled; none in between has a message

    def __enter__(self) -> Self:
        """Have it open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what was not finished."""
        self._connection.close()
        self._unfinished.remove()

    async def begin(self, values: dict[str, bytes], *, now_ms: int, last_queue: int) -> None:
        """See ``Target``."""
        self._now_ms = now_ms
        self._connection.execute("BEGIN")
        self._connection.executemany(SQL["put_setting"], values.items())
        self._connection.execute(SQL["number_behind"], (last_queue,))
        space: Any = None  # nothing here asks for it
        self._session = Session(self._connection, options=EngineOptions(), space=space)

    async def add_queue(self, queue: CopiedQueue) -> None:
        """See ``Target``."""
        ((partition,),) = self._session.rows("insert_part", queue.number)
        encoded = msgspec.json.encode(queue.settings)  # an earlier version wrote fewer of them
        times = queue.created_at_ms, queue.modified_at_ms
        self._session.run("add_queue", queue.number, queue.name, encoded, *times, partition)
        self._session.queue(queue.name).counted_at_ms = self._now_ms
        self._last_seq = self._taken_seq = 0

    async def add_messages(self, queue: CopiedQueue, messages: Sequence[CopiedMessage]) -> None:
        """See ``Target``."""
        session, filled = self._session, self._session.queue(queue.name)
        runs: list[list[int]] = []  # lane, first and last seq
        for each in messages:
            seq = self._numbered(queue.number, each, fifo=filled.fifo)
            group = self._add(filled.partition, each, seq, fifo=filled.fifo)
            filled.hide(each.visible_at_ms, received=each.receive_count > 0)
            if not filled.fifo and (group is not None or _is_leased(each)):
                lane = each.priority + (0 if group is None else GROUPED)
                row = (filled.partition, seq, lane, each.visible_at_ms, group, *receives_of(each))
                session.stage(SQL["add_visibility"], [row])
            elif runs and runs[-1][0] == each.priority and runs[-1][2] == seq - 1:
                runs[-1][2] = seq
            else:
                runs.append([each.priority, seq, seq])
        if filled.fifo:
            rows: list[Row] = [(filled.partition, last, first, last - first + 1) for _, first, last in runs]
            session.many("insert_ordered_run", rows)
        else:
            session.many("insert_ready", [(filled.partition, lane, last, first) for lane, first, last in runs])
        filled.messages += len(messages)
        session.touch(filled)

    def _numbered(self, queue: int, message: CopiedMessage, *, fifo: bool) -> int:
        """Return the seq of a message, by which its receipts find it."""
        seq = self._last_seq = self._seq(message, fifo=fifo)
        self._session.last_seq = max(self._session.last_seq, seq)
        if seq != message.position and message.has_history:
            self._session.stage(SQL["renumber"], [(seq, queue, message.position)])
        return seq

    def _seq(self, message: CopiedMessage, *, fifo: bool) -> int:
        """Return the seq of a message: of its sending, free, and in a FIFO queue behind the one before."""
        sent_at_ms = message.sent_at_ms
        seq = message.position if message.position >> SEQ_SHIFT == sent_at_ms else sent_at_ms << SEQ_SHIFT
        if fifo or self._last_seq >> SEQ_SHIFT == sent_at_ms:
            seq = max(seq, self._last_seq + 1)
        if not self._last_seq < seq < self._taken_seq:
            ((seq, self._taken_seq),) = self._session.rows("free_seq", seq)
        return seq

    def _add(self, partition: int, message: CopiedMessage, seq: int, *, fifo: bool) -> int | None:
        """Add a message, and to a FIFO queue its place; return the number of its group."""
        session, group = self._session, None
        if message.group is not None and fifo:
            group = session.group_numbers.number(partition, message.group, seq)
            visible_at_ms = message.visible_at_ms if message.has_history else None
            session.stage(SQL["add_ordered"], [(partition, group, seq, visible_at_ms, *receives_of(message))])
        elif message.group is not None:
            group = group_hash(session.group_numbers.key, message.group)
        past: Row = (None, None, None, None)
        if message.source is not None:
            moved_at_ms = None if message.came_at_ms == message.sent_at_ms else message.came_at_ms
            past = message.source, message.receives_before, message.first_received_at_ms, moved_at_ms
        row = (seq, group, message.id, message.properties, message.body, *past)
        session.stage(SQL["add_message"], [row])
        return group

    async def remember(self, remembered: Remembered) -> None:
        """See ``Target``."""
        session = self._session
        for accepted_at_ms, together in groupby(remembered.accepted, key=attrgetter("accepted_at_ms")):
            for each in together:
                session.accepted.add(each.key, each.id, each.sequence, accepted_at_ms)
            session.write()
            session.accepted.keep()
        session.many("add_move", remembered.moves)
        session.many("begin_cooldown", remembered.pauses)
        session.many("add_topic", remembered.topics)
        session.many("add_subscription", remembered.subscriptions)
        for attempt in remembered.attempts:
            self._remember_attempt(attempt)

    def _remember_attempt(self, attempt: CopiedAttempt) -> None:
        given = []
        for position, *rest in attempt.given:
            row = self._session.row("renumbered", attempt.queue, position)
            given.append(Given(position if row is None else row[0], *rest))
        put(self._session, attempt.key, given, attempt.attempted_at_ms)

    async def finish(self) -> None:
        """See ``Target``; raises ``FolderError`` when the doctor finds fault with it."""
        session = self._session
        for queue in session.queues.values():
            session.run("add_group_cursors", queue.partition)
            found = [group for (group,) in session.rows("groups_of_cursors", queue.partition)]
            for start in range(0, len(found), SLICE):
                groups.refile(session, queue, found[start : start + SLICE])
        session.run("add_fair_groups")
        session.finish(self._now_ms)
        self._connection.execute("COMMIT")
        self._connection.close()
        self._unfinished.check()
        self._unfinished.name()


def _is_leased(message: CopiedMessage) -> bool:
    """Tell whether a message of a standard queue has a row of its own beside the ready list."""
    return message.has_history or message.visible_at_ms != message.sent_at_ms


def receives_of(message: CopiedMessage) -> Row:
    """Return what its row has of the receives of a message; its first one here, for a dead letter that is not known."""
    if not message.receive_count:
        return 0, 0, message.epoch, None, None, message.log
    first_here_ms = message.received_at_ms if message.source is not None else message.first_received_at_ms
    times = message.received_at_ms, first_here_ms
    return message.receive_count, message.generation, message.epoch, *times, message.log
