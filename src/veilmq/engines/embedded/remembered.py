"""How what FIFO queues remember for five minutes, duplicates and attempts, is forgotten.

A row is judged by its age when it is found, so it does no harm that old ones lie about. What was accepted stands in
the order of time: its oldest rows are deleted, once a minute. Through the attempts, which are found by their keys, the
janitor goes in the order of these keys once in five minutes, a slice at a time: that needs no index by age, whose
upkeep every attempt would pay for, and touches each page once.
"""

from veilmq.core.limits import ATTEMPT_S, DEDUPLICATION_S, SECOND_MS
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.run import NEVER_MS

_ACCEPTED_MS = DEDUPLICATION_S * SECOND_MS
_ATTEMPTS_MS = ATTEMPT_S * SECOND_MS
_PAUSE_MS = 60 * SECOND_MS
_BEFORE_ALL = b""
_BEHIND_ALL = b"\xff" * 17


class Remembered:
    """The tables ``accepted`` and ``attempt``, cleared of old rows."""

    __slots__ = ("_accepted_at_ms", "_attempts_at_ms", "_behind", "_journal")

    def __init__(self, *, journal: Journal) -> None:
        """``journal`` has them; both are looked through at once."""
        self._journal = journal
        self._accepted_at_ms = 0
        self._attempts_at_ms = 0
        self._behind = _BEFORE_ALL  # where the round through the attempts is

    def sweep(self, rows_max: int, now_ms: int) -> int:
        """Go on with what is due, by at most ``rows_max`` rows; return how many that were."""
        rows = self._sweep_accepted(rows_max, now_ms) if self._accepted_at_ms <= now_ms else 0
        if rows < rows_max and self._attempts_at_ms <= now_ms:
            rows += self._sweep_attempts(rows_max - rows, now_ms)
        return rows

    def _sweep_accepted(self, rows_max: int, now_ms: int) -> int:
        old = self._journal.rows("old_accepted", rows_max, now_ms - _ACCEPTED_MS)
        if not old:
            self._accepted_at_ms = now_ms + _PAUSE_MS
            return 0
        self._journal.write("delete_accepted", *old[-1])
        self._journal.accepted.cut()
        return len(old)

    def _sweep_attempts(self, rows_max: int, now_ms: int) -> int:
        behind = self._behind
        if not self._journal.rows("attempts_after", behind, 0):
            self._behind, self._attempts_at_ms = _BEFORE_ALL, now_ms + _ATTEMPTS_MS
            return 0
        ends = self._journal.rows("attempts_after", behind, rows_max - 1)
        self._behind = ends[0][0] if ends else _BEHIND_ALL
        self._journal.write("delete_old_attempts", behind, self._behind, now_ms - _ATTEMPTS_MS)
        return rows_max

    def due_ms(self) -> int:
        """Return when to look next; ``run.NEVER_MS`` when there is nothing to look through."""
        has_attempts = bool(self._journal.rows("attempts_after", _BEFORE_ALL, 0))
        attempts_ms = self._attempts_at_ms if has_attempts else NEVER_MS
        first = self._journal.rows("first_accepted")
        accepted_ms = max(self._accepted_at_ms, first[0][1] + _ACCEPTED_MS) if first else NEVER_MS
        return min(attempts_ms, accepted_ms)
