"""Power loss: after every single write, everything written since the last sync is dropped or torn.

SIGKILL proves little, because the page cache survives it. Here a script of all commands runs once on a recorded disk.
For each write, the disk is rebuilt as a power loss after it would leave it, and opened. A batch is one transaction, so
the database must equal, row by row, the state after the last commit that had returned, or after the one in progress. As
the database is the state, no acknowledged change, lease, receive count or order is lost.
"""

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.internals.store.power import Change, Disk, Log, Note, RecordingVFS, Sync, Write
from tests.internals.store.power_script import SCENES, Client
from tests.store.host import HOT, RESTLESS, Host
from veilmq.core import commands
from veilmq.core.commands import InspectLeases, InspectQueue
from veilmq.core.errors import ReceiptState
from veilmq.store.cold import COLD, READS, STEPS
from veilmq.store.sqlite.database import DATABASE_NAME
from veilmq.testing import VirtualClock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEED = 20_240_229
OPTIONS = replace(RESTLESS, event_log="closed", vfs="recording", free_space_reserve_bytes=0)
# Tables that are compared in part: the clock's mark and the secret keys are written outside batches.
PARTLY_COMPARED = {"progress": "last_instant_ms, last_seq", "setting": "* FROM setting WHERE name LIKE 'account %'"}

State = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit that made the state of this number has returned."""

    number: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A command got its result."""


@dataclass(frozen=True, slots=True)
class Idle:
    """All commands have results. `seen` is the visible state; `receipts` are live, each with its queue."""

    now_ms: int
    seen: Any
    receipts: dict[str, str]


class Recording:
    """A run of all scenes, with a restart of the store."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.states: list[State] = [{}]
        self.commands_run: set[type[commands.Command]] = set()
        self._folder = folder
        self._log = log
        clock = VirtualClock()
        scenes = [scene(Client(self._run)) for scene in SCENES]
        for _ in range(2):
            self._host = Host(folder, options=OPTIONS, clock=clock)
            self._record_commits()
            self._host.advance(1)  # runs the work due at the start
            for scene in scenes:
                receipts = next(scene, {})
                self._host.advance(1_000)
                self._log.add(Note(Idle(self._host.clock.now_ms(), seen(self._host), receipts)))
            self._host.close()

    def _record_commits(self) -> None:
        database: Any = self._host.engine._database
        commit = database.commit

        def recorded() -> None:
            commit()
            self._record_state()

        database.commit = recorded
        self._record_state()

    def _record_state(self) -> None:
        self.states.append(state(self._folder))
        self._log.add(Note(Committed(len(self.states) - 1)))

    def _run(self, *together: commands.Command, wait_ms: int = 0) -> list[Any]:
        self.commands_run.update(type(each) for each in together)
        before, commits = len(self.states), set[int]()

        def finished(_: Any) -> None:
            commits.add(len(self.states) - before)
            self._log.add(Note(Finished()))

        results = self._host.do_together(*together, on_result=finished)
        assert commits <= {0, 1}, "a batch is one commit, so each of its commands is applied completely or not at all"
        self._host.advance(wait_ms)
        assert not [each for each in results if isinstance(each, Exception)], results
        return results


def state(folder: Path) -> State:
    """Return all rows of the store in `folder` by table; asserts that the file is sound."""
    connection = apsw.Connection(str(folder / DATABASE_NAME))
    try:
        assert connection.pragma("integrity_check") == "ok"
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: PARTLY_COMPARED.get(name, "*") for name in tables if not name.startswith("sqlite_")}
        return {
            name: list(connection.execute(f"SELECT {rows}" if "FROM" in rows else f"SELECT {rows} FROM {name}"))
            for name, rows in found.items()
        }
    finally:
        connection.close()


def seen(host: Host) -> Any:
    names = host.do(commands.ListQueues(account="000000000000")).names
    queues = [f"000000000000/{name}" for name in names]
    return [
        (name, host.counts(name), host.do(InspectQueue(queue=name)), host.do(InspectLeases(queue=name)))
        for name in queues
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Log, Recording]:
    log = Log()
    vfs = RecordingVFS("recording", log)
    recording = Recording(tmp_path_factory.mktemp("power") / "store", log)
    vfs.unregister()
    return log, recording


def test_the_script_has_every_command_that_changes_anything(recorded: tuple[Log, Recording]) -> None:
    _, recording = recorded
    assert {*COLD, *HOT} - READS - {*STEPS} <= recording.commands_run
    assert len(recording.states) > 60


@pytest.mark.parametrize("torn", [pytest.param(False, id="dropped"), pytest.param(True, id="torn")])
def test_durability_after_a_power_loss(recorded: tuple[Log, Recording], tmp_path: Path, *, torn: bool) -> None:
    """After every write, each committed batch is there completely, and no other one partially."""
    log, recording = recorded
    disk, rng = Disk(), random.Random(SEED)
    committed = losses = 0
    for entry in log.entries:
        disk.play(entry)
        if isinstance(entry, Note) and isinstance(entry.event, Committed):
            committed = entry.event.number
        if not isinstance(entry, Change) or not committed:  # for the creation of tables see sqlite/test_store
            continue
        losses += 1
        folder = tmp_path / str(losses)
        disk.lose_power(folder, torn=rng if torn else None)
        assert state(folder) in recording.states[committed : committed + 2], f"after {losses} writes"
        shutil.rmtree(folder)
    assert committed == len(recording.states) - 1
    assert losses > 5 * committed


def test_no_result_is_delivered_before_its_sync_has_returned(recorded: tuple[Log, Recording]) -> None:
    """When a result is delivered, no write to the database's log is unsynced."""
    log, _ = recorded
    wal = f"{DATABASE_NAME}-wal"
    clean, results = True, 0
    for entry in log.entries:
        if isinstance(entry, Write) and entry.file == wal:
            clean = False
        elif isinstance(entry, Sync) and entry.file == wal:
            clean = True
        elif isinstance(entry, Note) and isinstance(entry.event, Finished):
            results += 1
            assert clean, f"result {results} was delivered before its sync"
    assert results > 60


