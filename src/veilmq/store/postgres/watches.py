"""Who waits for messages of which queue, at this node and at others, and when the next message comes.

A node looks by itself at all queues that have waiters there, in one statement for each kind. These rounds make up for
every notice that was lost, and for all of them where none arrives: with a pooler between node and server that passes
none on, rounds are five times as frequent. While nobody waits there are none. Their answers also tell what the
database's clock says. (Measured elsewhere in the design: 51 µs for one queue, 3.7 ms for a thousand.)
"""

import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Protocol

import asyncpg

from veilmq.core.errors import QueueNotFound, StoreUnavailable
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Timer, Wake
from veilmq.engines.named_sql import load
from veilmq.store.postgres.catalog import Catalog, Queue
from veilmq.store.postgres.coalescing import PartitionRetired, retention_ms, sql
from veilmq.store.postgres.database import Database
from veilmq.store.postgres.database_clock import DatabaseClock
from veilmq.store.postgres.failures import IN_DOUBT
from veilmq.store.postgres.low_water import BEGINNING
from veilmq.store.postgres.options import PostgresOptions

SQL = load("veilmq.store.postgres", "wakeups.sql")

log = logging.getLogger(__name__)

_DEAF_FACTOR = 5

_held: ContextVar[dict[str, int] | None] = ContextVar("held", default=None)


class OtherNodes(Protocol):
    """What the watches of one node know of the other nodes."""

    def begin(self, queue: str) -> None:
        """Hear that somebody waits for ``queue`` here."""

    def awaits(self, queue: str) -> bool:
        """Tell whether another node waits for ``queue``."""

    def tell(self, queue: str, due_ms: int) -> None:
        """Have them hear of a message, or a place for one, at ``due_ms``."""

    def changed(self, queue: str) -> None:
        """Have them hear that what they know of ``queue`` is old."""

    def found_full(self, queue: str) -> None:
        """Have them hear that there was no place for another message in flight."""

    def lacks_a_place(self, queue: str) -> bool:
        """Tell whether another node waits for a place in ``queue``."""


class Watches:
    """The watches of one node; see ``core.ports.Engine``."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._wakes: dict[str, Wake] = {}
        self.elsewhere: OtherNodes | None = None
        """The other nodes, where there may be any."""

    def begin(self, queue: str, wake: Wake) -> None:
        """Have ``wake`` called when ``queue`` may have a message."""
        self._wakes[queue] = wake
        if self.elsewhere is not None:
            self.elsewhere.begin(queue)

    def end(self, queue: str) -> None:
        """Call nobody for ``queue`` any more."""
        self._wakes.pop(queue, None)

    @property
    def here(self) -> list[str]:
        """Return for which queues somebody waits at this node."""
        return list(self._wakes)

    def is_here(self, queue: str) -> bool:
        """Tell whether somebody waits for ``queue`` at this node."""
        return queue in self._wakes

    def has(self, queue: str) -> bool:
        """Tell whether somebody waits for ``queue`` anywhere."""
        return queue in self._wakes or (self.elsewhere is not None and self.elsewhere.awaits(queue))

    def wake(self, queue: str, due_ms: int) -> None:
        """Tell whoever waits, here or elsewhere, that there is, or may be, a message at ``due_ms``.

        What it is about must be committed, as who is told looks at once; before that, see ``held``.
        """
        held = _held.get()
        if held is not None:
            held[queue] = due_ms
            return
        self.wake_here(queue, due_ms)
        if self.elsewhere is not None and self.elsewhere.awaits(queue):
            self.elsewhere.tell(queue, due_ms)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have whoever is to be woken inside told at the end, when the transaction is; nobody after an error."""
        held: dict[str, int] = {}
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)
        for queue, due_ms in held.items():
            self.wake(queue, due_ms)

    def wake_here(self, queue: str, due_ms: int) -> None:
        """Tell whoever waits at this node."""
        wake = self._wakes.get(queue)
        if wake is None:
            return
        try:
            wake(due_ms)
        except Exception:  # what it hears of is durable already
            log.exception("the watch on %s failed", queue)

    def changed(self, queue: str, now_ms: int = 0) -> None:
        """Tell whoever waits, and all nodes that know the queue, that it was changed, purged or deleted."""
        self.wake_here(queue, now_ms)
        if self.elsewhere is not None:
            self.elsewhere.changed(queue)

    def found_full(self, queue: str) -> None:
        """Have other nodes tell of places that they free in ``queue``, if anybody waits here."""
        if self.elsewhere is not None and queue in self._wakes:
            self.elsewhere.found_full(queue)

    def freed(self, queue: str, due_ms: int) -> None:
        """Tell other nodes of a place, if one of them waits for it."""
        if self.elsewhere is not None and self.elsewhere.lacks_a_place(queue):
            self.elsewhere.tell(queue, due_ms)


