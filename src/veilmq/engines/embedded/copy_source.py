"""A data folder as the source of a copy: nobody else has it open, since its lock is held."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from veilmq.core import properties
from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.core.settings import QueueSettings
from veilmq.engines.clock import StoreClock
from veilmq.engines.copying import (
    SLICE,
    CopiedAcceptance,
    CopiedAttempt,
    CopiedMessage,
    CopiedMove,
    CopiedPause,
    CopiedQueue,
    CopiedSubscription,
    CopiedTopic,
    Remembered,
    obstacle,
)
from veilmq.engines.embedded.attempts import given_of
from veilmq.engines.embedded.folder import FolderLock, open_journal
from veilmq.engines.embedded.groups import key_of
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.positions import lane_of
from veilmq.engines.embedded.rows import LaneRow
from veilmq.engines.embedded.shown_times import later_row

_ENTRY = Struct(">16s16sQQ")  # as accepted.py writes them
_COPIED = frozenset(
    {"accepted", "lane", "lease", "message", "meta", "move_task", "pause", "queue", "subscription", "topic"}
)
_FORGOTTEN = frozenset({"attempt", "expired_receipt", "piece", "turn"})
"""Made anew, or of no use in another store; the pieces of a stage are told of with it."""
_UNLESS_ENDED = {"publication": "stages <> x'90'", "stage": "publication IS NULL"}
"""Of these only some rows matter: what is only to be dropped (x'90' is no stages) may be lost on the way."""
_VALUES = ("receipt_key", "token_key")
_ACCOUNT = "account "

Row = TypeVar("Row")


class FolderSource:
    """``engines.copying.Source`` of a data folder; as a context manager it holds the folder's lock."""

    def __init__(self, folder: Path, *, clock: StoreClock) -> None:
        """``clock`` goes on where that of the store stopped; what is read has shown times, which others keep."""
        self._lock = FolderLock.of_source(folder)
        try:
            self._journal = open_journal(folder, EngineOptions())
        except BaseException:
            self._lock.release()
            raise
        clock.resume(self._journal.mark(), floor_ms=self._journal.last_instant_ms())
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
            self._journal.close()
        finally:
            self._lock.release()

    async def obstacles(self) -> list[str]:
        """See ``Source``."""
        told = []
        for (table,) in self._journal.rows("stored_tables"):
            if table in _COPIED or table in _FORGOTTEN:
                continue
            count = self._journal.count(table, _UNLESS_ENDED.get(table, "true"))
            if count:
                told.append(obstacle(table, count))
        return told

    async def queues(self) -> list[CopiedQueue]:
        """See ``Source``."""
        return [
            self._shown(
                CopiedQueue(
                    number, name, msgspec.json.decode(settings, type=QueueSettings), settings, created_at, modified_at
                )
            )
            for number, name, settings, created_at, modified_at in self._journal.queues()
        ]

    async def last_queue(self) -> int:
        """See ``Source``."""
        ((number,),) = self._journal.rows("last_number")
        return int(number)

    async def count(self) -> int:
        """See ``Source``."""
        return int(self._journal.count("message"))

    async def messages(self, queue: CopiedQueue) -> AsyncIterator[list[CopiedMessage]]:
        """See ``Source``; lanes one after the other, of each what was sent directly before what was delayed."""
        until_ms = queue.retained_ms(self._now_ms)
        lanes = [lane for lane in self._journal.lanes() if lane.queue == queue.number]
        for lane in sorted(lanes, key=lambda each: (each.priority, each.sequence_base)):
            for start, end in ((lane.direct_floor, lane.direct_next), (lane.delayed_floor, lane.delayed_next)):
                for rows in self._slices(start, end):
                    slice_ = [_message(row, lane) for row in rows]
                    yield [self._shown(each) for each in slice_ if each.sent_at_ms > until_ms]

    def _slices(self, start: int, end: int) -> Iterator[list[Any]]:
        while rows := self._journal.rows("copied_messages", start, end, SLICE):
            yield rows
            start = rows[-1][0] + 1

    async def remembered(self) -> Remembered:
        """See ``Source``."""
        rows = self._journal.rows
        return Remembered(
            accepted=self._accepted(),
            moves=[self._shown(CopiedMove(*row)) for row in rows("copied_moves")],
            pauses=[self._shown(CopiedPause(*row)) for row in rows("copied_pauses")],
            topics=[self._shown(CopiedTopic(*row)) for row in rows("copied_topics")],
            subscriptions=[
                self._shown(CopiedSubscription(topic, name, encoded, bool(is_pushed), *times))
                for topic, name, encoded, is_pushed, *times in rows("copied_subscriptions")
            ],
            attempts=self._attempts(),
        )

    def _attempts(self) -> list[CopiedAttempt]:
        """Return what attempts gave, but for what was purged since."""
        queues = {lane.number: lane.queue for lane in self._journal.lanes()}
        attempts: list[CopiedAttempt] = []
        for key, taken, attempted_at_ms in self._journal.rows("copied_attempts"):
            given = [(*receipt, issued_ms, at_ms + self._ahead_ms) for receipt, issued_ms, at_ms in given_of(taken)]
            queue = queues.get(lane_of(given[0][0]))
            if queue is not None:
                attempts.append(self._shown(CopiedAttempt(queue, key, given, attempted_at_ms)))
        return attempts

    def _accepted(self) -> list[CopiedAcceptance]:
        """Return what is in the one log of all queues, whose keys are hashes."""
        rows = self._journal.rows("copied_accepted", self._now_ms - DEDUPLICATION_S * SECOND_MS)
        return [
            self._shown(CopiedAcceptance(None, key, message_id, sequence, accepted_at_ms))
            for accepted_at_ms, entries in rows
            for key, message_id, sequence, _ in _ENTRY.iter_unpack(entries)
        ]

    def _shown(self, row: Row) -> Row:
        return later_row(row, self._ahead_ms) if self._ahead_ms else row

    async def values(self) -> dict[str, bytes]:
        """See ``Source``."""
        meta = self._journal.meta()
        return {name: value for name, value in meta.items() if name in _VALUES or name.startswith(_ACCOUNT)}


def _message(row: tuple[Any, ...], lane: LaneRow) -> CopiedMessage:
    position, message_id, body, encoded, came_at, first_sent_at, source, before, first_before, group_key, *lease = row
    visible_at, count, generation, epoch, received_at, first_here, log = lease
    return CopiedMessage(
        position=position,
        id=message_id,
        body=body,
        properties=encoded,
        priority=lane.priority,
        came_at_ms=came_at,
        sent_at_ms=came_at if first_sent_at is None else first_sent_at,
        visible_at_ms=came_at if visible_at is None else visible_at,
        receive_count=count or 0,
        generation=generation or 0,
        epoch=epoch or 0,
        received_at_ms=received_at or 0,
        first_received_at_ms=first_before if source is not None else first_here or None,
        source=source,
        receives_before=before or 0,
        group=None if group_key is None else _group(group_key, encoded),
        log=log or 0,
    )


def _group(group_key: int, encoded: bytes) -> str:
    """Return the name of a group, of which the store has a hash; the sender's is among the properties."""
    name = properties.decode(encoded).group
    return f"group {group_key:x}" if name is None or key_of(name) != group_key else name
