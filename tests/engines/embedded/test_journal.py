"""The journal is set up as its page says, whatever SQLite's defaults are."""

from itertools import pairwise
from pathlib import Path

from veilmq.engines.embedded.folder import open_journal
from veilmq.engines.embedded.options import EngineOptions

_FULL, _MEMORY = 2, 2


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
