"""Conversion of a data folder of an earlier version: its database is converted to the current format, beside it.

The new database is written under another name, then checked, synced and renamed. A second rename sets the old database
aside, where it stays until an operator removes it. A start that finds only the old database starts over, whatever an
earlier attempt left; one that finds both only does the second rename.

Instants do not change, because the clock's mark is converted, too. Only purged messages without logged receipts are
dropped. Expired messages are converted; the janitor deletes them.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw
import msgspec

from veilmq.core.claims import ClaimState
from veilmq.core.messages import decode_properties, group_hash
from veilmq.store.copying import CopiedMessage, CopiedQueue, Progress
from veilmq.store.events import log_is_open
from veilmq.store.named_queries import load
from veilmq.store.sqlite.copying import FolderTarget, receives_of, slices
from veilmq.store.sqlite.database import DATABASE_NAME, OLD_NAME, SQL, FolderError, locked, sync
from veilmq.store.sqlite.fair import GROUPED
from veilmq.store.sqlite.fifo import AttemptedMessage, store_attempt
from veilmq.store.sqlite.session import Row
from veilmq.store.sqlite.standard import to_runs
from veilmq.store.sqlite.transaction import run_to_end
from veilmq.store.transaction import NEVER_MS, SEQ_SHIFT, read_settings

SET_ASIDE = f"{OLD_NAME}.before-store"
OLD = load("veilmq.store.sqlite", "conversion.sql")

_OLD_APPLICATION_ID = 0x7665696C
_OLD_FORMAT = 12
_SPARE_BYTES = 16 << 20
_INSTANT = "SELECT value FROM meta WHERE name = 'last_instant_ms'"
_KEYS = ("receipt_key", "token_key")
_NODE, _NODE_BYTES = "event_node", 4  # the first bytes of the old, longer key
_ACCOUNT = "account "
_LANE_SHIFT = 41  # an old position has 63 bits: a lane, and the place in the lane
_OF_GROUPS = -1  # instead of a shard: each message's group determines it
_MESSAGE_COLUMNS, _GROUP_KEY = len(CopiedMessage._fields), CopiedMessage._fields.index("group")


def convert(folder: Path, *, progress: Progress | None = None) -> None:
    """Convert the old database of ``folder``, or finish an interrupted conversion.

    ``progress`` is called with the number of converted messages and their total. Raises ``FolderError``, and leaves the
    old database unchanged, if the folder is in use, has another format, or lacks disk space.
    """
    with locked(folder):
        if (folder / SET_ASIDE).exists():
            raise FolderError(
                f"{folder} has {OLD_NAME} and {SET_ASIDE}, and no file is overwritten: move the latter away."
            )
        if (folder / DATABASE_NAME).is_file():
            instants = []
            for name, query in ((OLD_NAME, _INSTANT), (DATABASE_NAME, SQL["progress"])):
                with _opened(folder / name) as connection:
                    instants.append(next(iter(connection.execute(query)), (0,))[0])
            if instants[0] > instants[1]:
                raise FolderError(
                    f"{folder} has {OLD_NAME} and {DATABASE_NAME}, and the first one was changed after its conversion: "
                    f"move {DATABASE_NAME} away to convert it again, or {OLD_NAME} to go on without these changes."
                )
        else:
            _check(folder)
            try:
                with ConversionTarget(folder / DATABASE_NAME) as target:
                    run_to_end(target.convert(progress))
            except (OSError, apsw.Error, FolderError) as error:
                raise FolderError(f"{folder / OLD_NAME} was not converted, nothing is changed: {error}") from error
        shutil.rmtree(_unfinished(folder), ignore_errors=True)
        (folder / OLD_NAME).rename(folder / SET_ASIDE)
        for left in ("-wal", "-shm"):  # empty after the checkpoint
            (folder / f"{OLD_NAME}{left}").unlink(missing_ok=True)
        sync(folder)


@contextmanager
def _opened(path: Path) -> Iterator[apsw.Connection]:
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
            yield connection
    except apsw.Error as error:
        raise FolderError(f"{path} cannot be read: {error}. If it is damaged, restore it from a copy.") from error


def _check(folder: Path) -> None:
    """Raise ``FolderError`` unless the old database can be converted; checkpoint its log."""
    path = folder / OLD_NAME
    with _opened(path) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if connection.pragma("application_id") != _OLD_APPLICATION_ID:
            raise FolderError(f"{path} is not a veilmq database: choose another folder with --data.")
        version = connection.pragma("user_version")
        if version != _OLD_FORMAT:
            raise FolderError(
                f"{path} has format {version}, and only format {_OLD_FORMAT} is converted: "
                "open it with the last version before this one first."
            )
        _check_space(connection, folder)
        ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if busy:
        raise FolderError(f"{path} is read by another process: end it, and start again.")


def _check_space(connection: apsw.Connection, folder: Path) -> None:
    pages = connection.pragma("page_count") - connection.pragma("freelist_count")
    needed = pages * connection.pragma("page_size") * 3 // 2 + _SPARE_BYTES
    needed += sum(log.stat().st_size for log in folder.glob(f"{OLD_NAME}-wal"))  # for the checkpoint
    disk = os.statvfs(folder)
    left = sum(each.stat().st_size for each in _unfinished(folder).glob("*"))  # of an interrupted attempt
    free = disk.f_bavail * disk.f_frsize + left
    if free < needed:
        raise FolderError(
            f"{folder} must be converted, which needs {needed} bytes, and its disk has {free} bytes free: "
            "make room, and start again. Nothing was changed."
        )


def _unfinished(folder: Path) -> Path:
    return folder / f"{DATABASE_NAME}.unfinished"


class _Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A receive attempt: the deadlines in receipts and the current ones, each a list or one for all messages."""

    issued_visible_at_ms: int | list[int]
    visible_at_ms: int | list[int]
    given: list[tuple[int, int, int]]  # position, generation, epoch


