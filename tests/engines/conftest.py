"""The conformance suite runs on every store: a new one is one more parameter of `host`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.host import Host, hosting


@pytest.fixture(params=["memory", "sqlite"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """Return an open engine without queues."""
    with hosting(tmp_path / "store" if request.param == "sqlite" else None) as opened:
        yield opened


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Host]:
    """Return an open engine whose store survives."""
    with hosting(tmp_path / "store") as opened:
        yield opened
