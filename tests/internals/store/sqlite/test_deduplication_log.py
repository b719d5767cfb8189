"""What was logged lately is found by its key, whatever shares its chain, staged, on disk and after a start."""

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


class Book:
    """The deduplication log of a database, written a batch at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        self.connection: apsw.Connection = open_connection(folder, EngineOptions())
        self.log = DeduplicationLog(self.connection)

    def add(self, number: int, *, chain: int = 0, now_ms: int = 1_000) -> None:
        """Take note of a message; those of one `chain` share a slot."""
        self.log.add(key(number, chain=chain), bytes([number]) * 16, number, now_ms)

    def write(self) -> None:
        if self.log.staged:
            self.log.write()

    def keep(self) -> None:
        self.write()
        self.log.confirm()

    def found(self, numbers: range, *, chain: int = 0) -> list[int]:
        found = [self.log.find(key(number, chain=chain)) for number in numbers]
        assert all(each is None or each.id == bytes([each.sequence]) * 16 for each in found)
        return [each.sequence for each in found if each is not None]


def key(number: int, *, chain: int = 0) -> bytes:
    return chain.to_bytes(4) + number.to_bytes(12)


def test_the_last_of_those_with_one_key_is_found() -> None:
    book = Book()
    for now_ms in (1_000, 301_000):
        book.add(7, now_ms=now_ms)
        book.keep()
    found = book.log.find(key(7))
    assert found is not None
    assert found.logged_at_ms == 301_000


def test_the_entries_of_a_batch_share_rows_of_a_page_at_the_most() -> None:
    book = Book()
    for number in range(130):
        book.add(number)
    book.keep()
    rows = book.connection.execute(SQL["accepted_from"], (1, -1))
    assert [(number, len(entries) // 48) for number, _, entries in rows] == [(1, 64), (65, 64), (129, 2)]
    assert book.found(range(130)) == list(range(130))


def test_a_write_that_fails_is_taken_back() -> None:
    book = Book()
    book.add(1)
    book.keep()
    book.connection.execute("PRAGMA query_only = ON")  # as a full disk
    book.add(2)
    with pytest.raises(apsw.ReadOnlyError):
        book.write()
    book.log.roll_back()
    book.connection.execute("PRAGMA query_only = OFF")
    assert book.found(range(3)) == [1]
    book.add(2)
    book.keep()
    assert book.found(range(3)) == [1, 2]


def test_what_a_start_finds_is_read_in_slices_or_with_the_first_message(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for number in range(5):
        book.add(number, chain=number << 11)
        book.keep()
    for slices in (3, 2, 1, 0):
        book = Book(tmp_path)
        assert [book.log.read(2) for _ in range(slices)] == [True, True, False][:slices]
        assert [number for chain in range(5) for number in book.found(range(9), chain=chain << 11)] == list(range(5))
    for number in (6, 7):
        book.add(number)
        book.keep()
    assert book.log.read(1) is False  # what is new needs no reading


def test_what_the_janitor_deletes_before_it_is_read_is_not_found(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for number in range(5):
        book.add(number)
        book.keep()
    book = Book(tmp_path)
    book.log.read(2)
    book.connection.execute("DELETE FROM accepted WHERE number < 4")
    book.log.refresh_first()
    assert book.found(range(9)) == [3, 4]
    book.add(5)
    book.keep()
    assert Book(tmp_path).found(range(9)) == [3, 4, 5]


@pytest.mark.parametrize("bits", [31, 32])
def test_numbers_beyond_those_of_the_slots_are_found(tmp_path: Path, bits: int) -> None:
    """A slot has 32 bits of a number."""
    book = Book(tmp_path)
    for number in range(3):
        book.add(number, chain=number << 11)
    book.keep()
    book.connection.execute("UPDATE accepted SET number = (1 << ?) - 1", (bits,))
    for _ in range(2):
        book = Book(tmp_path)
        assert [book.found(range(3), chain=chain << 11) for chain in range(4)] == [[0], [1], [2], []]
        book.add(9, chain=3 << 11)  # is staged alone
        assert book.found(range(10), chain=3 << 11) == [9]
        book.log.roll_back()


def test_what_is_sent_in_the_batch_in_which_the_janitor_empties_the_log_is_found(tmp_path: Path) -> None:
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


def test_the_janitor_reads_what_a_start_finds_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_batch_that_is_rolled_back_leaves_nothing(batches: list[tuple[int, bool, int]], chains: int) -> None:
    """However much of it was written already; or all but its first commands, whose entries are written and stay."""
    book = Book()
    kept: set[int] = set()
    number = 0
    for size, is_written, what_is_kept in batches:
        book.connection.execute("BEGIN")
        count = min(what_is_kept, size)
        for place in range(size):
            book.add(number + place, chain=(number + place) % chains << 11)
            if place + 1 == count:
                book.write()
                book.connection.execute("SAVEPOINT command")
            elif is_written:
                book.write()
        if count:
            book.connection.execute("ROLLBACK TO command")
            book.log.roll_back(count)
            book.connection.execute("COMMIT")
            book.log.confirm()
        else:
            book.connection.execute("ROLLBACK")
            book.log.roll_back()
        kept.update(range(number, number + count))
        number += size
        for each in range(number):
            assert (book.log.find(key(each, chain=each % chains << 11)) is not None) is (each in kept)
    book.connection.close()
