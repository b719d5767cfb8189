"""Claims in the tables of the SQLite store, and their costs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.host import QUEUE, RESTLESS, Host, hosting, message
from tests.store.host import fill as fill_up
from tests.store.postgres_host import on_sqlite
from tests.store.test_claims import (
    DEAD,
    acknowledge,
    claim,
    claim_whole,
    open_source,
    settle,
    view,
)
from veilmq.core import claims, commands
from veilmq.core.claims import ClaimState
from veilmq.core.commands import Command
from veilmq.core.errors import ConsumerTaken, StoreFull
from veilmq.store.claims import ClaimStep
from veilmq.store.sqlite.batch import Batch

SLICES = replace(RESTLESS, claim_slice_rows=40)
for_each_kind = pytest.mark.parametrize("kind", ["fresh", "returned", "fair", "fifo"])


def fill(host: Host, kind: str, count: int) -> None:
    host.create(fifo=kind == "fifo")
    names = [str(number) for number in range(count)]
    host.put(*(message(name, group=None if kind in {"fresh", "returned"} else name, dedup_id=name) for name in names))
    if kind == "returned":
        host.receive(count, timeout_s=0)


def test_messages_never_received_are_bound_as_runs(host: Host) -> None:
    """One row per send and per shard, none per message."""
    host.create()
    for _ in range(10):
        host.send(*("x" for _ in range(1_000)))
    open_source(host)
    before = host.written()
    assert claim(host, 1, 9_500, shard_messages=2_000) == claims.Bound(number=1, messages=9_500, shards=5)
    assert host.written() - before < 60
    assert (host.rows("ready"), host.rows("claimed"), host.rows("visibility")) == (1, 14, 0)
    assert host.counts() == (500, 9_500, 0)


@for_each_kind
def test_expired_claimed_messages_do_not_slow_sweeps(tmp_path: Path, kind: str) -> None:
    """Measured in hundreds of SQLite's virtual machine steps, when another message expires, and afterwards."""
    steps: list[int] = []
    for count in (200, 2_000):
        with hosting(tmp_path / f"{count}") as host:
            fill(host, kind, count)
            host.set_queue(retention_s=60)
            open_source(host)
            claim_whole(host, 1, count)
            host.advance(30_000)
            host.put(message("last", group="last", dedup_id="last"))
            host.stop()
            host.advance(60_000)
            steps.append(host.steps(lambda host=host: [host.counts() for _ in range(3)], 100))  # type: ignore[misc]
            assert host.counts() == (0, count, 0)
            host.check()
    assert steps[1] - steps[0] < 10


@for_each_kind
@pytest.mark.parametrize("end", ["purge", "drop"])
def test_messages_of_a_retired_partition_are_deleted_in_slices(tmp_path: Path, kind: str, end: str) -> None:
    """Claimed messages, and those of a claim that was just released; also after a restart."""
    with hosting(tmp_path / "store", options=SLICES) as host:
        fill(host, kind, 100)
        open_source(host)
        claim_whole(host, 1, 50)
        claim_whole(host, 2, 50)
        host.do(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))
        getattr(host, end)()
        host.reopen()
        if end == "purge":
            assert host.counts() == (0, 0, 0)
        settle(host)
        host.sweep()
        host.check()
        for table in ("message", "visibility", "ordered", "claimed", "claim WHERE is_ending"):
            assert host.rows(table) == 0, table
        assert host.rows("source") == (1 if end == "purge" else 0)


def test_a_refused_open_changes_nothing(host: Host) -> None:
    """The source's own hold has expired by then; that is rolled back, but its messages return later."""
    host.create()
    host.send("a", "b")
    for source, terms in (("s", {"consumer": "c", "hold_s": 100_000}), ("t", {"hold_s": 60})):
        open_source(host, source, **terms)
        host.do(claims.Claim(queue=QUEUE, source=source, epoch=1, number=1, messages_max=1))
    host.stop(ClaimStep)
    host.advance(60_000)
    with pytest.raises(ConsumerTaken):
        open_source(host, "t", consumer="c")
    assert host.counts() == (0, 2, 0)
    host.reopen()
    host.advance(5)
    assert host.counts() == (1, 1, 0)


def test_a_dead_letter_found_by_a_claim_leaves_no_group(host: Host) -> None:
    host.create(DEAD)
    host.create(dead_letter_queue=DEAD, receives_max=1)
    host.put(*(message(name, group=name, dedup_id=name) for name in "ab"))
    host.receive(1, timeout_s=0)
    open_source(host)
    assert claim_whole(host).messages == 1
    assert (host.counts(), host.counts(DEAD)) == ((0, 1, 0), (1, 0, 0))
    assert host.rows("fair_group") == 1


