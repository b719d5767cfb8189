"""The connections of a node to one PostgreSQL server: pools, errors, background workers, advisory locks, and the clock.

Plans are pinned: with the statistics of an empty table, the planner would scan the table when it is full (measured: 2.4
times the cost). Sessions are not reset between commands, which saves a round trip; so no command may change session
state. After a timeout, all connections of the pool are closed: the address may now lead to another server. After a
failure to connect, commands fail at once during a pause that doubles with each failure; then one command tries.

The database's clock decides what is visible. A node estimates its offset from the machine's clock: a timestamp in a
reply was taken between the sending of the statement and the arrival of the reply.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import asyncpg

from veilmq.core.commands import Clock, Done, Timer
from veilmq.core.errors import InternalError, OutcomeUnknown, StoreFull, StoreUnavailable, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.store.clock import SystemClock
from veilmq.store.cold import Scheduler
from veilmq.store.port import Metric, counter, gauge
from veilmq.store.postgres.schema import CONNECT_S, SESSION, SQL, CommitDurability, Durability, migrate, require
from veilmq.store.transaction import Options
from veilmq.store.urls import without_passwords

log = logging.getLogger(__name__)

IN_DOUBT = (
    OSError,  # also timeouts
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server is closing the connection
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
"""The connection ended before the reply, so the outcome of the statement is unknown."""

FAILURES = (*IN_DOUBT, asyncpg.PostgresError)
"""All errors of the driver and of the server."""

NOT_PRIMARY = (asyncpg.ReadOnlySQLTransactionError, asyncpg.TargetServerAttributeNotMatched)
"""The server is a standby; the primary may be another server at the same address."""

UNREACHABLE = (
    *IN_DOUBT,
    *NOT_PRIMARY,
    asyncpg.TooManyConnectionsError,
    asyncpg.CannotConnectNowError,
    asyncpg.InvalidAuthorizationSpecificationError,
)
"""Errors of an attempt to connect: the server is down, starting, full, a standby, or refuses the login."""

NOT_APPLIED = (
    *NOT_PRIMARY,
    asyncpg.TooManyConnectionsError,
    asyncpg.QueryCanceledError,  # the statement timeout
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
    asyncpg.OutOfMemoryError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedTableError,  # the schema was dropped, or is hidden from the role
)

SHARED_FAILURES = (VeilmqError, *IN_DOUBT, *NOT_APPLIED)
"""Errors that no single command of a batch causes."""

COLLISIONS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.UniqueViolationError)
"""Conflicts with another node: nothing was changed, and a retry helps."""
COLLISIONS_MAX = 5


def sentence(error: BaseException) -> str:
    """Return the reason as one line without a password; socket errors without a text give their class name."""
    text = without_passwords(" ".join(str(error).split())) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def failure_of(error: BaseException, what: str) -> VeilmqError:
    """Return the error for the client of ``what``; log failures of the database and defects."""
    if isinstance(error, VeilmqError):
        return error
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull()
    if isinstance(error, NOT_APPLIED):
        log.warning("the database gave up on %s: %s", what, error)
        return StoreUnavailable()
    if isinstance(error, IN_DOUBT):
        log.warning("the connection to the database was lost in %s", what)
        return OutcomeUnknown()
    log.error("a command failed: %s", what, exc_info=error)
    return InternalError()


_PAUSE_MS_MIN = 100
_PAUSE_MS_MAX = 5_000


class Breaker:
    """A circuit breaker for connections, with exponential backoff."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._pause_ms = 0
        self._retry_at_ms = 0
        self.failures = 0

    @property
    def is_open(self) -> bool:
        """Whether the last attempt to connect failed."""
        return self._pause_ms > 0

    def check(self) -> None:
        """Raise ``StoreUnavailable`` during a pause; after it, let one caller try while the others keep failing."""
        if not self._pause_ms:
            return
        if self._clock.now_ms() < self._retry_at_ms:
            raise StoreUnavailable
        self._retry_at_ms = self._clock.now_ms() + _PAUSE_MS_MAX

    def failed(self) -> None:
        """Count a failure, and begin or prolong the pause."""
        self.failures += 1
        self._pause_ms = min(_PAUSE_MS_MAX, max(_PAUSE_MS_MIN, 2 * self._pause_ms))
        self._retry_at_ms = self._clock.now_ms() + self._pause_ms

    def succeeded(self) -> None:
        """End the pause after a successful attempt."""
        self._pause_ms = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(Options):
    """The options of a node."""

    migrates: bool = True  # upgrade the schema at the start, unless running older nodes could not use the new one
    connections: int = 8  # in each pool; connections for notifications and advisory locks are extra
    durability: Durability = Durability.STRICT  # STANDARD adds a pool for commits that a crash may undo
    acquire_s: float = 5.0  # maximum wait for a connection
    statement_s: float = 30.0  # statement timeout
    silence_s: float = 5.0  # then a connection without a reply is closed
    coalesced_max: int = 100  # messages in one statement
    fresh_s: float = 5.0  # how long a queue is cached if no node notifies of a change
    sweep_rows: int = 1_000  # that the janitor deletes with one statement
    in_flight_counted_max: int = 1_000  # larger in-flight quotas are counted at intervals, not at each receive
    claim_slice_rows: int = 1_000
    listens: bool = True  # use notifications to wake long polls of other nodes
    poll_s: float = 1.0  # interval of polls for waiters; a fifth of it if no notifications arrive


