"""Naive models of standard, FIFO and fair queues: one list, linear scans, no code of the product.

A model cannot predict which of the messages that became visible in one millisecond an engine returns, nor its
receipts. So it checks the reply to a receive, and then takes it over.
"""

import json
from collections import Counter
from typing import Any, ClassVar

TWELVE_HOURS_MS = 43_200_000

Row = dict[str, Any]


def kind_of(body: str) -> str | None:
    return ("quick", "slow", None)[int(body[-1]) % 3]


class NaiveQueue:
    fields: ClassVar[tuple[str, ...]] = ("body", "sent_at_ms", "count", "first_ms", "visible_at_ms")
    """Fields of a received message that are compared."""
    earlier_receipts_may_act: ClassVar[bool] = True

    def __init__(self, settings: Row) -> None:
        self.settings = settings
        self.rows: list[Row] = []
        self.receipts: dict[str, Row] = {}  # receipt → its row, its number among the row's receipts, its receive
        self.counters = {"sent": 0, "deleted": 0, "expired": 0, "purged": 0}

    def delete_expired(self, now_ms: int) -> None:
        kept = [row for row in self.rows if row["sent_at_ms"] + self.settings["retention_s"] * 1_000 > now_ms]
        self.counters["expired"] += len(self.rows) - len(kept)
        self.rows = kept

    def visible(self, now_ms: int) -> list[Row]:
        return [row for row in self.rows if row["visible_at_ms"] <= now_ms]

    def counts(self, now_ms: int) -> tuple[int, int, int]:
        self.delete_expired(now_ms)
        hidden = [row for row in self.rows if row["visible_at_ms"] > now_ms]
        in_flight = len([row for row in hidden if row["count"] > 0])
        return len(self.rows) - len(hidden), in_flight, len(hidden) - in_flight

    def oldest_ms(self, now_ms: int) -> int | None:
        self.delete_expired(now_ms)
        return min((row["sent_at_ms"] for row in self.rows), default=None)

    def next_due_ms(self, now_ms: int) -> int | None:
        self.delete_expired(now_ms)
        return min((max(row["visible_at_ms"], now_ms) for row in self.rows), default=None)

    def set(self, now_ms: int, settings: Row) -> None:
        self.delete_expired(now_ms)  # by the old settings
        self.settings = settings

    def store(self, now_ms: int, delay_s: int | None, fields: Row, receipt: str | None = None) -> None:
        """Store a sent message with its `fields`; only a delayed one may have a `receipt`."""
        wait_s = self.settings["delay_s"] if delay_s is None else delay_s
        times = {"sent_at_ms": now_ms, "visible_at_ms": now_ms + wait_s * 1_000}
        row = {**fields, **times, "count": 0, "issue": 0, "first_ms": None, "received_at_ms": None}
        self.rows.append(row)
        self.counters["sent"] += 1
        if receipt is not None:
            assert wait_s, "a receipt of a message that is not delayed"
            self._issue(row, receipt)

    def wait_ms(self, row: Row, timeout_s: int | None, *, receives: int) -> int:
        rules = json.loads(self.settings.get("visibility_rules") or "null")
        if timeout_s is not None or rules is None:
            wait_s: int = self.settings["visibility_timeout_s"] if timeout_s is None else timeout_s
            return wait_s * 1_000
        timeouts_s: list[int] = [each["visibility_timeout_s"] for each in rules["classes"]]
        first = rules["keys"].get(kind_of(row["body"]), rules["default"])
        return (timeouts_s[first:] + timeouts_s[-1:] * receives)[receives] * 1_000

    def lease(self, row: Row, got: Row, now_ms: int, timeout_s: int | None) -> None:
        row["visible_at_ms"] = now_ms + self.wait_ms(row, timeout_s, receives=row["count"])
        row["count"] += 1
        row["received_at_ms"] = now_ms
        if row["first_ms"] is None:
            row["first_ms"] = now_ms
        self.check_fields(row, got)
        self._issue(row, got["receipt"])

    def check_fields(self, row: Row, got: Row) -> None:
        for name in self.fields:
            assert got[name] == row[name], f"{name} of {row['body']}"

    def _issue(self, row: Row, receipt: str) -> None:
        assert receipt not in self.receipts, "a receipt was issued twice"
        row["issue"] += 1
        self.receipts[receipt] = {"row": row, "issue": row["issue"], "receive": row["count"]}

    def state(self, now_ms: int, receipt: str, *, any_epoch: bool = False, any_receive: bool = False) -> str:
        """Return the state of a receipt.

        With `any_epoch`, any receipt of the latest receive may be live; with `any_receive`, earlier ones may act.
        """
        self.delete_expired(now_ms)
        issued = self.receipts[receipt]
        row = issued["row"]
        if not any(row is other for other in self.rows):
            return "gone"
        if issued["receive"] != row["count"] or (issued["issue"] != row["issue"] and not any_epoch):
            return "earlier" if any_receive and self.earlier_receipts_may_act else "superseded"
        return "live" if now_ms < row["visible_at_ms"] else "expired"

    def kind(self, now_ms: int, receipt: str) -> str:
        """Return the state of a receipt by strict and by lenient rules, or that it is of another queue."""
        if receipt not in self.receipts:
            return "foreign"
        return f"{self.state(now_ms, receipt)}, {self.state(now_ms, receipt, any_epoch=True)}"

    def acts(self, state: str, *, only_live: bool) -> bool:
        return state == "live" or (state in ("expired", "earlier") and not only_live)

    def delete(self, now_ms: int, receipt: str, *, only_live: bool = False, **rules: bool) -> str:
        state = self.state(now_ms, receipt, **rules)
        if self.acts(state, only_live=only_live):
            row = self.receipts[receipt]["row"]
            self.rows = [other for other in self.rows if other is not row]
            self.counters["deleted"] += 1
        return state

    def change(
        self,
        now_ms: int,
        receipt: str,
        timeout_s: int,
        *,
        only_live: bool = False,
        bounded: bool = True,
        **rules: bool,
    ) -> tuple[str, int | None]:
        """Change a deadline; return the state of the receipt and the new deadline, if it acted.

        `bounded` limits leases to twelve hours; a message that was never received has no lease.
        """
        state = self.state(now_ms, receipt, **rules)
        if not self.acts(state, only_live=only_live):
            return state, None
        row = self.receipts[receipt]["row"]
        until_ms = now_ms + timeout_s * 1_000
        if bounded and row["count"] and until_ms > row["received_at_ms"] + TWELVE_HOURS_MS:
            return "too long", None
        row["visible_at_ms"] = until_ms
        return state, until_ms

    def renew(self, receipt: str, renewed: str) -> None:
        self._issue(self.receipts[receipt]["row"], renewed)

    def purge(self, now_ms: int) -> None:
        self.delete_expired(now_ms)
        self.counters["purged"] += len(self.rows)
        self.rows = []

    def check_conservation(self) -> None:
        ended = sum(number for name, number in self.counters.items() if name != "sent")
        assert self.counters["sent"] == len(self.rows) + ended


