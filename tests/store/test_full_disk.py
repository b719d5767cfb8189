"""A full disk: sends fail with a clear error, nothing acknowledged is lost, and the queue can be drained."""

from pathlib import Path

import pytest

from tests.small_disk import MIB, small_file_system
from tests.store.host import QUEUE, Host, message
from tests.store.postgres_host import on_sqlite
from veilmq.core import commands
from veilmq.core.errors import StoreFull

BODY = "x" * 50_000


def fill(host: Host) -> list[str]:
    sent: list[str] = []
    while len(sent) < 10_000:
        body = f"{len(sent)}-{BODY}"
        try:
            host.put(message(body))
        except StoreFull as error:
            assert "free space or drain" in str(error)  # noqa: PT017 - the loop ends with it
            return sent
        sent.append(body)
    pytest.fail("the store took everything")


def drain(host: Host, sent: list[str]) -> None:
    """Receive, change and delete all that was acknowledged, on the full disk."""
    assert len(sent) > 5
    assert host.counts() == (len(sent), 0, 0)
    drained: list[str] = []
    while got := host.receive(10):
        drained += [each.body for each in got]
        assert host.change(got[0].receipt, 60).visible_at_ms is not None
        host.delete(*(each.receipt for each in got))
    assert drained == sent
    assert host.counts() == (0, 0, 0)
    assert host.failures == []


def send_again(host: Host) -> None:
    """Send, now that there is room."""
    host.send(BODY)
    assert host.receive_one().body == BODY


@pytest.mark.parametrize("folder", ["memory", "folder"])
def test_a_database_with_a_bound_fills_and_drains(folder: str, tmp_path: Path) -> None:
    """`database_pages_max` reached: refused, kept, drained, used again."""
    store = tmp_path / "store" if folder == "folder" else None
    with on_sqlite(store).open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        host.create(visibility_timeout_s=600)
        sent = fill(host)
        with pytest.raises(StoreFull):
            host.create("000000000000/another")
        drain(host, sent)
        send_again(host)


def test_a_full_store_keeps_everything_over_a_crash(tmp_path: Path) -> None:
    """What was acknowledged before the store was full is there after an abrupt start, and nothing else."""
    with on_sqlite(tmp_path / "store").open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        host.create(visibility_timeout_s=600)
        sent = fill(host)
        host.crash()
        host.check()
        drain(host, sent)
        send_again(host)


def test_the_sends_of_a_batch_are_refused_and_the_rest_of_it_goes_on(tmp_path: Path) -> None:
    """One transaction that runs out of room: its sends fail, its receive and its delete do not."""
    with on_sqlite(tmp_path / "store").open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        host.create(visibility_timeout_s=600)
        host.send("a", "b")
        held = host.receive(1)[0]
        too_much = tuple(message("y" * 900_000) for _ in range(4))
        refused, received, deleted = host.do_together(
            commands.Send(queue=QUEUE, messages=too_much),
            commands.Receive(queue=QUEUE),
            commands.Delete(queue=QUEUE, receipts=(held.receipt,)),
        )
        assert isinstance(refused, StoreFull)
        assert [each.body for each in received.messages] == ["b"]
        assert [state.value for state in deleted] == ["live"]
        assert host.counts() == (0, 1, 0)
        host.reopen()
        assert host.counts() == (0, 1, 0)


def test_a_small_file_system_fills_and_drains(tmp_path: Path) -> None:
    """The reserve keeps room for draining on a real disk that is nearly full."""
    with (
        small_file_system(tmp_path / "disk", size_bytes=24 * MIB),
        on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=8 * MIB) as host,
    ):
        host.create(visibility_timeout_s=600)
        drain(host, fill(host))


def test_a_drained_file_system_takes_sends_again(tmp_path: Path) -> None:
    """What draining has freed is room for sends, wherever it lies."""
    disk = small_file_system(tmp_path / "disk", size_bytes=24 * MIB)
    with disk, on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=8 * MIB) as host:
        host.create(visibility_timeout_s=600)
        drain(host, fill(host))
        send_again(host)


def test_a_file_system_without_a_reserve_loses_nothing(tmp_path: Path) -> None:
    """Even when the disk runs full in the middle of a transaction, what was acknowledged is there."""
    with small_file_system(tmp_path / "disk", size_bytes=24 * MIB):
        with on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=0) as host:
            host.create(visibility_timeout_s=600)
            sent = fill(host)
            assert host.counts() == (len(sent), 0, 0)
        with on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=0) as host:
            host.check()
            assert host.counts() == (len(sent), 0, 0)
