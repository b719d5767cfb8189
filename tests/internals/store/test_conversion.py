"""Conversion of a data folder of the previous engine: everything is converted, even if killed at any step.

The folders were recorded with the last version that had that engine, along with its results (`folders/README.md`).
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from tests.internals.store.known import PROBES, Known, answers, unpack
from tests.small_disk import MIB, resize, small_file_system
from tests.store.host import QUEUE, Host, hosting
from veilmq.core.claims import AcknowledgeClaims, ClaimState, ListSources, ReadClaim
from veilmq.core.commands import InspectQueue, ListMoves
from veilmq.core.errors import CursorInvalid, ReceiptState
from veilmq.core.receipts import CountEvents
from veilmq.store.sqlite import conversion
from veilmq.store.sqlite.database import OLD_NAME, EngineOptions, FolderError
from veilmq.testing import VirtualClock

OLD, NEW, ASIDE = "veilmq.db", "store.db", "veilmq.db.before-store"
CLAIMED = "000000000000/claimed"


# The result.


@pytest.fixture(scope="module", params=["closed", "killed-2", "killed-3", "killed-4", "ended"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    folder, known = unpack(request.param, tmp_path_factory.mktemp(request.param))
    conversion.convert(folder)
    return folder, known


def opened(folder: Path, known: Known) -> Host:
    clock = VirtualClock(known.now_ms)
    clock.step_wall(known.ahead_ms)
    return Host(folder, options=EngineOptions(**known.options), clock=clock)


@contextmanager
def changed(name: str, place: Path, script: str = "") -> Iterator[tuple[Host, apsw.Connection]]:
    """Add rows that no recorded folder has to `name`; convert it, and open it beside the old database."""
    folder, known = unpack(name, place)
    with closing(apsw.Connection(str(folder / OLD))) as connection:
        connection.execute(script)
    conversion.convert(folder)
    with closing(apsw.Connection(str(folder / ASIDE))) as old:
        host = opened(folder, known)
        yield host, old
        host.check()
        host.close()


@pytest.mark.parametrize("probe", PROBES)
def test_a_converted_store_gives_the_recorded_results(
    converted: tuple[Path, Known], probe: str, tmp_path: Path
) -> None:
    folder, known = converted
    shutil.copytree(folder, tmp_path / "store")
    host = opened(tmp_path / "store", known)
    try:
        assert answers(host, known, probe) == known.answers[probe]
        host.check()
    finally:
        host.close()


@pytest.mark.parametrize("cursor", [f"u{(3 << 41) + 5}", f"g{7 << 41}", "g"])
def test_a_cursor_from_before_the_conversion_is_refused(cursor: str, tmp_path: Path) -> None:
    """It names a position in another order. The reader restarts the shard, which has the same messages."""
    with changed("closed", tmp_path) as (host, _):
        views = host.do(ListSources(queue=CLAIMED))
        reads = [(view.source, each.number) for view in views for each in view.claims if each.state is ClaimState.OPEN]
        assert len(reads) > 1
        for source, number in reads:
            with pytest.raises(CursorInvalid):
                host.do(ReadClaim(queue=CLAIMED, source=source, number=number, cursor=cursor))


def test_what_no_recorded_folder_has_is_converted(tmp_path: Path) -> None:
    """A claim that is being deleted, skipped claims, a move to a queue, a stage of two pieces, dropped events."""
    script = """
        UPDATE claim SET state = 'acknowledged' WHERE id = 2;
        UPDATE source SET acknowledged = 1, last = max(last, 1), lost = '[1]' WHERE number IN (1, 2, 5);
        UPDATE source SET acknowledged = 2 WHERE number = 1;
        UPDATE move_task SET destination = '000000000000/jobs' WHERE number = 1;
        INSERT INTO piece SELECT NULL, stage, 0, 9, 1, content FROM piece WHERE stage = 2;
        INSERT INTO meta VALUES ('events_dropped', 5);
    """
    ranges = "SELECT id FROM message JOIN claim_range ON position BETWEEN first AND last WHERE claim = 2"
    lanes = "SELECT id FROM message JOIN lane ON lane.number = position >> 41 WHERE queue = 9"
    with changed("closed", tmp_path, script) as (host, old):
        for queue, skipping in ((CLAIMED, "12"), (f"{CLAIMED}.fifo", "2")):
            for view in host.do(ListSources(queue=queue)):
                own = {"queue": queue, "source": view.source, "epoch": view.epoch}
                lost = host.do(AcknowledgeClaims(**own, number=view.acknowledged)).lost
                assert lost == [1] * (view.source[0] in skipping), own
        host.sweep()
        acknowledged, every = ([row[0] for row in old.execute(query)] for query in (ranges, lanes))
        left = [each.id for each in host.do(InspectQueue(queue=CLAIMED))]
        assert sorted(left) == sorted({*every} - {*acknowledged})
        assert acknowledged
        assert host.do(ListMoves(source="000000000000/dead", count=10))[-1].destination == "000000000000/jobs"
        assert host.rows("piece WHERE stage_id = 2 AND place IN (0, 9)") == 2
        assert host.do(CountEvents()).dropped == 5


def test_expired_messages_of_all_priorities_stay_expired(tmp_path: Path) -> None:
    """Retention was raised since: they are expired only as they are before the first live one."""
    script = """
        UPDATE message SET sent_at_ms = sent_at_ms + position % 8 WHERE position < 2199023255558;
        UPDATE message SET first_sent_at_ms = sent_at_ms + 10 WHERE position = 2199023255554;
        INSERT INTO lane SELECT n, 2, n % 100, (n << 41) + 1, 0, (2 * n + 1 << 40) + 1, 0, 2, 0, 0, 0,
            kind, sequence_base, dense FROM lane, (SELECT 108 AS n UNION SELECT 116) WHERE number = 1;
        INSERT INTO message (position, id, sent_at_ms, body, properties)
            SELECT place << 40, id, at, body, properties FROM message, (SELECT 216 AS place, 1700000000000 AS at
            UNION SELECT 217, 1700000000001 UNION SELECT 232, 1699999999999) WHERE position = 2199023255558;
    """
    live = "SELECT body FROM message WHERE position BETWEEN 2199023255558 AND 2199023255560"
    with changed("ended", tmp_path, script) as (host, old):
        received = [each.body for each in host.receive(100, queue="000000000000/short")]
        assert sorted(received) == sorted(row[0] for row in old.execute(live))
        assert list(host.receive(100, queue="000000000000/dead")) == []


# The steps.


def unpack_small(place: Path) -> tuple[Path, str]:
    folder, known = unpack("small", place)
    return folder, known.receipts[QUEUE][0]


def check_converted(folder: Path, receipt: str) -> None:
    assert not list(folder.glob("*unfinished*"))
    assert not list(folder.glob(f"{OLD}-*"))
    assert ((folder / NEW).is_file(), (folder / ASIDE).is_file(), (folder / OLD).exists()) == (True, True, False)
    with hosting(folder) as host:
        host.check()
        assert host.counts() == (1, 1, 0)
        assert host.delete(receipt) == [ReceiptState.LIVE]


def killed_at(folder: Path, step: int, patched: Callable[[Callable[[], None]], None]) -> bool:
    """Convert in a process that exits at that step; return whether it had that many steps."""
    child = os.fork()
    if not child:
        left = [step]

        def count() -> None:
            left[0] -= 1
            if not left[0]:
                os._exit(9)

        patched(count)
        try:
            conversion.convert(folder, progress=lambda *_: count())
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_the_next_start_completes_a_conversion_killed_at_any_step(tmp_path: Path) -> None:
    """Steps are before and after each sync and each rename."""
    old, receipt = unpack_small(tmp_path / "old")

    def patched(count: Callable[[], None]) -> None:
        def around(call: Callable[..., object]) -> Callable[..., object]:
            def counted(*args: object, **options: object) -> object:
                count()
                result = call(*args, **options)
                count()
                return result

            return counted

        os.fsync = around(os.fsync)  # type: ignore[assignment]
        os.rename = around(os.rename)  # type: ignore[assignment]
        Path.rename = around(Path.rename)  # type: ignore[assignment,method-assign]
        shutil.rmtree = around(shutil.rmtree)  # type: ignore[assignment]

    steps = 0
    while True:
        folder = tmp_path / f"killed-{steps}"
        shutil.copytree(old, folder)
        steps += 1
        if not killed_at(folder, steps, patched):
            break
        if (folder / OLD_NAME).is_file():
            conversion.convert(folder)
        check_converted(folder, receipt)
        shutil.rmtree(folder)
    assert steps > 12
    check_converted(folder, receipt)


def test_a_conversion_without_enough_space_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, receipt = unpack_small(tmp_path)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    real = os.statvfs(folder)
    full = os.statvfs_result((real.f_bsize, real.f_frsize, 0, 0, 1, *tuple(real)[5:]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: full)
        with pytest.raises(FolderError, match=rf"needs \d+ bytes, and its disk has {real.f_frsize} bytes free"):
            conversion.convert(folder)
    after = {each.name: each.read_bytes() for each in folder.iterdir()}
    assert {name: after[name] for name in before} == before
    conversion.convert(folder)
    check_converted(folder, receipt)


def test_a_disk_that_fills_up_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any moment, although the space was checked; with enough space, the folder is converted."""
    unpacked, known = unpack("closed", tmp_path / "unpacked")
    folder, bytes_max, refused = tmp_path / "disk" / "store", MIB // 2, 0
    monkeypatch.setattr(conversion, "_check_space", lambda *_: None)
    with small_file_system(tmp_path / "disk", size_bytes=bytes_max):
        shutil.copytree(unpacked, folder)
        before = {each.name: each.read_bytes() for each in folder.iterdir()}
        while not (folder / ASIDE).exists():
            try:
                conversion.convert(folder)
            except FolderError as error:
                assert "was not converted, nothing is changed" in str(error)  # noqa: PT017 - until there is space
                assert {name: (folder / name).read_bytes() for name in before} == before
                assert not list(folder.glob(f"{NEW}*"))
                bytes_max, refused = bytes_max + 65_536, refused + 1
                resize(tmp_path / "disk", size_bytes=bytes_max)
        assert refused > 3
        resize(tmp_path / "disk", size_bytes=64 * MIB)
        host = opened(folder, known)
        host.check()
        host.close()


