"""Pauses: the queues that were purged lately, and the names of queues that were deleted lately.

Both are kept on disk, so a restart ends no pause. What is over is removed by the janitor, a slice at a time; the
entries of a kind stand in the order of their instants, since the engine's clock does not run backwards.
"""

from itertools import islice

from veilmq.core.limits import SECOND_MS
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.run import NEVER_MS

_ENTRIES_PER_SLICE = 500


class Pauses:
    """The names that rest, of one kind."""

    def __init__(self, kind: str, pause_s: int, *, journal: Journal) -> None:
        """Load what ``journal`` has of this ``kind``; a name rests for ``pause_s``, 0 for not at all."""
        self._kind = kind
        self._journal = journal
        self._began: dict[str, int] = dict(journal.rows("pauses_of", kind))
        self.pause_s = pause_s

    def holds(self, name: str, now_ms: int) -> bool:
        """Tell whether ``name`` rests."""
        began_at_ms = self._began.get(name)
        return began_at_ms is not None and now_ms < self._end_ms(began_at_ms)

    def begin(self, name: str, now_ms: int) -> None:
        """Let ``name`` rest from now on."""
        if self.pause_s:
            self._began.pop(name, None)  # it goes to the end of the order
            self._began[name] = now_ms
            self._journal.write("put_pause", self._kind, name, now_ms)

    def end(self, name: str) -> None:
        """Let ``name`` rest no longer."""
        if self._began.pop(name, None) is not None:
            self._journal.write("delete_pause", self._kind, name)

    def forget(self, now_ms: int) -> None:
        """Remove a slice of those that are over."""
        for name in list(islice(self._began, _ENTRIES_PER_SLICE)):
            if self.holds(name, now_ms):
                break
            self.end(name)

    def next_end_ms(self) -> int:
        """Return when the next one is over; ``NEVER_MS`` when there is none."""
        first_ms = next(iter(self._began.values()), None)
        return NEVER_MS if first_ms is None else self._end_ms(first_ms)

    def _end_ms(self, began_at_ms: int) -> int:
        return began_at_ms + self.pause_s * SECOND_MS


class QueuePauses:
    """The pauses of one store: after a purge of a queue, and after the deletion of a name's queue."""

    def __init__(self, *, journal: Journal, options: EngineOptions) -> None:
        """Load what ``journal`` has."""
        self.purged = Pauses("purged", options.purge_pause_s, journal=journal)
        self.deleted = Pauses("deleted", options.queue_name_pause_s, journal=journal)

    def forget(self, now_ms: int) -> None:
        """Remove a slice of what is over."""
        self.purged.forget(now_ms)
        self.deleted.forget(now_ms)

    def next_end_ms(self) -> int:
        """Return when the next pause is over; ``run.NEVER_MS`` when there is none."""
        return min(self.purged.next_end_ms(), self.deleted.next_end_ms())
