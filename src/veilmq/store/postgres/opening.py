"""What commands do with a database: open it for a server, upgrade it, examine it.

What keeps them from that is said to a person, without a password.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import asyncpg

from veilmq.core.errors import VeilmqError
from veilmq.engines.examination import Report
from veilmq.engines.store import StoreError
from veilmq.engines.store_urls import without_passwords
from veilmq.store.postgres.database_clock import MachineClock
from veilmq.store.postgres.doctor import examine
from veilmq.store.postgres.durability import Durability
from veilmq.store.postgres.failures import sentence
from veilmq.store.postgres.migrate import SchemaRefused, look, migrate
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.shards import Shards

_CONNECT_S = 5.0


async def open_store(urls: Sequence[str], *, clock: MachineClock, options: PostgresOptions) -> Shards:
    """Return the store whose home is the first of ``urls``; raises ``StoreError``, which has no password.

    The others, in the order of their places, are made known to the home.
    """
    with _said(urls[0]):
        return await Shards.open(urls, clock=clock, options=options)


class Upgrade(NamedTuple):
    """The database (without a password), the number of its format before, and the names of the upgrades."""

    place: str
    found: int
    upgrades: list[str]


async def upgrade(url: str, *, apply: bool) -> Upgrade:
    """Bring the schema up to date, or only tell what that would be; raises ``StoreError``."""
    with _said(url):
        connection = await asyncpg.connect(url, timeout=_CONNECT_S)
        try:
            found, pending = await look(connection)
            applied = await migrate(connection) if apply else pending
        finally:
            await connection.close()
    return Upgrade(without_passwords(url), found, [script.name for script in applied])


async def examination(url: str, *, durability: str) -> tuple[str, Report]:
    """Return the database (without a password) and what the doctor says about it; raises ``StoreError``."""
    with _said(url):
        return without_passwords(url), await examine(url, durability=Durability(durability))


@contextmanager
def _said(url: str) -> Iterator[None]:
    try:
        yield
    except SchemaRefused as error:
        raise StoreError(f"{without_passwords(url)}: {error}") from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise StoreError(f"{without_passwords(url)} is a standby, which keeps nothing: name the primary.") from error
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, VeilmqError) as error:
        raise StoreError(f"{without_passwords(url)} cannot be used: {sentence(error)}") from error
