"""Claims on the engine, a slice at a time: what one command does at most, and what comes of a cut between two."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.host import QUEUE, RESTLESS, Host, hosting, message
from tests.store.postgres_host import on_postgres
from tests.store.test_claims import (
    DEAD,
    acknowledge,
    claim,
    claim_whole,
    open_source,
    read,
    send_to_group,
    settle,
    view,
)
from veilmq.core import claims
from veilmq.core.claims import ClaimState
from veilmq.core.commands import Command

SLICES = replace(RESTLESS, claim_slice_rows=40)


@pytest.fixture
def in_rows(tmp_path: Path) -> Iterator[Host]:
    """A store whose slices are of eight messages that are taken singly, or of forty that are deleted."""
    with hosting(tmp_path / "store", options=SLICES) as host:
        yield host


@pytest.fixture(params=["sqlite", "postgres"])
def sliced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    if request.param == "sqlite":
        with hosting(tmp_path / "store", options=SLICES) as host:
            yield host
        return
    with on_postgres(request.getfixturevalue("postgres_url")).open(claim_slice_rows=8) as host:
        yield host


@pytest.mark.parametrize("kind", ["fresh", "returned", "fair", "fifo"])
def test_a_page_looks_once_at_most_at_what_is_behind_it(tmp_path: Path, kind: str) -> None:
    """In tens of steps of SQLite's machine, of a claim in many small ranges."""

    def count_a_step() -> bool:
        looked.append(None)
        return False

    steps: list[int] = []
    for count in (200, 2_000):
        with hosting(tmp_path / f"{count}", options=SLICES) as host:
            fill(host, kind, count)
            open_source(host)
            claim_whole(host, 1, count)
            looked: list[None] = []
            connection(host).set_progress_handler(count_a_step, 10)
            page = host.do(claims.ReadClaim(queue=QUEUE, source="s", number=1, messages_max=20))
            connection(host).set_progress_handler(None)
            assert len(page.messages) == 20
            steps.append(len(looked))
    assert steps[1] - steps[0] < 1_800  # each lease of a group is counted once, to bound what a page looks at


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("size_bytes", [900_000, 60_000], ids=["long", "short"])
def test_a_claim_is_no_longer_than_its_bytes(sliced: Host, size_bytes: int, fifo: bool) -> None:
    """Over slices and from claim to claim; nothing is left behind."""
    bytes_max, count = 2_500_000, 5 if size_bytes > 500_000 else 60
    if fifo:
        sliced.create(fifo=True)
    else:
        sliced.create()
    for place in range(count):
        group, dedup_id = (f"g{place}", str(place)) if fifo else (None, None)
        sliced.put(message("x" * size_bytes, group=group, dedup_id=dedup_id))
    open_source(sliced)
    bound: list[int] = []
    number = 0
    while sum(bound) < count:
        number += 1
        while (found := claim(sliced, number, bytes_max=bytes_max)).more:
            pass
        assert 0 < found.messages * size_bytes <= bytes_max
        bound.append(found.messages)
    assert len(bound) <= (3 if size_bytes > 500_000 else 6 if not fifo else 12)


def test_what_comes_back_to_a_group_comes_in_its_order(sliced: Host) -> None:
    sliced.create(fifo=True)
    open_source(sliced)
    send_to_group(sliced, *(f"a{number:02}" for number in range(12)), "b")
    assert claim_whole(sliced, 1, 100).messages < 13
    sliced.do(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))
    settle(sliced)
    got = [each.body for _ in range(13) for each in sliced.receive(10, timeout_s=600) if each.body != "b"]
    assert got == [f"a{number:02}" for number in range(len(got))]


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("count", [2, 30])
def test_a_claim_of_which_everything_was_evicted_is_bound_all_the_same(sliced: Host, count: int, *, fifo: bool) -> None:
    """Who asks for its number, and whole or not, hears that it is there, and goes on with the next one."""
    sliced.create(DEAD, fifo=fifo)
    sliced.create(fifo=fifo, dead_letter_queue=DEAD, receives_max=5)
    names = [str(number) for number in range(30)]
    new = tuple(message(name, group=name if fifo else None, dedup_id=name) for name in names)
    ids = [each.id for each in sliced.put(*new)]
    sliced.receive(30, timeout_s=0)
    open_source(sliced)
    bound = claim(sliced, 1, count)
    assert bound.more is (count == 30)
    sliced.receive(30, timeout_s=60)
    for each in ids[: bound.messages]:
        sliced.do(claims.EvictMessage(queue=QUEUE, source="s", number=1, message=each))
    assert claim(sliced, 1, count) == claims.Bound(number=1, messages=0, shards=1, again=True)
    sliced.advance(60_000)
    assert claim(sliced, 1, count) == claims.Bound(number=1, messages=0, shards=1, again=True)
    assert claim(sliced, 2, 2).messages == 2
    assert acknowledge(sliced, 1) == claims.Acknowledged(acknowledged=1, lost=[])


