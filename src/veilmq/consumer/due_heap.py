"""The leases of a table by the instant at which each is due next.

An entry counts only while it names the instant at which its lease is due; when most entries do not, the heap is made
anew. So a message that is settled within its first lease costs one push and no search.
"""

import heapq

from veilmq.consumer.leases import Lease

Entry = tuple[float, int, Lease]
"""When a lease is due, its number, and the lease."""

_STALE_MIN = 64


class DueHeap:
    """Guarded by the lock of the lease table."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Begin with nothing due."""
        self._entries: list[Entry] = []

    def put(self, lease: Lease, at_s: float) -> None:
        """Have ``lease`` be due at ``at_s``, and at no other instant."""
        lease.due_at_s = at_s
        heapq.heappush(self._entries, (at_s, lease.number, lease))

    def first_s(self) -> float | None:
        """Return when something is due next, ``None`` when nothing is."""
        entries = self._entries
        while entries and entries[0][0] != entries[0][2].due_at_s:
            heapq.heappop(entries)
        return entries[0][0] if entries else None

    def pop(self) -> Lease:
        """Take out the lease that is due first; ``wanted_at_s`` says when it was. There is one: see ``first_s``."""
        wanted_at_s, _, lease = heapq.heappop(self._entries)
        lease.wanted_at_s, lease.due_at_s = wanted_at_s, None
        return lease

    def shrink(self, open_leases: int) -> None:
        """Drop the entries that count no more, when they are the most; ``open_leases`` is how many may count."""
        entries = self._entries
        if len(entries) > 2 * open_leases + _STALE_MIN:
            entries[:] = [entry for entry in entries if entry[0] == entry[2].due_at_s]
            heapq.heapify(entries)
