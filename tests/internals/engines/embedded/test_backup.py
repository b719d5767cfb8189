"""A backup of a store at work: one instant of it, whole, under its name only when it is sound."""

import stat
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from tests.store.host import QUEUE, Host, hosting
from veilmq.core import commands
from veilmq.core.results import QueueView
from veilmq.engines.embedded import FolderError
from veilmq.engines.embedded.backup import PAGES_PER_STEP, back_up
from veilmq.engines.embedded.folder import DATABASE_NAME

BODY_BYTES = 100_000
BODIES = 60  # more pages than one step copies


def shown(host: Host) -> Any:
    """Return what a store has, as anybody can see it, but for the totals of the process that has it open."""
    view: QueueView = host.do(commands.ShowQueue(queue=QUEUE, counts=True))
    assert view.counts is not None, "asked for"
    counts = msgspec.structs.replace(view.counts, sent=0, received=0, deleted=0)
    return msgspec.structs.replace(view, counts=counts), host.counts()


@pytest.mark.parametrize("name", ["copy", "copy.db"])
def test_a_store_at_work_is_copied_as_it_was(tmp_path: Path, name: str) -> None:
    """With its leases, counts and receipts' keys; what is done between two steps of the copy is not in it."""
    target = tmp_path / "backups" / name
    with hosting(tmp_path / "store") as host:
        host.create()
        host.send("in flight", "again")
        (first,) = host.receive(1, timeout_s=100)
        host.receive(1, timeout_s=0)
        host.send(*("x" * BODY_BYTES for _ in range(BODIES)))
        before = shown(host)
        steps = []

        def told(copied: int, pages: int) -> None:
            steps.append((copied, pages))
            host.send(f"meanwhile {copied}")
            host.delete(*(each.receipt for each in host.receive(1)))

        made = back_up(tmp_path / "store", target, told=told)
        assert len(steps) > 1, "the copy was made in one step"
        assert steps[-1] == (steps[-1][1], steps[-1][1])
        assert shown(host) != before
    assert made.path == str(target)
    assert made.facts["messages"] == BODIES + 2
    folder = target
    if name.endswith(".db"):
        folder = tmp_path / "restored"
        folder.mkdir()
        target.rename(folder / DATABASE_NAME)
    assert [each.name for each in folder.iterdir()] == [DATABASE_NAME]
    assert stat.S_IMODE((folder / DATABASE_NAME).stat().st_mode) == 0o600
    with hosting(folder) as restored:
        assert shown(restored) == before
        assert [each.body for each in restored.receive(1)] == ["again"]
        assert restored.delete(first.receipt)[0].name == "LIVE"
        restored.check()


def test_pages_of_a_small_store_are_copied_at_once(tmp_path: Path) -> None:
    """An empty store, one that nobody has open."""
    with hosting(tmp_path / "store"):
        pass
    told: list[tuple[int, int]] = []
    back_up(tmp_path / "store", tmp_path / "copy", told=lambda *each: told.append(each))
    assert len(told) == 1
    assert told[0][0] == told[0][1] < PAGES_PER_STEP


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_nothing_is_replaced(tmp_path: Path, kind: str) -> None:
    """Not even an empty folder, or a link to nowhere."""
    target = tmp_path / "there"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with hosting(tmp_path / "store"), pytest.raises(FolderError, match="nothing is replaced"):
        back_up(tmp_path / "store", target)


def test_without_a_store_there_is_nothing_to_copy(tmp_path: Path) -> None:
    """And nothing is made."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match="name a data folder"):
        back_up(tmp_path / "empty", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_that_is_not_sound_is_not_kept(tmp_path: Path) -> None:
    """A lease without its message: whoever would restore it should hear of that now."""
    with hosting(tmp_path / "store") as host:
        host.create()
        host.send("a")
        host.receive()
    damaged = apsw.Connection(str(tmp_path / "store" / DATABASE_NAME))
    damaged.execute("DELETE FROM message")
    damaged.close()
    with pytest.raises(FolderError, match="every lease has its message"):
        back_up(tmp_path / "store", tmp_path / "copy")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def test_what_is_no_database_is_not_copied(tmp_path: Path) -> None:
    """The error says which folder."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / DATABASE_NAME).write_bytes(b"no database" * 1_000)
    with pytest.raises(FolderError, match="cannot be copied"):
        back_up(tmp_path / "store", tmp_path / "copy")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def test_a_backup_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    """It left nothing under the name, and its rest is removed."""
    with hosting(tmp_path / "store"):
        pass
    (tmp_path / "copy.unfinished").mkdir()
    (tmp_path / "copy.unfinished" / DATABASE_NAME).write_bytes(b"half")
    back_up(tmp_path / "store", tmp_path / "copy")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "store"]


def test_what_a_server_keeps_beside_the_database_goes_along(tmp_path: Path) -> None:
    """Whole files, with their rights; not the lock of the process, nor what is being written."""
    with hosting(tmp_path / "store"):
        for name in ("push.pem", "push.new"):
            (tmp_path / "store" / name).write_text("secret")
            (tmp_path / "store" / name).chmod(0o600)
        back_up(tmp_path / "store", tmp_path / "copy")
    assert sorted(each.name for each in (tmp_path / "copy").iterdir()) == ["push.pem", DATABASE_NAME]
    assert stat.S_IMODE((tmp_path / "copy" / "push.pem").stat().st_mode) == 0o600
