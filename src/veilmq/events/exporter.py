"""The exporter: it reads events from the store in order and writes them to a target, once per period.

Each range is planned in the store, read in slices, written as files, and deleted from the store. After a crash, the
next start repeats the planned range, whose files replace each other. So no event is lost or exported twice. While the
target cannot be written, events wait in the store, up to a limit (``docs/events.md``).

The exporter runs in the event loop. Files are written in daemon threads: a target may hang for hours, and asyncio waits
for its own threads at its end.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from pyarrow import ArrowException, fs

from veilmq.core.commands import Clock, Command, Timer
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import CountEvents, EventCounts, EventRange, ForgetEvents, PlanExport, ReadEvents
from veilmq.events import EventsError
from veilmq.events.parquet import DATA_SET, encode_parquet, range_entry, range_files, to_table

log = logging.getLogger(__name__)

_SLICE_BYTES = 262_144  # some milliseconds to convert to columns
_CHECK_S_MAX = 5
_BUCKETS = ("s3", "gcs", "abfs")  # no folders and renames; a file appears when it is closed
_HIDDEN_PREFIX = "_"  # Spark and pyarrow ignore such names

Execute = Callable[[Command], Awaitable[Any]]
"""Submits a command to the engine and waits for its result; raises its ``VeilmqError``."""


class Target:
    """The target of the files: ``filesystem`` of ``pyarrow.fs``, and the path ``root`` in it.

    Files are written atomically: by upload to a bucket, elsewhere under a name that readers of tables ignore, followed
    by a rename. On a local disk, file and folders are synced before ``put`` returns, because the store then deletes the
    events. ``put`` replaces an existing file.
    """

    def __init__(self, filesystem: Any, root: str, *, local: bool) -> None:
        """Use ``open_target``."""
        self._filesystem = filesystem
        self._suffix = token_hex(4)  # of temporary names: another process may export the same range
        self.root = root.rstrip("/")
        self._local = local

    def put(self, folder: str, name: str, content: Any) -> None:
        """Write ``content`` (bytes or a buffer) as the file ``name`` in ``folder``, a path below the root or ``""``."""
        where = f"{self.root}/{folder}".rstrip("/")
        temporary, path = f"{where}/{_HIDDEN_PREFIX}{name}.{self._suffix}.tmp", f"{where}/{name}"
        if self._filesystem.type_name in _BUCKETS:
            self.write(path, content)
            return
        self._filesystem.create_dir(where, recursive=True)
        self.write(temporary, content)
        self.rename(temporary, path)
        if self._local:
            for left in Path(where).glob(f"{_HIDDEN_PREFIX}{name}.*.tmp"):  # of killed writers
                left.unlink(missing_ok=True)
            above = Path(self.root).parent  # the root may be new, too
            for each in (Path(where), *Path(where).parents):
                sync(each)
                if each == above:
                    break

    def write(self, path: str, content: Any) -> None:
        """Write ``content``; on a local disk, sync it."""
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(content)
        if self._local:
            sync(path)

    def rename(self, temporary: str, path: str) -> None:
        """Rename a written file; if a rename cannot replace a file (HDFS, SFTP), delete the old one first."""
        try:
            self._filesystem.move(temporary, path)
        except OSError:
            if not all(each.is_file for each in self._filesystem.get_file_info([temporary, path])):
                raise  # another writer may have renamed the new one
            self._filesystem.delete_file(path)
            self._filesystem.move(temporary, path)


def sync(path: str | Path) -> None:
    """Sync the file or folder at ``path`` to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_target(place: str) -> Target:
    """Return the target for a folder, which is created, or a URL of pyarrow or fsspec; raises ``EventsError``."""
    if "://" not in place or place.startswith("file://"):
        folder = Path(place.removeprefix("file://")).absolute()
        what = f"The folder {folder} for events (--events-to) cannot be"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EventsError(f"{what} made: {error.strerror}.") from error
        if not os.access(folder, os.W_OK):
            raise EventsError(f"{what} written; change its rights.")
        return Target(fs.LocalFileSystem(), str(folder), local=True)
    s3_url = f"{place}{'&' if '?' in place else '?'}allow_delayed_open=true"  # one request for a small file
    try:
        return Target(*fs.FileSystem.from_uri(s3_url if place.startswith("s3:") else place), local=False)
    except (ArrowException, OSError, ValueError) as error:
        refused = _hidden(place, error)
    what = f"{_shown(place)} (--events-to)"
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 (optional)
    except ModuleNotFoundError:
        missing = "fsspec is missing: pip install fsspec"
        raise EventsError(f"{what} is not a URL of pyarrow ({refused}), and {missing}") from None
    try:
        filesystem, root = url_to_fs(place)
    except Exception as error:  # noqa: BLE001 (each file system of fsspec raises other errors)
        reasons = f"fsspec: {_hidden(place, error)}; pyarrow: {refused}"
        raise EventsError(f"{what} cannot be used. {reasons}") from None
    return Target(fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root, local=False)


