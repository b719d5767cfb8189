"""Power loss: whatever was written since the last sync is dropped or torn, at every single write.

SIGKILL proves little, as the page cache survives it. Here a workload runs once on a recorded disk. Then the disk is
rebuilt as the power would have left it after each write, and opened. A batch is one transaction, so what is found must
be, row for row, the state after the last batch that was answered by then, or after the one that was under way.
"""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
from veilmq.engines.embedded import EngineOptions
from veilmq.engines.embedded.doctor import examine
from veilmq.engines.embedded.folder import DATABASE_NAME

from tests.internals.engines.power import Change, Disk, Log, Note, RecordingVFS, Sync, Write
from tests.store.host import QUEUE, Host, hosting, message
from veilmq.core import commands
from veilmq.core.account_settings import AccountSettings, SetAccount
from veilmq.core.commands import Command, SendTerms, VisibilityChange

SEED = 20_240_229
BATCHES = 24
LONG = "x" * 9_000  # a few pages, so that a commit is several writes
TABLES = (
    "SELECT name, settings FROM queue",
    "SELECT * FROM message",
    "SELECT * FROM lease",
    "SELECT name, value FROM meta WHERE name LIKE 'account %'",
)

Rows = list[list[Any]]


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of the batch `number` was given."""

    number: int


class Workload:
    """Batches of sends, receives, changes, deletes, new queues and accounts, in two lives of the store."""

    def __init__(self, folder: Path, log: Log) -> None:
        """Run it on `folder`."""
        self.states: list[Rows] = [[[] for _ in TABLES]]  # after each batch, the first one before all
        self.live_receipts: list[str] = []  # after each batch from the first receive on, one that is in force
        self._folder = folder
        self._log = log
        self._random = random.Random(SEED)
        for _ in range(2):
            with hosting(folder, options=EngineOptions(vfs="recording", free_space_reserve_bytes=0)) as host:
                self._live(host)

    def _live(self, host: Host) -> None:
        self._ask(host, commands.CreateQueue(queue=QUEUE, settings={"visibility_timeout_s": 3_600}))
        for number in range(BATCHES // 4):
            host.advance(1_000)
            new = tuple(message(f"{number}-{place}{self._random.choice(('', LONG))}") for place in range(3))
            _, received = self._ask(
                host, commands.Send(queue=QUEUE, messages=new), commands.Receive(queue=QUEUE, count=3)
            )
            first, second, _ = (each.receipt for each in received.messages)
            change = VisibilityChange(receipt=second, timeout_s=number)
            self._ask(
                host,
                commands.Delete(queue=QUEUE, receipts=(first,)),
                commands.ChangeVisibility(queue=QUEUE, changes=(change,)),
                commands.CreateQueue(queue=f"{QUEUE}-{number}"),
            )
            self._speak_smq(host, number)

    def _speak_smq(self, host: Host, number: int) -> None:
        """Send what is delayed together, change one delay by its receipt, and delete another message by its own."""
        new = tuple(message(f"{number}-late-{place}", delay_s=3_600) for place in range(2))
        terms = SendTerms(receipts=True, together=True)
        (sent,) = self._ask(host, commands.Send(queue=QUEUE, messages=new, terms=terms))
        changed, deleted = (each.receipt for each in sent)
        change = VisibilityChange(receipt=changed, timeout_s=7_200 + number)
        self._ask(
            host,
            commands.ChangeVisibility(
                queue=QUEUE, changes=(change,), only_live=True, renew_receipt=True, lease_s_max=None
            ),
            commands.Delete(queue=QUEUE, receipts=(deleted,), only_live=True),
            SetAccount(account="a", settings=AccountSettings(logging_bucket=f"{number}")),
        )

    def _ask(self, host: Host, *asked: Command) -> list[Any]:
        number = len(self.states)
        answers = host.do_together(*asked, told=lambda _: self._log.add(Note(Answered(number))))
        self.states.append(rows(self._folder))
        return answers


def rows(folder: Path) -> Rows:
    """Return all that the store in `folder` keeps; the file must be sound."""
    connection = apsw.Connection(str(folder / DATABASE_NAME))
    try:
        assert connection.pragma("integrity_check") == "ok"
        if not connection.pragma("user_version"):
            return [[] for _ in TABLES]  # the power went before there was a first table
        return [list(connection.execute(table)) for table in TABLES]
    finally:
        connection.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Log, Workload]:
    """Return a workload that has run, and the log of its disk."""
    log = Log()
    vfs = RecordingVFS("recording", log)
    workload = Workload(tmp_path_factory.mktemp("power") / "store", log)
    vfs.unregister()
    return log, workload


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("torn", [pytest.param(False, id="dropped"), pytest.param(True, id="torn")])
def test_durability_when_the_power_goes(recorded: tuple[Log, Workload], tmp_path: Path, *, torn: bool) -> None:
    """After every write: each batch that was answered is there, whole, and none is there in part."""
    log, workload = recorded
    disk, answered, losses = Disk(), 0, 0
    chance = random.Random(SEED)
    for entry in log.entries:
        disk.play(entry)
        if isinstance(entry, Note) and isinstance(entry.what, Answered):
            answered = entry.what.number
        if isinstance(entry, Change | Note):
            losses += 1
            folder = tmp_path / str(losses)
            disk.lose_power(folder, torn=chance if torn else None)
            assert rows(folder) in workload.states[answered : answered + 2], f"after {losses} events"
            shutil.rmtree(folder)
    assert answered == len(workload.states) - 1
    assert losses > 10 * BATCHES


def test_no_answer_before_its_sync_has_returned(recorded: tuple[Log, Workload]) -> None:
    """Whenever an answer is given, nothing that was written to the log of the database is unsynced."""
    log, workload = recorded
    wal = f"{DATABASE_NAME}-wal"
    clean, answers = True, 0
    for entry in log.entries:
        if isinstance(entry, Write) and entry.file == wal:
            clean = False
        elif isinstance(entry, Sync) and entry.file == wal:
            clean = True
        elif isinstance(entry, Note):
            answers += 1
            assert clean, f"answer {answers} came before its sync"
    assert answers > len(workload.states)


def test_an_engine_goes_on_after_the_power_has_gone(recorded: tuple[Log, Workload], tmp_path: Path) -> None:
    """At every tenth answer: the engine opens what is left, its store is sound, and its queue works."""
    log, _ = recorded
    disk, opened = Disk(), 0
    for index, entry in enumerate(log.entries):
        disk.play(entry)
        if isinstance(entry, Note) and index % 10 == 0:
            opened += 1
            folder = tmp_path / str(opened)
            disk.lose_power(folder, torn=random.Random(index))
            with hosting(folder) as host:
                host.send("after")
                assert host.receive(10)[-1].body == "after"
            assert examine(folder).ok
    assert opened


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
