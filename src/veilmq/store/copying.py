"""A copy of a stopped store in another one: what both kinds of store say of their content, and the way it takes.

A source yields queues, messages and what is remembered of them; a target takes them in that order, all or nothing: what
was interrupted left nothing. A message keeps its id, its times, its counts and its place in the order, and the number
that receipts name: receipts issued before act after the copy.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import decode_properties
from veilmq.core.settings import QueueSettings
from veilmq.store.transaction import read_settings

SLICE = 1_000
"""Messages that travel together."""

Progress = Callable[[int, int], None]
"""Called after each slice with the messages that are copied, and messages in all."""

TABLES: Mapping[str, Sequence[str]] = {
    "move": ("number", "id", "queue_id", "source", "destination", "moves_per_s_max", "status", "moved", "to_move",
             "started_at", "next_at", "failure", "starter"),
    "pause": ("kind", "name", "begun_at"),
    "topic": ("topic_id", "name", "settings", "created_at", "modified_at"),
    "subscription": ("topic_id", "name", "content", "pushed", "created_at", "modified_at"),
}  # fmt: skip
"""Tables that are copied as they are, with their columns, which both dialects have; instants end in ``_at``."""

_CLOSE = "close the readers with `veilmq claims close`"
_EXPORT = "export the event log with `veilmq events flush`"
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
"""What to do about rows of a table that no copy to another kind of store takes along."""


class CopyRefused(Exception):
    """The copy cannot be made; the text says why and what to do."""


class CopiedQueue(NamedTuple):
    """A queue; ``number`` is what its receipts name."""

    number: int
    name: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int

    def retained_ms(self, now_ms: int) -> int:
        """Return the instant up to which messages were sent that are past their retention."""
        return now_ms - self.settings.retention_s * SECOND_MS


class CopiedMessage(NamedTuple):
    """A message and what is known of its receives, in the order of columns of the queries that read it.

    ``position`` is what receipts name. ``came_at_ms`` is when it came to the queue, ``sent_at_ms`` from where its
    retention counts: the first sending of a dead letter of a standard queue. A dead letter has a ``source`` and was
    received ``receives_before`` times, first at ``first_received_at_ms``; of others that is the first receive here.
    ``group`` is the name of its message group, ``log`` what an event will say of its receive (``store.events``).
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
        """Return the message of a row that has a number of its group: the name is among the properties."""
        if self.group is None:
            return self
        return self._replace(group=decode_properties(self.properties).group or f"group {self.group}")

    @property
    def has_history(self) -> bool:
        """Whether a receipt may name it, or it is or was hidden."""
        return bool(self.receive_count or self.epoch or self.visible_at_ms != self.came_at_ms)


class CopiedDeduplication(NamedTuple):
    """An entry of the deduplication log; ``queue`` is ``None`` where only the key says whose it is."""

    queue: int | None
    key: bytes
    id: bytes
    sequence: int
    logged_at_ms: int


class Source(ABC):
    """A stopped store that is read; nothing changes it meanwhile. Queries have the same columns in both dialects."""

    now_ms: int
    """The instant at which it is read."""
    ahead_ms = 0
    """How far the instants that users see, which are copied, are ahead of those that it has."""
    SQL: ClassVar[Mapping[str, str]]
    COPIED: ClassVar[frozenset[str]]
    """The tables whose rows go along, and those that are made anew, or of no use in another store."""
    UNLESS_ENDED: ClassVar[Mapping[str, str]] = {"publication": "stages <> '{}'", "stage": "publication IS NULL"}
    """Of these only some rows matter: what is only to be dropped may be lost on the way."""

    @abstractmethod
    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        """Return the rows of a statement."""

    @abstractmethod
    def messages(self, queue: CopiedQueue) -> AsyncIterator[list[CopiedMessage]]:
        """Yield the messages within their retention, in slices, in the order in which they came."""

    @abstractmethod
    async def deduplication_log(self) -> list[CopiedDeduplication]:
        """Return the entries of the deduplication interval."""

    def shown(self, names: Sequence[str], values: Sequence[Any]) -> Iterator[Any]:
        """Yield the values of these fields or columns, instants as users see them; 0 is none, as ``None`` is.

        A boolean (``pushed``) is a number in SQLite.
        """
        for name, value in zip(names, values, strict=True):
            is_instant = bool(value) and name.endswith(("_at", "_at_ms"))
            yield value + self.ahead_ms if is_instant else bool(value) if name == "pushed" else value

    async def refusals(self) -> list[str]:
        """Return what it has that no copy takes along, and what to do about each; nothing when it can be copied."""
        refusals = []
        for (table,) in await self.fetch(self.SQL["copied_tables"]):
            if table not in self.COPIED and table not in TABLES:
                which = self.UNLESS_ENDED.get(table, "true")
                ((count,),) = await self.fetch(f"SELECT count(*) FROM {table} WHERE {which}")
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
    """An empty store that is filled; what is not finished leaves nothing."""

    async def begin(self, values: dict[str, bytes], *, now_ms: int, last_queue: int) -> None:
        """Take the store's own values; no queue will get a number up to ``last_queue`` again."""

    async def add_queue(self, queue: CopiedQueue) -> None:
        """Add a queue."""

    async def add_messages(self, queue: CopiedQueue, messages: Sequence[CopiedMessage]) -> None:
        """Add messages behind those that were added before."""

    async def add_deduplication_log(self, entries: Sequence[CopiedDeduplication]) -> None:
        """Add entries of the deduplication log, once all queues are there."""

    async def add_rows(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add the rows of one of ``TABLES``."""

    async def finish(self) -> None:
        """Check it, and make it the store."""


async def copy(source: Source, target: Target, *, progress: Progress | None = None) -> int:
    """Copy everything; return how many messages there were. Raises ``CopyRefused``, and what the stores raise."""
    refusals = await source.refusals()
    if refusals:
        raise CopyRefused(" ".join(["Nothing was copied.", *refusals]))
    ((in_all,),) = await source.fetch(source.SQL["copied_count"])  # about so many
    ((last_queue,),) = await source.fetch(source.SQL["last_queue"])
    messages, values = 0, dict(await source.fetch(source.SQL["copied_values"]))
    await target.begin(values, now_ms=source.now_ms, last_queue=last_queue)
    for queue in await source.queues():
        await target.add_queue(queue)
        async for each in source.messages(queue):
            await target.add_messages(queue, each)
            messages += len(each)
            if progress is not None:
                progress(messages, max(messages, in_all))
    await target.add_deduplication_log(await source.deduplication_log())
    for table in TABLES:
        await target.add_rows(table, await source.rows(table))
    await target.finish()
    return messages
