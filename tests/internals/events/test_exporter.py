"""The exporter and its targets: the files contain each event once, wherever the exporter is stopped."""

import asyncio
import json
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import dataset, fs, parquet

from tests.store.host import LOGGED, Host, events_of, hosting
from veilmq.core.commands import Command
from veilmq.core.errors import StoreFull, StoreUnavailable, VeilmqError
from veilmq.core.receipts import (
    CountEvents,
    EventCounts,
    EventPage,
    EventRange,
    ForgetEvents,
    PlanExport,
    ReadEvents,
    ReceiptClosed,
)
from veilmq.core.receipts import Forgotten as Forgot
from veilmq.events import EventsError, exporter
from veilmq.events.exporter import Exporter, Target, _hidden, open_target
from veilmq.events.parquet import DATA_SET, SCHEMA, encode_parquet
from veilmq.store.port import execute
from veilmq.testing import VirtualClock

HOUR_MS = 3_600_000


class Stopped(BaseException):
    """The process ends here."""


class StoppingTarget(Target):
    """A folder whose writer stops or fails before a step: each of a kind, or one, as in `rename 2`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(fs.LocalFileSystem(), str(folder), local=True)
        self.stop_before: str | None = None
        self.error: BaseException = Stopped()
        self.steps: list[str] = []

    def write(self, path: str, table: Any) -> None:
        self._reach("write")
        super().write(path, table)

    def rename(self, temporary: str, path: str) -> None:
        self._reach("rename")
        super().rename(temporary, path)

    def _reach(self, step: str) -> None:
        self.steps.append(step)
        if self.stop_before in (step, f"{step} {self.steps.count(step)}"):
            raise self.error


class Stage:
    """A logged engine, a target, and an exporter between them."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.target = StoppingTarget(folder)
        self.stop_before_command: type[Command] | None = None
        self.known: list[ReceiptClosed] = []

    def exporter(self, *, events_per_range: int = 1_000) -> Exporter:

        async def make() -> Exporter:
            return Exporter(
                execute=self._execute(),
                clock=self.host.clock,
                target=self.target,
                period_s=60,
                events_per_range=events_per_range,
            )

        return self.host.run(make())

    def _execute(self) -> Callable[[Command], Awaitable[Any]]:
        async def run_command(command: Command) -> Any:
            if type(command) is self.stop_before_command:
                raise Stopped
            return await execute(self.host.engine, command)

        return run_command

    def cycle(self, messages: int, *, advance_ms: int = 10) -> None:
        """Send, receive and delete so many messages, each in its own batch; every third one late."""
        for n in range(messages):
            self.host.send(str(n))
            receipt = self.host.receive_one(timeout_s=1).receipt
            self.host.advance(1_500 if n % 3 == 0 else advance_ms)
            self.host.delete(receipt)

    def flush(self, **options: int) -> EventCounts:
        return self.host.run(self.exporter(**options).flush())

    @property
    def counts(self) -> EventCounts:
        counts: EventCounts = self.host.do(CountEvents())
        return counts

    def files(self) -> dict[str, bytes]:
        """Return the contents of all visible files by path."""
        root = Path(self.target.root)
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.parquet"))}

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table, in the order of events."""
        root = f"{self.target.root}/{DATA_SET}"
        table = dataset.dataset(root, format="parquet", partitioning="hive", schema=None).to_table()
        return table.sort_by("event").to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(exporter, "_SLICE_BYTES", 1)  # a range has a page for each batch
    with hosting(tmp_path / "store", options=LOGGED) as host:
        host.create()
        yield Stage(host, tmp_path / "events")


def test_rows_are_the_events(stage: Stage) -> None:
    stage.cycle(7)
    events = events_of(stage.host)
    assert stage.flush() == EventCounts(recorded=10, exported=10, dropped=0)
    rows = stage.rows()
    assert [row["event"] for row in rows] == list(range(1, 11))
    assert [row["message_id"] for row in rows] == [event.message_id.hex() for event in events]
    (path,) = stage.files()
    node = Path(path).name.partition("-")[0]
    assert {row["node"] for row in rows} == {node}
    assert (Path(stage.target.root) / DATA_SET / "_ranges" / node / "000000000001.json").is_file()
    assert parquet.read_schema(Path(stage.target.root) / path).equals(SCHEMA)


def test_no_events_make_no_file(stage: Stage) -> None:
    assert stage.flush() == EventCounts(recorded=0, exported=0, dropped=0)
    assert stage.files() == {}


def test_one_file_for_each_hour(stage: Stage) -> None:
    stage.host.send("a", "b")
    stage.host.receive(timeout_s=1)
    stage.host.advance(2 * HOUR_MS - stage.host.clock.now_ms() % HOUR_MS)  # to the first millisecond of an hour
    second = stage.host.receive(10)
    stage.host.delete(*[each.receipt for each in second])
    stage.flush()
    hours = [path.rpartition("/")[0] for path in stage.files()]
    assert hours == [f"{DATA_SET}/date=2023-11-14/hour=22", f"{DATA_SET}/date=2023-11-15/hour=00"]
    assert [row["hour"] for row in stage.rows()] == [22, 0, 0]


def test_backlog_is_exported_in_several_ranges(stage: Stage) -> None:
    stage.cycle(9)
    stage.flush(events_per_range=5)
    ranges = [path.rpartition("/")[2].partition("-")[2] for path in stage.files()]
    assert ranges == [
        "000000000001-000000000006.parquet",
        "000000000007-000000000011.parquet",
        "000000000012-000000000012.parquet",
    ]
    assert [row["event"] for row in stage.rows()] == list(range(1, 13))


def entries(stage: Stage) -> dict[str, Any]:
    """Return the entries of ranges by name, as a reader without veilmq does."""
    root = Path(stage.target.root) / DATA_SET / "_ranges"
    return {path.name: json.loads(path.read_bytes()) for path in sorted(root.rglob("*.json"))}


def test_entry_of_a_range_leads_to_the_next(stage: Stage) -> None:
    """It is written after the files that it lists, and is the same when written again."""
    stage.cycle(2)
    stage.host.advance(2 * HOUR_MS)
    stage.cycle(4)
    files: list[str] = []
    put = stage.target.put

    def note(folder: str, name: str, content: Any) -> None:
        put(folder, name, content)
        files.append(name)

    stage.target.put = note  # type: ignore[method-assign]
    stage.stop_before_command = ForgetEvents
    with pytest.raises(Stopped):
        stage.flush(events_per_range=5)
    first = entries(stage)
    stage.stop_before_command = None
    stage.flush(events_per_range=5)
    found = entries(stage)
    assert next(iter(found)) == "000000000001.json"
    assert first == {name: found[name] for name in first}
    lasts = [each["last"] for each in found.values()]
    assert [int(name[:12]) for name in found] == [1, *(last + 1 for last in lasts[:-1])]
    assert lasts[-1] == stage.counts.exported
    assert sorted(f"{DATA_SET}/{name}" for each in found.values() for name in each["files"]) == sorted(stage.files())
    assert len(found["000000000001.json"]["files"]) == 2
    assert [name.endswith(".json") for name in files[:3]] == [False, False, True]


STEPS = ["write", "rename", "rename 2", PlanExport, ForgetEvents]  # rename 2: of the next hour, or the entry


@pytest.mark.parametrize("hour", ["one hour", "two hours"])
@pytest.mark.parametrize("restart", ["reopen", "crash"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: getattr(step, "__name__", step))
def test_export_stopped_at_a_step_is_repeated_with_the_same_files(
    stage: Stage, step: str | type[Command], restart: str, hour: str
) -> None:
    stage.cycle(5)
    if hour == "two hours":
        stage.host.advance(HOUR_MS)
        stage.cycle(2)
    expected = len(events_of(stage.host))
    if isinstance(step, str):
        stage.target.stop_before = step
    else:
        stage.stop_before_command = step
    with pytest.raises(Stopped):
        stage.flush()
    assert stage.counts.exported == 0
    before = stage.files()
    stage.target.stop_before = stage.stop_before_command = None
    getattr(stage.host, restart)()
    stage.cycle(4)  # later events belong to the next range
    stage.flush()
    after = stage.files()
    assert before == {path: after[path] for path in before}
    assert [row["event"] for row in stage.rows()] == list(range(1, stage.counts.recorded + 1))
    first_range = [path for path in after if "-000000000001-" in path]
    if step is not PlanExport:
        assert all(f"-{expected:012d}.parquet" in path for path in first_range)


def test_events_wait_while_the_target_fails(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.cycle(2)
    stage.target.stop_before, stage.target.error = "write", OSError("no such bucket")
    exporter = stage.exporter()
    for _ in range(2):
        with pytest.raises(EventsError, match=r"cannot be exported to .*: no such bucket"):
            stage.host.run(exporter.flush())
    assert exporter.failures == 2
    assert stage.counts.waiting == 3
    assert [record.message.count("no such bucket") for record in caplog.records] == [1], "once, not each time"
    stage.target.stop_before = None
    for _ in range(2):
        assert stage.host.run(exporter.flush()).waiting == 0
    assert ["again" in message for message in caplog.messages] == [False, True]


def test_failing_store_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """As a failing target."""
    stage.cycle(1)

    async def run_command(command: Command) -> Any:
        if isinstance(command, PlanExport):
            raise StoreFull
        return await execute(stage.host.engine, command)

    exporter = stage.exporter()
    exporter._execute = run_command
    with pytest.raises(EventsError, match="cannot be exported"):
        stage.host.run(exporter.flush())
    assert exporter.failures == 1
    assert str(StoreFull()) in caplog.messages[-1]


# The times of exports.


def until(stage: Stage, done: Callable[[], bool], *, step_ms: int = 0) -> None:
    """Run the loop until `done`, at the same instant or with `step_ms` per iteration: files are written in a thread."""
    while not done():
        stage.host.advance(step_ms)


def test_export_is_retried_after_a_failure(stage: Stage) -> None:
    stage.target.stop_before, stage.target.error = "write", OSError("on purpose")
    exporter = stage.exporter()
    stage.host.in_loop(exporter.start)
    stage.cycle(1)
    stage.host.advance(60_000)
    until(stage, lambda: exporter.failures == 1)
    stage.target.stop_before = None
    until(stage, lambda: stage.host.clock.next_timer_ms() is not None)
    stage.host.advance(5_000)
    until(stage, lambda: len(stage.files()) == 1)
    stage.host.run(exporter.close())


@pytest.mark.parametrize("advance_ms", [0, 60_000])
def test_close_exports_the_remaining_events(stage: Stage, advance_ms: int) -> None:
    """It waits for a check under way, and cancels the next one."""
    exporter = stage.exporter()
    stage.host.in_loop(exporter.start)
    stage.cycle(1)
    stage.host.advance(advance_ms)
    stage.host.run(exporter.close())
    assert stage.counts.waiting == 0
    assert len(stage.files()) == 1
    assert (stage.host.clock.next_timer_ms() or math.inf) > stage.host.clock.now_ms() + 5_000


def test_close_leaves_events_that_cannot_be_exported(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.target.stop_before, stage.target.error = "rename", OSError("on purpose")
    exporter = stage.exporter()
    stage.cycle(1)
    stage.host.run(exporter.close())
    assert stage.counts.waiting == 2
    assert "left for the next start" in caplog.messages[-1]


def test_close_does_not_wait_for_a_hanging_target(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Nor does the process: asyncio joins its own threads, but not a daemon thread."""
    began, released = threading.Event(), threading.Event()
    daemons: list[bool] = []

    def hang(folder: str, name: str, content: Any) -> None:
        daemons.append(threading.current_thread().daemon)
        began.set()
        released.wait(30)

    stage.target.put = hang  # type: ignore[method-assign]
    exporter = stage.exporter()
    stage.cycle(1)

    async def close_and_cut() -> None:
        closing = asyncio.ensure_future(exporter.close())
        await asyncio.to_thread(began.wait, 30)
        exporter.cut()
        await closing

    stage.host.run(close_and_cut())
    released.set()
    assert daemons == [True]
    assert "there was no time" in caplog.messages[-1]
    assert stage.counts.waiting == 2


