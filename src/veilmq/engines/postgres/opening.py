"""Opening an engine for a server: what keeps it from that is said to a person."""

import asyncpg

from veilmq.core.ports import Clock
from veilmq.engines.postgres.engine import PostgresEngine
from veilmq.engines.postgres.migrate import SchemaTooNew
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.store import StoreError
from veilmq.engines.store_urls import without_passwords


async def open_engine(url: str, *, clock: Clock, options: PostgresOptions) -> PostgresEngine:
    """Return an engine on ``url``; raises ``StoreError``, which says why there is none, and no password."""
    try:
        return await PostgresEngine.open(url, clock=clock, options=options)
    except SchemaTooNew as error:
        raise StoreError(f"{without_passwords(url)}: {error}") from error
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreError(f"{without_passwords(url)} cannot be used: {_why(error)}") from error


def _why(error: BaseException) -> str:
    """Return the reason as a sentence; some errors of sockets have no text."""
    text = without_passwords(" ".join(str(error).split())) or type(error).__name__
    return text if text.endswith(".") else f"{text}."
