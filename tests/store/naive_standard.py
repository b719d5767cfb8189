"""The naive model of a standard queue without groups: by priority, then by when each became visible."""

from tests.store.naive import NaiveQueue, Row


class NaiveStandard(NaiveQueue):
    """One standard queue with a quota of messages in flight."""

    terms = (*NaiveQueue.terms, "priority")

    def is_full(self, now_ms: int) -> bool:
        """Return whether no more messages may be in flight."""
        return bool(self.counts(now_ms)[1] >= self.settings["in_flight_max"])

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when there is a next message to receive: one is visible and, at the quota, a lease has ended."""
        if self.is_full(now_ms):
            in_flight: list[int] = [row["visible_at_ms"] for row in self.rows if row["count"] > 0]
            return min(ends_at_ms for ends_at_ms in in_flight if ends_at_ms > now_ms)
        return super().next_due_ms(now_ms)

    def send(self, now_ms: int, new: Row, sent: Row) -> None:
        """Store a message; `new` is what was sent, `sent` the answer."""
        terms = {"id": sent["id"], "body": new["body"], "priority": new["priority"]}
        self.store(now_ms, new["delay_s"], terms, sent["receipt"])

    def check_receive(self, now_ms: int, count: int, timeout_s: int | None, answer: list[Row]) -> None:
        """Assert that `answer` is one that is allowed, and take it over."""
        self.age(now_ms)
        offered = self.visible(now_ms)
        places = max(0, self.settings["in_flight_max"] - self.counts(now_ms)[1])
        due = min(count, len(offered), places)
        assert len(answer) == due, "a message that is visible was not delivered, or one too many"
        taken = [self._take(offered, got) for got in answer]  # all are chosen before the first is hidden
        for row, got in zip(taken, answer, strict=True):
            self.lease(row, got, now_ms, timeout_s)

    def _take(self, offered: list[Row], got: Row) -> Row:
        rows = [row for row in offered if row["id"] == got["id"]]
        assert rows, f"{got['body']} was delivered while it was hidden, deleted, or twice in one answer"
        row = rows[0]
        first = min((other["priority"], other["visible_at_ms"]) for other in offered)
        assert (row["priority"], row["visible_at_ms"]) == first, f"{row['body']} came before one visible earlier"
        offered.remove(row)
        return row
