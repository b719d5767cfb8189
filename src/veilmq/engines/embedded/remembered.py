"""What FIFO queues remember for five minutes, duplicates and attempts, and how it is forgotten.

A row is found by its key and judged by its age, so that the old ones lie about changes nothing; the janitor deletes
them a slice at a time.
"""

from veilmq.core.limits import ATTEMPT_S, DEDUPLICATION_S, SECOND_MS
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.run import NEVER_MS

_LASTS_MS = {"deduplications": DEDUPLICATION_S * SECOND_MS, "attempts": ATTEMPT_S * SECOND_MS}


class Remembered:
    """The tables ``deduplication`` and ``attempt``."""

    __slots__ = ("_journal",)

    def __init__(self, *, journal: Journal) -> None:
        """``journal`` has them."""
        self._journal = journal

    def sweep(self, rows_max: int, now_ms: int) -> int:
        """Delete what is too old to count, at most ``rows_max`` rows; return how many."""
        rows = 0
        for name, lasts_ms in _LASTS_MS.items():
            if rows < rows_max and self._oldest_ms(name) <= now_ms - lasts_ms:
                rows += len(self._journal.write(f"delete_old_{name}", now_ms - lasts_ms, rows_max - rows))
        return rows

    def due_ms(self) -> int:
        """Return when the first row becomes too old; ``run.NEVER_MS`` when there is none."""
        return min(NEVER_MS, *(self._oldest_ms(name) + lasts_ms for name, lasts_ms in _LASTS_MS.items()))

    def _oldest_ms(self, name: str) -> int:
        ((oldest_ms,),) = self._journal.rows(f"oldest_of_{name}")
        return NEVER_MS if oldest_ms is None else oldest_ms
