"""The naive model of a fair queue: one list, linear scans, and an account of who took how much. It shares nothing.

Which groups are noisy a model cannot always know: that depends on when an engine looked. So a group is *loud* when it
takes too much at this instant, *quiet* when it did so at no instant at which an engine may have looked since it was
drained, silent for five minutes or forgotten by a restart, and may be either otherwise. A receive is checked: it may
not give a loud group's message while a quiet one's is visible, and what is visible first comes first.
"""

from collections import Counter

from tests.store.naive import NaiveQueue, Row

SILENCE_MS = 300_000
LATE_MS = 1_000  # whoever stood aside is looked at once a second
HALF_LIFE_MS = 60_000
SLACK = 1e-6


class NaiveFair(NaiveQueue):
    """One standard queue whose messages may have groups; all instants are given by the caller."""

    def __init__(self, settings: Row, *, in_flight_min: int, share_percent: int) -> None:
        """Begin empty; a group is loud from `in_flight_min` in flight on, and above `share_percent`."""
        super().__init__(settings)
        self.in_flight_min = in_flight_min
        self.share = share_percent / 100
        self.tally["dead"] = 0
        self.last_sent_ms: dict[str, int] = {}
        self.forget()

    # What an engine remembers of its groups, in memory alone.

    def forget(self) -> None:
        """Begin anew, as after a restart: what is in flight is counted again when an engine first looks."""
        self.unread = True
        self.blurred = False
        self.work: list[tuple[str, int, float]] = []  # group, when it ended, how long it took
        self.suspects: set[str] = set()
        self.known_since_ms: dict[str, int] = {}
        for row in self.rows:
            row["since_ms"] = None

    def look(self, now_ms: int) -> None:
        """Count out what became visible, and note who takes too much."""
        self.age(now_ms)
        for row in self.rows:
            if self.unread and row["group"] and row["count"] and row["visible_at_ms"] > now_ms:
                self.known_since_ms.setdefault(row["group"], now_ms)
                row["since_ms"] = row["received_at_ms"]
            if row["since_ms"] is not None and row["visible_at_ms"] <= now_ms:
                self.land(row, row["visible_at_ms"])
        self.unread = False
        self.suspects -= {group for group in self.suspects if self.is_silent(group, now_ms)}
        self.suspects |= {group for group in self.last_sent_ms if self.takes(group, now_ms) > self.share * (1 - SLACK)}

    def glance(self, now_ms: int) -> None:
        """Note that an engine may have looked, as the one on PostgreSQL does whatever becomes of a receipt.

        Before the first look nobody knows then what it has counted.
        """
        if not self.unread:
            self.look(now_ms)
        elif any(row["group"] and row["count"] and row["visible_at_ms"] > now_ms for row in self.rows):
            self.blurred = True

    def land(self, row: Row, at_ms: int) -> None:
        """End a stretch of processing."""
        if row["since_ms"] is not None:
            assert at_ms >= row["since_ms"], "processing ended before it began"
            self.work.append((row["group"], at_ms, at_ms - row["since_ms"]))
            row["since_ms"] = None

    def takes(self, group: str, now_ms: int) -> float:
        """Return the greater one of the group's shares: of what is in flight, if it has enough there, and of work."""
        flying = Counter(row["group"] for row in self.rows if row["count"] and row["visible_at_ms"] > now_ms)
        work = Counter[str]()
        for name, ended_ms, held_ms in self.work:
            work[name] += held_ms * 0.5 ** ((now_ms - ended_ms) / HALF_LIFE_MS)
        in_flight = flying[group] / flying.total() if flying[group] >= self.in_flight_min else 0.0
        return max(in_flight, work[group] / work.total() if work[group] >= 1 else 0.0)

    def is_silent(self, group: str, now_ms: int) -> bool:
        """Tell whether the group surely counts as one that sent nothing for five minutes."""
        since_ms = max(self.last_sent_ms[group], self.known_since_ms.get(group, 0))
        return now_ms - since_ms >= SILENCE_MS + LATE_MS

    def is_loud(self, group: str | None, now_ms: int) -> bool:
        """Tell whether the group is surely noisy."""
        if group is None or self.blurred or now_ms - self.last_sent_ms[group] >= SILENCE_MS:
            return False
        return self.takes(group, now_ms) > self.share * (1 + SLACK)

    def is_quiet(self, group: str | None) -> bool:
        """Tell whether the group is surely not; a message without one is a tenant of its own."""
        return group is None or not (self.blurred or group in self.suspects)

    def age(self, now_ms: int) -> None:
        """Delete what is past its retention; how long what ended in flight was processed, nobody can say."""
        before = self.rows
        super().age(now_ms)
        if len(self.rows) < len(before) and any(row["since_ms"] is not None for row in before):
            self.blurred = True

    # What commands do.

    def send(self, now_ms: int, new: Row, sent: Row) -> None:
        """Store a message; `new` is what was sent, `sent` the answer."""
        group = new["group"]
        self.age(now_ms)
        if group is not None:
            if group in self.last_sent_ms and self.is_silent(group, now_ms):
                self.suspects.discard(group)
            self.last_sent_ms[group] = now_ms
        terms = {"id": sent["id"], "body": new["body"], "group": group, "since_ms": None}
        self.store(now_ms, new["delay_s"], terms, sent["receipt"])

    def check_receive(
        self, now_ms: int, count: int, timeout_s: int | None, answer: list[Row], dead: list[bytes], receives_max: int
    ) -> None:
        """Assert that `answer` is one that is allowed, and that the `dead` ones had to die; take both over."""
        self.look(now_ms)
        offered = self.visible(now_ms)
        for message_id in dead:
            row = self._find(offered, message_id, "died while it was hidden or deleted")
            assert receives_max, "died without a limit"
            assert row["count"] >= receives_max, "died too early"
            offered.remove(row)
            self.rows.remove(row)
        self.tally["dead"] += len(dead)
        assert len(answer) == min(count, len(offered)), "a visible message was not delivered, or one too many"
        loud = {group for group in self.last_sent_ms if self.is_loud(group, now_ms)}
        taken = [self._take(offered, got, loud, now_ms) for got in answer]  # all are chosen before the first is hidden
        assert not receives_max or all(row["count"] < receives_max for row in taken), "a message lived too long"
        self.suspects -= {row["group"] for row in taken} - {row["group"] for row in offered}  # drained
        for row, got in zip(taken, answer, strict=True):
            self.lease(row, got, now_ms, timeout_s)
        self.look(now_ms)

    def _find(self, rows: list[Row], message_id: bytes, otherwise: str) -> Row:
        found = [row for row in rows if row["id"] == message_id]
        assert found, otherwise
        return found[0]

    def _take(self, offered: list[Row], got: Row, loud: set[str], now_ms: int) -> Row:
        row = self._find(offered, got["id"], f"{got['body']} was delivered while hidden, deleted, or twice at once")
        calm = [other for other in offered if self.is_quiet(other["group"])]
        first_ms = min((other["visible_at_ms"] for other in calm), default=now_ms)
        if calm:
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
        """Hide a message that was received, and count its group in."""
        super().lease(row, got, now_ms, timeout_s)
        if row["group"] is not None:
            row["since_ms"] = now_ms
            self.known_since_ms.setdefault(row["group"], now_ms)

    def delete(self, now_ms: int, receipt: str, **how: bool) -> str:
        """Delete with a receipt, and count its group out; return what it was."""
        row = self._affected(now_ms, receipt, **how)
        if row is None or row["group"] is None:
            self.glance(now_ms)
        else:
            self.look(now_ms)
            self.land(row, now_ms)
        return super().delete(now_ms, receipt, **how)

    def _affected(
        self, now_ms: int, receipt: str, *, only_live: bool = False, bounded: bool = True, **judged: bool
    ) -> Row | None:
        has_effect = self.acts(self.state(now_ms, receipt, **judged), only_live=only_live)
        return self.receipts[receipt]["row"] if has_effect else None

    def change(self, now_ms: int, receipt: str, timeout_s: int, **how: bool) -> tuple[str, int | None]:
        """Move a deadline; a message that was visible again is processed from now on, a delayed one is not."""
        row = self._affected(now_ms, receipt, **how)
        if row is None or row["group"] is None or not row["count"]:
            self.glance(now_ms)
        else:
            self.look(now_ms)  # what it was processed before ends here; a look afterwards would count it backwards
            row["since_ms"] = now_ms if row["since_ms"] is None else row["since_ms"]
            self.known_since_ms.setdefault(row["group"], now_ms)
        return super().change(now_ms, receipt, timeout_s, **how)

    def purge(self, now_ms: int) -> None:
        """Delete everything."""
        super().purge(now_ms)
        self.forget()
