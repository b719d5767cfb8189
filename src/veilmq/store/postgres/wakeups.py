"""Waiters for messages, at this node and at others: who is woken when, and what nodes notify each other of.

A node looks by itself at all queues that have waiters there, in one statement for each kind. That makes up for every
notice that was lost, and for all of them where none arrives: with a pooler between node and server that passes none on,
such rounds are five times as frequent. While nothing waits there are none. Their answers also tell what the database's
clock says. (Measured: 51 µs for one queue, 3.7 ms for a thousand.)

A waiter at one node is woken for what arrives at another by a notice. A node announces which queues are awaited there,
when the first waiter comes and every ten seconds; so only what is waited for is notified. The first notice goes at
once, the next ones ten milliseconds later, in one statement for all that has come up meanwhile. Nothing depends on any
of it; and the end of a delay or of a lease needs no notice, as waiters know the instant.

A notice never travels in the transaction that it is about: a commit with a NOTIFY waits for every other one (measured:
431 sends a second where there were 3,229). It follows a durable commit, and is not made durable itself. It goes over a
connection of the node's own; when that ends another one is made, after a pause that grows as long as none is to be had.
"""

import logging
from collections import defaultdict
from contextlib import suppress
from math import inf
from secrets import token_hex
from typing import Any

import asyncpg
import msgspec

from veilmq.core.commands import Wake
from veilmq.core.errors import StoreUnavailable
from veilmq.core.limits import SECOND_MS
from veilmq.store.port import Metric, counter, gauge
from veilmq.store.postgres.database import IN_DOUBT, UNREACHABLE, Breaker, Database, DatabaseClock, Mover, Start
from veilmq.store.postgres.queues import WAKEUPS, Catalog, PartitionRetired, Queue, awaited, next_visible_ms

log = logging.getLogger(__name__)


class Notice(msgspec.Struct, frozen=True, array_like=True):
    """``node`` says it of ``queue``, by its full name; ``due_ms`` is by the database's clock.

    - ``due``: there is, or may be, a message or a place for one at that instant;
    - ``awaited``: it has waiters at the node; ``full``: which found no place for another message in flight;
    - ``changed``: it was changed, purged or deleted, so what others know of it is old.

    Of no queue: ``hello``: the node begins to listen, and asks what the others wait for; ``alive``: it listens still.
    While nodes are upgraded one by one, those of one version hear those of another, and pass over what is new to them.
    """

    node: str
    what: str
    queue: str = ""
    due_ms: int = 0


_encode = msgspec.json.Encoder().encode
read_notice = msgspec.json.Decoder(Notice).decode

REFRESH_MS = 10 * SECOND_MS
"""How often a node repeats what it waits for."""

_KEPT_MS = REFRESH_MS + 5 * SECOND_MS  # an interest that no node has repeated for so long has ended
_NAME = "veilmq"
_ANSWER_S = 5.0
_FAILURES = (*UNREACHABLE, asyncpg.PostgresError)
_NODE_BYTES = 4
_UNNOTIFIED_FACTOR = 5

REST_MS = 10
"""How long after one notice a node sends the next."""
SOON_MS = 50
"""How long after a new interest a node looks by itself: others may have had no time to hear of it."""


