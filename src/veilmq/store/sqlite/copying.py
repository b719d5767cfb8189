"""Whole data folders: the doctor that checks one, backups, and copies from and to other kinds of store.

An interrupted copy, or one that breaks an invariant, leaves nothing that looks like a data folder.
"""

import os
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import apsw
import msgspec

from veilmq.core.limits import BATCH_BYTES_MAX, DEDUPLICATION_S, SECOND_MS
from veilmq.core.messages import group_hash
from veilmq.store import copying
from veilmq.store.clock import SystemClock
from veilmq.store.copying import SLICE, TABLES, CopiedDeduplication, CopiedMessage, CopiedQueue, Progress, Source
from veilmq.store.named_queries import load
from veilmq.store.port import Report, findings
from veilmq.store.sqlite import database, fifo
from veilmq.store.sqlite.database import DATABASE_NAME, SQL, EngineOptions, FolderError
from veilmq.store.sqlite.fair import GROUPED
from veilmq.store.sqlite.session import ENTRY, Row, Session
from veilmq.store.sqlite.standard import to_runs
from veilmq.store.transaction import SEQ_SHIFT

_PAGES_PER_STEP = 1_000
_STORE_FILES = ("veilmq.", DATABASE_NAME)  # the lock, the process, the database with its log
_UNFINISHED = ".new"


# The doctor.


def examine(folder: Path) -> Report:
    """Check all invariants of a data folder, without changes; raises ``FolderError`` without a veilmq database.

    It reads one snapshot, so a server may run. The log or journal of a killed server is read and left in place.
    """
    path = database.database_of(folder)
    while True:
        in_use, before = database.is_in_use(folder), _state(path)
        try:
            with _opened(path, before, in_use=in_use) as connection:
                database.check_format(connection, str(path))
                connection.execute("BEGIN")  # one snapshot for all checks
                report = _examine(connection)
        except apsw.Error as error:
            if in_use or _state(path) == before:
                raise FolderError(f"{path} cannot be read as a database: {error}. Restore it from a copy.") from error
        else:
            if in_use or _state(path) == before:  # else a server has started to write
                return report


