"""What one call of a handler is given: a single message, or those that came within a moment of each other."""

import asyncio
from collections.abc import Callable

from veilmq.consumer.batches import Item
from veilmq.consumer.delivery import Delivery
from veilmq.consumer.handlers import Batching, Handler
from veilmq.consumer.outcomes import Undecodable
from veilmq.consumer.schedule import Schedule


class Gathering:
    """Takes messages from a ``Schedule`` for one call after the other."""

    def __init__(
        self,
        schedule: Schedule,
        handler: Handler,
        *,
        wake: Callable[[], object],
        failed: Callable[[Delivery, Exception], object],
    ) -> None:
        """``wake`` is called when a batch has waited long enough, ``failed`` for a message whose key cannot be told."""
        self._schedule = schedule
        self._handler = handler
        self._wake = wake
        self._failed = failed
        self._open: dict[object, list[Delivery]] = {}
        self._since_s: dict[object, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many messages wait in batches that are not full."""
        return sum(map(len, self._open.values()))

    def next(self) -> list[Delivery]:
        """Take what the next call is given; nothing when there is nothing to call for yet."""
        batching = self._handler.batching
        if batching is None:
            delivery = self._schedule.next()
            return [] if delivery is None else [delivery]
        return self._next_batch(batching)

    def drain(self) -> list[Delivery]:
        """Take out everything that waits here."""
        drained = [delivery for members in self._open.values() for delivery in members]
        self._open.clear()
        self._since_s.clear()
        return drained

    def remove(self, delivery: Delivery) -> None:
        """Take out ``delivery`` if it waits here."""
        for members in self._open.values():
            if delivery in members:
                members.remove(delivery)

    def _next_batch(self, batching: Batching) -> list[Delivery]:
        now_s = asyncio.get_running_loop().time()
        while (delivery := self._schedule.next()) is not None:
            try:
                key = self._key(batching, delivery)
                self._since_s.setdefault(key, now_s)
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything, and give what is no key
                self._failed(delivery, error)
                continue
            members = self._open.setdefault(key, [])
            members.append(delivery)
            if len(members) >= batching.size_max:
                return self._take(key)
        due = [key for key, since_s in self._since_s.items() if now_s >= since_s + batching.linger_s]
        if due:
            return self._take(due[0]) or self._next_batch(batching)
        self._arm(batching)
        return []

    def _take(self, key: object) -> list[Delivery]:
        del self._since_s[key]
        return self._open.pop(key)

    def _arm(self, batching: Batching) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._since_s:
            at_s = min(self._since_s.values()) + batching.linger_s
            self._timer = asyncio.get_running_loop().call_at(at_s, self._wake)

    def _key(self, batching: Batching, delivery: Delivery) -> object:
        if batching.key is None:
            return None
        try:
            return batching.key(Item(self._handler.decode(delivery.message), delivery.context))
        except Undecodable:
            return None  # it fails with its batch's call, alone
