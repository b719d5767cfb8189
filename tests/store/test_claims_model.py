"""Random claims, receives, deletes, purges and restarts on an engine and on the naive model.

Slices are tiny, so that claims are bound and ended in several steps, interleaved with other commands.
"""

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.store.host import CLAIMED_SEQS, QUEUE, RESTLESS, Host
from tests.store.model_frame import ModelFrame, received_fields, run_model, settles_of
from tests.store.naive_claims import CLAIMED, NaiveClaims, Refused, expected_messages
from tests.store.postgres_host import RESTLESS as RESTLESS_NODE
from tests.store.postgres_host import PostgresHost
from veilmq.core import claims, commands
from veilmq.core.errors import VeilmqError
from veilmq.core.messages import NewMessage

TABLES = {False: "mq.msg", True: "mq.fifo_msg"}
SOURCES = st.sampled_from(("s", "t"))
CONSUMERS = st.sampled_from(("", "c", "c"))
HOLDS_S = st.sampled_from((1, 30, 100_000))
TIMEOUTS_S = st.sampled_from((0, 1, 30))
SETTINGS = st.fixed_dictionaries(
    {
        "visibility_timeout_s": TIMEOUTS_S,
        "delay_s": st.sampled_from((0, 0, 0, 1)),
        "retention_s": st.sampled_from((60, 345_600, 345_600)),
        "in_flight_max": st.sampled_from((3, 1_000)),
    }
)


