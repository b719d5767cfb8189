"""Waiters for messages, at this node and at others: who is woken when, and what nodes notify each other of.

A node looks by itself at all queues that have waiters there, in one statement for each kind (``Rounds``). That
makes up for every notice that was lost, and for all of them where none arrives: with a pooler between node and
server that passes none on, rounds are five times as frequent. While nothing waits there are none. Their answers also
tell what the database's clock says. (Measured: 51 µs for one queue, 3.7 ms for a thousand.)

A waiter at one node is woken for what arrives at another by a notice. A node announces which queues are awaited there,
when the first waiter comes and every ten seconds; so only what is waited for is notified. The first notice goes at
once, the next one ten milliseconds later, with all that has come up meanwhile. Nothing depends on any of it; and the
end of a delay or of a lease needs no notice, as waiters know the instant.

A notice never travels in the transaction that it is about: a commit with a NOTIFY waits for every other one (measured:
431 sends a second where there were 3,229). It follows a durable commit, and is not made durable itself. It goes over a
connection of the node's own; when that ends another one is made, after a pause that grows as long as none is to be had.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import Any

import asyncpg
import msgspec

from veilmq.core.commands import Clock, Timer
from veilmq.core.errors import QueueNotFound, StoreUnavailable
from veilmq.core.limits import SECOND_MS
from veilmq.store.named_queries import load
from veilmq.store.port import Figure, counter, gauge
from veilmq.store.postgres.database import IN_DOUBT, UNREACHABLE, longer_ms
from veilmq.store.postgres.node import Node
from veilmq.store.postgres.queues import Queue, retention_ms

SQL = load("veilmq.store.postgres", "wakeups.sql")

log = logging.getLogger(__name__)

_UNNOTIFIED_FACTOR = 5


class Rounds:
    """The rounds of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._interval_ms = int(node.options.round_s * SECOND_MS)
        self._timer: Timer | None = None
        self._at_ms: int | None = None
        self._stopped = False
        self.is_notified = False
        """Whether notices of other nodes arrive."""

    def schedule(self, after_ms: int | None = None) -> None:
        """Have a round then, or in its time, unless one comes before."""
        if after_ms is None:
            after_ms = self._interval_ms if self.is_notified else self._interval_ms // _UNNOTIFIED_FACTOR
        at_ms = self._node.clock.now_ms() + after_ms
        if self._stopped or (self._at_ms is not None and self._at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at_ms = at_ms
        self._timer = self._node.clock.call_at(at_ms, self._begin)

    def stop(self) -> None:
        """Have no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._at_ms = None
        names = self._node.watches.here
        if names:
            self._node.start(self._work(names))

    async def _work(self, names: list[str]) -> None:
        try:
            await self._inspect(names)
        except (*IN_DOUBT, asyncpg.PostgresError, StoreUnavailable):
            log.debug("a look at what is waited for failed, and is repeated", exc_info=True)
        except Exception:  # there would be no next one
            log.exception("a look at what is waited for failed, and is repeated")
        self.schedule()

    async def _inspect(self, names: list[str]) -> None:
        """Ask when the queues have something, whatever their age here: the rows tell which partitions are in use."""
        catalog, watches, clock = self._node.catalog, self._node.watches, self._node.clock
        of_kind: dict[bool, list[Queue]] = {False: [], True: []}
        async with self._node.database.connection() as connection:
            for name in names:
                try:
                    queue = catalog.seen(name) or await catalog.sure(connection, name)
                    of_kind[queue.settings.fifo].append(queue)
                except QueueNotFound:
                    watches.wake_here(name, 0)
            for is_fifo, queues in of_kind.items():
                if not queues:
                    continue
                statement = SQL["awaited_groups" if is_fifo else "awaited"]
                terms = [queue.partition for queue in queues], [retention_ms(queue) for queue in queues]
                sent_ms = clock.machine.now_ms()
                rows = await connection.fetch(statement, *terms)
                clock.saw(rows[0]["now"], sent_ms=sent_ms)
                for row in rows:
                    name = queues[row["place"] - 1].name
                    if not row["is_used"]:  # it was purged or deleted
                        catalog.forget(name)
                        watches.wake_here(name, row["now"])
                    elif row["visible_at"] is not None:
                        watches.wake_here(name, max(row["now"], row["visible_at"]))


BYTES_MAX = 7_500
_BYTES_PER_ENTRY = 24  # beside the name: an instant and what JSON puts around it


class Notice(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``node`` says it. Names are full names of queues, instants are the database's."""

    node: str
    due_ms: dict[str, int] = {}
    """Queues that have, or may have, a message, or a place for one, at an instant."""
    awaited: dict[str, bool] = {}
    """Queues that have waiters at the node; false: no more."""
    full: list[str] = []
    """Queues where it found no place for another message in flight."""
    changed: list[str] = []
    """Queues that were changed, purged or deleted: what others know of them is old."""
    moves: bool = False
    """A move task was begun or cancelled."""
    hello: bool = False
    """The node has begun to listen, and asks what the others wait for."""
    alive: bool = False
    """It listens still, and has nothing to say."""


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Notice)


