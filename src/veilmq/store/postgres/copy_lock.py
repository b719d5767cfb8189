"""A connection to a store that is copied: nobody else is at work on it, and nobody begins before the copy has ended."""

from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import asyncpg

from veilmq.engines.copying import CopyRefused
from veilmq.engines.named_sql import load
from veilmq.engines.store_urls import without_passwords
from veilmq.store.named_queries import shared
from veilmq.store.postgres.failures import sentence
from veilmq.store.postgres.migrate import SchemaRefused, migrate, require

SQL = {**shared(), **load("veilmq.store.postgres", "copies.sql")}

_CONNECT_S = 5.0
_SETTINGS = {"application_name": "veilmq copy", "jit": "off", "lock_timeout": "10s", "search_path": "mq"}
TROUBLE = (OSError, asyncpg.InterfaceError, asyncpg.PostgresError, TimeoutError)
"""What ends a copy: the connection is lost, or the server refuses something."""


class CopyLock:
    """The one transaction of a copy at one server; what did not come to its end is undone by the server."""

    def __init__(self, url: str) -> None:
        """``url`` is that of the database."""
        self.place = without_passwords(url)
        self._url = url
        self._connection: Any = None
        self._transaction: Any = None

    async def __aenter__(self) -> Self:
        """Connect; raises ``CopyRefused`` where that is not possible."""
        try:
            self._connection = await asyncpg.connect(self._url, timeout=_CONNECT_S, server_settings=_SETTINGS)
        except (*TROUBLE, ValueError) as error:
            raise CopyRefused(f"{self.place} cannot be used: {sentence(error)}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the connection, and with it what was not committed."""
        self._connection.terminate()
        if isinstance(error, TROUBLE):
            raise self.failed(error) from error

    def failed(self, error: BaseException) -> CopyRefused:
        """Return what a person is told of ``error``, which this server has raised."""
        return CopyRefused(f"{self.place} failed, and nothing was copied: {sentence(error)}")

    @property
    def connection(self) -> Any:
        """The connection, whose transaction is the copy."""
        return self._connection

    async def require(self) -> None:
        """Raise ``CopyRefused`` unless the schema is of this version."""
        try:
            await require(self._connection)
        except SchemaRefused as error:
            raise CopyRefused(f"{self.place}: {error}") from error

    async def migrate(self) -> None:
        """Make the schema, or upgrade it; raises ``CopyRefused``."""
        try:
            await migrate(self._connection)
        except SchemaRefused as error:
            raise CopyRefused(f"{self.place}: {error}") from error

    async def hold(self) -> None:
        """Begin the transaction; raises ``CopyRefused`` when a node is connected."""
        self._transaction = self._connection.transaction(isolation="repeatable_read")
        await self._connection.execute("SET statement_timeout = 0")
        await self._connection.execute("SET idle_in_transaction_session_timeout = 0")
        await self._transaction.start()
        await self._connection.execute(SQL["hold"])
        await self.check_alone()

    async def check_alone(self) -> None:
        """Raise ``CopyRefused`` when a node is connected, other than one that waits for the end of the copy.

        One that had lost its connections for a while, and was not seen when the copy began, may be back at its end.
        """
        await self._connection.execute(SQL["look_again"])
        nodes = await self._connection.fetchval(SQL["nodes"])
        if nodes:
            raise CopyRefused(
                f"{self.place} has {nodes} connections of veilmq: stop all servers that use it, and copy again."
            )

    async def without_triggers(self) -> None:
        """Have triggers rest until ``commit``: what they would add is added as it is."""
        for (table,) in await self._connection.fetch(SQL["triggered"]):
            await self._connection.execute(f"ALTER TABLE mq.{table} DISABLE TRIGGER USER")

    async def commit(self) -> None:
        """Make what was done durable, and have it looked through for the planner."""
        for (table,) in await self._connection.fetch(SQL["triggered"]):
            await self._connection.execute(f"ALTER TABLE mq.{table} ENABLE TRIGGER USER")
        await self._transaction.commit()
        with suppress(*TROUBLE):  # autovacuum does it too, and what was copied is there
            await self._connection.execute("ANALYZE")