def test_a_store_continues_after_a_power_loss(recorded: tuple[Log, Recording], tmp_path: Path) -> None:
    """Whenever all commands have results, the visible state is the same, and each receipt still acts."""
    log, _ = recorded
    disk, opened = Disk(), 0
    for entry in log.entries:
        disk.play(entry)
        if not isinstance(entry, Note) or not isinstance(entry.event, Idle):
            continue
        opened += 1
        folder = tmp_path / str(opened)
        disk.lose_power(folder, torn=random.Random(opened))
        host = Host(folder, options=replace(OPTIONS, vfs=None), clock=VirtualClock(entry.event.now_ms))
        assert seen(host) == entry.event.seen
        for receipt, queue in entry.event.receipts.items():
            assert host.delete(receipt, queue=queue) == [ReceiptState.LIVE]
        host.check()
        host.close()
    assert opened == 2 * len(SCENES)


def test_the_harness_detects_a_database_without_syncs(tmp_path: Path) -> None:
    """A database that is configured not to sync loses a committed row."""
    log = Log()
    vfs = RecordingVFS("careless", log)
    connection = apsw.Connection(str(tmp_path / "careless.db"), vfs="careless")
    for statement in ("PRAGMA journal_mode = WAL", "CREATE TABLE kept (x)", "PRAGMA synchronous = OFF"):
        list(connection.execute(statement))
    connection.execute("INSERT INTO kept VALUES (1)")
    disk = Disk()
    for entry in log.entries:
        disk.play(entry)
    connection.close()
    vfs.unregister()
    disk.lose_power(tmp_path / "left", torn=None)
    left = apsw.Connection(str(tmp_path / "left" / "careless.db"))
    assert left.execute("SELECT count(*) FROM kept").get == 0
    left.close()
