"""What can go wrong with a database, and what that means for a command: nothing was done, or nobody knows."""

import logging

import asyncpg

from veilmq.core.errors import InternalError, OutcomeUnknown, StoreFull, StoreUnavailable, VeilmqError
from veilmq.engines.store_urls import without_passwords

log = logging.getLogger(__name__)

IN_DOUBT = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server has said that it ends the connection, and is about to
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
"""What leaves open whether a statement was carried out: the connection ended before the answer came."""

ELSEWHERE = (asyncpg.ReadOnlySQLTransactionError, asyncpg.TargetServerAttributeNotMatched)
"""What says that the server is a standby now: the primary is another one, perhaps at the same address."""

FULL = (asyncpg.TooManyConnectionsError,)
"""What says that the server has no connection to spare."""

UNREACHABLE = (
    *IN_DOUBT,
    *ELSEWHERE,
    *FULL,
    asyncpg.CannotConnectNowError,
    asyncpg.InvalidAuthorizationSpecificationError,
)
"""What ends an attempt to connect: the server is down, starting, full, or not to be had otherwise."""

_NOTHING_DONE = (
    *ELSEWHERE,
    *FULL,
    asyncpg.QueryCanceledError,  # the statement took too long
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
    asyncpg.OutOfMemoryError,
)

OF_ALL = (VeilmqError, *IN_DOUBT, *_NOTHING_DONE)
"""What is no single command's fault, of those that travel together."""


def sentence(error: BaseException) -> str:
    """Return the reason for a person, on one line and without a password; some errors of sockets have no text."""
    text = without_passwords(" ".join(str(error).split())) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def told(error: BaseException, what: str) -> VeilmqError:
    """Return what whoever asked for ``what`` is answered after ``error``; what is our fault is in the log."""
    if isinstance(error, VeilmqError):
        return error
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull()
    if isinstance(error, _NOTHING_DONE):
        log.warning("the database gave up on %s: %s", what, error)
        return StoreUnavailable()
    if isinstance(error, IN_DOUBT):
        log.warning("the connection to the database was lost in %s", what)
        return OutcomeUnknown()
    log.error("a command failed: %s", what, exc_info=error)
    return InternalError()
