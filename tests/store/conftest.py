"""The stores on which the conformance suite runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EVERYTHING, stores_of
from tests.store.host import Host
from tests.store.postgres_host import Store, on_postgres, on_shards, on_sqlite

SUITES = (Path(__file__).parent, Path(__file__).parents[1] / "internals" / "store")

# Files whose commands concern several queues, which may be in several databases.
ON_SHARDS = {f"test_{name}" for name in ("dead_letters", "forwards", "moves", "peeks", "queues", "receipts", "topics")}
# A sample for each commit: stores in memory share the code of folders, several databases that of one.
IN_MEMORY = {"test_messages"}
EACH_COMMIT = {"test_moves", "test_topics"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that differ on a store or gain nothing there; run most tests on shards only in `make test-all`."""
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
def durable_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return _on_postgres(request) if request.param == "postgres" else on_sqlite(tmp_path / "store")


@pytest.fixture
def host(store: Store) -> Iterator[Host]:
    with store.open() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres", "shards"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    store = on_sqlite(tmp_path / "store") if request.param == "sqlite" else _on_postgres(request)
    with store.open() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def model_url(request: pytest.FixtureRequest) -> str | None:
    """Return the URL of the database of the engine beside a model, or `None` for a folder."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


def _on_postgres(request: pytest.FixtureRequest) -> Store:
    if request.param == "shards":
        return on_shards(request.getfixturevalue("shard_urls"))
    return on_postgres(request.getfixturevalue("postgres_url"))
