"""The conformance suite runs on every store: a new one is one more parameter of `store`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EVERYTHING, stores_of
from tests.store.host import Host
from tests.store.model_frame import ON_SQLITE_STORE
from tests.store.stores import Store, embedded, on_postgres, on_shards, on_sqlite

SUITES = (Path(__file__).parent, Path(__file__).parents[1] / "internals" / "engines")

ON_SHARDS = {
    "test_dead_letters",
    "test_dead_letters_fifo",
    "test_forwards",
    "test_moves",
    "test_pauses",
    "test_peeks",
    "test_queues",
    "test_receipts",
    "test_tags",
    "test_topics",
    "test_waking",
}
"""The files of the suite where it matters that queues are in several databases."""

ON_SQLITE = {
    "test_claims",
    "test_claims_model",
    "test_dead_letters",
    "test_dead_letters_fifo",
    "test_events",
    "test_events_model",
    "test_fair",
    "test_fair_model",
    "test_fifo",
    "test_fifo_model",
    "test_forwards",
    "test_invariants",
    "test_leases",
    "test_looks",
    "test_messages",
    "test_model",
    "test_moves",
    "test_pauses",
    "test_peeks",
    "test_priorities",
    "test_publications",
    "test_publications_model",
    "test_queues",
    "test_quotas",
    "test_receipts",
    "test_redelivered",
    "test_redrive_model",
    "test_tags",
    "test_terms",
    "test_throttle",
    "test_topics",
    "test_totals",
    "test_visibility_rules",
    "test_waking",
}
"""The files of the suite that ask for what the new store on SQLite does so far: hot commands, and queues."""

EACH_COMMIT = {"memory": {"test_messages"}, "shards": {"test_moves", "test_topics"}}
"""What `make test` runs of these forms of a store, which share the code of the others: a cross-section."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked as different on PostgreSQL, and of shards what does not matter there.

    What is left of the two further forms of a store is for `make test-all`, but for a cross-section.
    """
    left_out = {item for item in items if _is_left_out(item)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    for item in items:
        form = stores_of(item) & EACH_COMMIT.keys()
        if form and item.path.parent in SUITES and item.path.stem not in EACH_COMMIT[form.pop()]:
            item.add_marker(EVERYTHING)


def _is_left_out(item: pytest.Item) -> bool:
    places = stores_of(item)
    on_shards = "shards" in places
    if "sqlite2" in places and (item.path.stem not in ON_SQLITE or item.path.parent not in SUITES):
        return True
    if on_shards and (item.path.stem not in ON_SHARDS or item.get_closest_marker("differs_on_shards")):
        return True
    return bool(places & {"postgres", "shards"}) and item.get_closest_marker("differs_on_postgres") is not None


@pytest.fixture(params=["memory", "sqlite", "sqlite2", "postgres", "shards"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a store that nobody has opened yet."""
    if request.param in ("postgres", "shards"):
        return _on_postgres(request)
    if request.param == "sqlite2":
        return on_sqlite(tmp_path / "store")
    return embedded(tmp_path / "store" if request.param == "sqlite" else None)


@pytest.fixture(params=["sqlite", "sqlite2", "postgres"])
def kept_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a store that survives, and that nobody has opened yet."""
    if request.param == "postgres":
        return _on_postgres(request)
    return on_sqlite(tmp_path / "store") if request.param == "sqlite2" else embedded(tmp_path / "store")


@pytest.fixture
def host(store: Store) -> Iterator[Host]:
    """Return an open engine without queues."""
    with store.open() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "sqlite2", "postgres", "shards"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """Return an open engine whose store survives."""
    places = {"sqlite": embedded, "sqlite2": on_sqlite}
    made = places.get(request.param)
    store = _on_postgres(request) if made is None else made(tmp_path / "store")
    with store.open() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "sqlite2", "postgres"])
def model_url(request: pytest.FixtureRequest) -> str | None:
    """Return where the engine beside a model has its store: a database, or `None` for a folder of its own."""
    if request.param == "sqlite2":
        return ON_SQLITE_STORE
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


def _on_postgres(request: pytest.FixtureRequest) -> Store:
    if request.param == "shards":
        return on_shards(request.getfixturevalue("shard_urls"))
    return on_postgres(request.getfixturevalue("postgres_url"))
