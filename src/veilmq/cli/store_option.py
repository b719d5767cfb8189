"""The database that a command is about: the one that serve would use with the same settings."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed
from veilmq.server.settings import ServerSettings

T = TypeVar("T")


def on_database(settings: ServerSettings, *, command: str, work: Callable[[Any, str], Awaitable[T]]) -> T:
    """Return what ``work`` returns, called with the module ``engines.postgres`` and the URL of the database.

    Raises ``CommandFailed`` where that cannot be reached or used.
    """
    assert settings.store is not None
    with needs_extra("server", command=command):
        from veilmq.engines.store import StoreError
        from veilmq.server.opening import only_url, postgres_parts
    try:
        url, parts = only_url(settings.store), postgres_parts(f"veilmq {command}")

        async def whole() -> T:
            return await work(parts, url)

        return asyncio.run(whole())
    except StoreError as error:
        raise CommandFailed(str(error)) from error
