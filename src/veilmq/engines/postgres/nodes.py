"""The other nodes: what this one tells them, and what it hears from them.

Who waits at one node for what arrives at another is woken by a notice. A node tells which queues are awaited there,
when the first begins to wait and every ten seconds; so only what somebody waits for is told. The first notice goes at
once, the next one ten milliseconds later, with all that has come up meanwhile. Nothing depends on any of it, as every
node makes its own ``rounds``; and the end of a delay or of a lease needs no notice, as who waits knows the instant.
"""

from collections.abc import Callable, Coroutine
from secrets import token_hex
from typing import Any

from veilmq.core.ports import Clock, Timer
from veilmq.engines.figures import Figure, counter, gauge
from veilmq.engines.postgres.catalog import Catalog
from veilmq.engines.postgres.channel import Channel
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.interests import REFRESH_MS, Interests
from veilmq.engines.postgres.notices import Notice, packed, unpacked
from veilmq.engines.postgres.rounds import Rounds
from veilmq.engines.postgres.watches import Watches

REST_MS = 10
"""How long after one notice a node sends the next."""
SOON_MS = 50
"""How long after a new interest a node looks by itself: others may have had no time to hear of it."""

_NODE_BYTES = 4


class Nodes:
    """``watches.OtherNodes``, for one node."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        watches: Watches,
        rounds: Rounds,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
        look_for_moves: Callable[[], None],
    ) -> None:
        """``catalog`` and ``watches`` are this node's; ``look_for_moves`` is called when there may be a move task."""
        self.name = token_hex(_NODE_BYTES)
        self.interests = Interests(clock=clock)
        self.catalog = catalog
        self._watches = watches
        self._rounds = rounds
        self._clock = clock
        self._start = start
        self._look_for_moves = look_for_moves
        self._channel = Channel(
            database=database, clock=clock, start=start, opened=self._opened, lost=self._lost, heard=self._hear
        )
        self._pending: dict[tuple[str, str], Any] = {}
        self._announced: set[str] = set()
        self._is_out = False
        self._timer: Timer | None = None
        self._refreshing: Timer | None = None
        self._rests_until_ms = 0
        self._echoed = False
        self._told = 0
        self._heard = 0

    @property
    def listens(self) -> bool:
        """Whether there is a connection on which notices may come."""
        return self._channel.is_open

    def figures(self) -> list[Figure]:
        """Return what came and went."""
        arrive = self.listens and self._rounds.hears
        return [
            gauge("store_notices_arrive", "1 while notices of other servers arrive.", arrive),
            counter("store_notices_told", "Notices told to other servers.", self._told),
            counter("store_notices_heard", "Notices heard of other servers.", self._heard),
        ]

    def open(self) -> None:
        """Begin to listen."""
        self._channel.begin()
        self._refresh_later()

    async def stop(self) -> None:
        """Say what is left to say, and listen no more."""
        for timer in (self._timer, self._refreshing):
            if timer is not None:
                timer.cancel()
        for queue in self._announced:
            self._pending["awaited", queue] = False
        if not self._is_out:
            await self._send()
        await self._channel.stop()

    # What this node has to say.

    def begin(self, queue: str) -> None:
        """Say that somebody waits here; look once more, for what came before others could hear of that."""
        if queue in self._announced or not self._channel.is_open:
            self._rounds.look()
            return
        self._announced.add(queue)
        self._say("awaited", queue, True, after_ms=1)
        self._rounds.look(SOON_MS)

    def awaits(self, queue: str) -> bool:
        """Tell whether another node waits for ``queue``."""
        return self.interests.has(queue)

    def tell(self, queue: str, due_ms: int) -> None:
        """Say that there is, or may be, a message at ``due_ms``."""
        self._say("due_ms", queue, min(due_ms, self._pending.get(("due_ms", queue), due_ms)))

    def changed(self, queue: str) -> None:
        """Say that what others know of ``queue`` is old."""
        self._say("changed", queue, None)

    def found_full(self, queue: str) -> None:
        """Say that there was no place for another message in flight."""
        self._say("full", queue, None)

    def lacks_a_place(self, queue: str) -> bool:
        """Tell whether another node waits for a place in ``queue``."""
        return self.interests.give_place(queue)

    def moves_changed(self) -> None:
        """Look for move tasks, here and at the other nodes."""
        self._look_for_moves()
        self._say("moves", "", True)

    def _say(self, field: str, queue: str, value: Any, *, after_ms: int = 0) -> None:
        if self._channel.is_open:
            self._pending[field, queue] = value
            self._send_later(after_ms)

    def _send_later(self, after_ms: int = 0) -> None:
        if self._is_out or self._timer is not None:
            return
        now_ms = self._clock.now_ms()
        at_ms = max(now_ms + after_ms, self._rests_until_ms)
        if at_ms > now_ms:
            self._timer = self._clock.call_at(at_ms, self._ring)
        else:
            self._begin_to_send()

    def _ring(self) -> None:
        self._timer = None
        self._begin_to_send()

    def _begin_to_send(self) -> None:
        self._is_out = True
        self._start(self._send())

    async def _send(self) -> None:
        told, self._pending = self._pending, {}
        texts = packed(self.name, [(*entry, value) for entry, value in told.items()])
        if texts:
            await self._channel.tell(texts)
            self._told += len(texts)
        self._rests_until_ms = self._clock.now_ms() + REST_MS
        self._is_out = False
        if self._pending:
            self._send_later()

    # What it hears.

    def _opened(self) -> None:
        """Ask and look at everything: nobody knows what was said while this node did not listen."""
        self.interests.clear()
        self.catalog.clear()
        self._rounds.hears = True
        self._say("hello", "", True)
        self._announce()
        self._rounds.look(0)

    def _lost(self) -> None:
        self._rounds.hears = False
        self._rounds.look()

    def _hear(self, text: str) -> None:
        notice = unpacked(text)
        if notice is None:
            return
        if notice.node == self.name:
            self._echoed = True
            self._rounds.hears = True
            return
        self._heard += 1
        self._note(notice)
        for queue in notice.changed:
            self.catalog.forget(queue)
            self._watches.rouse(queue, 0)
        for queue, due_ms in notice.due_ms.items():
            self._watches.rouse(queue, due_ms)
        if notice.moves:
            self._look_for_moves()
        if notice.hello:
            self._announce()

    def _note(self, notice: Notice) -> None:
        for queue, is_awaited in notice.awaited.items():
            if is_awaited:
                self.interests.note(notice.node, queue)
            else:
                self.interests.drop(notice.node, queue)
        for queue in notice.full:
            self.interests.note(notice.node, queue)
            self.interests.fill(queue)

    # What it repeats.

    def _announce(self) -> None:
        """Say what is awaited here, and what is so no more."""
        here = set(self._watches.here)
        for queue in self._announced - here:
            self._say("awaited", queue, False)
        for queue in here:
            self._say("awaited", queue, True)
        self._announced = here

    def _refresh_later(self) -> None:
        self._refreshing = self._clock.call_at(self._clock.now_ms() + REFRESH_MS, self._refresh)

    def _refresh(self) -> None:
        """Do so every ten seconds; who does not hear himself hears nobody."""
        self._rounds.hears, self._echoed = self._echoed, False
        self.interests.look()
        self._announce()
        self._say("alive", "", True)
        self._refresh_later()