def test_url_of_pyarrow(stage: Stage) -> None:
    stage.cycle(1)
    stage.target = open_target("mock:///bucket/events")  # type: ignore[assignment]
    stage.flush()
    found = stage.target._filesystem.get_file_info(fs.FileSelector("bucket", recursive=True))
    entry, file = [info.path.removeprefix(f"bucket/events/{DATA_SET}/") for info in found if info.is_file]
    assert (entry[:8], file[:16]) == ("_ranges/", "date=2023-11-14/")


PERIOD_S = 60


class CountingStore:
    """A store with ranges of two events; `log` has the names of its commands."""

    def __init__(self, *, ranges: int = 0, new: int = 0, slices: int = 1) -> None:
        self.recorded = 2 * ranges
        self.exported = 0
        self.error: VeilmqError | None = None
        self.log: list[str] = []
        self._new = new
        self._slices = slices
        self._left = slices
        self._answers: dict[type[Command], Callable[[], Any]] = {
            CountEvents: self._count,
            PlanExport: self._plan,
            ReadEvents: lambda: EventPage(batches=[], next=self.exported + 3),
            ForgetEvents: self._forget,
        }

    async def execute(self, command: Command) -> Any:
        await asyncio.sleep(0)
        self.log.append(type(command).__name__)
        if self.error is not None:
            raise self.error
        return self._answers[type(command)]()

    def _count(self) -> EventCounts:
        return EventCounts(recorded=self.recorded, exported=self.exported, dropped=0)

    def _plan(self) -> EventRange | None:
        self.recorded += self._new
        if self.exported == self.recorded:
            return None
        return EventRange(node="n", first=self.exported + 1, last=self.exported + 2)

    def _forget(self) -> Forgot:
        self._left -= 1
        if self._left:
            return Forgot(more=True)
        self._left = self._slices
        self.exported += 2
        return Forgot(more=False)