def packed(node: str, entries: Iterable[tuple[str, str, Any]]) -> list[str]:
    """Return the texts of as few notices as have room for ``entries``: field, queue and value of each entry."""
    notices: list[dict[str, Any]] = []
    left = 0
    for field, queue, value in entries:
        size_bytes = len(_encode(queue)) + _BYTES_PER_ENTRY
        if size_bytes > left or not notices:
            notices.append({})
            left = BYTES_MAX
        left -= size_bytes
        if not queue:
            notices[-1][field] = value
        elif value is None:
            notices[-1].setdefault(field, []).append(queue)
        else:
            notices[-1].setdefault(field, {})[queue] = value
    return [_encode(Notice(node=node, **fields)).decode() for fields in notices]


def unpacked(text: str) -> Notice | None:
    """Return the notice of a text; ``None`` where it is not one of ours."""
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return None


REFRESH_MS = 10 * SECOND_MS
"""How often a node repeats what it waits for."""

_KEPT_MS = 25 * SECOND_MS  # a node that has repeated nothing for so long is gone


class Interests:
    """The queues that each other node awaits, and those where one found no place for another message in flight."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._until_ms: dict[str, dict[str, int]] = {}
        self._full: set[str] = set()

    def note(self, node: str, queue: str, *, is_full: bool = False) -> None:
        """Take note that ``node`` awaits messages of ``queue``, where it may have found no place."""
        self._until_ms.setdefault(queue, {})[node] = self._clock.now_ms() + _KEPT_MS
        if is_full:
            self._full.add(queue)

    def drop(self, node: str, queue: str) -> None:
        """Take note that it does so no more."""
        nodes = self._until_ms.get(queue, {})
        nodes.pop(node, None)
        if not nodes:
            self._until_ms.pop(queue, None)
            self._full.discard(queue)

    def has(self, queue: str) -> bool:
        """Tell whether any node awaits ``queue``."""
        nodes = self._until_ms.get(queue)
        if not nodes:
            return False
        now_ms = self._clock.now_ms()
        for node in [node for node, until_ms in nodes.items() if until_ms <= now_ms]:
            self.drop(node, queue)
        return bool(nodes)

    def is_full(self, queue: str) -> bool:
        """Tell whether a node waits for a place there."""
        return queue in self._full and self.has(queue)

    def give_place(self, queue: str) -> bool:
        """Do so for one that is notified of a place now, and says so again if it finds none."""
        was_full = self.is_full(queue)
        self._full.discard(queue)
        return was_full

    def prune(self) -> None:
        """Forget what is old."""
        for queue in list(self._until_ms):
            self.has(queue)

    def clear(self) -> None:
        """Know of nothing."""
        self._until_ms.clear()
        self._full.clear()


_NAME = "veilmq"
_ANSWER_S = 5.0
_FAILURES = (*UNREACHABLE, asyncpg.PostgresError)
_NODE_BYTES = 4

REST_MS = 10
"""How long after one notice a node sends the next."""
SOON_MS = 50
"""How long after a new interest a node looks by itself: others may have had no time to hear of it."""


class Nodes:
    """What one node knows of the others, and notifies them of."""

    def __init__(self, node: Node, *, rounds: Rounds, schedule_moves: Callable[[], None]) -> None:
        self.name = token_hex(_NODE_BYTES)
        self.interests = Interests(clock=node.clock)
        self.awaits = self.interests.has
        self.lacks_a_place = self.interests.give_place
        self._node = node
        self._rounds = rounds
        self._schedule_moves = schedule_moves
        self._connection: asyncpg.Connection[Any] | None = None
        self._pause_ms = 0
        self._connecting: Timer | None = None
        self._stopped = False
        self._pending: dict[tuple[str, str], Any] = {}
        self._announced: set[str] = set()
        self._is_out = False
        self._timer: Timer | None = None
        self._refreshing: Timer | None = None
        self._rests_until_ms = 0
        self._echoed = False
        self._sent = 0
        self._received = 0

    @property
    def listens(self) -> bool:
        """Whether there is a connection on which notices may come."""
        return self._connection is not None

    def figures(self) -> list[Figure]:
        """Return what came and went."""
        arrive = self.listens and self._rounds.is_notified
        return [
            gauge("store_notices_arrive", "1 while notices of other servers arrive.", arrive),
            counter("store_notices_sent", "Notices sent to other servers.", self._sent),
            counter("store_notices_received", "Notices received from other servers.", self._received),
        ]

    def open(self) -> None:
        """Begin to listen."""
        self._node.start(self._connect())
        self._refreshing = self._later(REFRESH_MS, self._refresh)

    async def stop(self) -> None:
        """Say what is left to say, and listen no more."""
        self._stopped = True
        for timer in (self._timer, self._refreshing, self._connecting):
            if timer is not None:
                timer.cancel()
        for queue in self._announced:
            self._pending["awaited", queue] = False
        if not self._is_out:
            await self._send()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*_FAILURES):
                await connection.close(timeout=_ANSWER_S)

    def _later(self, after_ms: int, call: Callable[[], object]) -> Timer:
        return self._node.clock.call_at(self._node.clock.now_ms() + after_ms, call)

    # The connection, which is made again when it has ended.

    async def _connect(self) -> None:
        connection: asyncpg.Connection[Any] | None = None
        try:
            connection = await self._node.database.connect()
            await connection.execute(SQL["relax"])
            await connection.add_listener(_NAME, self._hear)
            connection.add_termination_listener(self._ended)
        except _FAILURES:
            if connection is not None:
                connection.terminate()
            self._connect_later()
            return
        if self._stopped or connection.is_closed():
            connection.terminate()
            self._connect_later()
            return
        self._connection = connection
        self._pause_ms = 0
        # What was said while there was no connection is not known: ask for it, and look at everything.
        self.interests.clear()
        self._node.catalog.clear()
        self._rounds.is_notified = True
        self._say("hello", "", True)
        self._announce()
        self._rounds.schedule(0)

    def _ended(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = None
            log.warning("the connection for notices of other nodes has ended; looking for another one")
            self._rounds.is_notified = False
            self._rounds.schedule()
            self._connect_later()

    def _connect_later(self) -> None:
        if not self._stopped:
            self._pause_ms = longer_ms(self._pause_ms)
            self._connecting = self._later(self._pause_ms, lambda: self._node.start(self._connect()))

    # What this node has to say.

    def begin(self, queue: str) -> None:
        """Say that a waiter is here; look once more, for what came before others could hear of that."""
        if queue in self._announced or self._connection is None:
            self._rounds.schedule()
            return
        self._announced.add(queue)
        self._say("awaited", queue, True, after_ms=1)
        self._rounds.schedule(SOON_MS)

    def notify(self, queue: str, due_ms: int) -> None:
        """Say that there is, or may be, a message at ``due_ms``."""
        self._say("due_ms", queue, min(due_ms, self._pending.get(("due_ms", queue), due_ms)))

    def changed(self, queue: str) -> None:
        """Say that what others know of ``queue`` is old."""
        self._say("changed", queue, None)

    def found_full(self, queue: str) -> None:
        """Say that there was no place for another message in flight."""
        self._say("full", queue, None)

    def moves_changed(self) -> None:
        """Look for move tasks, here and at the other nodes."""
        self._schedule_moves()
        self._say("moves", "", True)

    def _say(self, field: str, queue: str, value: Any, *, after_ms: int = 0) -> None:
        if self._connection is not None:
            self._pending[field, queue] = value
            self._send_later(after_ms)

    def _send_later(self, after_ms: int = 0) -> None:
        if self._is_out or self._timer is not None:
            return
        after_ms = max(after_ms, self._rests_until_ms - self._node.clock.now_ms())
        if after_ms > 0:
            self._timer = self._later(after_ms, self._begin_to_send)
        else:
            self._begin_to_send()

    def _begin_to_send(self) -> None:
        self._timer = None
        self._is_out = True
        self._node.start(self._send())

    async def _send(self) -> None:
        entries, self._pending = self._pending, {}
        texts = packed(self.name, [(*entry, value) for entry, value in entries.items()])
        connection = self._connection
        if texts and connection is not None:
            try:
                await connection.execute(SQL["notify"], texts, timeout=_ANSWER_S)
            except _FAILURES:
                connection.terminate()  # which is noticed like any other end of it
        self._sent += len(texts)
        self._rests_until_ms = self._node.clock.now_ms() + REST_MS
        self._is_out = False
        if self._pending:
            self._send_later()

    # What it hears.

    def _hear(self, connection: Any, pid: int, name: str, text: Any) -> None:
        notice = unpacked(text)
        if notice is None:
            return
        if notice.node == self.name:
            self._echoed = True
            self._rounds.is_notified = True
            return
        self._received += 1
        for queue, is_awaited in notice.awaited.items():
            (self.interests.note if is_awaited else self.interests.drop)(notice.node, queue)
        for queue in notice.full:
            self.interests.note(notice.node, queue, is_full=True)
        for queue in notice.changed:
            self._node.catalog.forget(queue)
            self._node.watches.wake_here(queue, 0)
        for queue, due_ms in notice.due_ms.items():
            self._node.watches.wake_here(queue, due_ms)
        if notice.moves:
            self._schedule_moves()
        if notice.hello:
            self._announce()

    # What it repeats.

    def _announce(self) -> None:
        """Say what is awaited here, and what is so no more."""
        here = set(self._node.watches.here)
        for queue in self._announced | here:
            self._say("awaited", queue, queue in here)
        self._announced = here

    def _refresh(self) -> None:
        """Do so every ten seconds; a node that does not receive its own notices receives no others."""
        self._rounds.is_notified, self._echoed = self._echoed, False
        self.interests.prune()
        self._announce()
        self._say("alive", "", True)
        self._refreshing = self._later(REFRESH_MS, self._refresh)
