"""The deduplication log finds recent entries by key: in shared chains, staged, on disk, and after a restart."""

from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.host import QUEUE, hosting, message
from veilmq.core.commands import Send
from veilmq.store.cold import Sweep
from veilmq.store.sqlite import transaction
from veilmq.store.sqlite.database import SQL, EngineOptions, open_connection
from veilmq.store.sqlite.session import DeduplicationLog


class LogWriter:
    """A deduplication log in a database, written one batch at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        self.connection: apsw.Connection = open_connection(folder, EngineOptions())
        self.log = DeduplicationLog(self.connection)

    def add(self, number: int, *, chain: int = 0, now_ms: int = 1_000) -> None:
        """Log a message; messages of one `chain` share a slot."""
        self.log.add(key(number, chain=chain), bytes([number]) * 16, number, now_ms)

    def write(self) -> None:
        if self.log.staged:
            self.log.write()

    def found(self, numbers: range, *, chain: int = 0) -> list[int]:
        found = [self.log.find(key(number, chain=chain)) for number in numbers]
        assert all(each is None or each.id == bytes([each.sequence]) * 16 for each in found)
        return [each.sequence for each in found if each is not None]


def key(number: int, *, chain: int = 0) -> bytes:
    return chain.to_bytes(4) + number.to_bytes(12)


def test_the_latest_entry_of_a_key_is_found() -> None:
    writer = LogWriter()
    for now_ms in (1_000, 301_000):
        writer.add(7, now_ms=now_ms)
        writer.write()
    found = writer.log.find(key(7))
    assert found is not None
    assert found.logged_at_ms == 301_000


def test_the_entries_of_a_batch_share_rows_that_fit_a_page() -> None:
    writer = LogWriter()
    for number in range(130):
        writer.add(number)
    writer.write()
    rows = writer.connection.execute(SQL["accepted_from"], (1, -1))
    assert [(number, len(entries) // 48) for number, _, entries in rows] == [(1, 64), (65, 64), (129, 2)]
    assert writer.found(range(130)) == list(range(130))


def test_a_failed_write_is_rolled_back() -> None:
    writer = LogWriter()
    writer.add(1)
    writer.write()
    writer.connection.execute("PRAGMA query_only = ON")  # like a full disk
    writer.add(2)
    with pytest.raises(apsw.ReadOnlyError):
        writer.write()
    writer.log.reload()
    writer.connection.execute("PRAGMA query_only = OFF")
    assert writer.found(range(3)) == [1]
    writer.add(2)
    writer.write()
    assert writer.found(range(3)) == [1, 2]


def test_a_start_reads_the_log_in_slices_or_with_the_first_message(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    for number in range(5):
        writer.add(number, chain=number << 11)
        writer.write()
    for slices in (3, 2, 1, 0):
        writer = LogWriter(tmp_path)
        assert [writer.log.read(2) for _ in range(slices)] == [True, True, False][:slices]
        assert [number for chain in range(5) for number in writer.found(range(9), chain=chain << 11)] == list(range(5))
    for number in (6, 7):
        writer.add(number)
        writer.write()
    assert writer.log.read(1) is False  # new entries need no reading


def test_entries_deleted_before_they_are_read_are_not_found(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    for number in range(5):
        writer.add(number)
        writer.write()
    writer = LogWriter(tmp_path)
    writer.log.read(2)
    writer.connection.execute("DELETE FROM accepted WHERE number < 4")
    writer.log.refresh_first()
    assert writer.found(range(9)) == [3, 4]
    writer.add(5)
    writer.write()
    assert LogWriter(tmp_path).found(range(9)) == [3, 4, 5]


@pytest.mark.parametrize("bits", [31, 32])
def test_numbers_wider_than_a_slot_are_found(tmp_path: Path, bits: int) -> None:
    """A slot has 32 bits of a number."""
    writer = LogWriter(tmp_path)
    for number in range(3):
        writer.add(number, chain=number << 11)
    writer.write()
    writer.connection.execute("UPDATE accepted SET number = (1 << ?) - 1", (bits,))
    for _ in range(2):
        writer = LogWriter(tmp_path)
        assert [writer.found(range(3), chain=chain << 11) for chain in range(4)] == [[0], [1], [2], []]
        writer.add(9, chain=3 << 11)  # only staged
        assert writer.found(range(10), chain=3 << 11) == [9]
        writer.log.reload()


def test_a_send_is_found_that_shares_a_batch_with_the_sweep_of_the_log(tmp_path: Path) -> None:
    with hosting(tmp_path) as host:
        host.create(fifo=True)
        host.put(message("old", group="g", dedup_id="old"))
        host.stop()
        host.advance(300_001)
        new = Send(queue=QUEUE, messages=(message("new", group="g", dedup_id="new"),))
        sent, _ = host.do_together(new, Sweep())
        assert host.do(new) == sent
        host.reopen()
        assert host.do(new) == sent


def test_the_janitor_reads_the_log_in_slices_after_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_ROWS_PER_SWEEP", 8)  # two rows of the log
    with hosting(tmp_path) as host:
        host.create(fifo=True)
        for number in range(7):
            host.put(message("m", group="g", dedup_id=str(number)))
        host.reopen()
        host.stop()
        log = host.engine._session.deduplication_log
        unread = []
        while host.do(Sweep()) < 1_000:
            unread.append(log._unread)
        assert unread in ([3, 5, 7], [5, 7])  # the store may have read a slice while it opened
        assert log._unread is None


@settings(deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), max_size=12),
    chains=st.integers(1, 3),
)
def test_a_rolled_back_batch_leaves_no_entries(batches: list[tuple[int, bool, int]], chains: int) -> None:
    """Any part of it may be written already; or its first commands stay, whose entries are written."""
    writer = LogWriter()
    kept: set[int] = set()
    number = 0
    for size, is_flushed, kept_max in batches:
        writer.connection.execute("BEGIN")
        count = min(kept_max, size)
        for place in range(size):
            writer.add(number + place, chain=(number + place) % chains << 11)
            if place + 1 == count:
                writer.write()
                writer.connection.execute("SAVEPOINT command")
            elif is_flushed:
                writer.write()
        if count:
            writer.connection.execute("ROLLBACK TO command")
            writer.log.reload()
            writer.connection.execute("COMMIT")
        else:
            writer.connection.execute("ROLLBACK")
            writer.log.reload()
        kept.update(range(number, number + count))
        number += size
        for each in range(number):
            assert (writer.log.find(key(each, chain=each % chains << 11)) is not None) is (each in kept)
    writer.connection.close()
