"""What was accepted lately is found by its key, whatever shares its chain, staged, on disk and after a start."""

from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.internals.engines.embedded.store import Store
from veilmq.engines.embedded import folder
from veilmq.engines.embedded.accepted import Accepted

OLD_FORMAT = 8
"""The last format with a table of keys."""


def _key(number: int, *, chain: int = 0) -> bytes:
    """Return a key; those of one ``chain`` share a slot."""
    return chain.to_bytes(4) + number.to_bytes(12)


def _add(accepted: Accepted, number: int, *, chain: int = 0, now_ms: int = 1_000) -> None:
    accepted.add(_key(number, chain=chain), bytes([number]) * 16, number, now_ms)


def _found(accepted: Accepted, numbers: range, *, chain: int = 0) -> list[int]:
    found = [accepted.find(_key(number, chain=chain)) for number in numbers]
    assert all(each is None or each.id == bytes([each.sequence]) * 16 for each in found)
    return [each.sequence for each in found if each is not None]


@pytest.mark.parametrize("flush_each", [False, True])
def test_each_entry_of_a_chain_is_found_staged_and_written(*, flush_each: bool) -> None:
    store = Store()
    accepted = store.journal.accepted
    for number in range(5):
        _add(accepted, number, chain=number % 2 << 11)
        assert _found(accepted, range(5), chain=number % 2 << 11) == list(range(number % 2, number + 1, 2))
        if flush_each:
            store.journal.flush()
    store.journal.flush()
    assert _found(accepted, range(5)) == [0, 2, 4]
    assert accepted.find(_key(1)) is None
    store.close()


def test_the_last_of_those_with_one_key_is_found() -> None:
    store = Store()
    for now_ms in (1_000, 301_000):
        _add(store.journal.accepted, 7, now_ms=now_ms)
        store.journal.flush()
    found = store.journal.accepted.find(_key(7))
    assert found is not None
    assert found.accepted_at_ms == 301_000
    store.close()


def test_the_entries_of_a_batch_share_rows_of_a_page_at_the_most() -> None:
    store = Store()
    for number in range(130):
        _add(store.journal.accepted, number)
    store.journal.flush()
    rows = store.journal.rows("all_accepted")
    assert [(number, len(entries) // 48) for number, entries in rows] == [(1, 64), (65, 64), (129, 2)]
    assert _found(store.journal.accepted, range(130)) == list(range(130))
    store.close()


def test_all_is_found_after_a_start_and_in_it_the_numbers_go_on(tmp_path: Path) -> None:
    for start in range(3):
        store = Store(tmp_path)
        assert _found(store.journal.accepted, range(9)) == list(range(3 * start))
        for number in range(3 * start, 3 * start + 3):
            _add(store.journal.accepted, number)
        store.journal.finish(1_000)
        store.journal.commit()
        store.close()


@settings(deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=12),
    chains=st.integers(1, 3),
)
def test_a_batch_that_is_rolled_back_leaves_nothing(batches: list[tuple[int, bool, bool]], chains: int) -> None:
    """However much of it was written already; ``chains`` are of different slots."""
    store = Store()
    accepted = store.journal.accepted
    kept: set[tuple[int, int]] = set()
    number = 0
    for size, is_written, is_kept in batches:
        batch = set()
        for _ in range(size):
            chain = number % chains << 11
            _add(accepted, number, chain=chain)
            batch.add((number, chain))
            number += 1
            if is_written:
                store.journal.flush()
        if is_kept:
            if store.journal.finish(1_000):
                store.journal.commit()
            kept |= batch
        else:
            store.journal.roll_back()
        for each in range(number):
            chain = each % chains << 11
            assert (accepted.find(_key(each, chain=chain)) is not None) is ((each, chain) in kept)
    store.close()


def test_an_upgrade_takes_along_what_was_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrades = folder._upgrades()
    monkeypatch.setattr(folder, "_upgrades", lambda: upgrades[:OLD_FORMAT])
    connection = apsw.Connection(str(tmp_path / folder.DATABASE_NAME))
    folder.bring_up_to_date(connection, "")
    rows = [
        (_key(number, chain=number % 2 << 11), bytes([number]) * 16, number, 1_000 + number // 3)
        for number in range(10)
    ]
    connection.executemany("INSERT INTO deduplication VALUES (?, ?, ?, ?)", reversed(rows))
    connection.close()
    monkeypatch.undo()
    store = Store(tmp_path)
    for number in range(10):
        found = store.journal.accepted.find(_key(number, chain=number % 2 << 11))
        assert found == (bytes([number]) * 16, number, 1_000 + number // 3)
        assert store.journal.accepted.find(_key(number, chain=(number + 1) % 2 << 11)) is None
    store.close()
