"""What runs the cold commands at a node of PostgreSQL, each in a transaction of its own.

A transaction that was in the way of another one's is repeated, at most ``COLLISIONS_MAX`` times.
"""

from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from typing import Any

from asyncpg import ReadOnlySQLTransactionError

from veilmq.core.errors import InternalError
from veilmq.store import housekeeping
from veilmq.store.cold import SNAPSHOTS, Cold
from veilmq.store.postgres.coalescing import COLLISIONS, COLLISIONS_MAX, PartitionRetired
from veilmq.store.postgres.transaction import Parts, PostgresTransaction


class ColdCommands(Parts):
    """Runs cold commands at one node."""

    async def sweep(self, connection: Any) -> None:
        """Do all that the janitor has to do, on its connection."""
        await housekeeping.forget_cooldowns(PostgresTransaction(connection, self))
        await self.sweeper.sweep(connection)

    def running(self, cold: Cold, *, changes: bool) -> Callable[[Any], Awaitable[Any]]:
        """Return the handler that runs a cold command, in a transaction if it ``changes`` something."""

        async def handle(command: Any) -> Any:
            async with self.database.connection() as connection:
                if changes:
                    answer, tell = await self._change(connection, cold, command)
                elif type(command) not in SNAPSHOTS:
                    return await cold(PostgresTransaction(connection, self), command)
                else:
                    try:
                        async with connection.transaction(isolation="repeatable_read", readonly=True):
                            return await cold(PostgresTransaction(connection, self), command)
                    except ReadOnlySQLTransactionError:
                        # A collision repeats it: still all of it sees one instant.
                        answer, tell = await self._change(connection, cold, command, isolation="repeatable_read")
            # Behind the answer: a poll that is asked again passes by what the command has changed, as its policy.
            get_running_loop().call_soon(tell)
            return answer

        return handle

    async def _change(
        self, connection: Any, cold: Cold, command: Any, isolation: str | None = None
    ) -> tuple[Any, Callable[[], None]]:
        """Return the answer, and what tells waiters of the change."""
        for _ in range(COLLISIONS_MAX):
            tx = PostgresTransaction(connection, self)
            try:
                async with connection.transaction(isolation=isolation):
                    answer = await cold(tx, command)
            except COLLISIONS:
                self.positions.jump()
                continue
            except PartitionRetired:  # what the node knew of a queue was old
                for name in tx.known:
                    self.catalog.forget(name)
                continue
            await tx.end()
            return answer, tx.tell
        raise InternalError
