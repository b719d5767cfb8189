"""Publications: staging by writers, the publish transaction, and delivery to the queue.

Staged messages are in separate tables, which no receive, count or send reads. A row holds a piece of at most as many
messages as a slice moves, so staging costs one row per few hundred messages, and discarding one deletion.

Publishing is one transaction that locks the writer. It raises the writer's last batch, which prevents a second
publication, and assigns the staged messages to a row of ``publication`` that lists the published stages in order.
Background slices do the rest, each in one transaction: pieces of these stages become messages of the queue, as if sent
at that moment, and are deleted with it. Afterwards the other stages are discarded, then the row. A crash therefore
neither loses nor repeats a slice.

Each ``Publish`` runs a slice, and clients repeat it while there is more; ``step`` continues for clients that are gone.
Discarding alone (an abandoned batch, a silent writer, a deleted queue) is a publication without stages.

A slice locks its publication, and commands lock the queue, so purge and deletion wait for both.
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from veilmq.core.claims import Abandon, ListWriters, Publish, Published, Stage, Staged, WriterView
from veilmq.core.commands import Command, SendOptions
from veilmq.core.errors import SettingsConflict, StageMissing, StageRefused, VeilmqError
from veilmq.core.limits import SECOND_MS, WRITER_SILENCE_S
from veilmq.core.messages import NewMessage, dedup_id_of
from veilmq.core.settings import QueueSettings
from veilmq.store.transaction import NEVER_MS, Lock, QueueRow, Row, Transaction, changes, checked, snapshot, to_struct

PIECE_MESSAGES = 500  # the maximum of a piece, and of a slice
_PIECE_BYTES = 262_144
_SLICES_PER_S = 10  # with a rate
_PIECES_PER_SLICE = 16
_STAGES_PER_SLICE = 500
_WRITERS_PER_SLICE = 100
_STAGES_WITH_SLICE = 100  # publishing more stages is enough work for one command
_PAUSE_MS = 10
CLIENT_MS = 100  # for this time, ``step`` leaves the next slice to the publishing client
_SEEN_MS = 3_600 * SECOND_MS  # precision of a writer's ``seen_at``
_SILENCE_MS = WRITER_SILENCE_S * SECOND_MS
_FIRST_BATCH = 0
_ALL_BATCHES = (_FIRST_BATCH, (1 << 63) - 1)
_NO_STAGES = "{}"
_ONE_DELAY = "delay_s must be 0: a FIFO queue has one delay for all of its messages."


class PublicationStep(Command, frozen=True, kw_only=True):
    """Do a slice of a publication; returns the ms until the next one is due, ``None`` if there is nothing to do."""


class _Writer(NamedTuple):
    """A writer with its last batch (``None`` before the first), and the batch's messages and duplicates so far."""

    number: int
    batch: int | None
    messages: int
    duplicates: int

    def has_published(self, batch: int) -> bool:
        return self.batch is not None and batch <= self.batch


class _Publication(NamedTuple):
    """A pending publication; ``stages`` is a text. Without a rate, ``next_at_ms`` applies to ``step`` only."""

    number: int
    origin: int
    writer: int
    batch: int
    stages: str
    messages_per_s_max: int | None
    next_at_ms: int

    def is_due(self, now_ms: int) -> bool:
        return self.messages_per_s_max is None or self.next_at_ms <= now_ms


@changes
async def stage(tx: Transaction, command: Stage) -> Staged:
    queue = await tx.queue(command.queue, lock="share")
    tx.require_space()
    messages = _checked(command.messages, queue.settings)
    now_ms = await tx.now()
    await tx.run("touch_writer", queue.origin, command.writer, now_ms, now_ms - _SEEN_MS)
    key = queue.origin, command.writer
    writer = await _find(tx, *key, "share") or await _add_writer(tx, *key, "share")
    if writer.has_published(command.batch):
        return Staged(messages=0, again=True)
    args = writer.number, command.batch, command.attempt, command.part
    ((number, staged, is_staged),) = await tx.rows("put_stage", *args)
    if is_staged:
        return Staged(messages=staged, again=True)
    pieces = enumerate(_pieces(messages))
    await tx.run_many("insert_piece", [(number, command.part, place, len(each), _pack(each)) for place, each in pieces])
    await tx.run("grow_stage", number, len(messages))
    return Staged(messages=staged + len(messages))