class EngineAndModel(ModelFrame):
    times_ms = st.sampled_from((0, 1, 5, 1_000, 30_000, 60_000))

    def __init__(self) -> None:
        super().__init__()
        self.model: NaiveClaims

    @initialize(slice_rows=st.sampled_from((1, 9, 25, 1_000)), given=SETTINGS, fifo=st.booleans())
    def open_store(self, slice_rows: int, given: dict[str, Any], *, fifo: bool) -> None:
        self.host = self.opened(slice_rows)
        self.live.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": fifo, **given}))
        self.model = NaiveClaims(given, fifo=fifo)

    def opened(self, slice_rows: int) -> Host:
        if self.url is not None:
            return PostgresHost.on_empty(self.url, options=replace(RESTLESS_NODE, claim_slice_rows=slice_rows))
        options = replace(RESTLESS, free_space_reserve_bytes=0, claim_slice_rows=slice_rows)
        return self.host_type(self.base / "store", options=options)

    @rule(given=SETTINGS, kind=st.sampled_from(("set", "set", "purge")))
    def administer(self, given: dict[str, Any], kind: str) -> None:
        if kind == "purge":
            self.live.purge()
            self.model.purge(self.now_ms)
        else:
            self.live.set_queue(**given)
            self.model.set(self.now_ms, given)

    @rule(groups=st.text("abc.......", min_size=1, max_size=12), delay_s=st.sampled_from((None, None, None, 1)))
    def send(self, groups: str, delay_s: int | None) -> None:
        messages = []
        for letter in groups:
            self.bodies += 1
            body = f"{letter}{self.bodies}"
            group = letter if self.model.fifo or letter != "." else None
            messages.append(NewMessage(body=body, size_bytes=len(body), group=group, dedup_id=body, delay_s=delay_s))
        answers = self.live.put(*messages)
        for new, sent in zip(messages, answers, strict=True):
            self.model.send(self.now_ms, sent.id, new.body, new.group, delay_s)

    @rule(count=st.sampled_from((1, 2, 3, 10)), timeout_s=st.none() | TIMEOUTS_S)
    def receive(self, count: int, timeout_s: int | None) -> None:
        offered = {row["id"] for row in self.model.offered(self.now_ms)}
        assert set(self.peek(QUEUE, 10)) <= offered, "a peek showed a message that cannot be received"
        answer = self.live.do(commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s)).messages
        self.model.check_receive(self.now_ms, count, timeout_s, [received_fields(each) for each in answer])
        self.issued += [each.receipt for each in answer]
        if self.model.leased(self.now_ms) < self.model.settings["in_flight_max"]:
            self.check_due(self.live.due_ms(queue=QUEUE), self.model)

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), settles=settles_of(0, 0, 1, 30))
    def settle_receipts(self, data: st.DataObject, settles: list[dict[str, Any]]) -> None:
        self.settle_both(data, QUEUE, self.model, settles)

    @rule(source=SOURCES, consumer=CONSUMERS, hold_s=HOLDS_S, takeover=st.booleans())
    def open(self, source: str, consumer: str, hold_s: int, *, takeover: bool) -> None:
        command = claims.OpenSource(queue=QUEUE, source=source, consumer=consumer, takeover=takeover, hold_s=hold_s)
        self.both(command, lambda: self.model.open(self.now_ms, source, consumer, takeover=takeover, hold_s=hold_s))

    @precondition(lambda self: self.model.sources)
    @rule(data=st.data(), ahead=st.sampled_from((1, 1, 1, 0, 0, 2, -1)), count=st.sampled_from((1, 5, 30)))
    def claim(self, data: st.DataObject, ahead: int, count: int) -> None:
        name, epoch = self.draw_source(data)
        number = max(1, self.model.sources[name]["last"] + ahead)
        self.claim_once(name, epoch, number, count)

    @precondition(lambda self: self.model.sources)
    @rule(data=st.data(), count=st.sampled_from((5, 30)))
    def claim_whole(self, data: st.DataObject, count: int) -> None:
        name, epoch = self.draw_source(data, stale=False)
        number = self.model.sources[name]["last"] + 1
        while self.claim_once(name, epoch, number, count):
            pass

    def claim_once(self, name: str, epoch: int, number: int, count: int) -> bool:
        """Claim, and take over the members; return whether there are more."""
        now_ms = self.now_ms
        offered = {row["id"] for row in self.model.offered(now_ms)}  # released claims return more while it runs
        command = claims.Claim(
            queue=QUEUE, source=name, epoch=epoch, number=number, messages_max=count, shard_messages=3
        )
        bound = self.both(command, lambda: self.model.may_claim(now_ms, name, epoch, number))
        if bound is None:
            return False
        self.settle()
        offered &= {row["id"] for row in self.model.offered(now_ms)}
        before = self.model.sources[name]["claims"].get(number, {"rows": []})["rows"]
        if bound.more and not bound.messages and not bound.again:
            assert self.model.fifo, "only groups may block"
            return True
        if not bound.messages:
            assert not offered, "a visible message was not claimed"
            assert (bound.shards, bound.more, bound.again) == (0, False, False)
            self.check_due(bound.next_due_ms, self.model)
            return False
        self.model.bind(now_ms, name, number, self.members(name, number), more=bound.more)
        rows = self.model.sources[name]["claims"][number]["rows"]
        assert len(rows) == bound.messages
        assert bound.again is bool(before)
        left = offered - {row["id"] for row in rows}
        assert bound.more or len(rows) >= count or not left or before == rows, "too few"
        return bool(bound.more)

    @precondition(lambda self: self.model.sources)
    @rule(data=st.data(), page=st.sampled_from((1, 4, 100)))
    def read(self, data: st.DataObject, page: int) -> None:
        name, _ = self.draw_source(data)
        source = self.model.sources[name]
        number = data.draw(st.integers(max(1, source["acknowledged"]), source["last"] + 1))
        first = claims.ReadClaim(queue=QUEUE, source=name, number=number, messages_max=page)
        if self.both(first, lambda: self.model.open_claim(self.model.source(self.now_ms, name), number)) is None:
            return
        claim = source["claims"][number]
        claim["state"] = "open"
        shards = [self.pages(replace_shard(first, shard)) for shard in range(self.shards(name, number))]
        got = [each for shard in shards for each in shard]
        rows = {row["id"]: row for row in claim["rows"]}
        assert sorted(each.id for each in got) == sorted(rows), "a claim was not read whole, or something twice"
        truth = expected_messages([rows[each.id] for each in got], claim)
        assert [{field: getattr(each, field) for field in expected} for each, expected in zip(got, truth)] == truth  # noqa: B905
        homes: dict[Any, set[int]] = {}
        for shard, messages in enumerate(shards):
            for each in messages:
                homes.setdefault(rows[each.id]["group"] or each.id, set()).add(shard)
            if self.model.fifo:
                sequences = [each.sequence or 0 for each in messages]
                assert sequences == sorted(sequences)
        assert all(len(home) == 1 for home in homes.values()), "a group was spread over shards"

    def pages(self, command: claims.ReadClaim) -> list[claims.ClaimedMessage]:
        page = self.live.do(command)
        messages = list(page.messages)
        while page.cursor:
            page = self.live.do(claims.ReadClaim(**{**fields(command), "cursor": page.cursor}))
            messages += page.messages
        return messages

    @precondition(lambda self: self.model.sources)
    @rule(data=st.data(), behind=st.sampled_from((0, 0, 0, 1, -1)))
    def acknowledge(self, data: st.DataObject, behind: int) -> None:
        name, epoch = self.draw_source(data)
        number = max(0, self.model.sources[name]["last"] - behind)
        command = claims.AcknowledgeClaims(queue=QUEUE, source=name, epoch=epoch, number=number)
        lost: list[list[int]] = []
        answer = self.both(command, lambda: lost.append(self.model.acknowledge(self.now_ms, name, epoch, number)))
        if answer is not None:
            assert answer.lost == lost[0]
            assert answer.acknowledged == self.model.sources[name]["acknowledged"]

    @precondition(lambda self: self.model.sources)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        name, epoch = self.draw_source(data)
        now_ms = self.now_ms

        def beat() -> None:
            source = self.model.source(now_ms, name, epoch)
            source["hold_until_ms"] = now_ms + source["hold_s"] * 1_000

        self.both(claims.Heartbeat(queue=QUEUE, source=name, epoch=epoch), beat)

    @precondition(lambda self: self.model.sources)
    @rule(data=st.data(), behind=st.sampled_from((0, 0, 1, 2)))
    def release(self, data: st.DataObject, behind: int) -> None:
        name, _ = self.draw_source(data)
        number = max(1, self.model.sources[name]["last"] - behind)

        def give_back() -> None:
            source = self.model.source(self.now_ms, name)
            if source["claims"].get(number, {}).get("state") != "released":
                self.model.end(self.model.open_claim(source, number), "released")

        self.both(claims.ReleaseClaim(queue=QUEUE, source=name, number=number), give_back)

    @precondition(lambda self: self.model.sources)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name, _ = self.draw_source(data)

        def forget() -> None:
            self.model.give_up(self.model.source(self.now_ms, name), "released")
            del self.model.sources[name]

        self.both(claims.CloseSource(queue=QUEUE, source=name), forget, answers=False)

    def draw_source(self, data: st.DataObject, *, stale: bool = True) -> tuple[str, int]:
        name = data.draw(st.sampled_from(sorted(self.model.sources)))
        epoch = self.model.sources[name]["epoch"]
        return name, epoch - data.draw(st.sampled_from((0, 0, 0, 0, 1))) if stale else epoch

    def both(self, command: Any, naive: Any, *, answers: bool = True) -> Any:
        """Run it in both; assert the same error, or return the reply, `None` for an error."""
        try:
            naive()
            expected = None
        except Refused as refused:
            expected = refused.args[0]
        try:
            answer = self.live.do(command)
            assert expected is None, f"{expected} was expected"
            return answer if answers else True
        except VeilmqError as error:
            assert type(error).__name__ == expected  # noqa: PT017
            return None

    def members(self, name: str, number: int) -> set[bytes]:
        if self.url is not None:
            return self.query_database(
                "SELECT id FROM {table} "
                "WHERE claim = (SELECT claim_id FROM mq.claim WHERE number = $1 AND source = $2)",
                number,
                name,
            )
        return self.query_folder("WHERE claim.number = ? AND claim.source = ?", number, name)

    def claimed(self) -> set[bytes]:
        if self.url is not None:
            return self.query_database("SELECT id FROM {table} WHERE claim IS NOT NULL")
        return self.query_folder("")

    def query_database(self, query: str, *values: int | str) -> set[bytes]:
        return set(cast(PostgresHost, self.live).values(query.format(table=TABLES[self.model.fifo]), *values))

    def query_folder(self, condition: str, *values: int | str) -> set[bytes]:
        rows = self.live.engine._session.connection.execute(
            f"SELECT message.id FROM ({CLAIMED_SEQS}) JOIN claim USING (claim_id) JOIN message USING (seq) {condition}",
            values,
        )
        return {message for (message,) in rows}

    def shards(self, name: str, number: int) -> int:
        (view,) = [view for view in self.live.do(claims.ListSources(queue=QUEUE)) if view.source == name]
        (claim,) = [claim for claim in view.claims if claim.number == number]
        return int(claim.shards)

    def settle(self) -> None:
        for _ in range(2):
            self.live.in_loop(lambda: None)
        self.model.settle(self.now_ms, self.claimed())

    def compare(self) -> None:
        self.settle()
        counts = self.live.do(commands.ShowQueue(queue=QUEUE, counts=True)).counts
        assert (counts.visible, counts.in_flight, counts.delayed) == self.model.counts(self.now_ms)
        self.check_inspections(QUEUE, self.model.counts(self.now_ms))
        if not any(row["bound"] not in (None, CLAIMED) for row in self.model.rows):
            assert counts.oldest_sent_at_ms == self.model.oldest_ms(self.now_ms)
        self.model.check_conservation()
        views = {view.source: view for view in self.live.do(claims.ListSources(queue=QUEUE))}
        assert views.keys() == self.model.sources.keys()
        for name, source in self.model.sources.items():
            view = views[name]
            assert (view.epoch, view.acknowledged, view.last) == (
                source["epoch"],
                source["acknowledged"],
                source["last"],
            )
            states = {claim.number: (claim.state.value, claim.messages) for claim in view.claims}
            assert states == {each: (claim["state"], len(claim["rows"])) for each, claim in source["claims"].items()}


def fields(command: claims.ReadClaim) -> dict[str, Any]:
    return {name: getattr(command, name) for name in command.__struct_fields__}


def replace_shard(command: claims.ReadClaim, shard: int) -> claims.ReadClaim:
    return claims.ReadClaim(**{**fields(command), "shard": shard})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_claims_agree_with_the_model(model_url: str | None) -> None:
    run_model(EngineAndModel, examples=25, steps=30, url=model_url, url_examples=4)
