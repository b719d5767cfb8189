"""Power loss: whatever was written since the last sync is dropped or torn, at every single write.

SIGKILL proves little, as the page cache survives it. Here a script of all commands runs once on a recorded disk. Then
the disk is rebuilt as the power would have left it after each write, and opened. A batch is one transaction, so what is
found must be, row for row, the state after the last commit that had returned by then, or after the one under way. As
the database is the state, nothing that was acknowledged is lost, no lease is broken, no count has risen, and no order
is another one.
"""

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.internals.store.power import Change, Disk, Log, Note, RecordingVFS, Sync, Write
from tests.internals.store.power_script import SCENES, World
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
OF_THE_PROCESS = {"progress": "last_instant_ms, last_seq", "setting": "* FROM setting WHERE name LIKE 'account %'"}
"""Tables of which not all is compared: the clock's mark and the secret keys are written beside the batches."""

State = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit returned that made the state of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A command was answered."""


@dataclass(frozen=True, slots=True)
class Rested:
    """All was answered, and this is what anybody can see then; `receipts` are live, each with its queue."""

    now_ms: int
    seen: Any
    receipts: dict[str, str]


class Recording:
    """The script of all commands, in two lives of the store."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.states: list[State] = [{}]
        self.asked: set[type[commands.Command]] = set()
        self._folder = folder
        self._log = log
        clock = VirtualClock()
        scenes = [scene(World(self._ask)) for scene in SCENES]
        for _ in range(2):
            self._host = Host(folder, options=OPTIONS, clock=clock)
            self._record_commits()
            self._host.advance(1)  # what a start finds due
            for scene in scenes:
                receipts = next(scene, {})
                self._host.advance(1_000)
                self._log.add(Note(Rested(self._host.clock.now_ms(), seen(self._host), receipts)))
            self._host.close()

    def _record_commits(self) -> None:
        database: Any = self._host.engine._database
        commit = database.commit

        def recorded() -> None:
            commit()
            self._note_state()

        database.commit = recorded
        self._note_state()

    def _note_state(self) -> None:
        self.states.append(state(self._folder))
        self._log.add(Note(Committed(len(self.states) - 1)))

    def _ask(self, *together: commands.Command, wait_ms: int = 0) -> list[Any]:
        self.asked.update(type(each) for each in together)
        before, commits = len(self.states), set[int]()

        def told(_: Any) -> None:
            commits.add(len(self.states) - before)
            self._log.add(Note(Answered()))

        answers = self._host.do_together(*together, on_result=told)
        assert commits <= {0, 1}, "a batch is one commit, so each of its commands is done whole or not at all"
        self._host.advance(wait_ms)
        assert not [each for each in answers if isinstance(each, Exception)], answers
        return answers


def state(folder: Path) -> State:
    """Return all that the store in `folder` keeps, by table; the file must be sound."""
    connection = apsw.Connection(str(folder / DATABASE_NAME))
    try:
        assert connection.pragma("integrity_check") == "ok"
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: OF_THE_PROCESS.get(name, "*") for name in tables if not name.startswith("sqlite_")}
        return {
            name: list(connection.execute(f"SELECT {what}" if "FROM" in what else f"SELECT {what} FROM {name}"))
            for name, what in found.items()
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
    assert {*COLD, *HOT} - READS - {*STEPS} <= recording.asked
    assert len(recording.states) > 60


@pytest.mark.parametrize("torn", [pytest.param(False, id="dropped"), pytest.param(True, id="torn")])
def test_durability_when_the_power_goes(recorded: tuple[Log, Recording], tmp_path: Path, *, torn: bool) -> None:
    """After every write: each batch that was committed is there, whole, and none is there in part."""
    log, recording = recorded
    disk, chance = Disk(), random.Random(SEED)
    committed = losses = 0
    for entry in log.entries:
        disk.play(entry)
        if isinstance(entry, Note) and isinstance(entry.what, Committed):
            committed = entry.what.number
        if not isinstance(entry, Change) or not committed:  # the tables are made in one transaction: sqlite/test_store
            continue
        losses += 1
        folder = tmp_path / str(losses)
        disk.lose_power(folder, torn=chance if torn else None)
        assert state(folder) in recording.states[committed : committed + 2], f"after {losses} writes"
        shutil.rmtree(folder)
    assert committed == len(recording.states) - 1
    assert losses > 5 * committed


def test_no_answer_before_its_sync_has_returned(recorded: tuple[Log, Recording]) -> None:
    """Whenever an answer is given, nothing that was written to the log of the database is unsynced."""
    log, _ = recorded
    wal = f"{DATABASE_NAME}-wal"
    clean, answers = True, 0
    for entry in log.entries:
        if isinstance(entry, Write) and entry.file == wal:
            clean = False
        elif isinstance(entry, Sync) and entry.file == wal:
            clean = True
        elif isinstance(entry, Note) and isinstance(entry.what, Answered):
            answers += 1
            assert clean, f"answer {answers} came before its sync"
    assert answers > 60


def test_a_store_goes_on_after_the_power_has_gone(recorded: tuple[Log, Recording], tmp_path: Path) -> None:
    """Wherever all was answered: everything can be seen as it was, and each receipt still acts."""
    log, _ = recorded
    disk, opened = Disk(), 0
    for entry in log.entries:
        disk.play(entry)
        if not isinstance(entry, Note) or not isinstance(entry.what, Rested):
            continue
        opened += 1
        folder = tmp_path / str(opened)
        disk.lose_power(folder, torn=random.Random(opened))
        host = Host(folder, options=replace(OPTIONS, vfs=None), clock=VirtualClock(entry.what.now_ms))
        assert seen(host) == entry.what.seen
        for receipt, queue in entry.what.receipts.items():
            assert host.delete(receipt, queue=queue) == [ReceiptState.LIVE]
        host.check()
        host.close()
    assert opened == 2 * len(SCENES)


def test_the_test_sees_a_store_that_does_not_sync(tmp_path: Path) -> None:
    """The same harness on a database that is told not to sync: what was committed is lost."""
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
