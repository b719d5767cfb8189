"""What FIFO queues remember for five minutes, duplicates and attempts, and how it is forgotten.

A row is found by its key and judged by its age, so it does no harm that old ones lie about. Once in five minutes the
janitor goes through the tables in the order of their keys, a slice at a time, and deletes what is too old: that needs
no index by age, whose upkeep every message would pay for, and touches each page once.
"""

from veilmq.core.limits import ATTEMPT_S, DEDUPLICATION_S, SECOND_MS
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.run import NEVER_MS

_LASTS_MS = {"deduplications": DEDUPLICATION_S * SECOND_MS, "attempts": ATTEMPT_S * SECOND_MS}
_BEFORE_ALL = b""
_BEHIND_ALL = b"\xff" * 17


class _Round:
    """Where the janitor is in one table, and when it goes through it next."""

    __slots__ = ("behind", "due_ms", "lasts_ms", "name")

    def __init__(self, name: str, lasts_ms: int) -> None:
        self.name = name
        self.lasts_ms = lasts_ms
        self.behind = _BEFORE_ALL
        self.due_ms = 0


class Remembered:
    """The tables ``deduplication`` and ``attempt``, cleared in rounds."""

    __slots__ = ("_journal", "_rounds")

    def __init__(self, *, journal: Journal) -> None:
        """``journal`` has them; the first round is due at once."""
        self._journal = journal
        self._rounds = [_Round(name, lasts_ms) for name, lasts_ms in _LASTS_MS.items()]

    def sweep(self, rows_max: int, now_ms: int) -> int:
        """Go on with the rounds that are due, by at most ``rows_max`` rows; return how many that were."""
        rows = 0
        for each in self._rounds:
            if each.due_ms <= now_ms and rows < rows_max:
                rows += self._go_on(each, rows_max - rows, now_ms)
        return rows

    def _go_on(self, each: _Round, rows_max: int, now_ms: int) -> int:
        behind = each.behind
        if not self._journal.rows(f"{each.name}_after", behind, 0):
            each.behind, each.due_ms = _BEFORE_ALL, now_ms + each.lasts_ms
            return 0
        ends = self._journal.rows(f"{each.name}_after", behind, rows_max - 1)
        each.behind = ends[0][0] if ends else _BEHIND_ALL
        self._journal.write(f"delete_old_{each.name}", behind, each.behind, now_ms - each.lasts_ms)
        return rows_max

    def due_ms(self) -> int:
        """Return when the next round begins; ``run.NEVER_MS`` when there is nothing to go through."""
        return min((each.due_ms for each in self._rounds if self._has_rows(each)), default=NEVER_MS)

    def _has_rows(self, each: _Round) -> bool:
        return bool(self._journal.rows(f"{each.name}_after", _BEFORE_ALL, 0))
