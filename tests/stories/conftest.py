"""The servers that stories share: one for each store and each setting that a story wants of its server."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.store.postgres_host import emptied, making_database, prepare
from veilmq.testing import RunningServer

Serve = Callable[..., RunningServer]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell the stories that share servers in one of the workers."""
    for item in items:
        if "serve" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("stories"))


@pytest.fixture(scope="session")
def serve(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Return a call that gives the one server on a "memory", a "folder" or "postgres" with such settings."""
    running: dict[Any, RunningServer] = {}
    with ExitStack() as closing:

        def place(store: str) -> dict[str, Any]:
            if store != "postgres":
                return {"data": tmp_path_factory.mktemp("stories") / "store" if store == "folder" else None}
            url = closing.enter_context(making_database(request.getfixturevalue("postgres_url")))
            asyncio.run(prepare(url))
            return emptied(url)

        def serve(store: str, **settings: Any) -> RunningServer:
            key = (store, *settings.items())
            if key not in running:
                running[key] = closing.enter_context(RunningServer(**place(store), **settings))
            return running[key]

        yield serve