@changes
async def publish(tx: Transaction, command: Publish) -> Published:
    """Publish the batch unless that is done, and run a slice."""
    queue = await tx.queue(command.queue, lock="share")
    key = queue.origin, command.writer
    writer = await _find(tx, *key, "update") or await _add_writer(tx, *key, "update")
    now_ms = await tx.now()
    again = writer.has_published(command.batch)
    stages: list[int] = []
    if not again:
        stages = _published_stages(await tx.rows("stages_of", writer.number, command.batch), command)
        messages = sum(dict(command.attempts).values())
        await tx.run("publish_batch", writer.number, command.batch, messages, now_ms)
        published = _text(stages), command.messages_per_s_max
        await _add_publication(tx, queue.origin, writer.number, (_FIRST_BATCH, command.batch), now_ms, published)
    is_locked = False  # by another transaction
    first = await _first_pending(tx, writer) if len(stages) <= _STAGES_WITH_SLICE else None
    if first is not None and first.is_due(now_ms):
        rows = [
            _Publication(*row) for row in await tx.rows("pending_publication", writer.number, lock="update skip locked")
        ]
        due = [each for each in rows if each.number == first.number and each.is_due(now_ms)]
        is_locked = not due
        for each in due:
            await _deliver(tx, each, queue, now_ms, CLIENT_MS)
    writer = await _find(tx, *key) or writer
    first = await _first_pending(tx, writer)
    due_ms = None
    if first is not None:
        due_ms = now_ms + (_PAUSE_MS if is_locked else 0)
        due_ms = due_ms if first.messages_per_s_max is None else max(due_ms, first.next_at_ms)
    messages, duplicates = (writer.messages, writer.duplicates) if writer.batch == command.batch else (0, 0)
    counts = {"messages": messages, "duplicates": duplicates}
    return Published(**counts, again=again, more=first is not None, next_due_ms=due_ms)


@changes
async def abandon(tx: Transaction, command: Abandon) -> None:
    queue = await tx.queue(command.queue, lock="share")
    writer = await _find(tx, queue.origin, command.writer, "update")
    if writer is not None:
        await _add_publication(tx, queue.origin, writer.number, (command.batch, command.batch), await tx.now())


@snapshot
async def list_writers(tx: Transaction, command: ListWriters) -> list[WriterView]:
    queue = await tx.queue(command.queue)
    rows = await tx.rows("writers_of", queue.origin, command.count)
    return [to_struct(row, WriterView) for row in rows]


def _checked(messages: Sequence[NewMessage], settings: QueueSettings) -> list[NewMessage]:
    """Return messages with deduplication ids as the queue's settings require now; raises ``StageRefused``."""
    stored: list[NewMessage] = []
    for index, new in enumerate(checked(messages, SendOptions(), settings)):
        if isinstance(new, VeilmqError):
            raise StageRefused(index, new) from new
        if settings.fifo and new.delay_s:
            raise StageRefused(index, SettingsConflict("fifo", _ONE_DELAY))
        if not settings.fifo and new.dedup_id is not None:
            raise StageRefused(index, SettingsConflict("fifo", "dedup_id is for FIFO queues only; leave it out."))
        stored.append(replace(new, dedup_id=dedup_id_of(new, settings), delay_s=None) if settings.fifo else new)
    return stored


def _pieces(messages: Sequence[NewMessage]) -> Iterator[Sequence[NewMessage]]:
    start = size = 0
    for end, new in enumerate(messages):
        size_bytes = len(new.body) + len(new.properties)
        size += size_bytes
        if end > start and (size > _PIECE_BYTES or end - start == PIECE_MESSAGES):
            yield messages[start:end]
            start, size = end, size_bytes
    if messages:
        yield messages[start:]


_FIELDS = ("body", "properties", "delay_s", "priority", "group", "dedup_id")
_columns = attrgetter(*_FIELDS)
_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes, int | None, int, str | None, str | None]]).decode


def _pack(messages: Sequence[NewMessage]) -> bytes:
    return msgspec.msgpack.encode([_columns(new) for new in messages])


async def _find(tx: Transaction, origin: int, name: str, lock: Lock | None = None) -> _Writer | None:
    rows = await tx.rows("writer", origin, name, lock=lock)
    return _Writer(*rows[0]) if rows else None


async def _add_writer(tx: Transaction, origin: int, name: str, lock: Lock) -> _Writer:
    await tx.run("add_writer", origin, name, await tx.now())
    tx.schedule(PublicationStep)
    writer = await _find(tx, origin, name, lock)
    assert writer is not None, "the writer was added"
    return writer


def _published_stages(rows: Sequence[Row], command: Publish) -> list[int]:
    staged = {attempt: (number, messages) for attempt, number, messages in rows}
    stages = []
    for attempt, wanted in dict(command.attempts).items():
        number, messages = staged.get(attempt, (0, 0))
        if messages != wanted:
            raise StageMissing(attempt, messages, wanted)
        if messages:
            stages.append(number)
    return stages


