"""Keyed tables: the batch's own changes are seen without being written, and each row is written once."""

from tests.internals.engines.embedded.store import Store

KEY = (bytes(16),)


def test_a_row_is_seen_before_and_after_it_is_written() -> None:
    store = Store()
    table = store.journal.attempts
    assert table.get(KEY) is None
    table.put(KEY, (b"a", 1))
    assert table.get(KEY) == (b"a", 1)
    store.journal.flush()
    assert table.get(KEY) == (b"a", 1)
    table.put(KEY, (b"b", 2))
    table.put(KEY, (b"c", 3))
    assert table.get(KEY) == (b"c", 3)
    store.journal.flush()
    assert store.journal.rows("attempt_at", *KEY) == [(b"c", 3)]
    store.close()


def test_a_row_that_goes_is_gone_before_and_after() -> None:
    store = Store()
    table = store.journal.attempts
    table.put(KEY, (b"a", 1))
    store.journal.flush()
    table.remove(KEY)
    assert table.get(KEY) is None
    store.journal.flush()
    assert table.get(KEY) is None
    table.put(KEY, (b"a", 1))
    table.remove(KEY)
    store.journal.flush()
    assert store.journal.rows("attempt_at", *KEY) == []
    store.close()


def test_a_batch_that_is_rolled_back_leaves_nothing() -> None:
    store = Store()
    table = store.journal.attempts
    table.put(KEY, (b"a", 1))
    store.journal.flush()
    table.put(KEY, (b"b", 1))
    store.journal.roll_back()
    assert table.get(KEY) is None
    store.close()
