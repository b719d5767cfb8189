"""The sieve lets through whatever was seen in the last five minutes, and little else."""

from hashlib import blake2b
from pathlib import Path

import pytest

from tests.engines.embedded.store import Store, rows_read
from veilmq.engines.embedded import sieve
from veilmq.engines.embedded.sieve import Sieve

FIVE_MINUTES_MS = 300_000


def _key(number: int) -> bytes:
    return blake2b(str(number).encode(), digest_size=16).digest()


def test_what_was_seen_is_let_through_for_five_minutes_at_the_least() -> None:
    store = Store()
    screen = Sieve(journal=store.journal, now_ms=0)
    for number in range(4):
        screen.add(_key(number), number * 100_000)
    assert all(screen.may_have(_key(number), 300_000) for number in range(4))
    screen.add(_key(4), 2 * FIVE_MINUTES_MS)
    assert not screen.may_have(_key(0), 2 * FIVE_MINUTES_MS)
    assert screen.may_have(_key(3), 2 * FIVE_MINUTES_MS - 1)
    store.close()


def test_little_else_is_let_through() -> None:
    store = Store()
    screen = Sieve(journal=store.journal, now_ms=0)
    for number in range(10_000):
        screen.add(_key(number), 0)
    assert sum(screen.may_have(_key(number), 0) for number in range(10_000, 20_000)) < 10
    store.close()


@pytest.mark.parametrize("read_max", [2, 3])
def test_it_begins_with_what_the_table_has_or_lets_all_through_for_five_minutes(
    monkeypatch: pytest.MonkeyPatch, read_max: int
) -> None:
    monkeypatch.setattr(sieve, "_READ_MAX", read_max)
    store = Store()
    for number in range(3):
        store.journal.deduplications.put((_key(number),), (bytes(16), 1, 1))
    screen = Sieve(journal=store.journal, now_ms=1_000)
    assert all(screen.may_have(_key(number), 1_000) for number in range(3))
    is_complete = read_max == 3
    assert screen.may_have(_key(9), 1_000) is not is_complete
    assert not screen.may_have(_key(9), 1_000 + FIVE_MINUTES_MS)
    store.close()


def test_it_reads_no_more_than_a_command_may(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for number in range(10_000):
        store.journal.deduplications.put((_key(number),), (bytes(16), 1, 1))
    read = rows_read(monkeypatch, store, "deduplication_keys")
    screen = Sieve(journal=store.journal, now_ms=1_000)
    assert read == [4_001]
    assert all(screen.may_have(_key(number), 1_000) for number in range(10_000))
    store.close()


def test_a_duplicate_is_found_after_a_start_with_more_than_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sieve, "_READ_MAX", 2)
    store = Store(tmp_path)
    store.create(fifo=True)
    first = [sent.id for sent in store.send_to("abcd")]
    store.close()
    store = Store(tmp_path)
    assert [sent.id for sent in store.send_to("abcd")] == first
    store.close()
