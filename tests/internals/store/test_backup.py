"""A backup of a store at work: one instant of it, whole, under its name only when it is sound."""

import stat
from pathlib import Path

import apsw
import pytest

from tests.store.host import hosting
from veilmq.store.sqlite.copying import back_up
from veilmq.store.sqlite.database import DATABASE_NAME, FolderError

BODIES = ["x" * 100_000] * 60  # more pages than one step copies


@pytest.mark.parametrize("name", ["copy", "copy.db"])
def test_a_store_at_work_is_copied_as_it_was(tmp_path: Path, name: str) -> None:
    """With its leases, counts and receipts' keys; what is done between two steps of the copy is not in it."""
    target = tmp_path / "backups" / name
    with hosting(tmp_path / "store") as host:
        host.create()
        host.send("in flight", "again")
        (first,) = host.receive(1, timeout_s=100)
        host.receive(1, timeout_s=0)
        host.send(*BODIES)
        steps: list[int] = []

        def told(copied: int, pages: int) -> None:
            steps.append(copied)
            host.send("meanwhile")
            host.delete(*(each.receipt for each in host.receive(1)))

        facts = back_up(tmp_path / "store", target, progress=told)
        assert len(steps) > 1, "the copy was made in one step"
    assert facts["messages"] == len(BODIES) + 2
    folder = target
    if name.endswith(".db"):
        folder = tmp_path / "restored"
        folder.mkdir()
        target.rename(folder / DATABASE_NAME)
    assert [each.name for each in folder.iterdir()] == [DATABASE_NAME]
    assert stat.S_IMODE((folder / DATABASE_NAME).stat().st_mode) == 0o600
    with hosting(folder) as restored:
        assert restored.counts() == (len(BODIES) + 1, 1, 0)
        assert [each.body for each in restored.receive(1)] == ["again"]
        assert restored.delete(first.receipt)[0].name == "LIVE"


def test_what_a_server_keeps_beside_the_database_goes_along(tmp_path: Path) -> None:
    """Whole files, with their rights; not the lock of the process, nor what is being written. Nothing is replaced."""
    with hosting(tmp_path / "store"):
        for name in ("push.pem", "push.new"):
            (tmp_path / "store" / name).write_text("secret")
            (tmp_path / "store" / name).chmod(0o600)
        back_up(tmp_path / "store", tmp_path / "copy")
        with pytest.raises(FolderError, match="nothing is replaced"):
            back_up(tmp_path / "store", tmp_path / "copy")
    assert sorted(each.name for each in (tmp_path / "copy").iterdir()) == ["push.pem", DATABASE_NAME]
    assert stat.S_IMODE((tmp_path / "copy" / "push.pem").stat().st_mode) == 0o600


def test_a_copy_that_is_not_sound_is_not_kept(tmp_path: Path) -> None:
    """Neither of a damaged store, nor of what is no database; the rest of a backup that was killed is removed."""
    (tmp_path / "copy.unfinished").mkdir()
    with hosting(tmp_path / "store") as host:
        host.create()
        host.send("a")
    with apsw.Connection(str(tmp_path / "store" / DATABASE_NAME)) as damaged:
        damaged.execute("DELETE FROM message")
    damaged.close()
    with pytest.raises(FolderError, match="every run of the ready list has all of its messages"):
        back_up(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "store" / DATABASE_NAME).write_bytes(b"no database" * 1_000)
    with pytest.raises(FolderError, match="cannot be copied"):
        back_up(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "store" / DATABASE_NAME).unlink()
    with pytest.raises(FolderError, match="name a data folder"):
        back_up(tmp_path / "store", tmp_path / "copy")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]
