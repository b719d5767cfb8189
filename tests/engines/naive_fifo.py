"""The naive model of a FIFO queue: one list in the order of sending, linear scans. It shares nothing with the product.

As in `naive`, a receive is checked, not foretold: of groups that could be had from the same millisecond on, an engine
may serve either first. Of one group it has to give all that it may, in order, before the next one's turn.
"""

from typing import Any

TWELVE_HOURS_MS = 43_200_000
FIVE_MINUTES_MS = 300_000

Row = dict[str, Any]


class NaiveFifo:
    """One FIFO queue; all instants are given by the caller."""

    def __init__(self, *, timeout_s: int, delay_s: int, retention_s: int, scope: str) -> None:
        """Begin empty; `scope` is what deduplication counts by: `queue` or `group`."""
        self.timeout_s = timeout_s
        self.delay_s = delay_s
        self.retention_s = retention_s
        self.scope = scope
        self.rows: list[Row] = []
        self.receipts: dict[str, Row] = {}
        self.accepted: dict[tuple[str, str], Row] = {}
        self.attempts: dict[str, Row] = {}
        self.last_sequence = -1
        self.tally = {"sent": 0, "deleted": 0, "expired": 0, "purged": 0}

    # What time does.

    def age(self, now_ms: int) -> None:
        """Delete what is past its retention."""
        kept = [row for row in self.rows if row["sent_at_ms"] + self.retention_s * 1_000 > now_ms]
        self.tally["expired"] += len(self.rows) - len(kept)
        self.rows = kept

    def counts(self, now_ms: int) -> tuple[int, int, int]:
        """Return how many are visible (in blocked groups too), in flight, delayed."""
        self.age(now_ms)
        hidden = [row for row in self.rows if row["visible_at_ms"] > now_ms]
        in_flight = len([row for row in hidden if row["count"] > 0])
        return len(self.rows) - len(hidden), in_flight, len(hidden) - in_flight

    def oldest_ms(self, now_ms: int) -> int | None:
        """Return when the oldest message was sent."""
        self.age(now_ms)
        return min((row["sent_at_ms"] for row in self.rows), default=None)

    def groups(self) -> dict[str, list[Row]]:
        """Return the messages of each group, in order."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row["group"], []).append(row)
        return groups

    def since_ms(self, rows: list[Row]) -> int:
        """Return from when on a group gives a message: behind all that it gave before, else the first visible one."""
        given: list[int] = [row["visible_at_ms"] for row in rows if row["count"]]
        waiting: list[int] = [row["visible_at_ms"] for row in rows]
        return max(given) if given else min(waiting)

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when the next message may be had."""
        self.age(now_ms)
        return min((max(self.since_ms(rows), now_ms) for rows in self.groups().values()), default=None)

    # What commands do.

    def send(self, now_ms: int, new: Row, answer: Row) -> None:
        """Store a message, or check that a duplicate was answered as the first one."""
        scope = new["group"] if self.scope == "group" else ""
        before = self.accepted.get((scope, new["dedup_id"]))
        if before is not None and now_ms < before["at_ms"] + FIVE_MINUTES_MS:
            assert (answer["id"], answer["sequence"]) == (before["id"], before["sequence"]), "a duplicate was accepted"
            return
        assert answer["sequence"] > self.last_sequence, "sequence numbers do not rise"
        self.last_sequence = answer["sequence"]
        self.accepted[scope, new["dedup_id"]] = {**answer, "at_ms": now_ms}
        wait_s = self.delay_s if new["delay_s"] is None else new["delay_s"]
        self.rows.append(
            {
                **answer,
                "body": new["body"],
                "group": new["group"],
                "sent_at_ms": now_ms,
                "visible_at_ms": now_ms + wait_s * 1_000,
                "count": 0,
                "issue": 0,
                "first_ms": None,
                "received_at_ms": None,
            }
        )
        self.tally["sent"] += 1

    def check_receive(
        self, now_ms: int, count: int, timeout_s: int | None, attempt: str | None, answer: list[Row]
    ) -> None:
        """Assert that `answer` is one that is allowed, and take it over."""
        self.age(now_ms)
        wait_ms = (self.timeout_s if timeout_s is None else timeout_s) * 1_000
        if attempt is not None and self.repeatable(now_ms, attempt):
            self._repeat(now_ms, self.attempts[attempt], wait_ms, answer)
            return
        taken = self._choose(now_ms, count, answer)
        for row, got in zip(taken, answer, strict=True):
            self._lease(row, got, now_ms, now_ms + wait_ms)
        if attempt is not None and answer:
            self.attempts[attempt] = {"at_ms": now_ms, "until_ms": now_ms + wait_ms, "answer": answer, "rows": taken}

    def _choose(self, now_ms: int, count: int, answer: list[Row]) -> list[Row]:
        """Follow the answer through the groups whose turn it is."""
        turns = {}
        for group, rows in self.groups().items():
            since_ms = self.since_ms(rows)
            if since_ms <= now_ms:
                turns[group] = (since_ms, [row for row in rows if row["visible_at_ms"] <= now_ms])
        offered = sum(len(rows) for _, rows in turns.values())
        assert len(answer) == min(count, offered), "a message that may be had was not given, or one too many"
        chosen: list[Row] = []
        while len(chosen) < len(answer):
            group = self._group_of(answer[len(chosen)], turns)
            since_ms, rows = turns.pop(group)
            assert all(since_ms <= other for other, _ in turns.values()), f"the group {group} came before its turn"
            for row, got in zip(rows, answer[len(chosen) :], strict=False):
                assert row["id"] == got["id"], f"{got['body']} came where {row['body']} is next in its group"
                chosen.append(row)
        return chosen

    def _group_of(self, got: Row, turns: dict[str, Any]) -> str:
        groups = [group for group, (_, rows) in turns.items() if any(row["id"] == got["id"] for row in rows)]
        assert groups, f"{got['body']} was given while its group was blocked, or it was hidden or deleted"
        return groups[0]

    def _lease(self, row: Row, got: Row, now_ms: int, until_ms: int) -> None:
        row["count"] += 1
        row["received_at_ms"] = now_ms
        row["visible_at_ms"] = until_ms
        if row["first_ms"] is None:
            row["first_ms"] = now_ms
        self._check_terms(row, got)
        self._issue(row, got["receipt"])

    def _check_terms(self, row: Row, got: Row) -> None:
        for name in ("body", "sent_at_ms", "count", "first_ms", "visible_at_ms", "sequence"):
            assert got[name] == row[name], f"{name} of {row['body']}"

    def _issue(self, row: Row, receipt: str) -> None:
        assert receipt not in self.receipts, "a receipt was issued twice"
        row["issue"] += 1
        self.receipts[receipt] = {"row": row, "issue": row["issue"]}

    # Attempts.

    def repeatable(self, now_ms: int, attempt: str) -> bool:
        """Tell whether the messages of that attempt are all as it left them."""
        made = self.attempts.get(attempt)
        return (
            made is not None
            and now_ms < made["at_ms"] + FIVE_MINUTES_MS
            and all(
                self.state(now_ms, got["receipt"]) == "live" and row["visible_at_ms"] == made["until_ms"]
                for got, row in zip(made["answer"], made["rows"], strict=True)
            )
        )

    def _repeat(self, now_ms: int, made: Row, wait_ms: int, answer: list[Row]) -> None:
        """Check that the same messages came with the same receipts."""
        until_ms = min(now_ms + wait_ms, made["rows"][0]["received_at_ms"] + TWELVE_HOURS_MS)
        assert [got["receipt"] for got in answer] == [got["receipt"] for got in made["answer"]], "another answer"
        for row, got in zip(made["rows"], answer, strict=True):
            row["visible_at_ms"] = until_ms
            self._check_terms(row, got)
        made["until_ms"] = until_ms

    # Receipts.

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

    def delete(self, now_ms: int, receipt: str) -> str:
        """Delete with a receipt, if it is live; return what it was."""
        state = self.state(now_ms, receipt)
        if state == "live":
            row = self.receipts[receipt]["row"]
            self.rows = [other for other in self.rows if other is not row]
            self.tally["deleted"] += 1
        return state

    def change(self, now_ms: int, receipt: str, timeout_s: int) -> tuple[str, int | None]:
        """Move a deadline; return what the receipt was and the deadline now in force, where it acted."""
        state = self.state(now_ms, receipt)
        if state != "live":
            return state, None
        row = self.receipts[receipt]["row"]
        until_ms = now_ms + timeout_s * 1_000
        if timeout_s and until_ms > row["received_at_ms"] + TWELVE_HOURS_MS:
            return "too long", None
        row["visible_at_ms"] = until_ms
        return state, until_ms

    def renew(self, receipt: str, renewed: str) -> None:
        """Note that a change replaced one receipt by another."""
        self._issue(self.receipts[receipt]["row"], renewed)

    def purge(self, now_ms: int) -> None:
        """Delete everything; what was sent is still remembered."""
        self.age(now_ms)
        self.tally["purged"] += len(self.rows)
        self.rows = []

    def check_conservation(self) -> None:
        """Assert that what was sent is still here or ended in one known way."""
        tally = self.tally
        assert tally["sent"] == len(self.rows) + tally["deleted"] + tally["expired"] + tally["purged"]
