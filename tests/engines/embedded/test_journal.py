"""The journal is set up as its page says, whatever SQLite's defaults are."""

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
