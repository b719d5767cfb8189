"""The naive model of a FIFO queue: one list in the order of sending, linear scans. It shares nothing with the product.

A message without a delay of its own, and never received, is due so long after its sending as the queue's delay is at
present. (One whose send was answered with a receipt has the delay of that answer.)

As in `naive`, a receive is checked, not foretold: of groups that could be had from the same millisecond on, an engine
may serve either first. Of one group it has to give all that it may, in order, before the next one's turn.
"""

from typing import Any

from tests.store.naive import TWELVE_HOURS_MS, NaiveQueue, Row

FIVE_MINUTES_MS = 300_000


class NaiveFifo(NaiveQueue):
    """One FIFO queue; what was sent is remembered until it is purged."""

    terms = (*NaiveQueue.terms, "sequence")

    def __init__(self, settings: Row) -> None:
        """Begin empty, with nothing sent before."""
        super().__init__(settings)
        self.accepted: dict[tuple[str, str], Row] = {}
        self.attempts: dict[str, Row] = {}
        self.last_sequence = -1

    # Groups.

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

    def turn_ms(self, rows: list[Row], now_ms: int) -> tuple[int, int]:
        """Return from when on a group may take its turn among those that give a message, at the earliest and latest.

        After a change of the queue's delay, groups that wait may keep the order of before among themselves.
        """
        if any(row["is_changed"] for row in rows) and not any(row["count"] for row in rows):
            return min(row["sent_at_ms"] for row in rows), now_ms
        return (self.since_ms(rows),) * 2

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when the next message may be had."""
        self.age(now_ms)
        return min((max(self.since_ms(rows), now_ms) for rows in self.groups().values()), default=None)

    # What commands do.

    def send(self, now_ms: int, new: Row, answer: Row) -> None:
        """Store a message, or check that a duplicate was answered as the first one."""
        scope = new["group"] if self.settings["deduplication_scope"] == "group" else ""
        before = self.accepted.get((scope, new["dedup_id"])) if new["dedup_id"] is not None else None
        if before is not None and now_ms < before["at_ms"] + FIVE_MINUTES_MS:
            assert (answer["id"], answer["sequence"]) == (before["id"], before["sequence"]), "a duplicate was accepted"
            assert answer["receipt"] is None, "a receipt of what was not stored"
            return
        assert answer["sequence"] > self.last_sequence, "sequence numbers do not rise"
        self.last_sequence = answer["sequence"]
        if new["dedup_id"] is not None:
            self.accepted[scope, new["dedup_id"]] = {**answer, "at_ms": now_ms}
        terms = {"id": answer["id"], "sequence": answer["sequence"], "body": new["body"], "group": new["group"]}
        self.store(now_ms, new["delay_s"], terms, answer["receipt"])

        self.rows[-1]["is_changed"] = False
        self.rows[-1]["has_delay"] = new["delay_s"] is not None or answer["receipt"] is not None

    def set(self, now_ms: int, settings: Row) -> None:
        """Change all settings; the delay of the queue is changed for what waits, too."""
        super().set(now_ms, settings)
        for row in self.rows:
            due_ms = row["sent_at_ms"] + settings["delay_s"] * 1_000
            if not row["has_delay"] and not row["count"] and row["visible_at_ms"] != due_ms:
                row.update(visible_at_ms=due_ms, is_changed=True)

    def purge(self, now_ms: int) -> None:
        """Delete everything, and forget what was sent."""
        super().purge(now_ms)
        self.accepted = {}

    def check_receive(
        self, now_ms: int, count: int, timeout_s: int | None, attempt: str | None, answer: list[Row]
    ) -> None:
        """Assert that `answer` is one that is allowed, and take it over."""
        self.age(now_ms)
        if attempt is not None and self.repeatable(now_ms, attempt):
            self._repeat(now_ms, self.attempts[attempt], timeout_s, answer)
            return
        taken = self._choose(now_ms, count, answer)
        for row, got in zip(taken, answer, strict=True):
            self.lease(row, got, now_ms, timeout_s)
        if attempt is not None and answer:
            until_ms = [row["visible_at_ms"] for row in taken]
            self.attempts[attempt] = {"at_ms": now_ms, "until_ms": until_ms, "answer": answer, "rows": taken}

    def _choose(self, now_ms: int, count: int, answer: list[Row]) -> list[Row]:
        """Follow the answer through the groups whose turn it is."""
        turns = {}
        for group, rows in self.groups().items():
            if self.since_ms(rows) <= now_ms:
                turns[group] = (self.turn_ms(rows, now_ms), [row for row in rows if row["visible_at_ms"] <= now_ms])
        offered = sum(len(rows) for _, rows in turns.values())
        assert len(answer) == min(count, offered), "a message that may be had was not given, or one too many"
        chosen: list[Row] = []
        while len(chosen) < len(answer):
            group = self._group_of(answer[len(chosen)], turns)
            (since_ms, _), rows = turns.pop(group)
            assert all(since_ms <= other for (_, other), _ in turns.values()), f"the group {group} came before its turn"
            for row, got in zip(rows, answer[len(chosen) :], strict=False):
                assert row["id"] == got["id"], f"{got['body']} came where {row['body']} is next in its group"
                chosen.append(row)
        return chosen

    def _group_of(self, got: Row, turns: dict[str, Any]) -> str:
        groups = [group for group, (_, rows) in turns.items() if any(row["id"] == got["id"] for row in rows)]
        assert groups, f"{got['body']} was given while its group was blocked, or it was hidden or deleted"
        return groups[0]

    unfenced = False

    def acts(self, state: str, *, only_live: bool) -> bool:
        """Tell whether a receipt in that state has an effect: once expired it has none, whatever was asked."""
        return super().acts(state, only_live=True)

    # Attempts.

    def repeatable(self, now_ms: int, attempt: str) -> bool:
        """Tell whether the messages of that attempt are all as it left them."""
        made = self.attempts.get(attempt)
        return (
            made is not None
            and now_ms < made["at_ms"] + FIVE_MINUTES_MS
            and all(
                self.state(now_ms, got["receipt"]) == "live" and row["visible_at_ms"] == until_ms
                for got, row, until_ms in zip(made["answer"], made["rows"], made["until_ms"], strict=True)
            )
        )

    def _repeat(self, now_ms: int, made: Row, timeout_s: int | None, answer: list[Row]) -> None:
        """Check that the same messages came with the same receipts."""
        assert [got["receipt"] for got in answer] == [got["receipt"] for got in made["answer"]], "another answer"
        for row, got in zip(made["rows"], answer, strict=True):
            wait_ms = self.wait_ms(row, timeout_s, receives=row["count"] - 1)
            row["visible_at_ms"] = min(now_ms + wait_ms, row["received_at_ms"] + TWELVE_HOURS_MS)
            self.check_terms(row, got)
        made["until_ms"] = [row["visible_at_ms"] for row in made["rows"]]
