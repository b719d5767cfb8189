"""Copying a stopped store to another one: the format that both dialects share, and the procedure.

A source yields queues, messages and their history; a target stores them in that order, all or nothing. Messages keep
their ids, times, counts, order and the number that receipts name, so earlier receipts act after the copy.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import decode_properties
from veilmq.core.settings import QueueSettings
from veilmq.store.transaction import read_settings

SLICE = 1_000  # messages per slice

Progress = Callable[[int, int], None]  # called after each slice with the number of messages copied and their total

# Tables that are copied unchanged, with the columns that both dialects have; instants end in ``_at``.
TABLES: Mapping[str, Sequence[str]] = {
    "move": ("number", "id", "queue_id", "source", "destination", "moves_per_s_max", "status", "moved", "to_move",
             "started_at", "next_at", "failure", "starter"),
    "pause": ("kind", "name", "begun_at"),
    "topic": ("topic_id", "name", "settings", "created_at", "modified_at"),
    "subscription": ("topic_id", "name", "content", "pushed", "created_at", "modified_at"),
}  # fmt: skip

_CLOSE = "close the readers with `veilmq claims close`"
_EXPORT = "export the event log with `veilmq events flush`"
# What to do about rows of tables that no copy to another kind of store contains.
_REMEDIES = {
    "claim": _CLOSE,
    "event": _EXPORT,
    "event_batch": _EXPORT,
    "part": "run a server for a minute or two, until purged and deleted messages are removed and logged",
    "publication": "let the server finish what was published",
    "source": _CLOSE,
    "stage": "publish what was staged, or delete the queue",
    "writer": "wait until unused writers are deleted (after 14 days), or delete their queues",
}


class CopyRefused(Exception):
    """The copy cannot be made; the text gives the reason and the remedy."""


class CopiedQueue(NamedTuple):
    """A queue; receipts name its ``number``."""

    number: int
    name: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int

    def expired_until_ms(self, now_ms: int) -> int:
        """Return the instant up to which sent messages are past their retention."""
        return now_ms - self.settings.retention_s * SECOND_MS


class CopiedMessage(NamedTuple):
    """A message and its receives, with fields in the column order of the queries that read it.

    ``position`` is what receipts name. The message came to the queue at ``came_at_ms``; retention counts from
    ``sent_at_ms``, for a dead letter of a standard queue its first sending. A dead letter has a ``source``, with
    ``receives_before`` receives there from ``first_received_at_ms`` on; for other messages that is the first receive
    here. ``group`` is the name of the message group. ``log`` has the data of the receive for its event
    (``store.events``).
    """

    position: int
    id: bytes
    body: str
    properties: bytes
    priority: int
    came_at_ms: int
    sent_at_ms: int
    visible_at_ms: int
    receive_count: int = 0
    generation: int = 0
    epoch: int = 0
    received_at_ms: int = 0
    first_received_at_ms: int | None = None
    source: str | None = None
    receives_before: int = 0
    group: str | None = None
    log: int = 0

    def named(self) -> "CopiedMessage":
        """Replace the number of its group by the name, which is in the properties."""
        if self.group is None:
            return self
        return self._replace(group=decode_properties(self.properties).group or f"group {self.group}")

    @property
    def has_history(self) -> bool:
        """Return whether a receipt may name the message, or it is or was hidden."""
        return bool(self.receive_count or self.epoch or self.visible_at_ms != self.came_at_ms)


class CopiedDeduplication(NamedTuple):
    """An entry of the deduplication log; ``queue`` is ``None`` if only the key identifies it."""

    queue: int | None
    key: bytes
    id: bytes
    sequence: int
    logged_at_ms: int


class Source(ABC):
    """A stopped store to read; nothing changes it meanwhile. Its queries have the same columns in both dialects."""

    now_ms: int  # when the store is read
    ahead_ms = 0  # shown time, which is copied, minus the time of the store
    SQL: ClassVar[Mapping[str, str]]
    COPIED: ClassVar[frozenset[str]]  # tables whose rows are copied, rebuilt, or useless in another store
    # In these tables only the rows that match prevent a copy; the others are only waiting for their deletion.
    BLOCKING_ROWS: ClassVar[Mapping[str, str]] = {"publication": "stages <> '{}'", "stage": "publication IS NULL"}

    @abstractmethod
    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        """Return the rows of a statement."""

    @abstractmethod
    def messages(self, queue: CopiedQueue) -> AsyncIterator[list[CopiedMessage]]:
        """Yield the messages within their retention in slices, in the order of arrival."""

    @abstractmethod
    async def deduplication_log(self) -> list[CopiedDeduplication]:
        """Return the entries within the deduplication interval."""

    def shown(self, names: Sequence[str], values: Sequence[Any]) -> Iterator[Any]:
        """Yield values with instants in shown time; 0 and ``None`` mean none. In SQLite, ``pushed`` is a number."""
        for name, value in zip(names, values, strict=True):
            is_instant = bool(value) and name.endswith(("_at", "_at_ms"))
            yield value + self.ahead_ms if is_instant else bool(value) if name == "pushed" else value

    async def refusals(self) -> list[str]:
        """Return what the store has that cannot be copied, each with a remedy; empty if it can be copied."""
        refusals = []
        for (table,) in await self.fetch(self.SQL["copied_tables"]):
            if table not in self.COPIED and table not in TABLES:
                condition = self.BLOCKING_ROWS.get(table, "true")
                ((count,),) = await self.fetch(f"SELECT count(*) FROM {table} WHERE {condition}")
                if count:
                    refusals.append(f"The store has {count} of {table}: {_REMEDIES.get(table, 'remove them')}.")
        return refusals

    async def queues(self) -> list[CopiedQueue]:
        """Return all queues, by number."""
        rows = await self.fetch("SELECT queue_id, name, settings, created_at, modified_at FROM queue ORDER BY queue_id")
        queues = [(number, name, read_settings(text), *times) for number, name, text, *times in rows]
        return [CopiedQueue._make(self.shown(CopiedQueue._fields, queue)) for queue in queues]

    async def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of one of ``TABLES``."""
        columns = TABLES[table]
        rows = await self.fetch(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2")
        return [tuple(self.shown(columns, row)) for row in rows]


class Target(Protocol):
    """An empty store to fill; an interrupted copy leaves nothing."""

    async def begin(self, values: dict[str, bytes], *, now_ms: int, last_queue: int) -> None:
        """Store the settings of the source; new queues get numbers above ``last_queue``."""

    async def add_queue(self, queue: CopiedQueue) -> None:
        """Add a queue."""

    async def add_messages(self, queue: CopiedQueue, messages: Sequence[CopiedMessage]) -> None:
        """Add messages after those added before."""

    async def add_deduplication_log(self, entries: Sequence[CopiedDeduplication]) -> None:
        """Add entries of the deduplication log, after all queues."""

    async def add_rows(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add the rows of one of ``TABLES``."""

    async def finish(self) -> None:
        """Check the copy, and make it the store."""


async def copy(source: Source, target: Target, *, progress: Progress | None = None) -> int:
    """Copy everything; return the number of messages. Raises ``CopyRefused`` and errors of the stores."""
    refusals = await source.refusals()
    if refusals:
        raise CopyRefused(" ".join(["Nothing was copied.", *refusals]))
    ((estimate,),) = await source.fetch(source.SQL["copied_count"])
    ((last_queue,),) = await source.fetch(source.SQL["last_queue"])
    messages, values = 0, dict(await source.fetch(source.SQL["copied_values"]))
    await target.begin(values, now_ms=source.now_ms, last_queue=last_queue)
    for queue in await source.queues():
        await target.add_queue(queue)
        async for each in source.messages(queue):
            await target.add_messages(queue, each)
            messages += len(each)
            if progress is not None:
                progress(messages, max(messages, estimate))
    await target.add_deduplication_log(await source.deduplication_log())
    for table in TABLES:
        await target.add_rows(table, await source.rows(table))
    await target.finish()
    return messages
