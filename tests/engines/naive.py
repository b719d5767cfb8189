"""The naive model of a queue: one list, linear scans, plain dictionaries. It shares nothing with the product.

It cannot know which of several messages that became visible in the same millisecond an engine takes, nor what a
receipt looks like; so a receive is *checked*: the model says what is wrong with an answer, and otherwise takes it over.
"""

from typing import Any

TWELVE_HOURS_MS = 43_200_000

Row = dict[str, Any]


class NaiveQueue:
    """One queue; all instants are given by the caller."""

    def __init__(self, *, timeout_s: int, delay_s: int, retention_s: int, in_flight_max: int) -> None:
        """Begin empty."""
        self.in_flight_max = in_flight_max
        self.timeout_s = timeout_s
        self.delay_s = delay_s
        self.retention_s = retention_s
        self.rows: list[Row] = []
        self.receipts: dict[str, Row] = {}  # every receipt ever issued → its row and which issue it was
        self.tally = {"sent": 0, "deleted": 0, "expired": 0, "purged": 0}

    # What time does.

    def age(self, now_ms: int) -> None:
        """Delete what is past its retention."""
        kept = [row for row in self.rows if row["sent_at_ms"] + self.retention_s * 1_000 > now_ms]
        self.tally["expired"] += len(self.rows) - len(kept)
        self.rows = kept

    def visible(self, now_ms: int) -> list[Row]:
        """Return what may be received."""
        return [row for row in self.rows if row["visible_at_ms"] <= now_ms]

    def counts(self, now_ms: int) -> tuple[int, int, int]:
        """Return how many are visible, in flight, delayed."""
        self.age(now_ms)
        hidden = [row for row in self.rows if row["visible_at_ms"] > now_ms]
        in_flight = len([row for row in hidden if row["count"] > 0])
        return len(self.rows) - len(hidden), in_flight, len(hidden) - in_flight

    def oldest_ms(self, now_ms: int) -> int | None:
        """Return when the oldest message was sent."""
        self.age(now_ms)
        return min((row["sent_at_ms"] for row in self.rows), default=None)

    def is_full(self, now_ms: int) -> bool:
        """Return whether no more messages may be in flight."""
        return self.counts(now_ms)[1] >= self.in_flight_max

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when there is a next message to receive: one is visible and, at the quota, a lease has ended."""
        if self.is_full(now_ms):
            in_flight: list[int] = [row["visible_at_ms"] for row in self.rows if row["count"] > 0]
            return min(ends_at_ms for ends_at_ms in in_flight if ends_at_ms > now_ms)
        return min((max(row["visible_at_ms"], now_ms) for row in self.rows), default=None)

    # What commands do.

    def send(self, now_ms: int, message_id: bytes, body: str, delay_s: int | None, priority: int) -> None:
        """Store a message."""
        wait_s = self.delay_s if delay_s is None else delay_s
        row = {
            "id": message_id,
            "body": body,
            "priority": priority,
            "sent_at_ms": now_ms,
            "visible_at_ms": now_ms + wait_s * 1_000,
            "count": 0,
            "issue": 0,
            "first_ms": None,
            "received_at_ms": None,
        }
        self.rows.append(row)
        self.tally["sent"] += 1

    def check_receive(self, now_ms: int, count: int, timeout_s: int | None, answer: list[Row]) -> None:
        """Assert that `answer` is one that is allowed, and take it over."""
        self.age(now_ms)
        offered = self.visible(now_ms)
        places = max(0, self.in_flight_max - self.counts(now_ms)[1])
        due = min(count, len(offered), places)
        assert len(answer) == due, "a message that is visible was not delivered, or one too many"
        until_ms = now_ms + (self.timeout_s if timeout_s is None else timeout_s) * 1_000
        taken = [self._take(offered, got) for got in answer]  # all are chosen before the first is hidden
        for row, got in zip(taken, answer, strict=True):
            self._lease(row, got, now_ms, until_ms)

    def _take(self, offered: list[Row], got: Row) -> Row:
        rows = [row for row in offered if row["id"] == got["id"]]
        assert rows, f"{got['body']} was delivered while it was hidden, deleted, or twice in one answer"
        row = rows[0]
        first = min((other["priority"], other["visible_at_ms"]) for other in offered)
        assert (row["priority"], row["visible_at_ms"]) == first, f"{row['body']} came before one visible earlier"
        offered.remove(row)
        return row

    def _lease(self, row: Row, got: Row, now_ms: int, until_ms: int) -> None:
        row["count"] += 1
        row["received_at_ms"] = now_ms
        row["visible_at_ms"] = until_ms
        if row["first_ms"] is None:
            row["first_ms"] = now_ms
        for name in ("body", "priority", "sent_at_ms", "count", "first_ms", "visible_at_ms"):
            assert got[name] == row[name], f"{name} of {row['body']}"
        self._issue(row, got["receipt"])

    def _issue(self, row: Row, receipt: str) -> None:
        assert receipt not in self.receipts, "a receipt was issued twice"
        row["issue"] += 1
        self.receipts[receipt] = {"row": row, "issue": row["issue"]}

    def state(self, now_ms: int, receipt: str) -> str:
        """Return what a receipt of this queue is."""
        self.age(now_ms)
        issued = self.receipts[receipt]
        row = issued["row"]
        if not any(row is other for other in self.rows):
            return "gone"
        if issued["issue"] != row["issue"]:
            return "superseded"
        return "live" if now_ms < row["visible_at_ms"] else "expired"

    def delete(self, now_ms: int, receipt: str, *, only_live: bool) -> str:
        """Delete with a receipt; return what it was."""
        state = self.state(now_ms, receipt)
        if state == "live" or (state == "expired" and not only_live):
            row = self.receipts[receipt]["row"]
            self.rows = [other for other in self.rows if other is not row]
            self.tally["deleted"] += 1
        return state

    def change(self, now_ms: int, receipt: str, timeout_s: int, *, only_live: bool) -> tuple[str, int | None]:
        """Move a deadline; return what the receipt was and the deadline now in force, where it acted."""
        state = self.state(now_ms, receipt)
        if state != "live" and (state != "expired" or only_live):
            return state, None
        row = self.receipts[receipt]["row"]
        until_ms = now_ms + timeout_s * 1_000
        if until_ms > row["received_at_ms"] + TWELVE_HOURS_MS:
            return "too long", None
        row["visible_at_ms"] = until_ms
        return state, until_ms

    def renew(self, receipt: str, renewed: str) -> None:
        """Note that a change replaced one receipt by another."""
        self._issue(self.receipts[receipt]["row"], renewed)

    def purge(self, now_ms: int) -> None:
        """Delete everything."""
        self.age(now_ms)
        self.tally["purged"] += len(self.rows)
        self.rows = []

    def check_conservation(self) -> None:
        """Assert that what was sent is still here or ended in one known way."""
        tally = self.tally
        assert tally["sent"] == len(self.rows) + tally["deleted"] + tally["expired"] + tally["purged"]
