"""What has passed through each queue at one node, since that began: as ``core.results.QueueCounts`` tells it.

Each node counts what it does itself, in memory, once the statement that did it has come back; the numbers of a store
are the sums over its nodes. (A transaction that is repeated afterwards may be counted twice.)
"""

from collections import Counter

from veilmq.engines.postgres.catalog import Queue


class Totals:
    """Messages by the number of their queue."""

    def __init__(self) -> None:
        """Begin with none."""
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self.redelivered: Counter[int] = Counter()
        self.deleted: Counter[int] = Counter()

    def stored(self, queue: Queue, messages: int) -> None:
        """Count what was sent; what is on its way to another database is not in the queue yet."""
        if not queue.away:
            self.sent[queue.number] += messages

    def forget(self, number: int) -> None:
        """Let go of a queue that was deleted; its number is never given again."""
        for counter in (self.sent, self.received, self.redelivered, self.deleted):
            counter.pop(number, None)