def _shown(url: str) -> str:
    """Return ``url`` without its possible secrets: user, password and parameters."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _hidden(url: str, error: Exception) -> str:
    """Return the text of ``error`` without the secrets of ``url``."""
    text = str(error).replace(url, _shown(url))
    user = url.partition("://")[2].rpartition("@")[0]
    for secret in (user, user.partition(":")[2]):
        text = text.replace(secret, "…") if secret else text
    return text


class Exporter:
    """Exports the events of one store to one target."""

    def __init__(self, *, execute: Execute, clock: Clock, target: Target, period_s: int, events_per_range: int) -> None:
        """Export every ``period_s``, or once ``events_per_range`` events wait, which is about the size of a range."""
        self._execute = execute
        self._clock = clock
        self._target = target
        self._period_ms = period_s * SECOND_MS
        self._events_per_range = events_per_range
        self._exported_at_ms = clock.now_ms()
        self._export_lock = asyncio.Lock()
        self._timer: Timer | None = None
        self._checking: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failing = False
        to_table((), "")  # pyarrow loads modules, such as pandas, at its first use: load them before requests arrive
        self.failures = 0

    def start(self) -> None:
        """Start periodic checks for a due export."""

        def begin() -> None:
            self._checking = asyncio.get_running_loop().create_task(self._check())

        wait_ms = min(self._period_ms, _CHECK_S_MAX * SECOND_MS)
        self._timer = self._clock.call_at(self._clock.now_ms() + wait_ms, begin)

    async def _check(self) -> None:
        with contextlib.suppress(EventsError, VeilmqError):  # logged already; the next check retries
            due = self._clock.now_ms() >= self._exported_at_ms + self._period_ms
            if due or (await self._execute(CountEvents())).waiting >= self._events_per_range:
                await self.flush()
        self.start()

    async def flush(self) -> EventCounts:
        """Export all waiting events; raises ``EventsError``."""
        async with self._export_lock:
            counts: EventCounts = await self._execute(CountEvents())
            plan, planned = PlanExport(events_max=self._events_per_range), None
            try:
                while (planned is None or planned.last < counts.recorded) and (planned := await self._execute(plan)):
                    await self._export(planned)
            except Exception as error:
                self.failures += 1
                where = self._target.root
                if not self._failing:
                    log.warning("events cannot be exported to %s; they wait in the store: %s", where, error)
                self._failing = True
                raise EventsError(f"Events cannot be exported to {where}/{DATA_SET}: {error}") from error
            if self._failing:
                log.warning("events are exported to %s again", self._target.root)
            self._failing = False
            self._exported_at_ms = self._clock.now_ms()
            counts = await self._execute(CountEvents())
            return counts  # noqa: RET504 - for its type

    async def _export(self, planned: EventRange) -> None:
        tables = []
        first = planned.first
        while first <= planned.last:
            page = await self._execute(ReadEvents(first=first, last=planned.last, bytes_max=_SLICE_BYTES))
            tables.append(await asyncio.to_thread(to_table, page.batches, planned.node))
            first = page.next
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        work = partial(self._write, tables, planned, done)
        threading.Thread(target=work, name="veilmq-events", daemon=True).start()
        await asyncio.wrap_future(done)
        while (await self._execute(ForgetEvents(last=planned.last))).more:
            pass

    def _write(self, tables: Sequence[Any], planned: EventRange, done: "Future[None]") -> None:
        try:
            paths = []
            for folder, name, table in range_files(tables, planned):
                self._target.put(folder, name, encode_parquet(table))
                paths.append(f"{folder}/{name}")
            self._target.put(*range_entry(planned, paths))
            done.set_result(None)
        except BaseException as error:  # noqa: BLE001 (raised by the caller)
            done.set_exception(error)

    async def close(self) -> None:
        """Stop the checks and export the remaining events; on failure, the next start exports them."""
        self._closing = asyncio.current_task()
        self._cancel_timer()
        try:
            if self._checking is not None:
                await self._checking
            self._cancel_timer()
            await self.flush()
        except (EventsError, VeilmqError, asyncio.CancelledError) as error:
            log.warning("events are left for the next start: %s", str(error) or "there was no time")
        self._closing = None

    def cut(self) -> None:
        """Cancel ``close``."""
        if self._closing is not None:
            self._closing.cancel()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