_attempt_of = msgspec.msgpack.Decoder(_Attempt).decode


def _message(row: Row) -> CopiedMessage:
    message = CopiedMessage(*row[:_MESSAGE_COLUMNS])
    key: Any = message.group
    if key is None:
        return message
    # The properties contain the name that the sender gave the group; the key is its hash.
    name = decode_properties(message.properties).group
    if name is None or group_hash(name) != key:
        name = f"group {key:x}"
    return message._replace(group=name)


class ConversionTarget(FolderTarget):
    """The new database beside the old one; as a context manager it removes an unfinished one."""

    def _old(self, query: str, *values: Any) -> list[Row]:
        return self._connection.execute(OLD[query], values).fetchall()

    async def convert(self, progress: Progress | None) -> None:
        """Convert everything, and rename the new database."""
        self._connection.execute("ATTACH ? AS old", (str(self._unfinished.folder.with_name(OLD_NAME)),))
        facts: dict[str, Any] = dict(self._old("facts"))
        values = {name: value for name, value in facts.items() if name in _KEYS or name.startswith(_ACCOUNT)}
        if _NODE in facts:
            values[_NODE] = facts[_NODE][:_NODE_BYTES]
        ((last_queue,),) = self._old("last_queue")
        await self.begin(values, now_ms=facts.get("last_instant_ms", 0), last_queue=last_queue)
        ((total,),) = self._old("message_count")
        converted = 0
        for number, name, encoded, *times in self._old("queues"):
            queue = CopiedQueue(number, name, read_settings(encoded), *times)
            await self.add_queue(queue)
            filled = self._session.queue(queue.name)
            for lane, priority, ended_to_ms in self._old("lanes", queue.number):
                if ended_to_ms is not None:  # expired messages are below the floor
                    filled.floor_seq = max(filled.floor_seq, (ended_to_ms + 1) << SEQ_SHIFT)
                for slice_ in self._slices(lane, priority, fifo=queue.settings.fifo):
                    for is_claimed, together in groupby(slice_, key=lambda row: row[_MESSAGE_COLUMNS] is not None):
                        if is_claimed:
                            self._add_claimed(queue, list(together))
                        else:
                            await self.add_messages(queue, [_message(row) for row in together])
                    converted += len(slice_)
                    if progress is not None:
                        progress(converted, total)
        self._add_purged()
        self._add_remaining(facts)
        await self.finish()

    # Messages.

    def _slices(self, lane: int, priority: int, *, fifo: bool) -> Iterator[list[Row]]:
        return slices(self._connection.execute(OLD["messages"], (lane, priority, fifo)))

    def _add_claimed(self, queue: CopiedQueue, slice_: list[Row]) -> None:
        partition, fifo = self._session.queue(queue.name).partition, queue.settings.fifo
        placed: list[tuple[Any, int]] = []  # lane, claim and shard; and seq
        rows: list[Row] = []
        for row in slice_:
            each, (claim, state, shards, shard) = _message(row), row[_MESSAGE_COLUMNS:]
            is_leased = each.receive_count > 0
            if is_leased:
                each = each._replace(visible_at_ms=NEVER_MS)
            seq, group = self._add(queue.number, partition, each, fifo=fifo)
            if shard == _OF_GROUPS and group is not None:
                # A claim's shards must not change once they are read; a claim that is being bound was not read yet.
                shard = (group if state == ClaimState.BINDING.value else row[_GROUP_KEY]) % max(1, shards)
            lane = each.priority + (0 if group is None or fifo else GROUPED)
            if is_leased:
                receives = each.receive_count, each.epoch, receives_of(each)[4]
                rows.append((partition, seq, seq, lane, group, *receives, claim, shard))
            else:
                placed.append(((lane, claim, shard), seq))
        for (lane, claim, shard), first, last in to_runs(placed):
            rows.append((partition, last, first, lane, None, 1, 1, None, claim, shard))
        self._session.run_many("insert_claimed", rows)

    def _add_purged(self) -> None:
        """Add messages of purged queues whose receipts have not been logged as ended."""
        session = self._session
        for lane, priority, fifo, name, ended_at_ms in self._old("purged"):
            queue = session.find(name)
            number, origin = (0, 0) if queue is None else (queue.number, queue.origin)
            ((partition,),) = session.rows("insert_part", number)
            session.run("retire_part", partition, ended_at_ms, origin, name)
            self._last_seq = self._taken_seq = 0
            for slice_ in self._slices(lane, priority, fifo=fifo):
                for each in (message for message in map(_message, slice_) if log_is_open(message.log)):
                    seq, group = self._add(number, partition, each, fifo=fifo)
                    if fifo:
                        session.stage(SQL["insert_ordered_run"], [(partition, seq, seq, 1)])
                    else:
                        place = partition, seq, priority + (0 if group is None else GROUPED), each.visible_at_ms, group
                        session.stage(SQL["add_visibility"], [(*place, *receives_of(each))])
                session.flush()

    # Everything else.

    def _add_remaining(self, facts: dict[str, Any]) -> None:
        session, execute = self._session, self._connection.execute
        list(execute(OLD["copy_tables"]))
        for key, taken, attempted_at_ms in self._old("attempts"):
            attempt = _attempt_of(taken)
            times = attempt.issued_visible_at_ms, attempt.visible_at_ms
            both_ms = [[ms] * len(attempt.given) if isinstance(ms, int) else ms for ms in times]
            given = [(*receipt, *at_ms) for receipt, *at_ms in zip(attempt.given, *both_ms, strict=True)]
            for (queue,) in self._old("queue_at", given[0][0] >> _LANE_SHIFT):  # no row if the queue was purged
                seqs = [session.row("renumbered", queue, position) or (position,) for position, *_ in given]
                messages = [AttemptedMessage(seq, *rest) for (seq,), (_, *rest) in zip(seqs, given, strict=True)]
                store_attempt(session, key, messages, attempted_at_ms)
        for number, queue, writer, batch, encoded, *args in self._old("publications"):
            stages = ",".join(map(str, msgspec.msgpack.decode(encoded)))
            execute(OLD["add_publication"], (number, queue, writer, batch, f"{{{stages}}}", *args))
        session.run("plan_events", facts.get("events_planned_to", 0))
        session.run("export_events", facts.get("events_exported_to", 0))
        session.run("drop_events", facts.get("events_dropped", 0))
        session.run("put_progress", session.now_ms, session.last_seq)
        session.run("put_mark", facts.get("clock_mark"))
