"""In-flight quotas: how many messages a receive may still take, what it hears when there is no place, who frees one."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.host import QUEUE, RESTLESS, Host, hosting, message
from tests.store.stores import Store
from tests.store.test_waking import Watcher
from veilmq.core import commands, limits
from veilmq.core.commands import Received
from veilmq.core.messages import NewMessage

QUOTA = 5
WHOLE = os.environ.get("PROVE") == "whole"


@pytest.fixture
def host(store: Store) -> Iterator[Host]:
    """Return an engine with small quotas and one queue."""
    with store.open(in_flight_max=QUOTA, fifo_in_flight_max=3) as opened:
        opened.create()
        yield opened


def received(host: Host, count: int = 10, *, timeout_s: int | None = None) -> Received:
    """Return the whole answer to a receive."""
    answer: Received = host.do(commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s))
    return answer


def fill(host: Host, quota: int = QUOTA, *, timeout_s: int = 30) -> list[str]:
    """Send more than the quota, take as much as it allows, and return the receipts."""
    host.send(*(f"m{number}" for number in range(2 * quota)))
    taken = host.receive(10, timeout_s=timeout_s)
    assert len(taken) == quota
    return [each.receipt for each in taken]


def test_a_receive_takes_what_is_left(host: Host) -> None:
    """Two places for a receive of ten; then none, which is said, and sends go on."""
    host.send(*(f"m{number}" for number in range(9)))
    assert len(host.receive(QUOTA - 2)) == QUOTA - 2
    answer = received(host)
    assert (len(answer.messages), answer.over_limit) == (2, False)
    answer = received(host)
    assert (answer.messages, answer.over_limit) == ([], True)
    host.send("one more")
    assert host.counts() == (5, QUOTA, 0)
    assert received(host, 1).over_limit


def test_an_empty_queue_at_its_quota_says_so_too(host: Host) -> None:
    """What is visible does not matter; below the quota an empty queue is just empty."""
    assert not received(host).over_limit
    host.send("a", "b", "c", "d", "e")
    assert len(host.receive(10)) == QUOTA
    assert received(host).over_limit


def test_delayed_messages_take_no_place(host: Host) -> None:
    """Nor do visible ones, nor those of another queue."""
    host.create("a/other")
    host.send("x", "y", queue="a/other")
    assert len(host.receive(10, queue="a/other")) == 2
    host.send(*(f"d{number}" for number in range(8)), delay_s=60)
    fill(host)
    assert host.counts() == (QUOTA, QUOTA, 8)


def test_what_retention_ends_takes_no_place_behind_many_others(host: Host) -> None:
    """More than a command deletes: a receive that gives nothing for that is to be made again at once."""
    for _ in range(5):
        host.send(*("old" for _ in range(500)), priority=16)
    fill(host, timeout_s=900)
    host.advance(60_000)
    host.send("young")
    host.do(commands.SetQueue(queue=QUEUE, settings={"retention_s": 60}))
    while not (given := host.receive(10)):
        assert host.due_ms() == host.clock.now_ms()
    assert [each.body for each in given] == ["young"]


@pytest.mark.parametrize("way", ["delete", "release", "purge", "expiry"])
def test_a_place_is_freed(host: Host, way: str) -> None:
    """By each way out of flight, exactly one for one message, and the purge all of them."""
    receipts = fill(host)
    match way:
        case "delete":
            host.delete(receipts[0])
        case "release":
            host.change(receipts[0], 0)
        case "expiry":
            host.change(receipts[0], 1)
            host.advance(999)
            assert received(host).over_limit
            host.advance(1)
        case "purge":
            host.do(commands.PurgeQueue(queue=QUEUE))
            host.send(*"abcdefgh")
    answer = received(host)
    assert (len(answer.messages), answer.over_limit) == (QUOTA if way == "purge" else 1, False)
    assert received(host).over_limit


def test_a_place_is_freed_by_retention(host: Host) -> None:
    """A message in flight whose retention ends is deleted."""
    host.do(commands.SetQueue(queue=QUEUE, settings={"retention_s": 60}))
    fill(host, timeout_s=3_600)
    host.advance(1_000)
    host.send("young")
    watcher = Watcher(host)
    assert received(host).over_limit
    host.advance(61_000)
    assert watcher.woken_ms, "nobody heard of the places"
    assert received(host).over_limit is False


def test_leases_that_end_are_not_counted_for_ever(host: Host) -> None:
    """However many have ended, nobody having looked meanwhile."""
    host.send(*(f"m{number}" for number in range(4 * QUOTA)))
    for _ in range(12):
        assert len(host.receive(10, timeout_s=1)) == QUOTA
        assert received(host).over_limit
        host.advance(1_000)


def test_a_receive_that_hides_nothing_takes_places_for_its_own_time(host: Host) -> None:
    """With a timeout of 0 s the messages are visible again, and in flight no more."""
    host.send(*(f"m{number}" for number in range(8)))
    for _ in range(4):
        assert len(host.receive(10, timeout_s=0)) == QUOTA
    assert host.counts() == (8, 0, 0)


def test_the_next_place_is_told(host: Host) -> None:
    """The end of the first lease in flight: not of one that ended, not of a delay, not the present."""
    host.send("ended")
    host.receive(1, timeout_s=1)
    host.advance(1_000)
    host.send("soon", delay_s=2)
    host.send(*(f"m{number}" for number in range(QUOTA)))
    for timeout_s in (50, 40, 30, 60, 70):
        host.receive(1, timeout_s=timeout_s)
    answer = received(host)
    assert (answer.over_limit, answer.next_due_ms) == (True, host.clock.now_ms() + 30_000)


@pytest.mark.differs_on_postgres("says at once when the next place is free, however many messages are delayed")
def test_the_next_place_behind_many_delays_is_looked_for_step_by_step(host: Host) -> None:
    """A look steps over a thousand delayed messages; what it says is never too late and never the present."""
    fill(host, timeout_s=100)
    for delay_s in range(1, 31):
        host.send(*(f"d{number}" for number in range(100)), delay_s=delay_s)
    due_ms, looks, end_ms = host.clock.now_ms(), 0, host.clock.now_ms() + 100_000
    while due_ms != end_ms:
        answer = received(host)
        assert answer.over_limit
        assert answer.next_due_ms is not None
        assert due_ms < answer.next_due_ms <= end_ms
        due_ms, looks = answer.next_due_ms, looks + 1
        host.clock.set(min(due_ms, end_ms - 1))
    assert looks == 4


def test_a_queue_has_its_own_quota(host: Host) -> None:
    """It overrides the engine's, either way, and a change counts at once; what is in flight stays so."""
    host.do(commands.SetQueue(queue=QUEUE, settings={"in_flight_max": 7}))
    fill(host, 7)
    host.do(commands.SetQueue(queue=QUEUE, settings={"in_flight_max": 2}))
    assert received(host).over_limit
    assert host.counts() == (7, 7, 0)
    watcher = Watcher(host)
    host.do(commands.SetQueue(queue=QUEUE, settings={"in_flight_max": 9}))
    assert watcher.woken_ms == [host.clock.now_ms()]
    assert len(host.receive(10)) == 2
    host.do(commands.SetQueue(queue=QUEUE, settings={"in_flight_max": None}))
    assert received(host).over_limit