def exporting(store: CountingStore, folder: Path) -> tuple[Exporter, VirtualClock]:
    clock, target = VirtualClock(), open_target(str(folder))
    made = Exporter(execute=store.execute, clock=clock, target=target, period_s=PERIOD_S, events_per_range=2)
    return made, clock


async def check_once(exporter: Exporter, clock: VirtualClock) -> None:
    """Let five seconds pass, and run what the exporter does then."""
    clock.advance(5_000)
    if exporter._checking is not None:
        await exporter._checking


async def test_flush_ends_while_new_events_arrive(tmp_path: Path) -> None:
    store = CountingStore(ranges=2, new=2)
    await exporting(store, tmp_path)[0].flush()
    assert store.exported == 4


async def test_concurrent_flushes_export_once(tmp_path: Path) -> None:
    store = CountingStore(ranges=1)
    exporter, _ = exporting(store, tmp_path)
    await asyncio.gather(exporter.flush(), exporter.flush())
    assert (store.exported, store.log.count("ReadEvents")) == (2, 1)


async def test_range_is_deleted_before_the_next_is_planned(tmp_path: Path) -> None:
    store = CountingStore(ranges=1, slices=3)
    await exporting(store, tmp_path)[0].flush()
    assert (store.exported, store.log.count("ForgetEvents")) == (2, 3)


