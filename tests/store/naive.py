"""What the naive models of queues share: one list, linear scans, plain dictionaries. Nothing is the product's.

They cannot know which of several messages that became visible in the same millisecond an engine takes, nor what a
receipt looks like; so a receive is *checked*: a model says what is wrong with an answer, and otherwise takes it over.
"""

import json
from collections import Counter
from typing import Any, ClassVar

TWELVE_HOURS_MS = 43_200_000

Row = dict[str, Any]


def kind_of(body: str) -> str | None:
    return ("quick", "slow", None)[int(body[-1]) % 3]


class NaiveQueue:
    """One queue of any kind; all instants are given by the caller."""

    terms: ClassVar[tuple[str, ...]] = ("body", "sent_at_ms", "count", "first_ms", "visible_at_ms")
    """What a received message must have as the model has it."""
    unfenced: ClassVar[bool] = True
    """Whether a receipt before the latest may act at all."""

    def __init__(self, settings: Row) -> None:
        self.settings = settings
        self.rows: list[Row] = []
        self.receipts: dict[str, Row] = {}  # every receipt ever issued → its row, which issue it was, of which receive
        self.tally = {"sent": 0, "deleted": 0, "expired": 0, "purged": 0}

    # What time does.

    def age(self, now_ms: int) -> None:
        kept = [row for row in self.rows if row["sent_at_ms"] + self.settings["retention_s"] * 1_000 > now_ms]
        self.tally["expired"] += len(self.rows) - len(kept)
        self.rows = kept

    def visible(self, now_ms: int) -> list[Row]:
        return [row for row in self.rows if row["visible_at_ms"] <= now_ms]

    def counts(self, now_ms: int) -> tuple[int, int, int]:
        self.age(now_ms)
        hidden = [row for row in self.rows if row["visible_at_ms"] > now_ms]
        in_flight = len([row for row in hidden if row["count"] > 0])
        return len(self.rows) - len(hidden), in_flight, len(hidden) - in_flight

    def oldest_ms(self, now_ms: int) -> int | None:
        self.age(now_ms)
        return min((row["sent_at_ms"] for row in self.rows), default=None)

    def next_due_ms(self, now_ms: int) -> int | None:
        self.age(now_ms)
        return min((max(row["visible_at_ms"], now_ms) for row in self.rows), default=None)

    # What commands do.

    def set(self, now_ms: int, settings: Row) -> None:
        """Change all settings; what ended before ended by the old ones."""
        self.age(now_ms)
        self.settings = settings

    def store(self, now_ms: int, delay_s: int | None, terms: Row, receipt: str | None = None) -> None:
        """Store a message that was sent; `terms` are what it has beside its times and counts.

        One that is delayed may have been answered with a `receipt`, no other one may.
        """
        wait_s = self.settings["delay_s"] if delay_s is None else delay_s
        times = {"sent_at_ms": now_ms, "visible_at_ms": now_ms + wait_s * 1_000}
        row = {**terms, **times, "count": 0, "issue": 0, "first_ms": None, "received_at_ms": None}
        self.rows.append(row)
        self.tally["sent"] += 1
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
        """Hide a message that was received, and check what came."""
        row["visible_at_ms"] = now_ms + self.wait_ms(row, timeout_s, receives=row["count"])
        row["count"] += 1
        row["received_at_ms"] = now_ms
        if row["first_ms"] is None:
            row["first_ms"] = now_ms
        self.check_terms(row, got)
        self._issue(row, got["receipt"])

    def check_terms(self, row: Row, got: Row) -> None:
        for name in self.terms:
            assert got[name] == row[name], f"{name} of {row['body']}"

    def _issue(self, row: Row, receipt: str) -> None:
        assert receipt not in self.receipts, "a receipt was issued twice"
        row["issue"] += 1
        self.receipts[receipt] = {"row": row, "issue": row["issue"], "receive": row["count"]}

    def state(self, now_ms: int, receipt: str, *, any_epoch: bool = False, any_receive: bool = False) -> str:
        """Return what a receipt of this queue is.

        With `any_epoch`, any one of the latest receive may be live; with `any_receive`, one before it may act.
        """
        self.age(now_ms)
        issued = self.receipts[receipt]
        row = issued["row"]
        if not any(row is other for other in self.rows):
            return "gone"
        if issued["receive"] != row["count"] or (issued["issue"] != row["issue"] and not any_epoch):
            return "earlier" if any_receive and self.unfenced else "superseded"
        return "live" if now_ms < row["visible_at_ms"] else "expired"

    def acts(self, state: str, *, only_live: bool) -> bool:
        return state == "live" or (state in ("expired", "earlier") and not only_live)

    def delete(self, now_ms: int, receipt: str, *, only_live: bool = False, **judged: bool) -> str:
        """Delete with a receipt; return what it was, `judged` as by `state`."""
        state = self.state(now_ms, receipt, **judged)
        if self.acts(state, only_live=only_live):
            row = self.receipts[receipt]["row"]
            self.rows = [other for other in self.rows if other is not row]
            self.tally["deleted"] += 1
        return state

    def change(
        self,
        now_ms: int,
        receipt: str,
        timeout_s: int,
        *,
        only_live: bool = False,
        bounded: bool = True,
        **judged: bool,
    ) -> tuple[str, int | None]:
        """Move a deadline; return what the receipt was and the deadline now in force, where it acted.

        `bounded` says that a lease lasts twelve hours at the most; of what nobody has received there is none.
        """
        state = self.state(now_ms, receipt, **judged)
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
        self.age(now_ms)
        self.tally["purged"] += len(self.rows)
        self.rows = []

    def check_conservation(self) -> None:
        ended = sum(number for name, number in self.tally.items() if name != "sent")
        assert self.tally["sent"] == len(self.rows) + ended