def test_files_are_synced_before_they_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss at any moment leaves the old database, or both complete: each step is durable before the next."""
    folder, _ = unpack_small(tmp_path)
    steps: list[str] = []

    def synced(handle: int, *, sync: Callable[[int], None] = os.fsync) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink().relative_to(tmp_path)}")
        sync(handle)

    def renamed(path: Path, target: Path, *, rename: Callable[[Path, Path], Path] = Path.rename) -> Path:
        steps.append(f"{path.relative_to(tmp_path)} is {target.relative_to(tmp_path)}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    conversion.convert(folder)
    assert steps == [
        "sync store/store.db.unfinished/store.db",
        "sync store/store.db.unfinished",
        "store/store.db.unfinished/store.db is store/store.db",
        "sync store",
        f"store/{OLD} is store/{ASIDE}",
        "sync store",
    ]


def test_progress_is_reported(tmp_path: Path) -> None:
    folder, _ = unpack_small(tmp_path)
    reports: list[tuple[int, int]] = []
    conversion.convert(folder, progress=lambda *progress: reports.append(progress))
    assert reports == [(2, 2)]


def test_another_format_is_refused(tmp_path: Path) -> None:
    """An older format, which was never released, and a database of another application."""
    folder, _ = unpack("format-11", tmp_path)
    with pytest.raises(FolderError, match="format 11"):
        conversion.convert(folder)
    with closing(apsw.Connection(str(folder / OLD))) as connection:
        connection.execute("PRAGMA application_id = 1")
    with pytest.raises(FolderError, match="not a veilmq database"):
        conversion.convert(folder)


def test_an_old_database_changed_after_its_conversion_is_not_set_aside(tmp_path: Path) -> None:
    folder, _ = unpack_small(tmp_path)
    conversion.convert(folder)
    (folder / ASIDE).rename(folder / OLD)
    with closing(apsw.Connection(str(folder / OLD))) as connection:
        connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'last_instant_ms'")
    with pytest.raises(FolderError, match="was changed after its conversion"):
        conversion.convert(folder)


@pytest.mark.parametrize("damaged", [OLD, NEW])
def test_the_error_names_a_damaged_database(tmp_path: Path, damaged: str) -> None:
    folder, _ = unpack_small(tmp_path)
    conversion.convert(folder)
    (folder / ASIDE).rename(folder / OLD)
    (folder / damaged).write_bytes(b"no database" * 1_000)
    with pytest.raises(FolderError, match=f"{damaged} cannot be read"):
        conversion.convert(folder)


def test_an_old_database_set_aside_is_not_overwritten(tmp_path: Path) -> None:
    folder, _ = unpack_small(tmp_path)
    (folder / ASIDE).write_text("kept")
    with pytest.raises(FolderError, match="no file is overwritten"):
        conversion.convert(folder)
    assert ((folder / OLD).is_file(), (folder / NEW).exists()) == (True, False)
