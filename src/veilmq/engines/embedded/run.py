"""A run: numbered things, each with the instant of its visibility, in the order of these instants.

The earliest part is in memory (the window): everything whose key ``(visible_at_ms, number)`` is not behind ``horizon``.
The rest is on disk only, in an index by the same key. What moves across the horizon enters or leaves memory, and when
the memory part is empty the next part is read. So neither memory nor any step grows with the length of the run. Of what
was put behind the horizon some is kept for a while: who is received now is deleted soon.

The order in memory is a heap of keys. A key whose thing has moved or gone is skipped when it comes up, and the heap is
rebuilt when most of it is such, so long timeouts with quick deletes do not fill memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

Key = tuple[int, int]

NEVER_MS = 1 << 62
"""An instant that does not come."""
CLAIMED_MS = 1 << 61
"""Until when a claimed message is hidden: until its claim ends."""
_CLAIMED: Key = (CLAIMED_MS, -1)
ON_DISK: Key = (-1, -1)
"""The horizon of a run of which nothing was read yet."""

_STALE_KEYS_FREE = 256
_REFILL_MAX = 2_048  # a few milliseconds
_LOOK_ROWS = 32  # that a look reads at once


class Dated(Protocol):
    """What a run holds."""

    visible_at_ms: int


T = TypeVar("T", bound=Dated)


class Run(ABC, Generic[T]):
    """The things of one lane by the instant of their visibility. Where they are on disk is a subclass's to say."""

    __slots__ = ("_behind", "_behind_max", "_heap", "_horizon", "_items", "_window_max")

    def __init__(self, *, window_max: int, horizon: Key | None) -> None:
        """``horizon`` is ``ON_DISK`` for a lane that was stored before, ``None`` (no limit) for a new one."""
        self._window_max = window_max
        self._horizon = horizon
        self._heap: list[Key] = []
        self._items: dict[int, T] = {}
        self._behind: dict[int, T] = {}  # put behind the horizon lately, the oldest first
        self._behind_max = max(1, window_max // 4)

    @abstractmethod
    def _read_after(self, key: Key, count: int) -> list[tuple[int, T]]:
        """Return up to ``count`` things behind ``key`` with their numbers, in order."""

    def _let_go(self, items: Iterable[T]) -> None:
        """Do what is to be done when things leave memory for the disk."""

    def get(self, number: int) -> T | None:
        """Return the thing of that number if it is in memory."""
        return self._items.get(number) or self._behind.get(number)

    def put(self, number: int, item: T) -> None:
        """Add a thing, or file it anew after its instant moved."""
        key = (item.visible_at_ms, number)
        if self._horizon is not None and key > self._horizon:
            self._items.pop(number, None)
            self._put_behind(number, item)
            return
        if self._behind:
            self._behind.pop(number, None)
        self._items[number] = item
        heappush(self._heap, key)
        if len(self._items) > self._window_max:
            self._shrink()
        elif len(self._heap) > 2 * len(self._items) + _STALE_KEYS_FREE:
            self._set_heap([(item.visible_at_ms, number) for number, item in self._items.items()])

    def _put_behind(self, number: int, item: T) -> None:
        self._behind.pop(number, None)
        self._behind[number] = item
        if len(self._behind) > self._behind_max:
            self._let_go((self._behind.pop(next(iter(self._behind))),))

    def drop(self, number: int) -> None:
        """Remove the thing of that number."""
        self._items.pop(number, None)
        if self._behind:
            self._behind.pop(number, None)

    def head(self, until_ms: int = NEVER_MS) -> T | None:
        """Return the thing that is visible first, ``None`` when none is until ``until_ms``."""
        while True:
            heap = self._heap
            while heap:
                visible_at_ms, number = heap[0]
                if visible_at_ms > until_ms:
                    return None
                item = self._items.get(number)
                if item is not None and item.visible_at_ms == visible_at_ms:
                    return item
                heappop(heap)
            if self._horizon is None or self._horizon >= _CLAIMED:
                return None
            self._refill(self._horizon)

    def in_order(self, until_ms: int = NEVER_MS) -> Iterator[T]:
        """Yield the things visible until then, in order; all stay where they are, and nothing may move meanwhile."""
        Run.head(self, until_ms)  # drops what is stale
        for visible_at_ms, number in in_heap_order(self._heap):
            if visible_at_ms > until_ms:
                return
            item = self._items.get(number)
            if item is not None and item.visible_at_ms == visible_at_ms:
                yield item
        key = self._horizon
        while key is not None and key < _CLAIMED:
            found = self._read_after(key, _LOOK_ROWS)
            for number, item in found:
                if item.visible_at_ms > until_ms:
                    return
                yield self._behind.get(number, item)
            key = (found[-1][1].visible_at_ms, found[-1][0]) if len(found) == _LOOK_ROWS else None

    def leave_claimed(self) -> None:
        """Leave what is claimed from now on to the disk: nobody waits for it, and it may be much."""
        if self._horizon is None:
            self._horizon = _CLAIMED

    def take(self) -> T:
        """Remove and return the head, which ``head`` must just have returned."""
        return self._items.pop(heappop(self._heap)[1])

    def _refill(self, horizon: Key) -> None:
        count = min(self._window_max, _REFILL_MAX)
        found = self._read_after(horizon, count)
        self._items = {number: self._behind.pop(number, item) for number, item in found}
        keys = [(item.visible_at_ms, number) for number, item in found]
        self._horizon = keys[-1] if len(keys) == count else None
        self._set_heap(keys)

    def _shrink(self) -> None:
        keys = sorted((item.visible_at_ms, number) for number, item in self._items.items())
        size = max(1, self._window_max // 2)
        self._let_go([self._items.pop(number) for _, number in keys[size:]])
        self._horizon = keys[size - 1]
        self._set_heap(keys[:size])

    def _set_heap(self, keys: list[Key]) -> None:
        heapify(keys)
        self._heap = keys


def in_heap_order(heap: Sequence[Key]) -> Iterator[Key]:
    """Yield the keys of a heap in order, each once, as many as are asked for; the heap stays as it is."""
    ahead = [(heap[0], 0)] if heap else []
    before: Key | None = None
    while ahead:
        key, at = heappop(ahead)
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(ahead, (heap[child], child))
        if key != before:
            before = key
            yield key