async def delete_writers(tx: Transaction, queue: QueueRow) -> None:
    """Delete all writers of a deleted queue and discard what they staged; the caller has locked the queue."""
    writers = await tx.rows("delete_writers_of", queue.origin)
    now_ms = await tx.now() if writers else 0
    for (writer,) in writers:
        await _add_publication(tx, queue.origin, writer, _ALL_BATCHES, now_ms)


async def _add_publication(
    tx: Transaction, origin: int, writer: int, batches: tuple[int, int], now_ms: int, stages: Row = (_NO_STAGES, None)
) -> None:
    """Publish the ``stages`` (a text, and messages per second); discard all others of these batches."""
    number = await tx.value("insert_publication", origin, writer, batches[1], *stages, now_ms)
    if await tx.rows("assign_stages", number, writer, *batches):
        tx.schedule(PublicationStep)
    else:
        await tx.run("delete_publication", number)


def _text(stages: list[int]) -> str:
    return f"{{{','.join(map(str, stages))}}}"


@changes
async def step(tx: Transaction, command: PublicationStep) -> int | None:
    """Delete silent writers, and run a slice of the publication that has waited longest."""
    now_ms = await tx.now()
    for writer, origin, _ in await tx.rows(
        "silent_writers", now_ms - _SILENCE_MS, _WRITERS_PER_SLICE, lock="update skip locked"
    ):
        await _add_publication(tx, origin, writer, _ALL_BATCHES, now_ms)
        await tx.run("delete_writer", writer)
    due = await tx.rows("due_publication", now_ms, lock="update skip locked")
    for row in due:
        await _advance(tx, _Publication(*row), now_ms)
    times_ms = [row[-1] for row in await tx.rows("due_publication", NEVER_MS)]
    times_ms += [row[-1] + _SILENCE_MS for row in await tx.rows("silent_writers", NEVER_MS, 1)]
    left_ms = min(times_ms, default=now_ms) - now_ms
    # If a due one was not found, another transaction has locked it.
    return None if not times_ms else left_ms if left_ms > 0 else 0 if due else _PAUSE_MS


async def _first_pending(tx: Transaction, writer: _Writer) -> _Publication | None:
    row = await tx.row("pending_publication", writer.number)
    return None if row is None else _Publication(*row)


async def _advance(tx: Transaction, publication: _Publication, now_ms: int) -> None:
    """Run a slice: add messages to the queue, or discard stages; delete the publication after the last one."""
    number, ends = publication.number, publication.stages == _NO_STAGES
    queue = None if ends else await tx.find_by_origin(publication.origin)
    if queue is not None:
        await _deliver(tx, publication, queue, now_ms, _PAUSE_MS)
    elif await tx.rows("delete_pieces", number, _PIECES_PER_SLICE) or await tx.rows(
        "delete_stages", number, _STAGES_PER_SLICE
    ):
        await tx.run("put_publication", number, _NO_STAGES, now_ms + _PAUSE_MS)
    else:
        await tx.run("delete_publication", number)


async def _deliver(tx: Transaction, publication: _Publication, queue: QueueRow, now_ms: int, pause_ms: int) -> None:
    """Add a slice of messages to the queue; ``step`` does the next one after ``pause_ms``, or as the rate requires."""
    stages, rate = [int(stage) for stage in publication.stages[1:-1].split(",")], publication.messages_per_s_max
    left = PIECE_MESSAGES if rate is None else min(PIECE_MESSAGES, max(1, rate // _SLICES_PER_S))
    entered = duplicates = size = 0
    while stages and left > 0 and size < _PIECE_BYTES:
        row = await tx.row("first_piece", stages[0])
        if row is None:
            del stages[0]
            continue
        part, place, content, is_last = row
        columns: Any = _decode(content)  # sizes were checked when staged
        messages = [NewMessage(size_bytes=0, **dict(zip(_FIELDS, each, strict=True))) for each in columns]
        new, rest = messages[:left], messages[left:]
        # Before the messages, which can use the freed space on a full disk.
        if rest:
            await tx.run("put_piece", stages[0], part, place, len(rest), _pack(rest))
        else:
            await tx.run("delete_piece", stages[0], part, place)
        ids = [tx.ids.next() for _ in new]
        sent = await tx.store(queue, new, ids)
        duplicates += sum(each.id != own for each, own in zip(sent, ids, strict=True))
        entered, left, size = entered + len(new), left - len(new), size + len(content)
        if is_last and not rest:
            del stages[0]
    if rate is not None:
        pause_ms = max(_PAUSE_MS, -(-entered * SECOND_MS // rate))
    await tx.run("put_publication", publication.number, _text(stages), now_ms + pause_ms)
    if duplicates:
        await tx.run("count_duplicates", publication.writer, publication.batch, duplicates)
