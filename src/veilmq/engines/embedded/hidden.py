"""The hidden run of a lane: every message with a lease, in the order they become (or became) visible.

In flight, delayed, expired and released messages all stand here; which is which follows from the clock. The earliest
part is in memory (the hidden window): all leases whose key ``(visible_at_ms, position)`` is not behind ``horizon``.
The rest is on disk only, in an index by the same key. A lease that moves across the horizon enters or leaves memory,
and when the memory part is empty the next part is read.

The order in memory is a heap of keys. A key whose lease has moved or gone is skipped when it comes up, and the heap
is rebuilt when most of it is such, so long timeouts with quick deletes do not fill memory.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.rows import Lease

Key = tuple[int, int]

NEVER_MS = 1 << 62
"""An instant that does not come."""
ON_DISK: Key = (-1, -1)
"""The horizon of a run of which nothing was read yet."""

_STALE_KEYS_FREE = 256
_REFILL_LEASES_MAX = 2_048  # a few milliseconds


class HiddenRun:
    """The leases of one lane by the instant of their visibility."""

    __slots__ = ("_alive", "_heap", "_horizon", "_journal", "_lane", "_leases", "_window_max")

    def __init__(
        self,
        *,
        journal: Journal,
        lane: int,
        window_max: int,
        horizon: Key | None,
        alive: Callable[[], tuple[int, int, int]],
    ) -> None:
        """``horizon`` is ``ON_DISK`` for a lane that was stored before, ``None`` (no limit) for a new one.

        ``alive`` tells which positions are within their retention, as ``Journal.leases_after`` takes them.
        """
        self._journal = journal
        self._alive = alive
        self._lane = lane
        self._window_max = window_max
        self._horizon = horizon
        self._heap: list[Key] = []
        self._leases: dict[int, Lease] = {}

    def get(self, position: int) -> Lease | None:
        """Return the lease of the message at ``position``, ``None`` when it has none."""
        lease = self._leases.get(position)
        if lease is None and self._horizon is not None:
            return self._journal.lease_at(position)
        return lease

    def put(self, lease: Lease) -> None:
        """Add the lease, or file it anew after its deadline moved."""
        key = (lease.visible_at_ms, lease.position)
        if self._horizon is not None and key > self._horizon:
            self._leases.pop(lease.position, None)
            return
        self._leases[lease.position] = lease
        heappush(self._heap, key)
        if len(self._leases) > self._window_max:
            self._shrink()
        elif len(self._heap) > 2 * len(self._leases) + _STALE_KEYS_FREE:
            self._set_heap([(lease.visible_at_ms, lease.position) for lease in self._leases.values()])

    def drop(self, position: int) -> None:
        """Remove the lease of the message at ``position``."""
        self._leases.pop(position, None)

    def head(self, until_ms: int = NEVER_MS) -> Lease | None:
        """Return the lease that becomes visible first, ``None`` when none does until ``until_ms``."""
        while True:
            heap = self._heap
            while heap:
                visible_at_ms, position = heap[0]
                if visible_at_ms > until_ms:
                    return None
                lease = self._leases.get(position)
                if lease is not None and lease.visible_at_ms == visible_at_ms:
                    return lease
                heappop(heap)
            if self._horizon is None:
                return None
            self._refill(self._horizon)

    def take(self) -> Lease:
        """Remove and return the head, which ``head`` must just have returned."""
        return self._leases.pop(heappop(self._heap)[1])

    def _refill(self, horizon: Key) -> None:
        count = min(self._window_max, _REFILL_LEASES_MAX)
        leases = self._journal.leases_after(self._lane, *horizon, self._alive(), count)
        self._leases = {lease.position: lease for lease in leases}
        keys = [(lease.visible_at_ms, lease.position) for lease in leases]
        self._horizon = keys[-1] if len(keys) == count else None
        self._set_heap(keys)

    def _shrink(self) -> None:
        keys = sorted((lease.visible_at_ms, lease.position) for lease in self._leases.values())
        keep = keys[: max(1, self._window_max // 2)]
        self._leases = {position: self._leases[position] for _, position in keep}
        self._horizon = keep[-1]
        self._set_heap(keep)

    def _set_heap(self, keys: list[Key]) -> None:
        heapify(keys)
        self._heap = keys
