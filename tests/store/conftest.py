"""The conformance suite runs on every store: a new one is one more parameter of `store`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EVERYTHING, stores_of
from tests.store.host import Host
from tests.store.postgres_host import Store, on_postgres, on_shards, on_sqlite

SUITES = (Path(__file__).parent, Path(__file__).parents[1] / "internals" / "store")

ON_SHARDS = {
    "test_dead_letters",
    "test_forwards",
    "test_moves",
    "test_peeks",
    "test_queues",
    "test_receipts",
    "test_topics",
}
"""The files of the suite where it matters that queues are in several databases."""

IN_MEMORY = {"test_messages"}
"""The files of the suite that run on a store in memory too, whose code is that of a folder: a cross-section."""

EACH_COMMIT = {"test_moves", "test_topics"}
"""What `make test` runs on several databases: a cross-section, as they share the code of one."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked as different on PostgreSQL, and of shards and of memory what does not matter there.

    What is left of shards is for `make test-all`, but for a cross-section.
    """
    left_out = {item for item in items if _is_left_out(item)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    for item in items:
        on_shards = "shards" in stores_of(item) and item.path.parent in SUITES
        if on_shards and item.path.stem not in EACH_COMMIT:
            item.add_marker(EVERYTHING)


def _is_left_out(item: pytest.Item) -> bool:
    places = stores_of(item)
    on_shards = "shards" in places
    if "memory" in places and item.path.parent in SUITES and item.path.stem not in IN_MEMORY:
        return True
    if on_shards and (item.path.stem not in ON_SHARDS or item.get_closest_marker("differs_on_shards")):
        return True
    return bool(places & {"postgres", "shards"}) and item.get_closest_marker("differs_on_postgres") is not None


@pytest.fixture(params=["memory", "sqlite", "postgres", "shards"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param in ("postgres", "shards"):
        return _on_postgres(request)
    return on_sqlite(tmp_path / "store" if request.param == "sqlite" else None)


@pytest.fixture(params=["sqlite", "postgres"])
def kept_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return _on_postgres(request) if request.param == "postgres" else on_sqlite(tmp_path / "store")


@pytest.fixture
def host(store: Store) -> Iterator[Host]:
    with store.open() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres", "shards"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    store = on_sqlite(tmp_path / "store") if request.param == "sqlite" else _on_postgres(request)
    with store.open() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def model_url(request: pytest.FixtureRequest) -> str | None:
    """Return where the engine beside a model has its store: a database, or `None` for a folder of its own."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


def _on_postgres(request: pytest.FixtureRequest) -> Store:
    if request.param == "shards":
        return on_shards(request.getfixturevalue("shard_urls"))
    return on_postgres(request.getfixturevalue("postgres_url"))
