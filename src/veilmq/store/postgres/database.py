"""The connections of a node to one PostgreSQL server: how they are had and given back, what fails, and what time it is.

Connections are set up for short statements on indexed rows. Plans are pinned: statistics of an empty table would have
the planner scan it when it is full (measured: 2.4 times the cost). A connection goes back as it came, so nothing is
reset, which would cost a round trip each time. One whose command got no answer in time is ended, with all others of the
pool: the next one may find another server at that address.

After a failure to connect, commands fail at once for a while, which doubles with each failure in a row; then one
command tries, and the others wait for what it finds.

The database's clock says what is visible. A node's clock is that of its machine and what that differs by, as far as
answers of the database tell: its instant was read between the sending of a statement and the coming of the answer.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg

from veilmq.core.commands import Clock, Done, Timer
from veilmq.core.errors import InternalError, OutcomeUnknown, StoreFull, StoreUnavailable, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.store.clock import SystemClock
from veilmq.store.cold import Scheduler
from veilmq.store.port import Metric, counter, gauge
from veilmq.store.postgres.schema import CONNECT_S, RELAXED, SQL, Durability, Promise, migrate, require
from veilmq.store.transaction import Options
from veilmq.store.urls import without_passwords

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

COLLISIONS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.UniqueViolationError)
"""What nodes do to each other now and then; nothing was done, and trying again helps."""
COLLISIONS_MAX = 5


def sentence(error: BaseException) -> str:
    """Return the reason for a person, on one line and without a password; some errors of sockets have no text."""
    text = without_passwords(" ".join(str(error).split())) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def failure_of(error: BaseException, what: str) -> VeilmqError:
    """Return the error that ``what`` is answered with after ``error``; what is our fault is in the log."""
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


_PAUSE_MS_MIN = 100
_PAUSE_MS_MAX = 5_000


class Breaker:
    """Whether it is worth asking for a connection."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._pause_ms = 0
        self._rests_until_ms = 0
        self.failures = 0
        """How often there was no connection to be had."""

    @property
    def is_open(self) -> bool:
        """Whether the last attempt to get a connection failed."""
        return self._pause_ms > 0

    def check(self) -> None:
        """Raise ``StoreUnavailable`` unless it is worth it; who may try keeps others from it for as long as a pause."""
        if not self._pause_ms:
            return
        if self._clock.now_ms() < self._rests_until_ms:
            raise StoreUnavailable
        self._rests_until_ms = self._clock.now_ms() + _PAUSE_MS_MAX

    def failed(self) -> int:
        """Take note that there was no connection to be had; return in how many ms another attempt is worth it."""
        self.failures += 1
        self._pause_ms = min(_PAUSE_MS_MAX, max(_PAUSE_MS_MIN, 2 * self._pause_ms))
        self._rests_until_ms = self._clock.now_ms() + self._pause_ms
        return self._pause_ms

    def worked(self) -> None:
        """Take note that there was one."""
        self._pause_ms = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(Options):
    """Where ``migrates`` is true, a node upgrades the schema when it starts, unless older ones could not go on.

    ``connections`` is how many a node keeps to its server, beside those that listen and sweep.

    With the durability ``STANDARD`` it keeps as many again, for what may be undone. A command waits ``acquire_s`` for
    one of them, and a statement may take ``statement_s``; after either the client is to try again. A server that
    has said nothing ``silence_s`` later is given up.

    ``coalesced_max`` bounds the messages that travel together in one statement. A queue's settings are looked up again
    after ``fresh_s`` even if no node notified of a change. The janitor deletes up to ``sweep_rows`` rows at once.
    Quotas of in-flight messages up to ``in_flight_counted_max`` are counted at each receive, larger ones now and then.

    Nodes wake each other's long polls by notices where ``listens`` is true. Every ``round_s`` a node looks by itself at
    what is waited for there, five times as often where no notices arrive.
    """

    migrates: bool = True
    connections: int = 8
    durability: Durability = Durability.STRICT
    acquire_s: float = 5.0
    statement_s: float = 30.0
    silence_s: float = 5.0
    coalesced_max: int = 100
    fresh_s: float = 5.0
    sweep_rows: int = 1_000
    in_flight_counted_max: int = 1_000
    claim_slice_rows: int = 1_000
    listens: bool = True
    round_s: float = 1.0


_RETURN_S = 5.0


async def _leave(connection: Any) -> None:
    """Leave the session as it is."""