class Watches:
    """The watches of one node (see ``core.commands.Engine``), and what it knows of the others and notifies them of."""

    def __init__(
        self, database: Database, *, round_s: float, clock: DatabaseClock, catalog: Catalog, start: Start
    ) -> None:
        self.name = token_hex(_NODE_BYTES)
        self.awaited_until_ms: dict[str, int] = {}
        """The queues that other nodes await, and until when that is taken to be so."""
        self._full: set[str] = set()  # where a receive, here or there, found no place for another message in flight
        self._database = database
        self._round_ms = int(round_s * SECOND_MS)
        self._clock = clock
        self._catalog = catalog
        self._wakes: dict[str, Wake] = {}
        self._rounds = Mover(step=self._round, clock=clock, start=start, pause_ms_min=0, poll_ms_max=inf)
        self._upkeep = Mover(step=self._keep_up, clock=clock, start=start, poll_ms_max=REFRESH_MS)
        self._retries = Breaker(clock=clock)
        self._connection: asyncpg.Connection[Any] | None = None
        self.arrive = False
        """Whether notices of other nodes do, as far as is known."""
        self._echoed = False
        self._pending: dict[tuple[str, str], int] = {}
        self._announced: set[str] = set()
        self._sender = Mover(step=self._send, clock=clock, start=start, pause_ms_min=0, poll_ms_max=inf)
        self._rests_until_ms = 0
        self._sent = 0
        self._received = 0

    def metrics(self) -> list[Metric]:
        """Return what came and went."""
        return [
            gauge("store_notifications_arrive", "1 while notifications of other servers arrive.", self.arrive),
            counter("store_notifications_sent", "Notifications sent to other servers.", self._sent),
            counter("store_notifications_received", "Notifications received from other servers.", self._received),
        ]

    def open(self) -> None:
        """Begin to listen."""
        self._upkeep.schedule()

    async def stop(self) -> None:
        """Say what is left to say, and listen no more; nothing else is under way."""
        for mover in (self._rounds, self._upkeep, self._sender):
            mover.stop()
        await self._send()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*_FAILURES):
                await connection.close(timeout=_ANSWER_S)

    # Waiters here, and what they are woken for.

    def begin(self, queue: str, wake: Wake) -> None:
        """Have ``wake`` called when ``queue`` may have a message; look once more, for what came before others know."""
        self._wakes[queue] = wake
        if queue in self._announced or self._connection is None:
            self._rounds.schedule(self._interval_ms)
            return
        self._announced.add(queue)
        self._say("awaited", queue, after_ms=1)
        self._rounds.schedule(SOON_MS)

    def end(self, queue: str) -> None:
        """Call nothing for ``queue`` any more."""
        self._wakes.pop(queue, None)

    def wake(self, queue: str, due_ms: int, *, here_ms: int | None = None) -> None:
        """Wake the waiters, here and elsewhere, for a message that is, or may be, there at ``due_ms``, 0 at once.

        Those at this node may be given ``here_ms``, by its own clock. What it is about must be committed, as waiters
        receive at once.
        """
        self.wake_here(queue, due_ms if here_ms is None else here_ms)
        if self.is_awaited(queue):
            self._say("due", queue, due_ms)

    def is_awaited(self, queue: str) -> bool:
        """Tell whether another node awaits ``queue``."""
        until_ms = self.awaited_until_ms.get(queue)
        return until_ms is not None and until_ms > self._clock.now_ms()

    def wake_here(self, queue: str, due_ms: int) -> None:
        """Wake the waiters at this node."""
        wake = self._wakes.get(queue)
        if wake is None:
            return
        try:
            wake(due_ms)
        except Exception:  # what it is called for is durable already
            log.exception("the watch on %s failed", queue)

    async def wake_groups(self, connection: Any, queue: Queue) -> None:
        """Wake the waiters of a FIFO queue when the next of its groups is free, which only the database knows.

        What it is called for is committed, and must not seem to have failed: a queue that was purged since has none.
        """
        if queue.name in self._wakes or self.is_awaited(queue.name):
            with suppress(PartitionRetired):
                due_ms = await next_visible_ms(connection, queue)
                if due_ms is not None:
                    self.wake(queue.name, due_ms)

    def changed(self, queue: str) -> None:
        """Notify the waiters, and all nodes that know the queue, that it was changed, purged or deleted."""
        self.wake_here(queue, self._clock.now_ms())
        self._say("changed", queue)

    def found_full(self, queue: str) -> None:
        """Wake the waiters when a place in ``queue`` is freed, here or at another node, which is to say so."""
        self._full.add(queue)
        if queue in self._wakes:
            self._say("full", queue)

    def freed(self, queue: str, due_ms: int) -> None:
        """Wake those that found no place in ``queue``; they say so again if they find none."""
        if queue in self._full:
            self._full.discard(queue)
            self.wake(queue, due_ms)

    # Rounds.

    @property
    def _interval_ms(self) -> int:
        return self._round_ms if self.arrive else self._round_ms // _UNNOTIFIED_FACTOR

    async def _round(self) -> int | None:
        """Look at what is awaited here; return when to do so again."""
        if not self._wakes:
            return None
        try:
            await self._inspect(list(self._wakes))
        except (*IN_DOUBT, asyncpg.PostgresError, StoreUnavailable):
            log.debug("the check of waiting receives failed, and is repeated", exc_info=True)
        return self._interval_ms

    async def _inspect(self, names: list[str]) -> None:
        """Find when the queues have something, whatever their age here: the rows tell which partitions are in use."""
        of_kind: defaultdict[bool, list[Queue]] = defaultdict(list)
        async with self._database.connection() as connection:
            for name in names:
                queue = self._catalog.seen(name) or await self._catalog.find(connection, name)
                if queue is None:
                    self.wake_here(name, 0)
                else:
                    of_kind[queue.settings.fifo].append(queue)
            for is_fifo, queues in of_kind.items():
                sent_ms = self._clock.machine.now_ms()
                rows = await awaited(connection, queues, fifo=is_fifo)
                self._clock.saw(rows[0]["now"], sent_ms=sent_ms)
                for row in rows:
                    name = queues[row["place"] - 1].name
                    if not row["is_used"]:  # it was purged or deleted
                        self._catalog.forget(name)
                        self.wake_here(name, row["now"])
                    elif row["visible_at"] is not None:
                        self.wake_here(name, max(row["now"], row["visible_at"]))

    # The connection, which is made again when it has ended, and what is repeated on it.

    async def _keep_up(self) -> int | None:
        """Connect, or repeat what is awaited here; a node that does not receive its own notices receives no others."""
        if self._connection is None:
            return await self._connect()
        self.arrive, self._echoed = self._echoed, False
        self.awaited_until_ms = {each: until for each, until in self.awaited_until_ms.items() if self.is_awaited(each)}
        self._full &= self.awaited_until_ms.keys() | self._wakes.keys()
        self._announce()
        self._say("alive")
        return None

    async def _connect(self) -> int | None:
        """Listen; return when to try again if that is not possible."""
        connection: asyncpg.Connection[Any] | None = None
        try:
            connection = await self._database.connect()
            await connection.execute("SET synchronous_commit = off")  # no notice is worth waiting for a disk
            await connection.add_listener(_NAME, self._hear)
            connection.add_termination_listener(self._ended)
        except _FAILURES:
            if connection is not None:
                connection.terminate()
            return self._retries.failed()
        if connection.is_closed():
            return self._retries.failed()
        self._retries.worked()
        self._connection = connection
        # What was said while there was no connection is not known: ask for it, and look at everything.
        self.awaited_until_ms.clear()
        self._catalog.clear()
        self.arrive = True
        self._say("hello")
        self._announce()
        self._rounds.schedule()
        return None

    def _ended(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = None
            log.warning("the connection for notifications of other nodes has ended; reconnecting")
            self.arrive = False
            self._rounds.schedule(self._interval_ms)
            self._upkeep.schedule(self._retries.failed())

    # What this node has to say.

    def _announce(self) -> None:
        """Say what is awaited here; what is so no more is not repeated."""
        self._announced = set(self._wakes)
        for queue in self._announced:
            self._say("awaited", queue)

    def _say(self, what: str, queue: str = "", due_ms: int = 0, *, after_ms: int = 0) -> None:
        """Have a notice sent; of several instants that are due the first one counts."""
        if self._connection is not None:
            self._pending[what, queue] = min(due_ms, self._pending.get((what, queue), due_ms))
            self._sender.schedule(max(after_ms, self._rests_until_ms - self._clock.now_ms()))

    async def _send(self) -> None:
        self._rests_until_ms = self._clock.now_ms() + REST_MS
        pending, self._pending = self._pending, {}
        texts = [_encode(Notice(self.name, *about, due_ms)).decode() for about, due_ms in pending.items()]
        connection = self._connection
        if texts and connection is not None:
            try:
                await connection.execute(WAKEUPS["notify"], texts, timeout=_ANSWER_S)
            except _FAILURES:
                connection.terminate()  # which is noticed like any other end of it
            self._sent += len(texts)

    # What other nodes say.

    def _hear(self, connection: Any, pid: int, name: str, text: Any) -> None:
        try:
            node, what, queue, due_ms = msgspec.structs.astuple(read_notice(text))
        except msgspec.DecodeError:  # of another version, or not ours
            return
        if node == self.name:
            self._echoed = self.arrive = True
            return
        self._received += 1
        if what in ("awaited", "full"):
            self.awaited_until_ms[queue] = self._clock.now_ms() + _KEPT_MS
            if what == "full":
                self._full.add(queue)
        elif what == "due":
            self.wake_here(queue, due_ms)
        elif what == "changed":
            self._catalog.forget(queue)
            self.wake_here(queue, 0)
        elif what == "hello":
            self._announce()
