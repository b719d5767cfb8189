"""The stores that the conformance suite runs on, asked in one way whatever each of them is."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.store.host import RESTLESS, Host, hosting
from tests.store.postgres_host import RESTLESS as RESTLESS_NODE
from tests.store.postgres_host import hosting_postgres
from tests.store.shards_host import hosting_shards


class Store(NamedTuple):
    """A place for an engine; `open` takes the options that differ from those of a store whose queues never rest."""

    open: Callable[..., AbstractContextManager[Host]]


def on_sqlite(folder: Path | None) -> Store:
    """Return a store in `folder`, or in memory."""

    def opened(**options: Any) -> AbstractContextManager[Host]:
        return hosting(folder, options=replace(RESTLESS, **options))

    return Store(opened)


def on_postgres(url: str) -> Store:
    """Return an empty database as a store."""

    def opened(**options: Any) -> AbstractContextManager[Host]:
        return hosting_postgres(url, options=replace(RESTLESS_NODE, **options))

    return Store(opened)


def on_shards(urls: Sequence[str]) -> Store:
    """Return several empty databases as one store."""

    def opened(**options: Any) -> AbstractContextManager[Host]:
        return hosting_shards(urls, options=replace(RESTLESS_NODE, **options))

    return Store(opened)
