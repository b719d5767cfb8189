"""The conformance suite runs on every store: a new one is one more parameter of `store`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.host import Host
from tests.engines.shards_host import making_shards
from tests.engines.stores import Store, embedded, on_postgres, on_shards

ON_POSTGRES = {
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
    "test_looks",
    "test_messages",
    "test_model",
    "test_moves",
    "test_pauses",
    "test_peeks",
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
    "test_visibility_rules",
    "test_waking",
}
"""The files of the suite that hold on PostgreSQL so far."""

OWED_ON_POSTGRES: dict[str, set[str]] = {}
"""The tests in those files that do not hold there yet, by what is missing."""


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what does not hold on PostgreSQL yet, and what is marked as different there."""
    left_out = [item for item in items if _is_on_postgres(item) and not _holds_there(item)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _is_on_postgres(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and ("postgres" in call.params.values() or "shards" in call.params.values())


def _is_on_shards(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and "shards" in call.params.values()


def _holds_there(item: pytest.Item) -> bool:
    name = getattr(item, "originalname", item.name)
    if item.path.stem not in ON_POSTGRES or any(name in owed for owed in OWED_ON_POSTGRES.values()):
        return False
    if _is_on_shards(item) and (item.path.stem not in ON_SHARDS or item.get_closest_marker("differs_on_shards")):
        return False
    return item.get_closest_marker("differs_on_postgres") is None


@pytest.fixture(scope="session")
def shard_urls(postgres_url: str) -> Iterator[list[str]]:
    """Return the URLs of two databases of this worker that can be one store."""
    with making_shards(postgres_url) as urls:
        yield urls


@pytest.fixture(params=["memory", "sqlite", "postgres", "shards"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a store that nobody has opened yet."""
    if request.param in ("postgres", "shards"):
        return _on_postgres(request)
    return embedded(tmp_path / "store" if request.param == "sqlite" else None)


@pytest.fixture(params=["sqlite", "postgres"])
def kept_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a store that survives, and that nobody has opened yet."""
    return _on_postgres(request) if request.param == "postgres" else embedded(tmp_path / "store")


@pytest.fixture
def host(store: Store) -> Iterator[Host]:
    """Return an open engine without queues."""
    with store.open() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres", "shards"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """Return an open engine whose store survives."""
    store = embedded(tmp_path / "store") if request.param == "sqlite" else _on_postgres(request)
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
