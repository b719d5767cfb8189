"""Conversion of a data folder of the previous engine: everything is converted, even if killed at any step.

The folders were recorded with the last version that had that engine, along with its results (`folders/README.md`).
"""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.internals.store.known import PROBES, Known, answers, unpack
from tests.small_disk import MIB, resize, small_file_system
from tests.store.host import QUEUE, Host, hosting
from veilmq.core.claims import ClaimState, ListSources, ReadClaim
from veilmq.core.errors import CursorInvalid, ReceiptState
from veilmq.store.sqlite import conversion
from veilmq.store.sqlite.database import OLD_NAME, EngineOptions, FolderError
from veilmq.testing import VirtualClock

OLD, NEW, ASIDE = "veilmq.db", "store.db", "veilmq.db.before-store"


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
    folder, known = unpack("closed", tmp_path)
    conversion.convert(folder)
    host, queue = opened(folder, known), "000000000000/claimed"
    views = host.do(ListSources(queue=queue))
    reads = [(view.source, claim.number) for view in views for claim in view.claims if claim.state is ClaimState.OPEN]
    assert len(reads) > 1
    for source, number in reads:
        with pytest.raises(CursorInvalid):
            host.do(ReadClaim(queue=queue, source=source, number=number, cursor=cursor))
    host.close()


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
