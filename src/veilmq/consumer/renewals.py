"""Counts what the renewer does; written in its threads, read by whoever exports it."""

import threading
from collections import Counter
from collections.abc import Sequence

from veilmq.client.messages import ClientError
from veilmq.consumer.counts import Spread
from veilmq.consumer.lease_table import Asked
from veilmq.consumer.verdicts import Verdict, plain_code


class Renewals:
    """A ``RenewalMeter``: calls, their entries, what became of those, what failed, and how timely it all was.

    ``lateness`` is by how much renewals begin after they were due, ``margin`` what was left of the lease then, 0 for
    one that was over; ``took`` is how long the calls took.
    """

    __slots__ = ("_lock", "calls", "entries", "errors", "lateness", "margin", "took", "verdicts")

    def __init__(self) -> None:
        """Begin at zero."""
        self._lock = threading.Lock()
        self.calls = 0
        self.entries = 0
        self.verdicts: Counter[str] = Counter({verdict.value: 0 for verdict in Verdict})
        self.errors: Counter[str] = Counter()
        self.took = Spread()
        self.lateness = Spread()
        self.margin = Spread()

    def sending(self, asked: Sequence[Asked]) -> None:
        """Take in how timely a call is; a lease that is taken along before it is due is not late, nor is a retry."""
        with self._lock:
            for one in asked:
                self.margin.add(one.lease.expires_at_s - one.sent_at_s)
                if not one.lease.tries and one.lease.wanted_at_s <= one.sent_at_s:
                    self.lateness.add(one.sent_at_s - one.lease.wanted_at_s)

    def failed(self, errors: Sequence[Exception]) -> None:
        """Take in why entries were not renewed: the server's code, or the kind of what kept it from answering."""
        with self._lock:
            self.errors.update(map(class_of, errors))

    def called(self, asked: Sequence[Asked], verdicts: Sequence[Verdict], took_s: float) -> None:
        """Take in one call."""
        with self._lock:
            self.calls += 1
            self.entries += len(asked)
            self.took.add(took_s)
            self.verdicts.update(verdict.value for verdict in verdicts)


def class_of(error: Exception) -> str:
    """Return in a word what failed."""
    return plain_code(error.code) if isinstance(error, ClientError) else type(error).__name__
