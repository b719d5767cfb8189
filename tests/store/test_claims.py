"""Claims: each command in each state of a claim."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.conftest import stores_of
from tests.store.host import QUEUE, Host, message
from tests.store.postgres_host import Store
from veilmq.core import claims, commands, errors, limits
from veilmq.core.claims import ClaimState
from veilmq.core.commands import Command
from veilmq.core.errors import ReceiptState
from veilmq.core.topics import Forward, ForwardEntry

DEAD = "000000000000/dead"
HOUR_MS = 3_600_000


@pytest.fixture
def jobs(host: Host) -> Host:
    host.create()
    host.send("a", "b", "c", "d")
    open_source(host)
    return host


def open_source(host: Host, source: str = "s", **fields: Any) -> claims.SourceView:
    view: claims.SourceView = host.do(claims.OpenSource(queue=QUEUE, source=source, **fields))
    return view


def claim(host: Host, number: int = 1, count: int = 100, *, epoch: int = 1, **fields: Any) -> claims.Bound:
    command = {"source": "s", "number": number, "epoch": epoch, "messages_max": count, **fields}
    bound: claims.Bound = host.do(claims.Claim(queue=QUEUE, **command))
    return bound


def claim_whole(host: Host, number: int = 1, count: int = 100, **fields: Any) -> claims.Bound:
    while (bound := claim(host, number, count, **fields)).more:
        pass
    return bound


def acknowledge(host: Host, number: int, *, epoch: int = 1, source: str = "s") -> claims.Acknowledged:
    done: claims.Acknowledged = host.do(
        claims.AcknowledgeClaims(queue=QUEUE, source=source, epoch=epoch, number=number)
    )
    return done


def read(
    host: Host, number: int = 1, shard: int = 0, *, source: str = "s", page: int = 3
) -> list[claims.ClaimedMessage]:
    messages, cursor = [], ""
    while True:
        command = claims.ReadClaim(
            queue=QUEUE, source=source, number=number, shard=shard, cursor=cursor, messages_max=page
        )
        found: claims.ClaimPage = host.do(command)
        messages += found.messages
        cursor = found.cursor
        if not cursor:
            return messages


def bodies(messages: list[Any]) -> list[str]:
    return [each.body for each in messages]


def view(host: Host, source: str = "s") -> claims.SourceView:
    found: claims.SourceView
    (found,) = [each for each in host.do(claims.ListSources(queue=QUEUE)) if each.source == source]
    return found


def settle(host: Host) -> None:
    for _ in range(host.slices):
        host.advance(5)


def test_claims_take_messages_in_the_order_of_receives(host: Host) -> None:
    host.create()
    open_source(host)
    for body in "abc":
        host.send(body)
        host.advance(10)
    host.send("first", priority=1)
    first, released = host.receive(2, timeout_s=60)
    assert bodies([first, released]) == ["first", "a"]
    host.change(released.receipt, 0)
    host.advance(10)
    host.send("z")
    for number, expected in enumerate("bca", start=1):
        assert claim(host, number, 1).messages == 1
        assert bodies(read(host, number)) == [expected]
    host.advance(60_000)
    assert claim(host, 4, 1).messages == 1
    assert bodies(read(host, 4)) == ["first"]
    assert claim(host, 5, 9).messages == 1
    assert bodies(read(host, 5)) == ["z"]


def test_a_returned_message_is_claimed_in_order_of_its_visibility(host: Host) -> None:
    host.create()
    host.send("returned")
    host.receive(1, timeout_s=5)
    host.send("before")
    host.advance(10_000)
    host.send("after")
    open_source(host)
    assert claim(host, 1, 2).messages == 2
    assert sorted(bodies(read(host))) == ["before", "returned"]


def test_the_shards_of_a_claim_are_even_and_disjoint(host: Host) -> None:
    host.create()
    open_source(host)
    host.send(*(str(number) for number in range(25)))
    assert claim(host, 1, 25, shard_messages=10).shards == 3
    shards = [read(host, 1, shard) for shard in range(3)]
    assert sorted(len(shard) for shard in shards) == [8, 8, 9]
    assert [int(each.body) for shard in shards for each in shard] == list(range(25))
    with pytest.raises(errors.ShardNotFound):
        read(host, 1, 3)


def test_a_page_of_a_claim_is_bounded_by_bytes(host: Host) -> None:
    host.create()
    open_source(host)
    host.send(*("x" * 1_000_000 for _ in range(10)))
    claim(host)
    page = host.do(claims.ReadClaim(queue=QUEUE, source="s", number=1))
    assert len(page.messages) == -(-limits.CLAIM_PAGE_BYTES // 1_000_000)
    assert len(read(host, page=2_000)) == 10


@pytest.mark.parametrize("cursor", ["x", "u-1", "u99999999999999999999", "g1 ", "9"])
def test_an_invalid_cursor_is_refused(jobs: Host, cursor: str) -> None:
    claim(jobs)
    with pytest.raises(errors.CursorInvalid):
        jobs.do(claims.ReadClaim(queue=QUEUE, source="s", number=1, cursor=cursor))


def lose(host: Host) -> None:
    claim(host)
    host.advance(HOUR_MS)


STATES: dict[str, Callable[[Host], object]] = {
    "unknown": lambda host: None,
    "open": claim,
    "lost": lose,
    "released": lambda host: (claim(host), host.do(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))),
    "purged": lambda host: (claim(host), host.purge()),
    "acknowledged": lambda host: (claim(host), acknowledge(host, 1)),
}
COMMANDS: dict[str, Command] = {
    "claim": claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=10),
    "read": claims.ReadClaim(queue=QUEUE, source="s", number=1),
    "acknowledge": claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1),
    "release": claims.ReleaseClaim(queue=QUEUE, source="s", number=1),
    "evict": claims.EvictMessage(queue=QUEUE, source="s", number=1, message=bytes(16)),
}
OUTCOMES: dict[str, tuple[type[errors.VeilmqError] | None, ...]] = {
    "unknown": (None, errors.ClaimLost, errors.ClaimGap, errors.ClaimLost, errors.ClaimLost),
    "open": (None, None, None, None, errors.MessageNotClaimed),
    "lost": (errors.ClaimLost, errors.ClaimLost, None, errors.ClaimLost, errors.ClaimLost),
    "released": (errors.ClaimReleased, errors.ClaimReleased, None, None, errors.ClaimReleased),
    "purged": (errors.ClaimLost, errors.ClaimLost, None, errors.ClaimLost, errors.ClaimLost),
    "acknowledged": (*[errors.ClaimAcknowledged] * 2, None, *[errors.ClaimAcknowledged] * 2),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_succeeds_or_fails_by_the_state_of_the_claim(jobs: Host, state: str, name: str) -> None:
    STATES[state](jobs)
    error = OUTCOMES[state][list(COMMANDS).index(name)]
    for _ in range(2 if error or name != "release" else 1):  # and once more: the same
        if error is None:
            jobs.do(COMMANDS[name])
        else:
            with pytest.raises(error):
                jobs.do(COMMANDS[name])


@pytest.mark.parametrize("command", [
    claims.Claim(queue=QUEUE, source="x", epoch=1, number=1, messages_max=1),
    claims.Heartbeat(queue=QUEUE, source="x", epoch=1),
    claims.AcknowledgeClaims(queue=QUEUE, source="x", epoch=1, number=1),
    claims.ReleaseClaim(queue=QUEUE, source="x", number=1),
    claims.EvictMessage(queue=QUEUE, source="x", number=1, message=bytes(16)),
    claims.CloseSource(queue=QUEUE, source="x"),
])  # fmt: skip
def test_commands_of_an_unknown_source_fail(jobs: Host, command: Command) -> None:
    with pytest.raises(errors.SourceNotFound):
        jobs.do(command)


def test_a_read_by_an_unknown_source_reports_a_lost_claim(jobs: Host) -> None:
    with pytest.raises(errors.ClaimLost):
        read(jobs, source="x")


def test_a_claim_is_lost_after_its_hold_without_a_heartbeat(jobs: Host) -> None:
    woken: list[int] = []
    claim(jobs, 1, 2)
    jobs.engine.watch(QUEUE, woken.append)
    jobs.advance(HOUR_MS - 1)
    beat = jobs.do(claims.Heartbeat(queue=QUEUE, source="s", epoch=1))
    assert (beat.alive, beat.hold_until_ms) == (True, jobs.clock.now_ms() + HOUR_MS)
    jobs.advance(60_000)
    assert not view(jobs).alive
    jobs.advance(HOUR_MS - 60_001)
    assert jobs.counts() == (2, 2, 0)
    woken.clear()
    jobs.advance(1)
    assert woken
    assert jobs.counts() == (4, 0, 0)
    assert [each.state for each in view(jobs).claims] == [ClaimState.LOST]
    jobs.do(claims.Heartbeat(queue=QUEUE, source="s", epoch=1))
    with pytest.raises(errors.ClaimLost):
        read(jobs)


def test_a_hold_that_ended_without_a_claim_does_not_affect_the_next(jobs: Host) -> None:
    jobs.advance(HOUR_MS)
    claim(jobs, 1, 2)
    jobs.advance(HOUR_MS)
    assert jobs.counts() == (4, 0, 0)


def test_opening_a_source_returns_the_oldest_message_even_if_in_flight(host: Host) -> None:
    host.create()
    sent_at_ms = host.clock.now_ms()
    host.send("a")
    host.advance(1_000)
    host.send("b")
    assert host.bodies(1) == ["a"]
    opened = open_source(host)
    assert (opened.ready, opened.oldest_sent_at_ms) == (1, sent_at_ms)


def test_a_heartbeat_sets_hold_and_lease(jobs: Host) -> None:
    now_ms = jobs.clock.now_ms()
    beat = jobs.do(claims.Heartbeat(queue=QUEUE, source="s", epoch=1, lease_s=5, hold_s=60))
    assert (beat.lease_until_ms, beat.hold_until_ms) == (now_ms + 5_000, now_ms + 60_000)
    assert jobs.do(claims.Heartbeat(queue=QUEUE, source="s", epoch=1)).hold_until_ms == now_ms + 60_000


def test_sources_with_open_claims_and_the_latest_ones_are_listed(jobs: Host) -> None:
    claim(jobs, 1, 1)
    for name in ("c", "b", "a"):
        jobs.advance(1)
        open_source(jobs, name)
    listed = [each.source for each in jobs.do(claims.ListSources(queue=QUEUE, count=3))]
    assert listed == ["s", "a", "b"]


def test_a_silent_source_is_deleted_after_two_weeks(durable: Host) -> None:
    durable.create(retention_s=1_209_600)
    open_source(durable)
    durable.send("a")
    claim(durable, 1)
    acknowledge(durable, 1)
    durable.advance(limits.SOURCE_SILENCE_S * 1_000 - 1)
    durable.reopen()
    assert view(durable).acknowledged == 1
    durable.advance(1)
    assert durable.do(claims.ListSources(queue=QUEUE)) == []


def test_a_queue_has_a_limit_of_claimed_messages(store: Store) -> None:
    with store.open(claimed_max=3) as host:
        host.create()
        open_source(host)
        host.send("a", "b", "c", "d", "e")
        woken: list[int] = []
        assert claim(host, 1, 2).messages == 2
        assert claim(host, 2, 9) == claims.Bound(number=2, messages=1, shards=1)
        assert claim(host, 3, 9) == claims.Bound(number=3, messages=0, shards=0, next_due_ms=None)
        host.engine.watch(QUEUE, woken.append)
        acknowledge(host, 1)
        assert woken
        assert claim(host, 3, 9).messages == 2


@pytest.mark.parametrize(
    "kind",
    [
        "returned",
        "fair",
        pytest.param("fifo", marks=pytest.mark.differs_on_postgres("a node deletes them once a second")),
    ],
)
def test_a_claim_skips_expired_messages(host: Host, kind: str) -> None:
    """There are more of them, and of their groups, than one command deletes."""
    host.create(fifo=kind == "fifo")
    groups = [None if kind == "returned" else f"g{number}" for number in range(2_500)]
    host.put(*(message("old", group=group, dedup_id=f"{number}") for number, group in enumerate(groups)))
    host.receive(2_499, timeout_s=1)
    host.receive(1, timeout_s=900 if kind == "fifo" else 1)
    host.advance(60_000)
    host.put(message("young", group="g2499" if kind == "fifo" else None, dedup_id="young"))
    open_source(host)
    host.set_queue(retention_s=60)
    assert claim_whole(host).messages == 1
    assert bodies(read(host)) == ["young"]


def test_a_claimed_group_stays_blocked_after_an_eviction(durable: Host) -> None:
    durable.create(DEAD, fifo=True)
    durable.create(fifo=True, retention_s=60, dead_letter_queue=DEAD, receives_max=5)
    open_source(durable)
    durable.send_to_groups("a1", "a2")
    claim(durable, 1, 2)
    evicted = read(durable)[0].id
    durable.advance(60_000)
    durable.send_to_groups("a3")
    durable.crash()
    durable.do(claims.EvictMessage(queue=QUEUE, source="s", number=1, message=evicted))
    assert durable.receive(10) == []
    acknowledge(durable, 1)
    assert bodies(durable.receive(10)) == ["a3"]


def test_a_receipt_from_before_a_claim_forwards_nothing(jobs: Host) -> None:
    jobs.create(DEAD)
    (old,) = jobs.receive(1, timeout_s=0)
    claim(jobs)
    (ended,) = jobs.do(Forward(queue=QUEUE, entries=(ForwardEntry(receipt=old.receipt, target=DEAD),)))
    assert (type(ended), ended.state) == (errors.ReceiptEnded, ReceiptState.SUPERSEDED)
    assert (jobs.counts(), jobs.counts(DEAD)) == ((0, 4, 0), (0, 0, 0))


def test_receipts_from_before_a_claim_settle_nothing(host: Host) -> None:
    """Also not where the receipts of earlier receives act."""
    host.create(visibility_timeout_s=0)
    host.send("a")
    receipts = [host.receive_one().receipt for _ in range(2)]
    open_source(host)
    claim(host)
    assert host.delete(*receipts, any_receive=True) == [ReceiptState.SUPERSEDED] * 2
    assert host.change(receipts[0], 0, any_receive=True).state is ReceiptState.SUPERSEDED
    assert bodies(read(host)) == ["a"]


def test_a_claim_dead_letters_messages_received_too_often(host: Host) -> None:
    host.create(DEAD)
    host.create(dead_letter_queue=DEAD, receives_max=2)
    open_source(host)
    host.send("a", "b")
    for _ in range(2):
        (worst,) = host.receive(1, timeout_s=60)
        host.change(worst.receipt, 0)
    bound = claim_whole(host)
    assert (bound.messages, host.counts(DEAD)) == (1, (1, 0, 0))
    assert bodies(read(host)) == ["b"]
    assert [(each.body, each.receive_count) for each in host.receive(10, queue=DEAD)] == [("a", 3)]


def test_a_slice_of_a_claim_moves_as_many_dead_letters_as_a_receive(host: Host) -> None:
    host.create(DEAD)
    host.create(dead_letter_queue=DEAD, receives_max=1)
    open_source(host)
    host.send(*(str(number) for number in range(150)))
    host.receive(150, timeout_s=0)
    woken = host.watch(DEAD)
    assert claim(host) == claims.Bound(number=1, messages=0, shards=0, next_due_ms=host.clock.now_ms())
    assert host.counts(DEAD)[0] == limits.DEAD_LETTERS_PER_RECEIVE
    assert woken == [host.clock.now_ms()]
    host.send("alive")
    assert claim_whole(host).messages == 1
    assert host.counts(DEAD)[0] == 150


def test_claims_count_as_receives(host: Host) -> None:
    host.create(DEAD)
    host.create(dead_letter_queue=DEAD, receives_max=1)
    open_source(host)
    host.send("a")
    claim(host)
    host.advance(HOUR_MS)
    assert host.receive(1) == []
    (dead,) = host.receive(1, queue=DEAD)
    assert dead.receive_count == 2


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("received", [False, True])
@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_an_evicted_message_is_a_dead_letter(host: Host, victim: str, *, received: bool, fifo: bool) -> None:
    host.create(DEAD, fifo=fifo)
    host.create(fifo=fifo, dead_letter_queue=DEAD, receives_max=5)
    open_source(host)
    for body in "abc":
        host.put(message(body, group="g" if fifo else None, dedup_id=body))
    if received:
        host.receive(3, timeout_s=0)
    claim(host)
    before = read(host)
    (gone,) = [each for each in before if each.body == victim]
    evicted = host.do(claims.EvictMessage(queue=QUEUE, source="s", number=1, message=gone.id))
    assert evicted.claims[0].messages == 2
    assert bodies(read(host)) == [each.body for each in before if each is not gone]
    with pytest.raises(errors.MessageNotClaimed):
        host.do(claims.EvictMessage(queue=QUEUE, source="s", number=1, message=gone.id))
    (dead,) = host.receive(10, queue=DEAD)
    assert (dead.id, dead.source, dead.receive_count) == (gone.id, QUEUE, gone.receive_count + 1)
    assert host.counts() == (0, 2, 0)
    acknowledge(host, 1)
    assert host.counts() == (0, 0, 0)


def test_an_evicted_message_frees_its_group(host: Host) -> None:
    host.create(DEAD, fifo=True)
    host.create(fifo=True, content_deduplication=True, dead_letter_queue=DEAD, receives_max=5)
    host.put(message("a", group="g"), message("b", group="g"))
    open_source(host)
    claim(host, 1, 1)
    evicted = read(host)[0].id
    woken = host.watch()
    assert host.due_ms() is None
    host.do(claims.EvictMessage(queue=QUEUE, source="s", number=1, message=evicted))
    assert woken == [host.clock.now_ms()]
    assert host.receive_one().body == "b"


def test_evicting_needs_a_dead_letter_queue(jobs: Host) -> None:
    claim(jobs)
    with pytest.raises(errors.DeadLetterQueueRefused):
        jobs.do(claims.EvictMessage(queue=QUEUE, source="s", number=1, message=read(jobs)[0].id))
    assert len(read(jobs)) == 4


@pytest.mark.parametrize("sweeps", [False, True], ids=["", "swept"])
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_claimed_messages_past_their_retention_stay_expired_when_it_is_raised(
    durable: Host, *, fifo: bool, sweeps: bool
) -> None:
    durable.create(fifo=fifo, retention_s=60)
    durable.put(*(message(body, group=body if fifo else None, dedup_id=body) for body in "ab"))
    open_source(durable)
    claim_whole(durable)
    durable.advance(60_000)
    if sweeps:
        durable.sweep()
    durable.set_queue(retention_s=345_600)
    if sweeps:
        durable.sweep()
    durable.do(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))
    durable.advance(1_000)
    assert durable.counts() == (0, 0, 0)


def test_claimed_dead_letters_outlive_their_retention(durable: Host) -> None:
    durable.create(DEAD, retention_s=120)
    durable.create("000000000000/first", dead_letter_queue=DEAD, receives_max=1)
    durable.send("a", "b", "c", queue="000000000000/first")
    durable.advance(60_000)
    durable.receive(3, queue="000000000000/first", timeout_s=0)
    durable.receive(3, queue="000000000000/first")
    durable.do(claims.OpenSource(queue=DEAD, source="s"))
    bound = durable.do(claims.Claim(queue=DEAD, source="s", epoch=1, number=1, messages_max=2))
    assert bound.messages == 2
    durable.advance(60_000)
    settle(durable)
    assert durable.counts(DEAD) == (0, 2, 0)
    page = durable.do(claims.ReadClaim(queue=DEAD, source="s", number=1))
    assert [(each.body, each.receive_count) for each in page.messages] == [("a", 2), ("b", 2)]
    durable.do(claims.CloseSource(queue=DEAD, source="s"))
    assert durable.counts(DEAD) == (0, 0, 0)


def test_a_move_skips_claimed_messages(host: Host) -> None:
    host.create(DEAD)
    host.create("000000000000/first", dead_letter_queue=DEAD, receives_max=1)
    host.send("a", "b", queue="000000000000/first")
    host.receive(2, queue="000000000000/first", timeout_s=0)
    host.receive(2, queue="000000000000/first")
    host.do(claims.OpenSource(queue=DEAD, source="s"))
    host.do(claims.Claim(queue=DEAD, source="s", epoch=1, number=1, messages_max=1))
    task = host.do(commands.StartMove(source=DEAD))
    assert task.messages_to_move == 1
    host.advance(1_000)
    assert host.counts(DEAD) == (0, 1, 0)
    assert host.counts("000000000000/first") == (1, 0, 0)


def test_each_group_of_a_fair_queue_is_in_one_shard_in_order(host: Host) -> None:
    host.create()
    open_source(host)
    for number in range(40):
        new = message(f"{number % 7}-{number:02}", group=str(number % 7), dedup_id=str(number))
        host.put(new)
    bound = claim_whole(host, 1, 40, shard_messages=10)
    assert (bound.messages, bound.shards) == (40, 4)
    homes: dict[str, list[tuple[int, str]]] = {}
    for shard in range(4):
        for each in read(host, 1, shard):
            homes.setdefault(each.body[0], []).append((shard, each.body))
    assert sum(len(messages) for messages in homes.values()) == 40
    for messages in homes.values():
        assert len({shard for shard, _ in messages}) == 1
        assert messages == sorted(messages)


@pytest.fixture
def sliced(durable_store: Store, request: pytest.FixtureRequest) -> Iterator[Host]:
    with durable_store.open(claim_slice_rows=8 if "postgres" in stores_of(request.node) else 40) as opened:
        yield opened


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("size_bytes", [900_000, 60_000], ids=["long", "short"])
def test_a_claim_is_bounded_by_bytes_over_all_slices(sliced: Host, size_bytes: int, fifo: bool) -> None:
    bytes_max, count = 2_500_000, 5 if size_bytes > 500_000 else 60
    sliced.create(fifo=fifo)
    for place in range(count):
        group, dedup_id = (f"g{place}", str(place)) if fifo else (None, None)
        sliced.put(message("x" * size_bytes, group=group, dedup_id=dedup_id))
    open_source(sliced)
    bound: list[int] = []
    number = 0
    while sum(bound) < count:
        number += 1
        found = claim_whole(sliced, number, bytes_max=bytes_max)
        assert 0 < found.messages * size_bytes <= bytes_max
        bound.append(found.messages)
    assert len(bound) <= (3 if size_bytes > 500_000 else 6 if not fifo else 12)


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("count", [2, 30])
def test_a_claim_whose_messages_were_all_evicted_stays_bound(sliced: Host, count: int, *, fifo: bool) -> None:
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


@pytest.mark.parametrize("fifo", [False, True])
def test_an_empty_claim_stays_empty(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    open_source(host)
    empty = claims.Bound(number=1, messages=0, shards=1)
    assert claim_whole(host, empty=True) == empty
    host.put(message("a", group="a" if fifo else None, dedup_id="a"))
    assert (claim_whole(host), read(host)) == (msgspec.structs.replace(empty, again=True), [])
    assert acknowledge(host, 1) == claims.Acknowledged(acknowledged=1, lost=[])
    assert host.counts() == (1, 0, 0)


@pytest.mark.parametrize("fifo", [False, True])
def test_messages_of_an_acknowledged_claim_are_not_counted_until_they_are_deleted(sliced: Host, *, fifo: bool) -> None:
    """Nor are they shown."""

    def shown() -> list[int]:
        states = (None, *commands.MessageState)
        return [len(sliced.do(commands.InspectQueue(queue=QUEUE, count=200, state=state))) for state in states]

    sliced.create(fifo=fifo)
    names = [str(number) for number in range(100)]
    sliced.put(*(message(name, group=name if fifo else None, dedup_id=name) for name in names))
    open_source(sliced)
    claim_whole(sliced)
    sliced.put(message("left", group="left" if fifo else None, dedup_id="left"))
    assert (sliced.counts(), shown()) == ((1, 100, 0), [101, 1, 100, 0])
    acknowledge(sliced, 1)
    assert (sliced.counts(), shown()) == ((1, 0, 0), [1, 1, 0, 0])
