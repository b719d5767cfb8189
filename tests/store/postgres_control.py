"""Control connections: one to each database for all tests of a process, for short statements beside the stores.

A thread of their own keeps them, as event loops of tests come and go. A statement may be executed twice.
"""

import asyncio
import contextlib
import threading
from functools import cache
from typing import Any

import asyncpg

_LOST = (
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what comes between the last word of the server and the end of the connection
    asyncpg.PostgresConnectionError,
    OSError,
)
_one_at_a_time = asyncio.Lock()
_connections: dict[str, "asyncpg.Connection[asyncpg.Record]"] = {}


async def execute(url: str, statement: str, *arguments: Any) -> None:
    """Execute a statement in the database of ``url``."""
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_execute(url, statement, *arguments), _loop()))


def disconnect(url: str) -> None:
    """Close the connection to a database that is to end."""
    asyncio.run_coroutine_threadsafe(_disconnect(url), _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="control connections", daemon=True).start()
    return loop


async def _execute(url: str, statement: str, *arguments: Any) -> None:
    async with _one_at_a_time:
        await _execute_alone(url, statement, *arguments)


async def _execute_alone(url: str, statement: str, *arguments: Any) -> None:
    kept = url in _connections
    try:
        if not kept:
            _connections[url] = await asyncpg.connect(url)
        await _connections[url].execute(statement, *arguments)
    except _LOST:  # a test may end all connections of a database, or the database itself
        await _disconnect(url)
        if not kept:
            raise
        await _execute_alone(url, statement, *arguments)


async def _disconnect(url: str) -> None:
    connection = _connections.pop(url, None)
    if connection is not None:
        with contextlib.suppress(*_LOST):
            await connection.close(timeout=10)