_RETURN_S = 5.0


async def _no_reset(connection: Any) -> None:
    pass


SETTINGS = {
    **SESSION,
    "application_name": "veilmq",
    "bytea_output": "hex",
    "default_transaction_isolation": "read committed",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "idle_in_transaction_session_timeout": "30s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "tcp_keepalives_count": "3",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
}
"""Settings of every connection. With the keepalives, the server drops the locks of a vanished node within a minute."""


class Database:
    """The connection pools of a node to one server."""

    def __init__(self, url: str, *, options: PostgresOptions, clock: Clock) -> None:
        self.url = url
        self.options = options
        self.breaker = Breaker(clock=clock)
        self.on_lost: Callable[[], None] = lambda: None  # called after a connection was lost
        self.release_callbacks: dict[int, Callable[[], None]] = {}  # by the ``id`` of the connection
        self._settings = {**SETTINGS, "statement_timeout": f"{options.statement_s * 1_000:.0f}ms"}
        self._durable = self._pool(self._settings, _be_durable)
        self.relaxes = options.durability is Durability.STANDARD
        self._relaxed = self._pool(self._settings | {"synchronous_commit": "off"}) if self.relaxes else self._durable
        self._pools = [self._durable, self._relaxed] if self.relaxes else [self._durable]
        self._outside_pools: WeakSet[asyncpg.Connection[Any]] = WeakSet()
        self._is_known = False

    async def open(self) -> None:
        """Connect once, upgrade the schema, and log the durability; raises ``SchemaRefused`` and errors of asyncpg."""
        if not self._is_known:
            for each in self._pools:
                await each
            connection = await self.connect(has_timeout=False)  # an upgrade may take long
            try:
                if self.options.migrates:
                    await migrate(connection, may_exclude_older_nodes=False)
                else:
                    await require(connection)
                commits = await CommitDurability.of(connection, self.options.durability)
            finally:
                await connection.close()
            log.info("%s: durability %s", self.shown_url, commits)
            for warning in commits.warnings:
                log.warning("%s: %s", self.shown_url, warning)
            self._is_known = True
        self.breaker.succeeded()

    def _pool(self, settings: dict[str, str], prepare: Any = None) -> "asyncpg.Pool[Any]":
        return asyncpg.create_pool(
            self.url,
            min_size=0,
            max_size=self.options.connections,
            timeout=CONNECT_S,
            command_timeout=self.options.statement_s + self.options.silence_s,
            server_settings=settings,
            init=prepare,
            reset=_no_reset,
        )

    @asynccontextmanager
    async def connection(self, *, relaxed: bool = False) -> AsyncIterator[Any]:
        """Acquire a connection; raises ``StoreUnavailable``.

        Its commits are durable; ``relaxed``: a crash of the database may undo them, if the options allow that.
        """
        pool = self._relaxed if relaxed else self._durable
        self.breaker.check()
        try:
            # A timeout costs a task, and an idle connection needs none.
            connection = await pool.acquire(timeout=None if pool.get_idle_size() else self.options.acquire_s)
        except FAILURES as error:  # the database may be dropped or closed
            # An exhausted pool or server is reachable.
            exhausted_at = 1 if isinstance(error, asyncpg.TooManyConnectionsError) else pool.get_max_size()
            if pool.get_size() - pool.get_idle_size() < exhausted_at:
                self.breaker.failed()
            log.warning("no connection to %s: %s", self.shown_url, sentence(error))
            raise StoreUnavailable from error
        self.breaker.succeeded()
        try:
            yield connection
        except (*IN_DOUBT, *NOT_PRIMARY) as error:
            self.on_lost()
            if isinstance(error, (TimeoutError, *NOT_PRIMARY)):
                self.breaker.failed()
                connection.terminate()
                await pool.expire_connections()
            raise
        finally:
            try:
                await pool.release(connection, timeout=_RETURN_S)
            except FAILURES as failure:
                log.warning("a connection to the database was lost between two commands: %s", failure)
            if self.release_callbacks and (call := self.release_callbacks.pop(id(connection), None)) is not None:
                call()

    @property
    def shown_url(self) -> str:
        """The URL without a password."""
        return without_passwords(self.url)

    async def connect(self, *, has_timeout: bool = True) -> "asyncpg.Connection[Any]":
        """Return a durable connection outside the pools; the caller closes it. Its timeout is that of the pools."""
        timeout_s = self.options.statement_s + self.options.silence_s if has_timeout else None
        connection = await asyncpg.connect(
            self.url, timeout=CONNECT_S, command_timeout=timeout_s, server_settings=self._settings
        )
        self._outside_pools.add(connection)
        try:
            await _be_durable(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def metrics(self) -> list[Metric]:
        """Return the state of the pools and the number of failures to connect."""
        opened = sum(each.get_size() for each in self._pools)
        in_use = opened - sum(each.get_idle_size() for each in self._pools)
        allowed = len(self._pools) * self.options.connections
        is_reachable = self._is_known and not self.breaker.is_open
        return [
            gauge("store_reachable", "1 unless the last attempt to reach the database failed.", is_reachable),
            counter("store_connection_failures", "Failed attempts to reach the database.", self.breaker.failures),
            gauge("store_connections_in_use", "Connections to the database that are in use.", in_use),
            gauge("store_connections_open", "Connections to the database that are open.", opened),
            gauge("store_connections_max", "Maximum number of connections to the database.", allowed),
        ]

    async def close(self) -> None:
        """Wait until all connections are released, and close them."""
        for pool in self._pools:
            with suppress(*IN_DOUBT):  # also if the pool was never opened
                await pool.close()
        self.terminate()

    def terminate(self) -> None:
        """Close all connections without waiting; the outcome of running statements is unknown."""
        for connection in list(self._outside_pools):
            connection.terminate()
        for pool in self._pools:
            with suppress(asyncpg.InterfaceError):  # the pool was never opened
                pool.terminate()


async def _be_durable(connection: Any) -> None:
    await connection.execute(SQL["be_durable"])


Start = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a task of a node or a store."""

POLL_MS = 10 * SECOND_MS
"""Interval at which a node polls for background work of others: it continues the work of a node that has died."""
BUSY_MS = 10
"""Minimum pause between two slices of work that several nodes may do."""


class Worker(Scheduler):
    """Run the coroutine ``step`` whenever a slice is due; an error is logged, and the work continues later."""

    def __init__(
        self,
        *,
        step: Callable[[], Awaitable[int | None]],
        clock: Clock,
        start: Start,
        pause_ms_min: int = BUSY_MS,
        poll_ms_max: float = POLL_MS,
    ) -> None:

        async def work(done: Done) -> None:
            due: int | Exception | None
            try:
                due = await step()
            except COLLISIONS:
                due = 0
            except Exception as error:
                if not self._stopped and not isinstance(error, StoreUnavailable):  # the lost connection is logged
                    expected = isinstance(error, (*NOT_APPLIED, *IN_DOUBT))
                    log.warning("background work failed, and is tried again: %s", error, exc_info=not expected)
                due = error
            done(due)

        super().__init__(
            step=lambda done: start(work(done)), clock=clock, pause_ms_min=pause_ms_min, poll_ms_max=poll_ms_max
        )


class AdvisoryLock:
    """An advisory lock that one node at a time holds, on its own connection; the lock ends with the connection."""

    def __init__(self, database: Database, key: int) -> None:
        self._database = database
        self._key = key
        self.connection: asyncpg.Connection[Any] | None = None

    @property
    def is_held(self) -> bool:
        return self.connection is not None and not self.connection.is_closed()

    async def acquire(self, *, wait_s: float = 0) -> bool:
        """Acquire the lock, waiting up to ``wait_s``; return whether this node holds it."""
        if self.is_held:
            return True
        connection, self.connection = await self._database.connect(), None
        try:
            with suppress(asyncpg.LockNotAvailableError):
                if wait_s:
                    await connection.execute(f"SET lock_timeout = '{wait_s}s'")
                    await connection.execute("SELECT pg_advisory_lock($1)", self._key)
                    self.connection = connection
                elif await connection.fetchval("SELECT pg_try_advisory_lock($1)", self._key):
                    self.connection = connection
        finally:
            if self.connection is None:
                connection.terminate()
        return self.is_held

    def release(self) -> None:
        """Close the connection, and with it the lock."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.terminate()


_ROUNDING_MS = 1


class DatabaseClock:
    """``core.commands.Clock`` of the database, derived from the machine's clock; equal to it until the first reply."""

    def __init__(self, machine: SystemClock) -> None:
        self.machine = machine
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """Return the database's time; it steps with the database's clock, so intervals use the clock of the machine."""
        return self.machine.now_ms() + self._ahead_ms

    def shown_ms(self, at_ms: int | None = None) -> int:
        """Return ``at_ms``, or the current time: shown time is the database's time."""
        return self.now_ms() if at_ms is None else at_ms

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` at ``at_ms``, by the current estimate of the offset."""
        return self.machine.call_at(at_ms - self._ahead_ms, callback)

    def synchronize(self, database_ms: int, *, sent_ms: int) -> None:
        """Update the clock from a database timestamp; ``sent_ms`` is the machine's time at which the query was sent."""
        ahead_ms_max = database_ms - sent_ms + _ROUNDING_MS
        ahead_ms_min = database_ms - self.machine.now_ms() - _ROUNDING_MS
        self._ahead_ms = min(max(self._ahead_ms, ahead_ms_min), ahead_ms_max)
