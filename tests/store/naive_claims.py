"""The naive model of a queue with claims: one list of messages, and a dictionary for each source.

The model does not predict which messages a claim gets, nor when those of an ended claim return: it observes both, and
checks that they are allowed. The order of receives is checked by the other models.
"""

from typing import Any

from tests.store.naive import NaiveQueue, Row

FOREVER_MS = 1 << 61
CLAIMED, RETURNING, DOOMED = "claimed", "returning", "doomed"


class Refused(Exception):
    """A failing command; the argument is the name of the error's class."""


class NaiveClaims(NaiveQueue):
    """A standard or FIFO queue; `bound` is the state of a row in its claim."""

    fields = ("body", "sent_at_ms", "count", "first_ms", "visible_at_ms")

    def __init__(self, settings: Row, *, fifo: bool) -> None:
        super().__init__(settings)
        self.fifo = fifo
        self.sources: dict[str, Row] = {}

    def send(self, now_ms: int, message_id: bytes, body: str, group: str | None, delay_s: int | None) -> None:
        fields = {"id": message_id, "body": body, "group": group, "bound": None, "ended": False}
        self.store(now_ms, delay_s, {**fields, "follows": self.fifo and delay_s is None})

    def delete_expired(self, now_ms: int) -> None:
        """Delete expired messages; claimed ones end when they would return."""
        for row in self.rows:
            row["ended"] |= row["sent_at_ms"] + self.settings["retention_s"] * 1_000 <= now_ms
        self._drop([row for row in self.rows if row["ended"] and not row["bound"]], "expired")

    def _drop(self, gone: list[Row], how: str) -> None:
        ids = {row["id"] for row in gone}
        self.rows = [row for row in self.rows if row["id"] not in ids]
        self.counters[how] += len(gone)

    def offered(self, now_ms: int) -> list[Row]:
        self.delete_expired(now_ms)
        blocked = set()
        if self.fifo:
            blocked = {row["group"] for row in self.rows if row["count"] and row["visible_at_ms"] > now_ms}
        return [row for row in self.visible(now_ms) if row["group"] not in blocked or row["group"] is None]

    def counts(self, now_ms: int) -> tuple[int, int, int]:
        visible, in_flight, delayed = super().counts(now_ms)
        return visible, in_flight - len([row for row in self.rows if row["bound"] == DOOMED]), delayed

    def leased(self, now_ms: int) -> int:
        return len([row for row in self.rows if row["count"] and not row["bound"] and row["visible_at_ms"] > now_ms])

    def next_due_ms(self, now_ms: int) -> int | None:
        self.delete_expired(now_ms)
        if not self.fifo:
            free = [row for row in self.rows if not row["bound"]]
            return min((max(row["visible_at_ms"], now_ms) for row in free), default=None)
        instants = []
        for group in {row["group"] for row in self.rows}:
            rows = [row for row in self.rows if row["group"] == group]
            given = [row["visible_at_ms"] for row in rows if row["count"]]
            at_ms = max(given) if given else min(row["visible_at_ms"] for row in rows)
            if at_ms < FOREVER_MS:
                instants.append(max(at_ms, now_ms))
        return min(instants, default=None)

    def oldest_ms(self, now_ms: int) -> int | None:
        self.delete_expired(now_ms)
        return min((row["sent_at_ms"] for row in self.rows if not row["ended"]), default=None)

    def check_receive(self, now_ms: int, count: int, timeout_s: int | None, answer: list[Row]) -> None:
        offered = self.offered(now_ms)
        places = max(0, self.settings["in_flight_max"] - self.leased(now_ms))
        assert len(answer) == min(count, len(offered), places), "too few, or too many"
        for got in answer:
            row = self.one(got["id"])
            assert row in offered, f"{got['body']} was given while it was hidden, claimed, or blocked"
            offered.remove(row)
            self.lease(row, got, now_ms, timeout_s)

    def one(self, message_id: bytes) -> Row:
        (row,) = [row for row in self.rows if row["id"] == message_id]
        return row

    def state(self, now_ms: int, receipt: str, **rules: bool) -> str:
        """Return the state of a receipt; expired messages have none that acts, even while claimed."""
        row = self.receipts[receipt]["row"]
        if row["bound"] or self.fifo:
            rules = {**rules, "any_receive": False}  # receipts of claimed messages are superseded
        state = super().state(now_ms, receipt, **rules)
        return "gone" if row["ended"] else state

    def acts(self, state: str, *, only_live: bool) -> bool:
        return super().acts(state, only_live=only_live or self.fifo)

    def purge(self, now_ms: int) -> None:
        self.delete_expired(now_ms)
        self._drop([row for row in self.rows if row["bound"] == DOOMED], "deleted")
        super().purge(now_ms)
        for source in self.sources.values():
            self.give_up(source, "lost")

    def open(self, now_ms: int, name: str, consumer: str, *, takeover: bool, hold_s: int) -> None:
        rivals = [each for each in self.sources.values() if consumer and each["consumer"] == consumer]
        rivals = [each for each in rivals if each["name"] != name]
        for rival in rivals:
            self.expire(rival, now_ms)
            if self.holds(rival) and not takeover:
                raise Refused("ConsumerTaken")
        for rival in rivals:
            rival["epoch"] += 1
            rival["consumer"] = ""
            self.give_up(rival, "released")
        new = {"name": name, "epoch": 0, "acknowledged": 0, "last": 0, "claims": {}, "lost": []}
        source = self.sources.setdefault(name, {**new, "hold_until_ms": FOREVER_MS})
        self.expire(source, now_ms)
        source.update(consumer=consumer, epoch=source["epoch"] + 1, hold_s=hold_s)
        source["hold_until_ms"] = now_ms + hold_s * 1_000

    def holds(self, source: Row) -> bool:
        return any(claim["state"] in ("open", "binding") for claim in source["claims"].values())

    def expire(self, source: Row, now_ms: int) -> None:
        if now_ms >= source["hold_until_ms"]:
            self.give_up(source, "lost")

    def give_up(self, source: Row, state: str) -> None:
        for claim in source["claims"].values():
            self.end(claim, state)

    def end(self, claim: Row, state: str) -> None:
        if claim["state"] in ("open", "binding"):
            claim["state"] = state
            for row in claim["rows"]:
                row["bound"] = RETURNING

    def source(self, now_ms: int, name: str, epoch: int | None = None) -> Row:
        if name not in self.sources:
            raise Refused("SourceNotFound")
        source = self.sources[name]
        self.expire(source, now_ms)
        if epoch is not None and epoch != source["epoch"]:
            raise Refused("EpochFenced")
        return source

    def open_claim(self, source: Row, number: int) -> Row:
        if number <= source["acknowledged"]:
            raise Refused("ClaimAcknowledged")
        claim: Row = source["claims"].get(number, {"state": "lost"})
        if claim["state"] in ("lost", "released"):
            raise Refused("Claim" + claim["state"].capitalize())
        return claim

    def may_claim(self, now_ms: int, name: str, epoch: int, number: int) -> Row | None:
        """Return the claim of that number; `None` for a new one, which completes those before it."""
        source = self.source(now_ms, name, epoch)
        if number > source["last"] + 1:
            raise Refused("ClaimGap")
        if number <= source["last"]:
            return self.open_claim(source, number)
        for claim in source["claims"].values():
            claim["state"] = "open" if claim["state"] == "binding" else claim["state"]
        return None

    def bind(self, now_ms: int, name: str, number: int, members: set[bytes], *, more: bool) -> None:
        """Take over the members of a claim: all were available, and none of its earlier ones is missing."""
        source = self.sources[name]
        if number > source["last"]:
            source["claims"][number] = {"state": "binding", "rows": [], "bound_at_ms": now_ms}
            source["last"] = number
        claim = source["claims"][number]
        before = {row["id"] for row in claim["rows"]}
        assert before <= members, "a claim lost messages"
        assert members == before or claim["state"] == "binding", "a claim that was whole has grown"
        offered = self.offered(now_ms)
        for message_id in members - before:
            row = self.one(message_id)
            assert row in offered, f"{row['body']} was claimed while it was hidden, claimed, or blocked"
            row["bound"] = CLAIMED
            row["count"] += 1
            row["issue"] += 1
            row["visible_at_ms"] = FOREVER_MS
            row["first_ms"] = now_ms if row["first_ms"] is None else row["first_ms"]
            claim["rows"].append(row)
        claim["state"] = "binding" if more else "open"
        source["hold_until_ms"] = now_ms + source["hold_s"] * 1_000

    def acknowledge(self, now_ms: int, name: str, epoch: int, number: int) -> list[int]:
        """Delete a prefix of claims; return the numbers of lost ones."""
        source = self.source(now_ms, name, epoch)
        if number > source["last"]:
            raise Refused("ClaimGap")
        if number <= source["acknowledged"]:
            return source["lost"] if number == source["acknowledged"] else []
        covered = [each for each in source["claims"] if each <= number]
        claims = {each: source["claims"].pop(each) for each in covered}
        lost = [each for each, claim in claims.items() if claim["state"] in ("lost", "released")]
        for each, claim in claims.items():
            for row in claim["rows"] if each not in lost else []:
                row["bound"] = DOOMED
        source.update(acknowledged=number, lost=lost)
        return lost

    def settle(self, now_ms: int, claimed: set[bytes]) -> None:
        """Take over which messages are still claimed; the others of ended claims have returned or are deleted."""
        self.delete_expired(now_ms)
        for source in self.sources.values():
            self.expire(source, now_ms)
        for row in self.rows:
            if row["bound"] == CLAIMED:
                assert row["id"] in claimed, f"{row['body']} left an open claim"
        over = [row for row in self.rows if row["bound"] and row["id"] not in claimed]
        self._drop([row for row in over if row["bound"] == DOOMED], "deleted")
        for row in over:
            row["bound"] = None
            row["visible_at_ms"] = now_ms
        self.delete_expired(now_ms)

    def set(self, now_ms: int, settings: Row) -> None:
        """Change all settings; delayed messages of a FIFO queue follow its delay."""
        super().set(now_ms, settings)
        for row in self.rows:
            if row["follows"] and not row["count"]:
                row["visible_at_ms"] = row["sent_at_ms"] + settings["delay_s"] * 1_000


def expected_messages(rows: list[Row], claim: Row) -> list[dict[str, Any]]:
    of_claim = {"received_at_ms": claim["bound_at_ms"]}
    return [
        {name: row[name] for name in ("id", "body", "sent_at_ms")} | of_claim | {"receive_count": row["count"]}
        for row in rows
    ]