class NaiveStandard(NaiveQueue):
    """A standard queue with priorities and a limit of messages in flight."""

    fields = (*NaiveQueue.fields, "priority")

    def is_full(self, now_ms: int) -> bool:
        return bool(self.counts(now_ms)[1] >= self.settings["in_flight_max"])

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return the time of the next message; at the limit, the end of the next lease."""
        if self.is_full(now_ms):
            in_flight: list[int] = [row["visible_at_ms"] for row in self.rows if row["count"] > 0]
            return min(ends_at_ms for ends_at_ms in in_flight if ends_at_ms > now_ms)
        return super().next_due_ms(now_ms)

    def send(self, now_ms: int, new: Row, sent: Row) -> None:
        fields = {"id": sent["id"], "body": new["body"], "priority": new["priority"]}
        self.store(now_ms, new["delay_s"], fields, sent["receipt"])

    def check_receive(self, now_ms: int, count: int, timeout_s: int | None, answer: list[Row]) -> None:
        self.delete_expired(now_ms)
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


FIVE_MINUTES_MS = 300_000


class NaiveFifo(NaiveQueue):
    """A FIFO queue.

    A message without its own delay follows the queue's delay until its first receive, unless its send returned a
    receipt. An engine returns all ready messages of one group, in order, before the next group.
    """

    fields = (*NaiveQueue.fields, "sequence")

    def __init__(self, settings: Row) -> None:
        super().__init__(settings)
        self.deduplication_log: dict[tuple[str, str], Row] = {}
        self.attempts: dict[str, Row] = {}
        self.last_sequence = -1

    def groups(self) -> dict[str, list[Row]]:
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row["group"], []).append(row)
        return groups

    def place(self, rows: list[Row]) -> tuple[int, int]:
        """Return when the group became ready, and the sequence number that orders groups of one millisecond.

        With received messages, that is the end of their last lease, and the first of them. Otherwise it is the first
        message that became visible.
        """
        received = [row for row in rows if row["count"]]
        if received:
            return max(row["visible_at_ms"] for row in received), min(row["sequence"] for row in received)
        return min((row["visible_at_ms"], row["sequence"]) for row in rows)

    def ready_since_ms(self, rows: list[Row]) -> int:
        return self.place(rows)[0]

    def place_range(self, rows: list[Row], now_ms: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the earliest and latest place that the group may have among the ready groups.

        After a change of the queue's delay, groups with messages that followed it may keep their earlier order. On
        PostgreSQL such a message also places a group of which others have returned.
        """
        if any(row["is_changed"] and not row["count"] for row in rows):
            return (min(row["sent_at_ms"] for row in rows), 0), (now_ms + 1, 0)
        return (self.place(rows),) * 2

    def next_due_ms(self, now_ms: int) -> int | None:
        self.delete_expired(now_ms)
        return min((max(self.ready_since_ms(rows), now_ms) for rows in self.groups().values()), default=None)

    def send(self, now_ms: int, new: Row, answer: Row) -> None:
        scope = new["group"] if self.settings["deduplication_scope"] == "group" else ""
        before = self.deduplication_log.get((scope, new["dedup_id"])) if new["dedup_id"] is not None else None
        if before is not None and now_ms < before["at_ms"] + FIVE_MINUTES_MS:
            assert (answer["id"], answer["sequence"]) == (before["id"], before["sequence"]), "a duplicate was accepted"
            assert answer["receipt"] is None, "a receipt of a message that was not stored"
            return
        assert answer["sequence"] > self.last_sequence, "sequence numbers do not rise"
        self.last_sequence = answer["sequence"]
        if new["dedup_id"] is not None:
            self.deduplication_log[scope, new["dedup_id"]] = {**answer, "at_ms": now_ms}
        fields = {"id": answer["id"], "sequence": answer["sequence"], "body": new["body"], "group": new["group"]}
        self.store(now_ms, new["delay_s"], fields, answer["receipt"])

        self.rows[-1]["is_changed"] = False
        self.rows[-1]["has_delay"] = new["delay_s"] is not None or answer["receipt"] is not None

    def set(self, now_ms: int, settings: Row) -> None:
        super().set(now_ms, settings)
        for row in self.rows:
            due_ms = row["sent_at_ms"] + settings["delay_s"] * 1_000
            if not row["has_delay"] and not row["count"] and row["visible_at_ms"] != due_ms:
                row.update(visible_at_ms=due_ms, is_changed=True)

    def purge(self, now_ms: int) -> None:
        super().purge(now_ms)
        self.deduplication_log = {}

    def check_receive(
        self, now_ms: int, count: int, timeout_s: int | None, attempt: str | None, answer: list[Row]
    ) -> None:
        self.delete_expired(now_ms)
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
        ready = {}
        for group, rows in self.groups().items():
            if self.ready_since_ms(rows) <= now_ms:
                ready[group] = (
                    self.place_range(rows, now_ms),
                    [row for row in rows if row["visible_at_ms"] <= now_ms],
                )
        offered = sum(len(rows) for _, rows in ready.values())
        assert len(answer) == min(count, offered), "too few or too many messages"
        chosen: list[Row] = []
        while len(chosen) < len(answer):
            group = self._group_of(answer[len(chosen)], ready)
            (place, _), rows = ready.pop(group)
            assert all(place <= other for (_, other), _ in ready.values()), f"the group {group} came out of order"
            for row, got in zip(rows, answer[len(chosen) :], strict=False):
                assert row["id"] == got["id"], f"{got['body']} came where {row['body']} is next in its group"
                chosen.append(row)
        return chosen

    def _group_of(self, got: Row, ready: dict[str, Any]) -> str:
        groups = [group for group, (_, rows) in ready.items() if any(row["id"] == got["id"] for row in rows)]
        assert groups, f"{got['body']} was given while its group was blocked, or it was hidden or deleted"
        return groups[0]

    earlier_receipts_may_act = False

    def acts(self, state: str, *, only_live: bool) -> bool:
        """Return whether a receipt acts: on FIFO queues only a live one does."""
        return super().acts(state, only_live=True)

    def repeatable(self, now_ms: int, attempt: str) -> bool:
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
        """Check that the attempt returned the same messages and receipts."""
        assert [got["receipt"] for got in answer] == [got["receipt"] for got in made["answer"]], "another answer"
        for row, got in zip(made["rows"], answer, strict=True):
            wait_ms = self.wait_ms(row, timeout_s, receives=row["count"] - 1)
            row["visible_at_ms"] = min(now_ms + wait_ms, row["received_at_ms"] + TWELVE_HOURS_MS)
            self.check_fields(row, got)
        made["until_ms"] = [row["visible_at_ms"] for row in made["rows"]]


