"""The journal is set up as its page says, whatever SQLite's defaults are."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.internals.engines.embedded.store import Store
from veilmq.engines.embedded.folder import open_journal
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.rows import MessageRow

_FULL, _MEMORY = 2, 2
SMALL, OF_SIX, OF_THREE = "", "x" * (5 * 16_384), "é" * 16_384
"""What counts for one, for six and for three."""


def test_every_pragma_is_in_force(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, EngineOptions(database_pages_max=5_000))
    connection = journal.begin()
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == _FULL
    assert connection.pragma("journal_size_limit") == 67_108_864
    assert connection.pragma("cache_size") == -65_536
    assert connection.pragma("temp_store") == _MEMORY
    assert connection.pragma("auto_vacuum") == 2
    assert connection.pragma("max_page_count") == 5_000
    journal.roll_back()
    journal.close()


def test_the_log_is_moved_once_when_it_is_long_and_not_again_at_the_next_commit(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, EngineOptions(free_space_reserve_bytes=0))  # the shortest log
    moving = []
    for number in range(200):
        journal.put_meta(f"{number}", bytes(20_000))
        moving.append(journal.moves_log)
        journal.commit()
    journal.close()
    assert True in moving
    assert (True, True) not in pairwise(moving)


def test_pages_given_back_are_moved_with_their_commit(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, EngineOptions())
    moving = [journal.moves_log]
    journal.give_back(1)
    moving.append(journal.moves_log)
    journal.commit()
    moving.append(journal.moves_log)
    journal.close()
    assert moving == [False, True, False]


@pytest.mark.parametrize(
    ("bodies", "count", "end", "weight"),
    [
        ([SMALL] * 5, 9, 20, 5),
        ([SMALL] * 5, 5, 20, 5),
        ([SMALL] * 5, 3, 13, 3),
        ([OF_SIX, OF_SIX], 6, 11, 6),
        ([OF_SIX, OF_SIX], 7, 20, 12),
        ([OF_SIX, OF_SIX, SMALL], 7, 12, 12),
        ([OF_SIX, SMALL], 1, 11, 6),
        ([SMALL, SMALL, OF_THREE], 3, 20, 5),
        ([], 3, 20, 0),
    ],
)
def test_large_messages_count_more_in_a_slice(bodies: list[str], count: int, end: int, weight: int) -> None:
    """It has one of them at least, and no more than one too much."""
    store = Store()
    for position, body in enumerate(bodies, 10):
        store.journal.add_message(MessageRow(position, bytes(16), 0, body, b""))
    assert store.journal.slice_from(10, 20, count) == (end, weight)
    store.close()


def test_properties_count_as_bodies_do() -> None:
    store = Store()
    for position in (0, 1):
        store.journal.add_message(MessageRow(position, bytes(16), 0, "", bytes(3 * 16_384)))
    assert store.journal.slice_from(0, 2, 4) == (1, 4)
    store.close()