async def test_period_starts_with_each_export(tmp_path: Path) -> None:
    """In between, it only counts the waiting events."""
    store = CountingStore()
    exporter, clock = exporting(store, tmp_path)
    planned_at_s: list[int] = []
    exporter.start()
    for place in range(30):
        plans = store.log.count("PlanExport")
        await check_once(exporter, clock)
        if store.log.count("PlanExport") > plans:
            planned_at_s.append(5 * (place + 1))
    await exporter.close()
    assert planned_at_s == [PERIOD_S, 2 * PERIOD_S]


async def test_full_range_is_exported_at_once(tmp_path: Path) -> None:
    """The store is checked again five seconds later, also if it fails."""
    store = CountingStore()
    exporter, clock = exporting(store, tmp_path)
    exporter.start()
    assert clock.next_timer_ms() == clock.now_ms() + 5_000
    store.error = StoreUnavailable()
    await check_once(exporter, clock)
    store.error = None
    store.recorded = 1
    await check_once(exporter, clock)
    assert store.exported == 0
    store.recorded = 2
    await check_once(exporter, clock)
    assert store.exported == 2
    await exporter.close()


TABLE = pa.table({name: ["a"] for name in ("queue", "key", "group_hash", "outcome", "node")})
ROWS = TABLE.append_column("event", pa.array([1]))
for instant in ("sent_at", "received_at", "closed_at"):
    ROWS = ROWS.append_column(instant, pa.array([1], pa.timestamp("ms")))
FILE = encode_parquet(ROWS)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_folder_is_created_and_files_are_atomic(tmp_path: Path, scheme: str) -> None:
    folder = tmp_path / "a" / "b"
    target = open_target(f"{scheme}{folder}")
    assert folder.is_dir()
    target.put("date=1/hour=2", "x.parquet", FILE)
    target.put("date=1/hour=2", "x.parquet", FILE)
    (file,) = [path for path in folder.rglob("*") if path.is_file()]
    assert file == folder / "date=1" / "hour=2" / "x.parquet"


