"""The hidden run of a lane: every message with a lease, in the order they become (or became) visible.

In flight, delayed, expired and released messages all stand here; which is which follows from the clock.
"""

from collections.abc import Callable

from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.rows import Lease
from veilmq.engines.embedded.run import Key, Run

Alive = Callable[[], tuple[int, int, int]]
"""Which positions are within their retention, as ``Journal.leases_after`` takes them."""


class HiddenRun(Run[Lease]):
    """The leases of one lane by the instant of their visibility, numbered by their positions."""

    __slots__ = ("_alive", "_journal", "_lane")

    def __init__(
        self,
        *,
        journal: Journal,
        lane: int,
        window_max: int,
        horizon: Key | None,
        alive: Alive,
    ) -> None:
        """``horizon`` is as for ``Run``."""
        super().__init__(window_max=window_max, horizon=horizon)
        self._journal = journal
        self._alive = alive
        self._lane = lane

    def get(self, number: int) -> Lease | None:
        """Return the lease of the message at that position, ``None`` when it has none."""
        lease = self._items.get(number)
        if lease is None and self._horizon is not None:
            return self._behind.get(number) or self._journal.lease_at(number)
        return lease

    def _read_after(self, key: Key, count: int) -> list[tuple[int, Lease]]:
        leases = self._journal.leases_after(self._lane, *key, self._alive(), count)
        return [(lease.position, lease) for lease in leases]