def test_a_watch_hears_of_places_only_where_they_were_wanted(host: Host) -> None:
    """A delete below the quota wakes nobody; at the quota, after somebody was refused, it wakes once."""
    receipts = fill(host)
    watcher = Watcher(host)
    host.delete(receipts[0])
    assert watcher.woken_ms == []
    assert len(host.receive(10)) == 1
    assert received(host).over_limit
    host.delete(receipts[1], receipts[2], "nonsense")
    assert watcher.woken_ms == [host.clock.now_ms()]


@pytest.mark.differs_on_postgres("there are no batches: who is woken takes part in the next statement like all others")
def test_who_is_woken_by_a_place_takes_it(host: Host) -> None:
    """In the same batch as the delete, before a receive that came later."""
    receipts = fill(host)
    assert received(host).over_limit
    watcher = Watcher(host, receives=True)
    later = commands.Receive(queue=QUEUE)
    _, answer = host.do_together(commands.Delete(queue=QUEUE, receipts=(receipts[0],)), later)
    assert [len(each.messages) for each in watcher.answers] == [1]
    assert answer.over_limit


def test_the_quota_counts_all_priorities(host: Host) -> None:
    """One queue has one quota, whatever its lanes."""
    for priority in (1, 8, 16):
        host.send("a", "b", priority=priority)
    assert len(host.receive(10)) == QUOTA
    assert received(host).over_limit


@pytest.mark.parametrize("again", ["reopen", "crash"])
def test_the_quota_survives(tmp_path: Path, again: str) -> None:
    """What was in flight before is in flight after, until its own deadline."""
    with hosting(tmp_path / "store", options=replace(RESTLESS, in_flight_max=QUOTA)) as host:
        host.create()
        fill(host, timeout_s=10)
        host.advance(4_000)
        getattr(host, again)()
        watcher = Watcher(host)
        answer = received(host)
        assert (answer.over_limit, answer.next_due_ms) == (True, host.clock.now_ms() + 6_000)
        host.advance(6_000)
        assert watcher.woken_ms == []  # time wakes nobody: who waits was told when
        assert len(host.receive(10)) == QUOTA


def test_a_fifo_queue_at_its_quota_is_silent(host: Host) -> None:
    """An empty answer that is no error; a delete frees a place."""
    queue = "a/orders"
    host.do(commands.CreateQueue(queue=queue, settings={"fifo": True}))
    news = [grouped(f"m{number}", f"g{number}") for number in range(6)]
    host.do(commands.Send(queue=queue, messages=tuple(news)))
    taken = host.receive(10, queue=queue)
    assert len(taken) == 3
    answer = host.do(commands.Receive(queue=queue, count=10))
    assert (answer.messages, answer.over_limit, answer.next_due_ms) == ([], False, host.clock.now_ms() + 30_000)
    host.delete(taken[0].receipt, queue=queue)
    assert len(host.receive(10, queue=queue)) == 1
    assert host.counts(queue) == (2, 3, 0)
    host.advance(30_000)
    assert len(host.receive(10, queue=queue)) == 3