def fill(host: Host, kind: str, count: int) -> None:
    """Send messages: never received ones, returned ones, or such of groups."""
    host.create(fifo=kind == "fifo")
    for start in range(0, count, 100):
        messages = tuple(
            message(f"{number}", group=None if kind in {"fresh", "returned"} else f"{number}", dedup_id=f"{number}")
            for number in range(start, start + 100)
        )
        host.put(*messages)
    if kind == "returned":
        host.receive(count, timeout_s=0)


def connection(host: Host) -> Any:
    engine: Any = host.engine
    return engine._session.connection


def changes(host: Host) -> int:
    return int(connection(host).total_changes())


@pytest.mark.parametrize("kind", ["fresh", "returned", "fair", "fifo"])
@pytest.mark.parametrize("end", ["acknowledge", "release"])
def test_no_command_handles_more_rows_than_a_slice(in_rows: Host, kind: str, end: str) -> None:
    """Rows, not time: slices are of so many, whatever the claim has."""
    fill(in_rows, kind, 300)
    open_source(in_rows)
    rows = []

    def count(command: Command | None) -> Any:
        before = changes(in_rows)
        answer = None
        if command is None:
            in_rows.advance(5)
        else:
            answer = in_rows.do(command)
        rows.append(changes(in_rows) - before)
        return answer

    more = True
    while more:
        more = count(claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=300)).more
    messages = view(in_rows).claims[0].messages
    assert messages == 300
    if end == "acknowledge":
        count(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1))
        assert in_rows.counts() == (0, 0, 0)
    else:
        count(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))
    for _ in range(200):
        count(None)
    assert in_rows.counts() == ((0, 0, 0) if end == "acknowledge" else (300, 0, 0))
    assert max(rows) <= 3 * SLICES.claim_slice_rows + 10  # a message may have a message, a lease and a turn
    assert rows[-1] == 0


def test_a_claim_waits_for_the_groups_of_one_that_is_being_deleted(in_rows: Host) -> None:
    """Nothing is not the answer while messages of its groups go: it helps with that, a slice at a time."""
    in_rows.create(fifo=True)
    in_rows.put(*(message(str(number), group=f"g{number % 2}", dedup_id=str(number)) for number in range(40)))
    open_source(in_rows)
    assert claim_whole(in_rows, 1, 40).messages == 8
    ending = claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1)
    following = claims.Claim(queue=QUEUE, source="s", epoch=1, number=2, messages_max=40)
    _, *bound = in_rows.do_together(ending, *[following] * 3)
    assert [(each.messages, each.more) for each in bound] == [(0, True), (4, True), (8, True)]
    assert claim(in_rows, 2, 40).messages == 8


@pytest.mark.parametrize("received", [False, True])
def test_slices_have_fewer_of_large_messages(in_rows: Host, *, received: bool) -> None:
    """Reading their pages takes long, to bind what was received before, and to delete anything."""
    in_rows.create()
    for _ in range(20):
        in_rows.send("x" * 200_000)
    if received:
        while in_rows.receive(20, timeout_s=1):
            pass  # a receive gives half of the bytes of a batch
        in_rows.advance(1_000)
    open_source(in_rows)
    assert claim(in_rows, 1, 20).messages == (8 if received else 10)  # runs of one send each, and rows
    claim_whole(in_rows, 1, 20)
    left: list[int] = []

    def count(_: object) -> None:
        left.extend(*connection(in_rows).execute("SELECT count(*) FROM message"))

    in_rows.do_together(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1), told=count)
    assert left == [17]
    settle(in_rows)
    assert in_rows.counts() == (0, 0, 0)


@pytest.mark.parametrize("restart", ["reopen", "crash"])
@pytest.mark.parametrize("kind", ["fresh", "returned", "fifo"])
def test_a_claim_goes_on_where_a_restart_cut_it(sliced: Host, kind: str, restart: str) -> None:
    fill(sliced, kind, 100)
    open_source(sliced)
    first = claim(sliced, 1, 100)
    getattr(sliced, restart)()
    assert view(sliced).claims[0].state is (ClaimState.BINDING if first.more else ClaimState.OPEN)
    messages = claim_whole(sliced, 1, 100).messages
    assert messages == 100
    getattr(sliced, restart)()
    assert len(read(sliced)) == messages
    acknowledge(sliced, 1)
    getattr(sliced, restart)()
    assert sliced.counts() == (100 - messages, 0, 0)
    settle(sliced)
    assert len(sliced.receive(100)) == 100 - messages


def test_whoever_reads_or_goes_on_has_the_claim_whole(sliced: Host) -> None:
    fill(sliced, "returned", 100)
    open_source(sliced)
    assert claim(sliced, 1, 100).more
    part = len(read(sliced))
    assert claim(sliced, 1, 100) == claims.Bound(number=1, messages=part, shards=1, again=True)
    assert claim(sliced, 2, 100).more
    claim(sliced, 3, 100)
    assert [each.state for each in view(sliced).claims] == [ClaimState.OPEN, ClaimState.OPEN, ClaimState.BINDING]
    read(sliced)
    assert [each.state for each in view(sliced).claims] == [ClaimState.OPEN, ClaimState.OPEN, ClaimState.BINDING]
    assert claim_whole(sliced, 3, 20).messages == 20
