"""Counts what the renewer does; written in its thread, read by whoever exports it."""

from collections import Counter
from collections.abc import Sequence

from veilmq.consumer.counts import Spread
from veilmq.consumer.lease_table import Asked
from veilmq.consumer.verdicts import Verdict


class Renewals:
    """A ``RenewalMeter``: calls, their entries, what became of those, and how long the calls took."""

    __slots__ = ("calls", "entries", "took", "verdicts")

    def __init__(self) -> None:
        """Begin at zero."""
        self.calls = 0
        self.entries = 0
        self.verdicts: Counter[str] = Counter()
        self.took = Spread()

    def called(self, asked: Sequence[Asked], verdicts: Sequence[Verdict], took_s: float) -> None:
        """Take in one call."""
        self.calls += 1
        self.entries += len(asked)
        self.took.add(took_s)
        for verdict in verdicts:
            self.verdicts[verdict.value] += 1