@pytest.mark.parametrize("way", ["delete", "release", "retention"])
def test_whoever_waits_for_a_place_of_a_fifo_queue_is_told(host: Host, way: str) -> None:
    """When a message in flight is deleted, released, or ends: all of these free a place."""
    queue = "a/orders"
    host.do(commands.CreateQueue(queue=queue, settings={"fifo": True, "retention_s": 60}))
    host.do(commands.Send(queue=queue, messages=tuple(grouped(f"m{number}", f"g{number}") for number in range(3))))
    taken = host.receive(10, queue=queue, timeout_s=3_600)
    host.advance(30_000)
    host.do(commands.Send(queue=queue, messages=(grouped("young", "young"),)))
    assert host.receive(10, queue=queue) == []
    wakes: list[int] = []
    host.engine.watch(queue, wakes.append)
    match way:
        case "delete":
            host.delete(taken[0].receipt, queue=queue)
        case "release":
            host.change(taken[0].receipt, 0, queue=queue)
        case "retention":
            host.advance(31_000)
    assert any(wake <= host.clock.now_ms() for wake in wakes)
    assert len(host.receive(1, queue=queue)) == 1


def test_a_place_freed_by_the_end_of_a_dead_letter_is_told(host: Host) -> None:
    """Dead letters end by when they were first sent: no floor passes over them."""
    dead = "000000000000/dead"
    host.create(dead, retention_s=60, in_flight_max=1)
    host.do(commands.SetQueue(queue=QUEUE, settings={"dead_letter_queue": dead, "receives_max": 1}))
    host.send("old")
    host.advance(30_000)
    host.send("young")
    host.receive(10, timeout_s=0)
    assert host.receive(10) == []
    assert host.receive_one(queue=dead, timeout_s=3_600).body == "old"
    assert host.receive(queue=dead) == []
    wakes: list[int] = []
    host.engine.watch(dead, wakes.append)
    host.advance(31_000)
    assert any(wake <= host.clock.now_ms() for wake in wakes)
    assert host.receive_one(queue=dead).body == "young"


def grouped(body: str, group: str) -> NewMessage:
    """Return a message of a group with a deduplication id of its own."""
    return NewMessage(body=body, size_bytes=len(body), group=group, dedup_id=body)


def test_the_defaults_are_the_documented_ones() -> None:
    """120,000 and 20,000; a queue's own may be larger and smaller."""
    assert (limits.IN_FLIGHT.default, limits.FIFO_IN_FLIGHT.default) == (120_000, 20_000)
    assert (RESTLESS.in_flight_max, RESTLESS.fifo_in_flight_max) == (120_000, 20_000)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fifo", "quota_whole", "waiting_whole"),
    [(False, 120_000, 2_000_000), (True, 20_000, 200_000)],
    ids=["standard", "fifo"],
)
def test_the_quota_at_full_size(tmp_path: Path, *, fifo: bool, quota_whole: int, waiting_whole: int) -> None:
    """At two below it a receive of ten gets two, at it nothing; one delete or one expiry frees one place.

    With `PROVE=whole` the quota is the default, and two million messages wait beside (of a FIFO queue fewer: each has a
    deduplication id to store); otherwise it is 3,000.
    """
    quota, waiting = (quota_whole, waiting_whole) if WHOLE else (3_000, 100)
    with ExitStack() as stack:
        options = replace(RESTLESS, in_flight_max=quota, fifo_in_flight_max=quota)
        host = stack.enter_context(hosting(tmp_path / "store", options=options))
        host.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": fifo}))
        for first in range(0, quota + waiting, 100):
            new = tuple(
                grouped(f"m{number}", f"g{number}") if fifo else message(f"m{number}")
                for number in range(first, first + 100)
            )
            host.do(commands.Send(queue=QUEUE, messages=new))
        (soon,) = host.receive(1, timeout_s=60)
        for _ in range(quota // 1_000 - 1):
            assert len(host.receive(1_000, timeout_s=3_600)) == 1_000
        assert len(host.receive(997, timeout_s=3_600)) == 997
        assert host.counts() == (waiting + 2, quota - 2, 0)
        two = received(host, timeout_s=3_600)
        assert (len(two.messages), two.over_limit) == (2, False)
        none = received(host)
        assert (none.messages, none.over_limit) == ([], not fifo)
        assert none.next_due_ms == soon.visible_at_ms
        host.delete(two.messages[0].receipt)
        assert len(received(host, timeout_s=3_600).messages) == 1
        host.advance(60_000)
        assert len(received(host, timeout_s=3_600).messages) == 1
        assert received(host).over_limit is not fifo
