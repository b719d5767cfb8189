"""Servers that stories share: one for each store and combination of settings."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.store.postgres_host import emptied, making_database, prepare
from veilmq.testing import RunningServer

Serve = Callable[..., RunningServer]


@contextmanager
def sharing(store_settings: Callable[[ExitStack], dict[str, Any]]) -> Iterator[Serve]:
    """Yield a function that returns the server with the given settings, on the empty store of ``store_settings``."""
    running: dict[Any, RunningServer] = {}
    with ExitStack() as closing:

        def serve(**settings: Any) -> RunningServer:
            key = tuple(settings.items())
            if key not in running:
                running[key] = closing.enter_context(RunningServer(**store_settings(closing), **settings))
            return running[key]

        yield serve


@pytest.fixture(scope="session")
def serve_on_memory() -> Iterator[Serve]:
    with sharing(lambda _: {}) as serve:
        yield serve


@pytest.fixture(scope="session")
def serve_on_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    def store_settings(_: ExitStack) -> dict[str, Path]:
        return {"data": tmp_path_factory.mktemp("stories") / "store"}

    with sharing(store_settings) as serve:
        yield serve


@pytest.fixture(scope="session")
def serve_on_postgres(postgres_url: str) -> Iterator[Serve]:
    def store_settings(closing: ExitStack) -> dict[str, Any]:
        url = closing.enter_context(making_database(postgres_url))
        asyncio.run(prepare(url))
        return emptied(url)

    with sharing(store_settings) as serve:
        yield serve


@pytest.fixture
def serve(request: pytest.FixtureRequest) -> Serve:
    def serve(store: str, **settings: Any) -> RunningServer:
        served: RunningServer = request.getfixturevalue(f"serve_on_{store}")(**settings)
        return served

    return serve
