"""A store in a folder, which agrees with itself when its test has ended."""

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