# The naive model of a standard queue without groups: by priority, then by when each became visible.


class NaiveStandard(NaiveQueue):
    """One standard queue with a quota of messages in flight."""

    terms = (*NaiveQueue.terms, "priority")

    def is_full(self, now_ms: int) -> bool:
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


# The naive model of a FIFO queue: one list in the order of sending, linear scans. It shares nothing with the product.
#
# A message without a delay of its own, and never received, is due so long after its sending as the queue's delay is
# at present. (One whose send was answered with a receipt has the delay of that answer.)
#
# As in `naive`, a receive is checked, not foretold: of groups that could be had from the same millisecond on, an
# engine may serve either first. Of one group it has to give all that it may, in order, before the next one's turn.


FIVE_MINUTES_MS = 300_000


class NaiveFifo(NaiveQueue):
    """One FIFO queue; what was sent is remembered until it is purged."""

    terms = (*NaiveQueue.terms, "sequence")

    def __init__(self, settings: Row) -> None:
        super().__init__(settings)
        self.accepted: dict[tuple[str, str], Row] = {}
        self.attempts: dict[str, Row] = {}
        self.last_sequence = -1

    # Groups.

    def groups(self) -> dict[str, list[Row]]:
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
        self.age(now_ms)
        return min((max(self.since_ms(rows), now_ms) for rows in self.groups().values()), default=None)

    # What commands do.

    def send(self, now_ms: int, new: Row, answer: Row) -> None:
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
        super().set(now_ms, settings)
        for row in self.rows:
            due_ms = row["sent_at_ms"] + settings["delay_s"] * 1_000
            if not row["has_delay"] and not row["count"] and row["visible_at_ms"] != due_ms:
                row.update(visible_at_ms=due_ms, is_changed=True)

    def purge(self, now_ms: int) -> None:
        super().purge(now_ms)
        self.accepted = {}

    def check_receive(
        self, now_ms: int, count: int, timeout_s: int | None, attempt: str | None, answer: list[Row]
    ) -> None:
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


# The naive model of a fair queue: one list, linear scans, and an account of who took how much. It shares nothing.
#
# Which groups are noisy a model cannot always know: that depends on when an engine looked. So a group is *loud* when
# it takes too much at this instant, *quiet* when it did so at no instant at which an engine may have looked since it
# was drained, silent for five minutes or forgotten by a restart, and may be either otherwise. A receive is checked:
# it may not give a loud group's message while a quiet one's is visible, and what is visible first comes first.


SILENCE_MS = 300_000
LATE_MS = 1_000  # whoever stood aside is looked at once a second
HALF_LIFE_MS = 60_000
SLACK = 1e-6


class NaiveFair(NaiveQueue):
    """One standard queue whose messages may have groups; all instants are given by the caller."""

    def __init__(self, settings: Row, *, in_flight_min: int, share_percent: int) -> None:
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
        since_ms = max(self.last_sent_ms[group], self.known_since_ms.get(group, 0))
        return now_ms - since_ms >= SILENCE_MS + LATE_MS

    def is_loud(self, group: str | None, now_ms: int) -> bool:
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
        super().purge(now_ms)
        self.forget()