def _state(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and modification time of the database, its journal and its log, by file name suffix."""
    files = {end: path.with_name(f"{path.name}{end}") for end in ("", "-journal", "-wal")}
    return {end: (file.stat().st_size, file.stat().st_mtime_ns) for end, file in files.items() if file.is_file()}


@contextmanager
def _opened(path: Path, state: dict[str, tuple[int, int]], *, in_use: bool) -> Iterator[apsw.Connection]:
    """Open the database without creating, changing or removing any file in its folder."""
    sizes = {end: size for end, (size, _) in state.items()}
    if not in_use and sizes.get("-journal"):  # exists until the first start is complete
        with TemporaryDirectory(prefix="veilmq-doctor-") as folder:
            try:
                for end in state:
                    shutil.copy(path.with_name(f"{path.name}{end}"), folder)
            except OSError as error:
                raise FolderError(
                    f"{path} has a journal to roll back, which needs a copy in {folder}: {error.strerror}. "
                    f"Name a folder with enough space in TMPDIR."
                ) from error
            with closing(apsw.Connection(str(Path(folder) / path.name))) as connection:
                yield connection
        return
    mode = "mode=ro" if in_use else "mode=ro&immutable=1"
    if not in_use and sizes.get("-wal"):
        mode = "mode=ro&vfs=unix-none"  # no other process uses it, and a reader cannot get the lock that SQLite needs
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with closing(apsw.Connection(f"{path.absolute().as_uri()}?{mode}", flags=flags)) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if not in_use:
            connection.pragma("locking_mode", "EXCLUSIVE")  # keeps the index of the log in memory, not in a file
        yield connection


def _examine(connection: apsw.Connection) -> Report:
    checks = load(__package__, "doctor.sql")
    list(connection.execute(checks.pop("views")))
    problems = "; ".join([str(row[0]) for row in connection.execute("PRAGMA integrity_check(10)")]).removeprefix("ok")
    details = {"the database file is sound": problems}
    for check, query in checks.items():
        counting = f"WITH found (broken) AS ({query}) SELECT count(*), min(broken) FROM found"
        ((count, example),) = connection.execute(counting)
        details[check] = f"{count} rows break this, the first at {example}" if count else ""
    page_bytes = connection.pragma("page_size")
    facts: dict[str, str | int] = {
        "format": connection.pragma("user_version"),
        "queues": connection.execute("SELECT count(*) FROM queue").get,
        "messages": connection.execute("SELECT count(*) FROM message").get,
        "database_bytes": connection.pragma("page_count") * page_bytes,
        "free_bytes": connection.pragma("freelist_count") * page_bytes,
    }
    return Report(findings(details), facts)


# Unfinished copies.


class Unfinished:
    """An unfinished data folder: ``PLACE.unfinished`` becomes ``PLACE`` once it is complete, checked and synced."""

    def __init__(self, place: Path) -> None:
        """Create the folder; for a ``place`` in ``.db`` only the file is kept. Raises ``FolderError`` if it exists."""
        if place.exists() or place.is_symlink():
            raise FolderError(f"{place} exists, and is not overwritten: choose a new path with --to.")
        self._place = place
        self.folder = place.with_name(f"{place.name}.unfinished")
        self.remove()
        try:
            self.folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise FolderError(f"{self.folder} cannot be made: {error}. Check the disk and the rights.") from error
        self.database = self.folder / DATABASE_NAME

    def check(self) -> dict[str, str | int]:
        """Return facts about the content; raises ``FolderError`` if it breaks an invariant."""
        report = examine(self.folder)
        broken = [finding.check for finding in report.findings if not finding.ok]
        if broken:
            raise FolderError(
                f"The copy was discarded, because these checks failed: {'; '.join(broken)}. Run `veilmq doctor` on "
                "the original store."
            )
        return report.facts

    def rename(self) -> None:
        """Sync it, and give it its final name."""
        for left in ("-wal", "-shm"):  # left by ``check``
            self.database.with_name(f"{DATABASE_NAME}{left}").unlink(missing_ok=True)
        for each in (*self.folder.iterdir(), self.folder):
            database.sync(each)
        (self.database if self._place.suffix == ".db" else self.folder).rename(self._place)
        database.sync(self._place.parent)

    def remove(self) -> None:
        """Remove the folder unless it was renamed."""
        shutil.rmtree(self.folder, ignore_errors=True)


# Backup.


def back_up(folder: Path, to: Path, *, progress: Progress | None = None) -> dict[str, str | int]:
    """Copy the store in ``folder``, served or not, to ``to``; return facts about its content, as the doctor does.

    ``to`` becomes a folder for ``serve --data`` or, if it ends in ``.db``, the one file that such a folder needs, as
    ``store.db``. ``progress`` is called with the pages copied and the total. Raises ``FolderError``, and leaves
    nothing, if there is no store, the target exists, its disk is full, or the copy fails the doctor's checks.

    One transaction reads all pages, so the copy is the store between two batches. The server continues; its write-ahead
    log grows meanwhile.
    """
    source, flags = database.database_of(folder), apsw.SQLITE_OPEN_READONLY
    unfinished = Unfinished(to)
    try:  # messages and the receipts' key are private
        os.close(os.open(unfinished.database, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with (
            closing(apsw.Connection(str(source), flags=flags)) as reader,
            closing(apsw.Connection(str(unfinished.database))) as writer,
        ):
            database.check_format(reader, str(source))
            reader.execute("BEGIN")
            reader.pragma("schema_version")  # the first read takes the snapshot
            with writer.backup("main", reader, "main") as backup:
                while not backup.done:
                    backup.step(_PAGES_PER_STEP)
                    if progress is not None:
                        progress(backup.page_count - backup.remaining, backup.page_count)
        facts = unfinished.check()
        for path in folder.iterdir():  # other files, such as the key that signs pushes
            if path.is_file() and not path.name.startswith(_STORE_FILES) and path.suffix != _UNFINISHED:
                shutil.copy2(path, unfinished.folder)
        unfinished.rename()
    except (OSError, apsw.Error) as error:
        reason = "its disk is full" if database.disk_is_full(error) else error  # SQLite's text is "not an error"
        raise FolderError(f"{folder} cannot be copied to {to}: {reason}. Check both disks and rights.") from error
    finally:
        unfinished.remove()
    return facts


# Copies.


def slices(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield slices of rows that start like a ``CopiedMessage``, limited in number and size."""
    slice_: list[Row] = []
    bytes_left = BATCH_BYTES_MAX
    for row in rows:
        slice_.append(row)
        bytes_left -= len(row[2])
        if len(slice_) == SLICE or bytes_left <= 0:
            yield slice_
            slice_, bytes_left = [], BATCH_BYTES_MAX
    if slice_:
        yield slice_


class FolderSource(Source):
    """``store.copying.Source`` of a data folder."""

    SQL = SQL
    COPIED = frozenset(
        {"accepted", "message", "ordered", "queue", "ready", "setting", "attempt", "fair_group", "message_group"}
        | {"ordered_run", "piece", "progress", "renumbered", "claimed", "event_state"}
        | {"expired_receipt", "visibility"}
    )
    BLOCKING_ROWS: ClassVar[Mapping[str, str]] = {
        **Source.BLOCKING_ROWS,
        "part": "log_queue IS NOT NULL AND (EXISTS (SELECT 1 FROM visibility WHERE partition = qp) "
        "OR EXISTS (SELECT 1 FROM ordered WHERE partition = qp))",
    }

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, *, clock: SystemClock) -> Iterator["FolderSource"]:
        """Lock and open the folder."""
        database.database_of(folder, "--from")
        with database.locked(folder), closing(database.open_connection(folder, EngineOptions())) as connection:
            yield cls(connection, clock)

    def __init__(self, connection: apsw.Connection, clock: SystemClock) -> None:
        """``clock`` continues that of the store; copied instants are in shown time, which other stores use."""
        self._connection = connection
        ((floor_ms, _, mark),) = self._connection.execute(SQL["progress"])
        clock.resume(mark, floor_ms=floor_ms)
        self._now_ms = clock.now_ms()
        self.ahead_ms = clock.ahead_ms(self._now_ms)
        self.now_ms = self._now_ms + self.ahead_ms

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        return self._connection.execute(text, values).fetchall()

    async def messages(self, queue: CopiedQueue) -> AsyncIterator[list[CopiedMessage]]:
        """See ``Source``; those of a standard queue that were received, delayed or have a group come first."""
        (row,) = await self.fetch(SQL["queue_by_name"], queue.name)
        partition, floor_seq = row[6], max(row[11], (queue.expired_until_ms(self._now_ms) + 1) << SEQ_SHIFT)
        query = SQL["copied_ordered" if queue.settings.fifo else "copied_standard"]
        shown = partial(self.shown, CopiedMessage._fields)
        for rows in slices(self._connection.execute(query, (partition, floor_seq))):
            yield [  # positions are in shown time unless a receipt may name them
                each
                if queue.settings.fifo or each.has_history
                else each._replace(position=each.position + (self.ahead_ms << SEQ_SHIFT))
                for each in [CopiedMessage._make(shown(row)).named() for row in rows]
            ]

    async def deduplication_log(self) -> list[CopiedDeduplication]:
        """See ``Source``; one log has the entries of all queues, with hashes as keys."""
        return [
            CopiedDeduplication(None, key, message_id, sequence, logged_at_ms + self.ahead_ms)
            for _, logged_at_ms, entries in await self.fetch(SQL["accepted_from"], 1, -1)
            for key, message_id, sequence, _ in ENTRY.iter_unpack(entries)
            if logged_at_ms > self._now_ms - DEDUPLICATION_S * SECOND_MS
        ]