async def next_visible_ms(
    connection: Any, queue: Queue, behind: list[int] = BEGINNING, again_ms: int | None = None
) -> int | None:
    """Return the instant from which there is a message, the present if there is one; ``None``: none comes by itself.

    Of a standard queue what is ``behind`` the marks is looked at; the instant is ``again_ms`` from now at the latest.
    """
    marks = () if queue.settings.fifo else (behind,)
    row = await connection.fetchrow(sql(queue)["next_visible"], queue.partition, retention_ms(queue), *marks)
    if row is None:
        raise PartitionRetired
    instants = [] if row["visible_at"] is None else [max(row["now"], row["visible_at"])]
    if again_ms is not None:
        instants.append(row["now"] + again_ms)
    return min(instants, default=None)


async def next_group_ms(connection: Any, queue: Queue, watches: Watches) -> int | None:
    """Return when the next group of a FIFO queue is free, which only the database knows; ``None``: no waiter asks.

    What it is asked for is committed, and must not seem to have failed: a queue that was purged since has none.
    """
    if not watches.has(queue.name):
        return None
    try:
        return await next_visible_ms(connection, queue)
    except PartitionRetired:
        return None


async def wake_groups(connection: Any, queue: Queue, watches: Watches) -> None:
    """Wake the waiters of a FIFO queue when the next of its groups is free."""
    due_ms = await next_group_ms(connection, queue, watches)
    if due_ms is not None:
        watches.wake(queue.name, due_ms)


class Rounds:
    """The rounds of one node."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        watches: Watches,
        options: PostgresOptions,
        clock: DatabaseClock,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``watches`` are looked after; ``start`` makes a task of the engine."""
        self._database = database
        self._catalog = catalog
        self._watches = watches
        self._interval_ms = int(options.round_s * SECOND_MS)
        self._clock = clock
        self._start = start
        self._timer: Timer | None = None
        self._at_ms: int | None = None
        self._stopped = False
        self.hears = False
        """Whether notices of other nodes arrive."""

    @property
    def interval_ms(self) -> int:
        """Return the time from one round to the next."""
        return self._interval_ms if self.hears else self._interval_ms // _DEAF_FACTOR

    def look(self, after_ms: int | None = None) -> None:
        """Have a round then, or in its time, unless one comes before."""
        if self._stopped:
            return
        at_ms = self._clock.now_ms() + (self.interval_ms if after_ms is None else after_ms)
        if self._at_ms is not None and self._at_ms <= at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at_ms = at_ms
        self._timer = self._clock.call_at(at_ms, self._look)

    def stop(self) -> None:
        """Have no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._at_ms = None
        names = self._watches.here
        if names:
            self._start(self._work(names))

    async def _work(self, names: list[str]) -> None:
        try:
            await self._ask(names)
        except (*IN_DOUBT, asyncpg.PostgresError, StoreUnavailable):
            log.debug("a look at what is waited for failed, and is repeated", exc_info=True)
        except Exception:  # nobody else would have the next one
            log.exception("a look at what is waited for failed, and is repeated")
        self.look()

    async def _ask(self, names: list[str]) -> None:
        async with self._database.connection() as connection:
            known = [await self._known(connection, name) for name in names]
            queues = sorted((queue for queue in known if queue is not None), key=_kind)
            for fifo, alike in groupby(queues, key=_kind):
                await self._ask_of(connection, list(alike), "awaited_groups" if fifo else "awaited")

    async def _known(self, connection: Any, name: str) -> Queue | None:
        """Return the queue, whatever its age here: the statement tells whether its partition is in use."""
        try:
            return self._catalog.seen(name) or await self._catalog.sure(connection, name)
        except QueueNotFound:
            self._watches.wake_here(name, 0)
            return None

    async def _ask_of(self, connection: Any, queues: list[Queue], statement: str) -> None:
        partitions = [queue.partition for queue in queues]
        sent_ms = self._clock.machine.now_ms()
        rows = await connection.fetch(SQL[statement], partitions, [retention_ms(queue) for queue in queues])
        self._clock.saw(rows[0]["now"], sent_ms=sent_ms)
        for row in rows:
            queue = queues[row["place"] - 1]
            if not row["is_used"]:  # it was purged or deleted
                self._catalog.forget(queue.name)
                self._watches.wake_here(queue.name, row["now"])
            elif row["visible_at"] is not None:
                self._watches.wake_here(queue.name, max(row["now"], row["visible_at"]))


def _kind(queue: Queue) -> bool:
    return queue.settings.fifo
