"""How much of its indexes a node has the database read: what a statement costs, whatever else the machine does."""

import asyncio

from tests.store.postgres_host import PostgresHost, connected

_NODES = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'veilmq'"
_READ = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'mq'"


def entries_read(host: PostgresHost) -> int:
    """Return how many entries of the indexes of messages were ever read: connections tell when they end."""

    async def pids() -> set[int]:
        async with connected(host.url) as connection:
            return {pid for (pid,) in await connection.fetch(_NODES)}

    async def count(told: set[int]) -> int:
        async with asyncio.timeout(60):
            while told & await pids():
                pass
        async with connected(host.url) as connection:
            read: int = await connection.fetchval(_READ)
            return read

    of_node = host.run(pids())
    host.reopen()
    return host.run(count(of_node))
