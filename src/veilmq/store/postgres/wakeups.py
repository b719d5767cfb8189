"""Wake long polls on this node and on others.

A node polls the queues of its waiters, with one statement for each kind of queue. (Measured: 51 µs for one queue, 3.7
ms for a thousand.) Polling covers lost notifications. If none arrive at all (a pooler that drops LISTEN/NOTIFY), the
node polls five times as often. Without waiters it does not poll. The replies also synchronise the clock.

Notifications wake waiters on other nodes. A node announces the queues that it awaits with the first waiter and every
ten seconds, so only awaited queues are notified. Notifications are sent in batches, at most every ten milliseconds.
Correctness does not depend on them. The end of a delay or of a lease needs none, because waiters know the instant.

A notification is never part of the transaction that it announces: a commit with NOTIFY waits for every other one
(measured: 431 sends per second instead of 3,229). It follows the durable commit, and is not durable itself.
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
from veilmq.store.postgres.database import FAILURES, Database, DatabaseClock, Start, Worker
from veilmq.store.postgres.queues import WAKEUPS, Catalog, PartitionRetired, Queue, next_visible_ms, next_visible_rows

log = logging.getLogger(__name__)


class Notification(msgspec.Struct, frozen=True, array_like=True):
    """A notification from ``node`` about ``queue`` (its full name), by ``kind``; ``due_ms`` is by the database's clock.

    - ``due``: from ``due_ms`` on, a message may be visible or an in-flight slot free.
    - ``awaited``: the queue has waiters at the node; ``full``: they are over the in-flight quota.
    - ``changed``: the queue was changed, purged or deleted, so caches are stale.
    - ``hello`` (without a queue): the node begins to listen, and requests the announcements of the others.
    - ``alive`` (without a queue): the node still listens. Nodes ignore the kinds of newer versions.
    """

    node: str
    kind: str
    queue: str = ""
    due_ms: int = 0


_encode = msgspec.json.Encoder().encode
decode_notification = msgspec.json.Decoder(Notification).decode

REFRESH_MS = 10 * SECOND_MS
"""Interval at which a node repeats its announcements."""

_SUBSCRIPTION_MS = REFRESH_MS + 5 * SECOND_MS  # an announcement that is not repeated expires
_CHANNEL = "veilmq"
_TIMEOUT_S = 5.0
_NODE_BYTES = 4
_RECONNECT_MS = 100
_POLL_FACTOR_WITHOUT_NOTIFICATIONS = 5

SEND_INTERVAL_MS = 10
"""Minimum time between two statements that send notifications."""
FIRST_POLL_MS = 50
"""When a node polls after a new announcement, which other nodes may have received too late."""


class Watches:
    """The watches of one node (see ``core.commands.Engine``), and its notifications to and from other nodes."""

    def __init__(
        self, database: Database, *, poll_s: float, clock: DatabaseClock, catalog: Catalog, start: Start
    ) -> None:
        self.name = token_hex(_NODE_BYTES)
        self.awaited_until_ms: dict[str, int] = {}  # queues that other nodes await, and when that expires
        self._full: set[str] = set()  # queues with waiters, on any node, that are over the in-flight quota
        self._database = database
        self._poll_ms = int(poll_s * SECOND_MS)
        self._clock = clock
        self._catalog = catalog
        self._wakes: dict[str, Wake] = {}
        self._poller = Worker(step=self._poll, clock=clock, start=start, pause_ms_min=0, poll_ms_max=inf)
        self._maintainer = Worker(step=self._maintain, clock=clock, start=start, poll_ms_max=REFRESH_MS)
        self._connection: asyncpg.Connection[Any] | None = None
        self.notifications_arrive = False  # its own notifications reach this node
        self._echoed = False
        self._pending: dict[tuple[str, str], int] = {}
        self._announced: set[str] = set()
        self._sender = Worker(step=self._send, clock=clock, start=start, pause_ms_min=0, poll_ms_max=inf)
        self._next_send_ms = 0
        self._sent = 0
        self._received = 0

    def metrics(self) -> list[Metric]:
        """Return whether notifications arrive, and how many."""
        text = "1 while notifications of other servers arrive."
        return [
            gauge("store_notifications_arrive", text, self.notifications_arrive),
            counter("store_notifications_sent", "Notifications sent to other servers.", self._sent),
            counter("store_notifications_received", "Notifications received from other servers.", self._received),
        ]

    def open(self) -> None:
        """Start listening."""
        self._maintainer.schedule()

    async def stop(self) -> None:
        """Send pending notifications and stop listening; no other work may be running."""
        for worker in (self._poller, self._maintainer, self._sender):
            worker.stop()
        await self._send()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*FAILURES):
                await connection.close(timeout=_TIMEOUT_S)

    # Waiters of this node.

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` when ``queue`` may have a message; poll once soon, before other nodes have the announcement."""
        self._wakes[queue] = wake
        if queue in self._announced or self._connection is None:
            self._poller.schedule(self._interval_ms)
            return
        self._announced.add(queue)
        self._queue_notification("awaited", queue, after_ms=1)
        self._poller.schedule(FIRST_POLL_MS)

    def unwatch(self, queue: str) -> None:
        self._wakes.pop(queue, None)

    def wake(self, queue: str, due_ms: int) -> None:
        """Wake the waiters of all nodes, after the commit of a message that may be visible at ``due_ms``, 0 for now."""
        self.wake_here(queue, due_ms)
        if self.is_awaited(queue):
            self._queue_notification("due", queue, due_ms)

    def is_awaited(self, queue: str) -> bool:
        """Return whether another node awaits ``queue``."""
        until_ms = self.awaited_until_ms.get(queue)
        return until_ms is not None and until_ms > self._clock.machine.now_ms()

    def wake_here(self, queue: str, due_ms: int) -> None:
        """Wake the waiters of this node; ``due_ms`` 0 is now, by the clock of the node."""
        wake = self._wakes.get(queue)
        if wake is None:
            return
        try:
            wake(due_ms or self._clock.now_ms())
        except Exception:  # the change is committed already
            log.exception("the watch on %s failed", queue)

    async def wake_groups(self, connection: Any, queue: Queue) -> None:
        """Wake the waiters of a FIFO queue for its next eligible group, after a commit; ignore a purge since then."""
        if queue.name in self._wakes or self.is_awaited(queue.name):
            with suppress(PartitionRetired):
                due_ms = await next_visible_ms(connection, queue)
                if due_ms is not None:
                    self.wake(queue.name, due_ms)

    def changed(self, queue: str) -> None:
        """Wake the waiters of all nodes after a change of a queue, which the caller forgot, and other nodes now do."""
        self.wake_here(queue, 0)
        self._queue_notification("changed", queue)

    def record_full(self, queue: str) -> None:
        """Record that ``queue`` is at its in-flight quota, and announce waiters; the next freed slot wakes them."""
        self._full.add(queue)
        if queue in self._wakes:
            self._queue_notification("full", queue)

    def slot_freed(self, queue: str, due_ms: int) -> None:
        """Wake the waiters of ``queue`` if it was at its quota; a receive that still is over it records it again."""
        if queue in self._full:
            self._full.discard(queue)
            self.wake(queue, due_ms)

    # Polling.

    @property
    def _interval_ms(self) -> int:
        return self._poll_ms if self.notifications_arrive else self._poll_ms // _POLL_FACTOR_WITHOUT_NOTIFICATIONS

    async def _poll(self) -> int | None:
        """Wake the waiters of queues with messages; return the ms until the next poll.

        Uses expired cache entries, as the rows show retired partitions.
        """
        if not self._wakes:
            return None
        queues_by_kind: defaultdict[bool, list[Queue]] = defaultdict(list)
        async with self._database.connection() as connection:
            for name in list(self._wakes):
                queue = self._catalog.cached(name) or await self._catalog.look_up(connection, name)
                if queue is None:
                    self.wake_here(name, 0)
                else:
                    queues_by_kind[queue.settings.fifo].append(queue)
            for is_fifo, queues in queues_by_kind.items():
                sent_ms = self._clock.machine.now_ms()
                rows = await next_visible_rows(connection, queues, fifo=is_fifo)
                self._clock.synchronize(rows[0]["now"], sent_ms=sent_ms)
                for row in rows:
                    name = queues[row["place"] - 1].name
                    if not row["is_used"]:  # the queue was purged or deleted
                        self._catalog.forget(name)
                        self.wake_here(name, row["now"])
                    elif row["visible_at"] is not None:
                        self.wake_here(name, max(row["now"], row["visible_at"]))
        return self._interval_ms

    # The connection.

    async def _maintain(self) -> None:
        """Connect, or repeat the announcements; a node that does not receive its own ones receives none of others."""
        if self._connection is None:
            await self._connect()
            return
        self.notifications_arrive, self._echoed = self._echoed, False
        self.awaited_until_ms = {each: until for each, until in self.awaited_until_ms.items() if self.is_awaited(each)}
        self._full &= self.awaited_until_ms.keys() | self._wakes.keys()
        self._announce()
        self._queue_notification("alive")

    async def _connect(self) -> None:
        """Open the connection and listen; raises ``StoreUnavailable``, and the worker tries again."""
        connection: asyncpg.Connection[Any] | None = None
        try:
            connection = await self._database.connect()
            await connection.execute("SET synchronous_commit = off")  # notifications need no sync
            await connection.add_listener(_CHANNEL, self._receive)
            connection.add_termination_listener(self._ended)
        except FAILURES as error:
            if connection is not None:
                connection.terminate()
            raise StoreUnavailable from error
        if connection.is_closed():
            raise StoreUnavailable
        self._connection = connection
        # Notifications may have been missed while there was no connection.
        self.awaited_until_ms.clear()
        self._catalog.clear()
        self.notifications_arrive = True
        self._queue_notification("hello")
        self._announce()
        self._poller.schedule()

    def _ended(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = None
            log.warning("the connection for notifications of other nodes has ended; reconnecting")
            self.notifications_arrive = False
            self._poller.schedule(self._interval_ms)
            self._maintainer.schedule(_RECONNECT_MS)

    # Notifications of this node.

    def _announce(self) -> None:
        self._announced = set(self._wakes)
        for queue in self._announced:
            self._queue_notification("awaited", queue)

    def _queue_notification(self, kind: str, queue: str = "", due_ms: int = 0, *, after_ms: int = 0) -> None:
        """Queue a notification; of several for the same event the earliest ``due_ms`` is sent."""
        if self._connection is not None:
            self._pending[kind, queue] = min(due_ms, self._pending.get((kind, queue), due_ms))
            self._sender.schedule(max(after_ms, self._next_send_ms - self._clock.machine.now_ms()))

    async def _send(self) -> None:
        self._next_send_ms = self._clock.machine.now_ms() + SEND_INTERVAL_MS
        pending, self._pending = self._pending, {}
        texts = [_encode(Notification(self.name, *event, due_ms)).decode() for event, due_ms in pending.items()]
        connection = self._connection
        if texts and connection is not None:
            try:
                await connection.execute(WAKEUPS["notify"], texts, timeout=_TIMEOUT_S)
            except FAILURES:
                connection.terminate()  # calls ``_ended``
            else:
                self._sent += len(texts)

    # Notifications of other nodes.

    def _receive(self, connection: Any, pid: int, name: str, text: Any) -> None:
        try:
            node, kind, queue, due_ms = msgspec.structs.astuple(decode_notification(text))
        except msgspec.DecodeError:  # from another version or another program
            return
        if node == self.name:
            self._echoed = self.notifications_arrive = True
            return
        self._received += 1
        if kind in ("awaited", "full"):
            self.awaited_until_ms[queue] = self._clock.machine.now_ms() + _SUBSCRIPTION_MS
            if kind == "full":
                self._full.add(queue)
        elif kind == "due":
            self.wake_here(queue, due_ms)
        elif kind == "changed":
            self._catalog.forget(queue)
            self.wake_here(queue, 0)
        elif kind == "hello":
            self._announce()