def test_put_syncs_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before its rename, then its folder and those above, which may be new, up to the parent of the root."""
    synced: list[str] = []

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(str(tmp_path)))

    target = open_target(str(tmp_path / "events"))
    monkeypatch.setattr(os, "fsync", note)
    target.put("date=1/hour=2", "x.parquet", FILE)
    hour = "/events/date=1/hour=2"
    written, *folders = synced
    assert re.fullmatch(rf"{hour}/_x\.parquet\.[0-9a-f]{{8}}\.tmp", written)
    assert folders == [hour, "/events/date=1", "/events", ""]


def test_put_deletes_temporary_files_of_killed_writers(tmp_path: Path) -> None:
    """Two processes may write the same file at one time, under different names."""
    hour = tmp_path / "date=1" / "hour=2"
    hour.mkdir(parents=True)
    for name in ("_x.parquet.0badcafe.tmp", "_y.parquet.0badcafe.tmp"):
        (hour / name).write_text("half a file")
    open_target(str(tmp_path)).put("date=1/hour=2", "x.parquet", FILE)
    assert sorted(path.name for path in hour.iterdir()) == ["_y.parquet.0badcafe.tmp", "x.parquet"]


def test_relative_folder_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_target("events").root == str(tmp_path / "events")


def test_url_of_fsspec() -> None:
    target = open_target("memory://bucket/events")
    target.put("date=1/hour=2", "x.parquet", FILE)
    memory = fsspec.filesystem("memory")
    (path,) = memory.find("/bucket/events")
    assert path == "/bucket/events/date=1/hour=2/x.parquet"
    with memory.open(path) as file:
        assert parquet.read_table(file).num_rows == 1


def test_file_is_replaced_if_a_rename_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated export finds files of the earlier one, and would always fail."""
    moves: Callable[..., None] = MemoryFileSystem.mv

    def move(memory: Any, path1: str, path2: str, **options: Any) -> None:
        if memory.exists(path2) or "closed" in path2:
            raise FileExistsError(path2)
        moves(memory, path1, path2, **options)

    monkeypatch.setattr(MemoryFileSystem, "mv", move)
    target = open_target("memory://unmoved/events")
    for _ in range(2):
        target.put("hour=2", "x.parquet", FILE)
    assert [path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/unmoved")] == ["x.parquet"]
    with pytest.raises(OSError, match="closed"):
        target.put("hour=2", "closed.parquet", FILE)
    with pytest.raises(OSError, match=r"x\.parquet"):  # another writer has renamed the temporary file
        target.rename(f"{target.root}/hour=2/gone", f"{target.root}/hour=2/x.parquet")
    assert fsspec.filesystem("memory").exists("/unmoved/events/hour=2/x.parquet")


def test_unknown_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other URLs than those of pyarrow require fsspec."""
    with pytest.raises(EventsError, match=r"elsewhere://bucket/events .* cannot be used"):
        open_target("elsewhere://bucket/events")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(EventsError, match="pip install fsspec"):
        open_target("elsewhere://bucket/events")


@pytest.mark.parametrize(("url", "shown"), [
    ("elsewhere://user:geheim@host/events", "elsewhere://host/events"),
    ("s3://AKID:geheim@bucket/events?bogus=geheim", "s3://bucket/events"),
    ("s3://AKID:ge/geheim@bucket/[", "s3://bucket/["),
    ("ftp://user:geheim@127.0.0.1:1/events", "ftp://127.0.0.1:1/events"),
])  # fmt: skip
@pytest.mark.parametrize("module", ["fsspec.core", "s3fs"])
def test_secrets_of_a_url_are_hidden(url: str, shown: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the error nor its cause shows them; both are logged."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EventsError) as caught:
        open_target(url)
    assert shown in str(caught.value)
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


def test_the_rest_of_an_error_is_shown() -> None:
    error = OSError("no me:geheim, nor geheim, in s3://me:geheim@b/x")
    assert _hidden("s3://me:geheim@b/x", error) == "no …, nor …, in s3://b/x"
    assert _hidden("s3://b/x", OSError("no s3://b/x")) == "no s3://b/x"
