"""A data folder as the source of a copy: nobody else has it open, since its lock is held."""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, ClassVar, Self

from veilmq.core import properties
from veilmq.core.limits import DEDUPLICATION_S, PRIORITY, SECOND_MS
from veilmq.store.clock import StoreClock
from veilmq.store.copying import SLICE, CopiedAcceptance, CopiedMessage, CopiedQueue, Row, Source
from veilmq.store.queues import SEQ_SHIFT
from veilmq.store.sqlite.folder import FolderLock, database_of, open_connection
from veilmq.store.sqlite.options import EngineOptions
from veilmq.store.sqlite.shown_times import later_row
from veilmq.store.sqlite.statements import SQL

_ENTRY = Struct(">16s16sQQ")  # as accepted.py writes them


class FolderSource(Source):
    """``store.copying.Source`` of a data folder; as a context manager it holds the folder's lock."""

    SQL = SQL
    COPIED = frozenset(
        {"accepted", "message", "move", "ordered", "pause", "queue", "ready", "setting", "subscription", "topic"}
        | {"attempt", "fair_group", "message_group", "ordered_run", "piece", "progress", "renumbered"}
        | {"claimed", "claimed_run", "event_state", "expired_receipt", "visibility"}
    )
    UNLESS_ENDED: ClassVar[Mapping[str, str]] = {
        **Source.UNLESS_ENDED,
        "part": "log_queue IS NOT NULL AND (EXISTS (SELECT 1 FROM visibility WHERE partition = qp) "
        "OR EXISTS (SELECT 1 FROM ordered WHERE partition = qp))",
    }

    def __init__(self, folder: Path, *, clock: StoreClock) -> None:
        """``clock`` goes on where that of the store stopped; what is read has shown times, which others keep."""
        database_of(folder, "--from")
        self._lock = FolderLock(folder)
        try:
            self._connection = open_connection(folder, EngineOptions())
        except BaseException:
            self._lock.release()
            raise
        ((floor_ms, _, mark),) = self._connection.execute(SQL["progress"])
        clock.resume(mark, floor_ms=floor_ms)
        self._now_ms = clock.now_ms()
        self._ahead_ms = clock.ahead_ms(self._now_ms)
        self.now_ms = self._now_ms + self._ahead_ms

    def __enter__(self) -> Self:
        """Have it open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of it."""
        try:
            self._connection.close()
        finally:
            self._lock.release()

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        """Return the rows of a statement."""
        return self._connection.execute(text, values).fetchall()

    def shown(self, row: Row) -> Row:
        """Return a row with its instants as users see them."""
        return later_row(row, self._ahead_ms) if self._ahead_ms else row

    async def messages(self, queue: CopiedQueue) -> AsyncIterator[list[CopiedMessage]]:
        """See ``Source``; of a standard queue those that were received, delayed or have a group first."""
        ((partition, floor_seq),) = await self.fetch(SQL["copied_floor"], queue.number)
        floor_seq = max(floor_seq, (queue.retained_ms(self._now_ms) + 1) << SEQ_SHIFT)
        fifo = queue.settings.fifo
        rows = self._connection.execute(SQL["copied_ordered" if fifo else "copied_standard"], (partition, floor_seq))
        while slice_ := [self.shown(_message(row)) for row in islice(rows, SLICE)]:
            yield slice_ if fifo else [self._placed(each) for each in slice_]

    def _placed(self, message: CopiedMessage) -> CopiedMessage:
        """Return a message with a position of its shown time, unless a receipt may name it."""
        if message.has_history:
            return message
        return message._replace(position=message.position + (self._ahead_ms << SEQ_SHIFT))

    async def accepted(self) -> list[CopiedAcceptance]:
        """Return what is in the one log of all queues, whose keys are hashes."""
        rows = await self.fetch(SQL["copied_accepted"], self._now_ms - DEDUPLICATION_S * SECOND_MS)
        return [
            self.shown(CopiedAcceptance(None, key, message_id, sequence, accepted_at_ms))
            for accepted_at_ms, entries in rows
            for key, message_id, sequence, _ in _ENTRY.iter_unpack(entries)
        ]


def _message(row: Any) -> CopiedMessage:
    seq, message_id, body, encoded, lane, visible_at, count, generation, epoch, *rest = row
    received_at, first_here, log, source, before, first_before, moved_at, group = rest
    sent_at_ms = seq >> SEQ_SHIFT
    return CopiedMessage(
        position=seq,
        id=message_id,
        body=body,
        properties=encoded,
        priority=lane if lane <= PRIORITY.maximum else lane - PRIORITY.maximum,
        came_at_ms=moved_at or sent_at_ms,
        sent_at_ms=sent_at_ms,
        visible_at_ms=visible_at,
        receive_count=count,
        generation=generation,
        epoch=epoch,
        received_at_ms=received_at or 0,
        first_received_at_ms=first_here if source is None else first_before,
        source=source,
        receives_before=before or 0,
        group=None if group is None else properties.decode(encoded).group or f"group {group}",
        log=log,
    )
