"""The data folder: one owner, one format, clear words for what cannot be used."""

import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from veilmq.engines.embedded.folder import DATABASE_NAME, FolderError, FolderLock, open_journal
from veilmq.engines.embedded.options import EngineOptions


def test_a_new_folder_has_the_current_format_and_a_second_opening_changes_nothing(tmp_path: Path) -> None:
    open_journal(tmp_path, EngineOptions()).close()
    before = (tmp_path / DATABASE_NAME).read_bytes()
    open_journal(tmp_path, EngineOptions()).close()
    assert (tmp_path / DATABASE_NAME).read_bytes() == before


def test_an_upgrade_is_all_or_nothing_and_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_journal(tmp_path, EngineOptions()).close()
    connection = apsw.Connection(str(tmp_path / DATABASE_NAME))
    now = connection.pragma("user_version")
    connection.close()
    scripts = [*(["CREATE TABLE done (x)"] * now), "CREATE TABLE two (x)", "CREATE TABLE broken ("]
    monkeypatch.setattr("veilmq.engines.embedded.folder._upgrades", lambda: scripts)
    with pytest.raises(FolderError, match="cannot be used"):
        open_journal(tmp_path, EngineOptions())
    connection = apsw.Connection(str(tmp_path / DATABASE_NAME))
    assert connection.pragma("user_version") == now
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'two'").get == 0
    connection.close()
    monkeypatch.setattr("veilmq.engines.embedded.folder._upgrades", lambda: scripts[:-1])
    open_journal(tmp_path, EngineOptions()).close()
    connection = apsw.Connection(str(tmp_path / DATABASE_NAME))
    assert connection.pragma("user_version") == now + 1
    connection.close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    open_journal(tmp_path, EngineOptions()).close()
    connection = apsw.Connection(str(tmp_path / DATABASE_NAME))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FolderError, match=r"has format 99.*install a newer veilmq"):
        open_journal(tmp_path, EngineOptions())


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be looked at" * 100, None])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / DATABASE_NAME
    if content is None:
        connection = apsw.Connection(str(path))
        connection.execute("CREATE TABLE theirs (x)")
        connection.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(FolderError, match="is not a veilmq database"):
        open_journal(tmp_path, EngineOptions())
    assert path.read_bytes() == before


def test_one_process_a_folder_and_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from veilmq.engines.embedded.folder import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(FolderError, match=rf"in use by process {other.pid}: stop it, or choose another folder"):
            FolderLock(tmp_path)
        other.kill()
        other.wait(timeout=10)
    FolderLock(tmp_path).release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderError, match="cannot be made"):
        FolderLock(tmp_path / "file" / "data")
