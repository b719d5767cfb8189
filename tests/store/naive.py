"""What the naive models of queues share: one list, linear scans, plain dictionaries. Nothing is the product's.

They cannot know which of several messages that became visible in the same millisecond an engine takes, nor what a
receipt looks like; so a receive is *checked*: a model says what is wrong with an answer, and otherwise takes it over.
"""

import json
from typing import Any, ClassVar

TWELVE_HOURS_MS = 43_200_000

Row = dict[str, Any]


def kind_of(body: str) -> str | None:
    """Return the kind of work that a message is, by the number that its body ends with."""
    return ("quick", "slow", None)[int(body[-1]) % 3]


class NaiveQueue:
    """One queue of any kind; all instants are given by the caller."""

    terms: ClassVar[tuple[str, ...]] = ("body", "sent_at_ms", "count", "first_ms", "visible_at_ms")
    """What a received message must have as the model has it."""
    unfenced: ClassVar[bool] = True
    """Whether a receipt before the latest may act at all."""

    def __init__(self, settings: Row) -> None:
        """Begin empty; `settings` are named as the queue's own."""
        self.settings = settings
        self.rows: list[Row] = []
        self.receipts: dict[str, Row] = {}  # every receipt ever issued → its row, which issue it was, of which receive
        self.tally = {"sent": 0, "deleted": 0, "expired": 0, "purged": 0}

    # What time does.

    def age(self, now_ms: int) -> None:
        """Delete what is past its retention."""
        kept = [row for row in self.rows if row["sent_at_ms"] + self.settings["retention_s"] * 1_000 > now_ms]
        self.tally["expired"] += len(self.rows) - len(kept)
        self.rows = kept

    def visible(self, now_ms: int) -> list[Row]:
        """Return what may be received, were there no groups."""
        return [row for row in self.rows if row["visible_at_ms"] <= now_ms]

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

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when there is a next message to receive."""
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
        """Return for how long a receive hides what it takes, which was received so often before."""
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
        """Assert that what came is what is here."""
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
        """Tell whether a receipt in that state has an effect."""
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
        """Note that a change replaced one receipt by another."""
        self._issue(self.receipts[receipt]["row"], renewed)

    def purge(self, now_ms: int) -> None:
        """Delete everything."""
        self.age(now_ms)
        self.tally["purged"] += len(self.rows)
        self.rows = []

    def check_conservation(self) -> None:
        """Assert that what was sent is still here or ended in one known way."""
        ended = sum(number for name, number in self.tally.items() if name != "sent")
        assert self.tally["sent"] == len(self.rows) + ended