SETTINGS = {
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
    "search_path": "mq",
    "tcp_keepalives_count": "3",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
}
"""Of every connection. A node whose machine has vanished keeps locks and turns no longer than a minute."""


class Database:
    """What a node has to do with one server."""

    def __init__(self, url: str, *, options: PostgresOptions, clock: Clock) -> None:
        self.url = url
        self.options = options
        self.breaker = Breaker(clock=clock)
        self.on_lost: Callable[[], None] = lambda: None
        """Called when a connection has ended: the next one may be to another server, whose clock differs."""
        self.calls: dict[int, Callable[[], None]] = {}
        """What is called once a connection, by its ``id``, is given back."""
        self._settings = {**SETTINGS, "statement_timeout": f"{options.statement_s * 1_000:.0f}ms"}
        self._durable = self._pool(self._settings, _be_durable)
        self.relaxes = options.durability is Durability.STANDARD
        """Whether ``relaxed`` is another thing than ``connection``."""
        self._relaxed = self._pool(self._settings | RELAXED) if self.relaxes else self._durable
        self._pools = [self._durable, self._relaxed] if self.relaxes else [self._durable]
        self._is_known = False

    async def open(self) -> None:
        """Connect, unless that was done, and bring the schema up to date; say what commits are worth there.

        Raises ``SchemaRefused`` and what ``asyncpg`` does.
        """
        if not self._is_known:
            for each in self._pools:
                await each
            connection = await self.connect(is_patient=True)  # an upgrade takes its time
            try:
                await (migrate(connection, ending_older_nodes=False) if self.options.migrates else require(connection))
                promise = await Promise.of(connection, self.options.durability)
            finally:
                await connection.close()
            log.info("%s: durability %s", self.place, promise)
            for doubt in promise.doubts:
                log.warning("%s: %s", self.place, doubt)
            self._is_known = True
        self.breaker.worked()

    def _pool(self, settings: dict[str, str], prepare: Any = None) -> "asyncpg.Pool[Any]":
        """Return what opens connections when they are needed, and calls ``prepare`` with each."""
        return asyncpg.create_pool(
            self.url,
            min_size=0,
            max_size=self.options.connections,
            timeout=CONNECT_S,
            command_timeout=self.options.statement_s + self.options.silence_s,
            server_settings=settings,
            init=prepare,
            reset=_leave,
        )

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Return a context that has a connection, whose commits are durable; entering raises ``StoreUnavailable``."""
        return self._turn(self._durable)

    def relaxed(self) -> AbstractAsyncContextManager[Any]:
        """Return one whose commits a crash of the database may undo, where the options allow that."""
        return self._turn(self._relaxed)

    @asynccontextmanager
    async def _turn(self, pool: "asyncpg.Pool[Any]") -> AsyncIterator[Any]:
        self.breaker.check()
        try:
            # A timeout costs a task, and is not needed where a connection lies ready.
            connection = await pool.acquire(timeout=None if pool.get_idle_size() else self.options.acquire_s)
        except UNREACHABLE as error:
            # Where the server or this pool has connections, and none to spare, it was reached.
            if isinstance(error, FULL):
                is_exhausted = pool.get_size() > 0
            else:
                is_exhausted = pool.get_size() == pool.get_max_size() and not pool.get_idle_size()
            if not is_exhausted:
                self.breaker.failed()
            log.warning("no connection to the database: %s", str(error) or type(error).__name__)
            raise StoreUnavailable from error
        self.breaker.worked()
        try:
            yield connection
        except (*IN_DOUBT, *ELSEWHERE) as error:
            self.on_lost()
            if isinstance(error, (TimeoutError, *ELSEWHERE)):
                self.breaker.failed()
                connection.terminate()
                await pool.expire_connections()
            raise
        finally:
            try:
                await pool.release(connection, timeout=_RETURN_S)
            except (*IN_DOUBT, asyncpg.PostgresError) as failure:
                log.warning("a connection to the database was lost between two commands: %s", failure)
            if self.calls and (call := self.calls.pop(id(connection), None)) is not None:
                call()

    @property
    def place(self) -> str:
        """Return the URL, without a password."""
        return without_passwords(self.url)

    async def connect(self, *, is_patient: bool = False) -> "asyncpg.Connection[Any]":
        """Return a durable connection beside the pools'; the caller closes it.

        Unless it ``is_patient`` it waits for an answer as long as those of the pools do, then raises ``TimeoutError``.
        """
        patience_s = None if is_patient else self.options.statement_s + self.options.silence_s
        connection = await asyncpg.connect(
            self.url, timeout=CONNECT_S, command_timeout=patience_s, server_settings=self._settings
        )
        try:
            await _be_durable(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def metrics(self) -> list[Metric]:
        """Return how the server can be reached, and what of the pools is in use."""
        opened = sum(each.get_size() for each in self._pools)
        in_use = opened - sum(each.get_idle_size() for each in self._pools)
        allowed = len(self._pools) * self.options.connections
        is_reachable = not self.breaker.is_open
        return [
            gauge("store_reachable", "1 unless the last attempt to reach the database failed.", is_reachable),
            counter("store_connection_failures", "Failed attempts to reach the database.", self.breaker.failures),
            gauge("store_connections_in_use", "Connections to the database that are in use.", in_use),
            gauge("store_connections_open", "Connections to the database that are open.", opened),
            gauge("store_connections_max", "Maximum number of connections to the database.", allowed),
        ]

    async def close(self) -> None:
        """Wait for what is under way, and end all connections."""
        for pool in self._pools:
            try:
                await pool.close()
            except IN_DOUBT:
                with suppress(asyncpg.InterfaceError):  # it was never opened
                    pool.terminate()


async def _be_durable(connection: Any) -> None:
    await connection.execute(SQL["be_durable"])


Start = Callable[[Coroutine[Any, Any, None]], None]
"""Makes a task of a node or a store."""

POLL_MS = 10 * SECOND_MS
"""How often a node polls that knows of no work."""
BUSY_MS = 10
"""When a node polls again while another one is at it."""


class Mover(Scheduler):
    """Has ``step`` done whenever a slice is due."""

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
                if not self._stopped:
                    log.warning("background work was interrupted, and continues later", exc_info=True)
                due = error
            done(due)

        super().__init__(
            step=lambda done: start(work(done)), clock=clock, pause_ms_min=pause_ms_min, poll_ms_max=poll_ms_max
        )


_CLOSE_S = 5.0


class Turn:
    """What one node at a time has: an advisory lock on a connection of its own, with which it ends."""

    def __init__(self, database: Database, key: int) -> None:
        self._database = database
        self._key = key
        self.connection: asyncpg.Connection[Any] | None = None
        self.is_over = False
        """Whether this node takes no more turns."""

    @property
    def is_held(self) -> bool:
        """Whether this node has it."""
        return self.connection is not None and not self.connection.is_closed()

    async def take(self, *, wait_s: float = 0) -> bool:
        """Tell whether this node has the turn now; another one's is waited for as long as ``wait_s``."""
        if self.is_held:
            return True
        connection = await self._database.connect()
        try:
            if wait_s:
                await connection.execute(f"SET lock_timeout = '{wait_s}s'")
                await connection.execute("SELECT pg_advisory_lock($1)", self._key)
            elif not await connection.fetchval("SELECT pg_try_advisory_lock($1)", self._key):
                await connection.close(timeout=_CLOSE_S)
                return False
        except asyncpg.LockNotAvailableError:
            connection.terminate()
            return False
        except BaseException:
            connection.terminate()
            raise
        self.connection = connection
        if self.is_over:  # while this was connecting
            self.leave()
        return self.is_held

    def leave(self) -> None:
        """Leave it to others."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.terminate()

    def end(self) -> None:
        """Do so, and take no more."""
        self.is_over = True
        self.leave()


_ROUNDING_MS = 1


class DatabaseClock:
    """``core.commands.Clock``; until it has seen an answer it is that of the machine."""

    def __init__(self, machine: SystemClock) -> None:
        self.machine = machine
        self._ahead_ms = 0
        self._last_ms = 0

    def now_ms(self) -> int:
        """Return the present instant of the database; never less than before."""
        self._last_ms = max(self._last_ms, self.machine.now_ms() + self._ahead_ms)
        return self._last_ms

    def shown_ms(self, at_ms: int | None = None) -> int:
        """Return the same: the database's clock is shown as it is."""
        return self.now_ms() if at_ms is None else at_ms

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` when ``now_ms()`` is ``at_ms``, as far as is known now."""
        return self.machine.call_at(at_ms - self._ahead_ms, callback)

    def saw(self, database_ms: int, *, sent_ms: int) -> None:
        """Take note of an instant that the database has sent; the machine's was ``sent_ms`` when it was asked for."""
        at_most_ms = database_ms - sent_ms + _ROUNDING_MS
        at_least_ms = database_ms - self.machine.now_ms() - _ROUNDING_MS
        self._ahead_ms = min(max(self._ahead_ms, at_least_ms), at_most_ms)
