"""A SQLite store in a folder, checked by the doctor after each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.host import Host, hosting


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with hosting(tmp_path / "store") as opened:
        yield opened
        assert opened.failures == []
        opened.check()