def test_a_batch_has_few_claim_slices(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.create()
    host.send(*(str(number) for number in range(3_000)))
    host.receive(3_000, timeout_s=0)
    host.stop(ClaimStep)
    claiming = []
    for source in "abcdef":
        open_source(host, source)
        claiming.append(claims.Claim(queue=QUEUE, source=source, epoch=1, number=1, messages_max=10_000))
    batches = []
    deliver = Batch.deliver

    def count(batch: Batch, until_s: float) -> bool:
        batches.extend([len(batch._entries)] if batch._entries else [])
        return deliver(batch, until_s)

    monkeypatch.setattr(Batch, "deliver", count)
    assert all(bound.more for bound in host.do_together(*claiming))
    assert batches == [3, 3]


def test_a_run_whose_return_takes_two_slices_returns_whole(host: Host) -> None:
    """The message of a group before it leaves an odd part of the slice's effort."""
    host.create()
    host.put(message("a", group="g"))
    host.send(*("b" for _ in range(1_500)))
    open_source(host)
    claim_whole(host, 1, 1_501)
    host.do(claims.CloseSource(queue=QUEUE, source="s"))
    settle(host)
    assert host.counts() == (1_501, 0, 0)
    host.check()


def test_a_claim_slice_without_space_does_not_block_deletes_of_its_batch(tmp_path: Path) -> None:
    """Returning messages needs more rows than there is space for; deletes free it."""
    with on_sqlite(tmp_path / "store").open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        host.create(visibility_timeout_s=600)
        for _ in range(9):
            host.send(*("small" for _ in range(1_000)))
        open_source(host)
        claim_whole(host, 1, 9_000)
        sent = fill_up(host)
        held = host.receive(len(sent))
        host.do(claims.CloseSource(queue=QUEUE, source="s"))
        host.advance(2_000)
        deleted: list[str] = []
        refused = 0
        for each in held:
            states, step = host.do_together(commands.Delete(queue=QUEUE, receipts=(each.receipt,)), ClaimStep())
            deleted += [state.value for state in states]
            refused += isinstance(step, StoreFull)
        assert deleted == ["live"] * len(sent)
        assert refused
        host.advance(10_000)
        settle(host)
        assert host.counts() == (9_000, 0, 0)
        host.crash()
        host.check()


def test_acknowledged_claims_are_deleted_first(tmp_path: Path) -> None:
    with hosting(tmp_path / "store", options=replace(RESTLESS, claim_slice_rows=10)) as host:
        fill(host, "returned", 100)
        for source in "st":
            open_source(host, source)
        claim_whole(host, 1, 50)
        host.do(claims.Claim(queue=QUEUE, source="t", epoch=1, number=1, messages_max=50))
        host.do(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))
        acknowledge(host, 1, source="t")
        visible = host.counts()[0]
        while host.rows("claim WHERE state = 'acknowledged'"):
            host.advance(5)
        assert host.counts()[0] == visible
        settle(host)
        assert host.rows("claim WHERE is_ending") == 0
        assert [each.state for each in view(host).claims] == [ClaimState.RELEASED]


# Slices.


@pytest.fixture
def sliced(tmp_path: Path) -> Iterator[Host]:
    """A store whose slices bind eight single messages, or delete forty."""
    with hosting(tmp_path / "store", options=SLICES) as host:
        yield host


@for_each_kind
@pytest.mark.parametrize("end", ["acknowledge", "release"])
def test_a_command_writes_no_more_rows_than_a_slice(sliced: Host, kind: str, end: str) -> None:
    """The limit is in rows, not time, and independent of the claim's size."""
    fill(sliced, kind, 300)
    open_source(sliced)
    rows = []

    def count(command: Command | None) -> Any:
        before = sliced.written()
        result = None
        if command is None:
            sliced.advance(5)
        else:
            result = sliced.do(command)
        rows.append(sliced.written() - before)
        return result

    more = True
    while more:
        more = count(claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=300)).more
    messages = view(sliced).claims[0].messages
    assert messages == 300
    if end == "acknowledge":
        count(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1))
        assert sliced.counts() == (0, 0, 0)
    else:
        count(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))
    for _ in range(200):
        count(None)
    assert sliced.counts() == ((0, 0, 0) if end == "acknowledge" else (300, 0, 0))
    assert max(rows) <= 3 * SLICES.claim_slice_rows + 10  # a message may have rows for body, lease and group
    assert rows[-1] == 0


def test_a_claim_waits_for_groups_of_a_claim_that_is_being_deleted(sliced: Host) -> None:
    """It does not return empty while messages of its groups are being deleted, but deletes a slice of them."""
    sliced.create(fifo=True)
    sliced.put(*(message(str(number), group=f"g{number % 2}", dedup_id=str(number)) for number in range(40)))
    open_source(sliced)
    assert claim_whole(sliced, 1, 40).messages == 8
    ending = claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1)
    following = claims.Claim(queue=QUEUE, source="s", epoch=1, number=2, messages_max=40)
    _, *bound = sliced.do_together(ending, *[following] * 3)
    assert [(each.messages, each.more) for each in bound] == [(0, True), (4, True), (8, True)]
    assert claim(sliced, 2, 40).messages == 8


@pytest.mark.parametrize("received", [False, True])
def test_slices_have_fewer_large_messages(sliced: Host, *, received: bool) -> None:
    """Reading their pages takes long when received messages are bound, and when any are deleted."""
    sliced.create()
    for _ in range(20):
        sliced.send("x" * 200_000)
    if received:
        while sliced.receive(20, timeout_s=1):
            pass  # a receive delivers half of a batch's bytes
        sliced.advance(1_000)
    open_source(sliced)
    assert claim(sliced, 1, 20).messages == (8 if received else 10)  # single messages, or runs of one send each
    claim_whole(sliced, 1, 20)
    left: list[int] = []

    def count(_: object) -> None:
        left.append(sliced.rows("message"))

    sliced.do_together(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1), on_result=count)
    assert left == [17]
    settle(sliced)
    assert sliced.counts() == (0, 0, 0)


@for_each_kind
def test_reading_a_page_does_not_scan_the_rest_of_the_claim(tmp_path: Path, kind: str) -> None:
    read_some = claims.ReadClaim(queue=QUEUE, source="s", number=1, messages_max=20)
    steps: list[int] = []
    for count in (200, 2_000):
        with hosting(tmp_path / f"{count}", options=SLICES) as host:
            fill(host, kind, count)
            open_source(host)
            claim_whole(host, 1, count)
            steps.append(host.steps(lambda host=host: host.do(read_some), 10))  # type: ignore[misc]
            assert len(host.do(read_some).messages) == 20
    assert steps[1] - steps[0] < 1_800  # each lease of a group is counted once, which limits the scan
