"""Records of one process: they end with it."""

import heapq
import threading
from typing import NamedTuple

from veilmq.consumer.clock import Clock, SystemClock
from veilmq.consumer.records.port import Begun, Standing


class _Record(NamedTuple):
    expires_at_s: float
    owner: str | None
    """``None``: it is done."""


class InMemory:
    """A ``RecordStore`` that several handlers, and several consumers of a process, may share."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Record nothing yet."""
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}
        self._ends: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """Return how many records there are."""
        with self._lock:
            self._drop_ended(self._clock.now_s())
            return len(self._records)

    def begin(self, key: str, *, owner: str, for_s: float) -> Begun:
        """Record that ``owner`` begins ``key``, unless it is done or being done."""
        with self._lock:
            now_s = self._clock.now_s()
            self._drop_ended(now_s)
            found = self._records.get(key)
            if found is None:
                self._put(key, _Record(now_s + for_s, owner))
                return Begun(Standing.OURS)
            return Begun(Standing.DONE if found.owner is None else Standing.BUSY, found.expires_at_s - now_s)

    def extend(self, key: str, *, owner: str, for_s: float) -> bool:
        """Have the record last for ``for_s`` from now on, if it is ``owner``'s."""
        with self._lock:
            now_s = self._clock.now_s()
            self._drop_ended(now_s)
            found = self._records.get(key)
            if found is None or found.owner != owner:
                return False
            self._put(key, _Record(now_s + for_s, owner))
            return True

    def finish(self, key: str, *, for_s: float) -> None:
        """Record that ``key`` is done."""
        with self._lock:
            self._put(key, _Record(self._clock.now_s() + for_s, None))

    def forget(self, key: str, *, owner: str) -> None:
        """Remove the record if it is ``owner``'s."""
        with self._lock:
            found = self._records.get(key)
            if found is not None and found.owner == owner:
                del self._records[key]

    def _put(self, key: str, record: _Record) -> None:
        self._records[key] = record
        heapq.heappush(self._ends, (record.expires_at_s, key))

    def _drop_ended(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            ends_at_s, key = heapq.heappop(self._ends)
            record = self._records.get(key)
            if record is not None and record.expires_at_s == ends_at_s:
                del self._records[key]
