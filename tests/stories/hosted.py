"""An engine for a story, wherever it keeps its messages: with the defaults of a server."""

from contextlib import AbstractContextManager
from typing import Any

from tests.store.host import Host, hosting
from tests.store.postgres_host import hosting_postgres
from veilmq.store.postgres import PostgresOptions
from veilmq.store.sqlite.database import EngineOptions

Place = dict[str, Any]
"""What a `RunningServer` takes to be on some store; the fixture `place` makes it."""


def hosted(place: Place) -> AbstractContextManager[Host]:
    """Return an empty engine at `place`, open for a while."""
    if "store" in place:
        return hosting_postgres(place["store"], options=PostgresOptions())
    return hosting(place["data"], options=EngineOptions())