SILENCE_MS = 300_000
LATE_MS = 1_000  # deprioritised groups are checked once a second
HALF_LIFE_MS = 60_000
SLACK = 1e-6


class NaiveFair(NaiveQueue):
    """A standard queue whose messages may have groups.

    Whether an engine regards a group as noisy depends on when it measures. So a group is *loud* if it exceeds its
    share now, and *quiet* if it did at no time at which an engine may have measured since the group was drained,
    silent for five minutes, or forgotten by a restart; otherwise it may be either. A receive must not return a
    message of a loud group while one of a quiet group is visible; otherwise the order is that of visibility.
    """

    def __init__(self, settings: Row, *, in_flight_min: int, share_percent: int) -> None:
        super().__init__(settings)
        self.in_flight_min = in_flight_min
        self.share = share_percent / 100
        self.counters["dead"] = 0
        self.last_sent_ms: dict[str, int] = {}
        self.forget()

    def forget(self) -> None:
        """Drop the state that an engine keeps in memory; its first measurement counts messages in flight anew."""
        self.unread = True
        self.blurred = False
        self.work: list[tuple[str, int, float]] = []  # group, when it ended, how long it took
        self.suspects: set[str] = set()
        self.known_since_ms: dict[str, int] = {}
        for row in self.rows:
            row["since_ms"] = None

    def measure(self, now_ms: int) -> None:
        self.delete_expired(now_ms)
        for row in self.rows:
            if self.unread and row["group"] and row["count"] and row["visible_at_ms"] > now_ms:
                self.known_since_ms.setdefault(row["group"], now_ms)
                row["since_ms"] = row["received_at_ms"]
            if row["since_ms"] is not None and row["visible_at_ms"] <= now_ms:
                self.end_processing(row, row["visible_at_ms"])
        self.unread = False
        self.suspects -= {group for group in self.suspects if self.is_silent(group, now_ms)}
        self.suspects |= {
            group for group in self.last_sent_ms if self.share_of(group, now_ms) > self.share * (1 - SLACK)
        }

    def may_measure(self, now_ms: int) -> None:
        """Record that an engine may have measured; the one on PostgreSQL does so for any receipt.

        Before the first measurement the model cannot know the engine's counters.
        """
        if not self.unread:
            self.measure(now_ms)
        elif any(row["group"] and row["count"] and row["visible_at_ms"] > now_ms for row in self.rows):
            self.blurred = True

    def end_processing(self, row: Row, at_ms: int) -> None:
        if row["since_ms"] is not None:
            assert at_ms >= row["since_ms"], "processing ended before it began"
            self.work.append((row["group"], at_ms, at_ms - row["since_ms"]))
            row["since_ms"] = None

    def share_of(self, group: str, now_ms: int) -> float:
        """Return the group's share of messages in flight (from `in_flight_min` on) or of processing time, if larger."""
        flying = Counter(row["group"] for row in self.rows if row["count"] and row["visible_at_ms"] > now_ms)
        work = Counter[str]()
        for name, ended_ms, held_ms in self.work:
            work[name] += held_ms * 0.5 ** ((now_ms - ended_ms) / HALF_LIFE_MS)
        in_flight = flying[group] / flying.total() if flying[group] >= self.in_flight_min else 0.0
        return max(in_flight, work[group] / work.total() if work[group] >= 1 else 0.0)

    def is_silent(self, group: str, now_ms: int) -> bool:
        since_ms = max(self.last_sent_ms[group], self.known_since_ms.get(group, 0))
        return now_ms - since_ms >= SILENCE_MS + LATE_MS

    def is_loud(self, group: str | None, now_ms: int) -> bool:
        if group is None or self.blurred or now_ms - self.last_sent_ms[group] >= SILENCE_MS:
            return False
        return self.share_of(group, now_ms) > self.share * (1 + SLACK)

    def is_quiet(self, group: str | None) -> bool:
        """Return whether the group is certainly not noisy; a message without a group is its own tenant."""
        return group is None or not (self.blurred or group in self.suspects)

    def delete_expired(self, now_ms: int) -> None:
        """Delete expired messages; the processing time of those in flight is unknown."""
        before = self.rows
        super().delete_expired(now_ms)
        if len(self.rows) < len(before) and any(row["since_ms"] is not None for row in before):
            self.blurred = True

    def send(self, now_ms: int, new: Row, sent: Row) -> None:
        group = new["group"]
        self.delete_expired(now_ms)
        if group is not None:
            if group in self.last_sent_ms and self.is_silent(group, now_ms):
                self.suspects.discard(group)
            self.last_sent_ms[group] = now_ms
        fields = {"id": sent["id"], "body": new["body"], "group": group, "since_ms": None}
        self.store(now_ms, new["delay_s"], fields, sent["receipt"])

    def check_receive(
        self, now_ms: int, count: int, timeout_s: int | None, answer: list[Row], dead: list[bytes], receives_max: int
    ) -> None:
        """Check the reply and the moved `dead` letters, and take both over."""
        self.measure(now_ms)
        offered = self.visible(now_ms)
        for message_id in dead:
            row = self._find(offered, message_id, "dead-lettered while it was hidden or deleted")
            assert receives_max, "dead-lettered without a limit"
            assert row["count"] >= receives_max, "dead-lettered too early"
            offered.remove(row)
            self.rows.remove(row)
        self.counters["dead"] += len(dead)
        assert len(answer) == min(count, len(offered)), "a visible message was not delivered, or one too many"
        loud = {group for group in self.last_sent_ms if self.is_loud(group, now_ms)}
        taken = [self._take(offered, got, loud, now_ms) for got in answer]  # all are chosen before the first is hidden
        assert not receives_max or all(row["count"] < receives_max for row in taken), "a message was received too often"
        self.suspects -= {row["group"] for row in taken} - {row["group"] for row in offered}  # drained
        for row, got in zip(taken, answer, strict=True):
            self.lease(row, got, now_ms, timeout_s)
        self.measure(now_ms)

    def _find(self, rows: list[Row], message_id: bytes, otherwise: str) -> Row:
        found = [row for row in rows if row["id"] == message_id]
        assert found, otherwise
        return found[0]

    def _take(self, offered: list[Row], got: Row, loud: set[str], now_ms: int) -> Row:
        row = self._find(offered, got["id"], f"{got['body']} was delivered while hidden, deleted, or twice at once")
        quiet = [other for other in offered if self.is_quiet(other["group"])]
        first_ms = min((other["visible_at_ms"] for other in quiet), default=now_ms)
        if quiet:
            assert row["group"] not in loud, f"{row['body']} came before a quiet group's message"
            assert row["visible_at_ms"] <= first_ms, f"{row['body']} came before one visible earlier"
        elif {other["group"] for other in offered} <= loud:
            flying = Counter(
                other["group"] for other in self.rows if other["visible_at_ms"] > now_ms and other["count"]
            )
            least = min(flying[other["group"]] for other in offered)
            assert flying[row["group"]] == least, f"{row['body']} is not of the group with the fewest in flight"
            mine = [other["visible_at_ms"] for other in offered if other["group"] == row["group"]]
            assert row["visible_at_ms"] == min(mine), f"{row['body']} came before an earlier one of its group"
        offered.remove(row)
        return row

    def lease(self, row: Row, got: Row, now_ms: int, timeout_s: int | None) -> None:
        super().lease(row, got, now_ms, timeout_s)
        if row["group"] is not None:
            row["since_ms"] = now_ms
            self.known_since_ms.setdefault(row["group"], now_ms)

    def delete(self, now_ms: int, receipt: str, **how: bool) -> str:
        row = self._affected(now_ms, receipt, **how)
        if row is None or row["group"] is None:
            self.may_measure(now_ms)
        else:
            self.measure(now_ms)
            self.end_processing(row, now_ms)
        return super().delete(now_ms, receipt, **how)

    def _affected(
        self, now_ms: int, receipt: str, *, only_live: bool = False, bounded: bool = True, **rules: bool
    ) -> Row | None:
        has_effect = self.acts(self.state(now_ms, receipt, **rules), only_live=only_live)
        return self.receipts[receipt]["row"] if has_effect else None

    def change(self, now_ms: int, receipt: str, timeout_s: int, **how: bool) -> tuple[str, int | None]:
        """Change a deadline; a message that was visible again is being processed from now on, a delayed one is not."""
        row = self._affected(now_ms, receipt, **how)
        if row is None or row["group"] is None or not row["count"]:
            self.may_measure(now_ms)
        else:
            self.measure(now_ms)  # before the new deadline, which would make the processing time negative
            row["since_ms"] = now_ms if row["since_ms"] is None else row["since_ms"]
            self.known_since_ms.setdefault(row["group"], now_ms)
        return super().change(now_ms, receipt, timeout_s, **how)

    def purge(self, now_ms: int) -> None:
        super().purge(now_ms)
        self.forget()