class FolderTarget(copying.Target):
    """``store.copying.Target`` of a new folder; as a context manager it removes an unfinished one.

    A message's seq is its position if that is free and of its sending time, as positions on PostgreSQL are; otherwise
    the next free seq, to which ``renumbered`` maps its receipts.
    """

    def __init__(self, folder: Path) -> None:
        self._unfinished = Unfinished(folder)
        try:
            self._connection = database.open_connection(self._unfinished.folder, EngineOptions())
        except FolderError:
            self._unfinished.remove()
            raise
        for name in ("journal_mode", "synchronous"):
            self._connection.pragma(name, "OFF")  # an interrupted copy is removed
        self._session: Session
        self._last_seq = self._taken_seq = 0  # of the current queue; seqs in between are free

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._unfinished.remove()

    async def begin(self, values: dict[str, bytes], *, now_ms: int, last_queue: int) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(SQL["put_setting"], values.items())
        self._connection.execute(SQL["number_behind"], (last_queue,))
        database: Any = None  # not needed: checkpoints and disk space do not matter here
        self._session = Session(self._connection, options=EngineOptions(), database=database)
        self._session.now_ms = now_ms

    async def add_queue(self, queue: CopiedQueue) -> None:
        ((partition,),) = self._session.rows("insert_part", queue.number)
        encoded = msgspec.json.encode(queue.settings)  # encodes settings that earlier versions lacked
        times = queue.created_at_ms, queue.modified_at_ms
        self._session.run("add_queue", queue.number, queue.name, encoded, *times, partition)
        self._session.queue(queue.name).counted_at_ms = self._session.now_ms
        self._last_seq = self._taken_seq = 0

    async def add_messages(self, queue: CopiedQueue, messages: Sequence[CopiedMessage]) -> None:
        session, filled = self._session, self._session.queue(queue.name)
        ready: list[tuple[int, int]] = []  # lane and seq
        for each in messages:
            seq, group = self._add(queue.number, filled.partition, each, fifo=filled.fifo)
            filled.add_hidden(each.visible_at_ms, received=each.receive_count > 0)
            if not filled.fifo and (group is not None or each.has_history or each.visible_at_ms != each.sent_at_ms):
                lane = each.priority + (0 if group is None else GROUPED)
                row = (filled.partition, seq, lane, each.visible_at_ms, group, *receives_of(each))
                session.stage(SQL["add_visibility"], [row])
                if group is not None:
                    session.stage(SQL["admit_fair_group"], [(filled.partition, lane, group, each.visible_at_ms, seq)])
            else:
                ready.append((each.priority, seq))
        runs = to_runs(ready)
        if filled.fifo:
            rows: list[Any] = [(filled.partition, last, first, last - first + 1) for _, first, last in runs]
            session.run_many("insert_ordered_run", rows)
        else:
            session.run_many("insert_ready", [(filled.partition, lane, last, first) for lane, first, last in runs])
        filled.messages += len(messages)
        session.dirty.add(filled)

    def _add(self, queue: int, partition: int, message: CopiedMessage, *, fifo: bool) -> tuple[int, int | None]:
        """Add a message, and its row in a FIFO queue; return its seq and the number of its group."""
        session, group = self._session, None
        seq = self._last_seq = self._seq(message, fifo=fifo)
        session.last_seq = max(session.last_seq, seq)
        if seq != message.position and message.has_history:  # for its receipts
            session.stage(SQL["renumber"], [(seq, queue, message.position)])
        if message.group is not None and fifo:
            group = session.group_numbers.number(partition, message.group, seq)
            visible_at_ms = max(message.visible_at_ms, message.came_at_ms) if message.has_history else None
            session.stage(SQL["add_ordered"], [(partition, group, seq, visible_at_ms, *receives_of(message))])
        elif message.group is not None:
            group = group_hash(message.group, session.group_numbers.key)
        history: Any = (None, None, None, None)
        if message.source is not None:
            moved_at_ms = None if message.came_at_ms == message.sent_at_ms else message.came_at_ms
            history = message.source, message.receives_before, message.first_received_at_ms, moved_at_ms
        session.stage(SQL["add_message"], [(seq, group, message.id, message.properties, message.body, *history)])
        return seq, group

    def _seq(self, message: CopiedMessage, *, fifo: bool) -> int:
        """Return a free seq of the message's sending time; in a FIFO queue, one after the previous message."""
        sent_at_ms = message.sent_at_ms
        seq = message.position if message.position >> SEQ_SHIFT == sent_at_ms else sent_at_ms << SEQ_SHIFT
        if fifo or self._last_seq >> SEQ_SHIFT == sent_at_ms:
            seq = max(seq, self._last_seq + 1)
        if not self._last_seq < seq < self._taken_seq:
            ((seq, self._taken_seq),) = self._session.rows("free_seq", seq)
        return seq

    async def add_deduplication_log(self, entries: Sequence[CopiedDeduplication]) -> None:
        log = self._session.deduplication_log
        for logged_at_ms, entries_at in groupby(entries, key=attrgetter("logged_at_ms")):
            for each in entries_at:
                log.add(each.key, each.id, each.sequence, logged_at_ms)
            log.write()

    async def add_rows(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        columns, placeholders = ", ".join(TABLES[table]), ", ".join("?" * len(TABLES[table]))
        self._connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({placeholders})", rows)

    async def finish(self) -> None:
        """See ``Target``; raises ``FolderError`` if the doctor finds a fault."""
        session = self._session
        for queue in session.queues.values():
            found = [group for (group,) in session.rows("add_group_cursors", queue.partition)]
            for start in range(0, len(found), SLICE):
                fifo.update_cursors(session, queue, found[start : start + SLICE])
        session.finish()
        self._connection.execute("COMMIT")
        self._connection.close()
        self._unfinished.check()
        self._unfinished.rename()


def receives_of(message: CopiedMessage) -> tuple[Any, ...]:
    """Return the columns of a message's receives; the first one here is unknown for a dead letter."""
    if not message.receive_count:
        return 0, 0, message.epoch, None, None, message.log
    first_here_ms = message.received_at_ms if message.source is not None else message.first_received_at_ms
    times = message.received_at_ms, first_here_ms
    return message.receive_count, message.generation, message.epoch, *times, message.log
