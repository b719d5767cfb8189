"""Limits of messages in flight and of receives per second."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.host import QUEUE, RESTLESS, Host, hosting, message
from tests.store.postgres_host import Store
from tests.store.test_receipts import Watcher
from veilmq.core import commands, limits
from veilmq.core.claims import Claim, OpenSource
from veilmq.core.commands import Peek, Receive, Received
from veilmq.core.errors import ReceivesThrottled

QUOTA = 5
WHOLE = os.environ.get("PROVE") == "whole"


@pytest.fixture
def limited(store: Store) -> Iterator[Host]:
    with store.open(in_flight_max=QUOTA, fifo_in_flight_max=3) as opened:
        opened.create()
        yield opened


def received(host: Host, count: int = 10, *, timeout_s: int | None = None) -> Received:
    answer: Received = host.do(commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s))
    return answer


def fill(host: Host, quota: int = QUOTA, *, timeout_s: int = 30) -> list[str]:
    host.send(*(f"m{number}" for number in range(2 * quota)))
    taken = host.receive(10, timeout_s=timeout_s)
    assert len(taken) == quota
    return [each.receipt for each in taken]


def test_many_expired_messages_do_not_count_as_in_flight(limited: Host) -> None:
    """There are more than one command deletes: an empty receive returns that the next is due at once."""
    for _ in range(5):
        limited.send(*("old" for _ in range(500)), priority=16)
    fill(limited, timeout_s=900)
    limited.advance(60_000)
    limited.send("young")
    limited.set_queue(retention_s=60)
    while not (given := limited.receive(10)):
        assert limited.due_ms() == limited.clock.now_ms()
    assert [each.body for each in given] == ["young"]


def test_retention_reduces_the_messages_in_flight_and_wakes(limited: Host) -> None:
    limited.set_queue(retention_s=60)
    began_ms = limited.clock.now_ms()
    fill(limited, timeout_s=3_600)
    limited.advance(1_000)
    limited.send("young")
    watcher = Watcher(limited)
    at_limit = received(limited)
    assert (at_limit.over_limit, at_limit.next_due_ms) == (True, began_ms + 60_000)
    limited.advance(61_000)
    assert watcher.woken_ms
    assert received(limited).over_limit is False


@pytest.mark.differs_on_postgres("finds the end of the first lease at once")
def test_the_next_due_time_at_the_limit_is_found_in_bounded_steps(limited: Host) -> None:
    """A step skips a thousand delayed messages; its due time is never too late and never the present."""
    fill(limited, timeout_s=100)
    for delay_s in range(1, 31):
        limited.send(*(f"d{number}" for number in range(100)), delay_s=delay_s)
    due_ms, steps, end_ms = limited.clock.now_ms(), 0, limited.clock.now_ms() + 100_000
    while due_ms != end_ms:
        answer = received(limited)
        assert answer.over_limit
        assert answer.next_due_ms is not None
        assert due_ms < answer.next_due_ms <= end_ms
        due_ms, steps = answer.next_due_ms, steps + 1
        limited.clock.set(min(due_ms, end_ms - 1))
    assert steps == 4


def test_the_in_flight_limit_of_a_queue_overrides_the_default(limited: Host) -> None:
    limited.set_queue(in_flight_max=7)
    fill(limited, 7)
    limited.set_queue(in_flight_max=2)
    assert received(limited).over_limit
    assert limited.counts() == (7, 7, 0)
    watcher = Watcher(limited)
    limited.set_queue(in_flight_max=9)
    assert watcher.woken_ms == [limited.clock.now_ms()]
    assert len(limited.receive(10)) == 2
    limited.set_queue(in_flight_max=None)
    assert received(limited).over_limit


def test_a_delete_wakes_only_after_a_receive_hit_the_limit(limited: Host) -> None:
    receipts = fill(limited)
    watcher = Watcher(limited)
    limited.delete(receipts[0])
    assert watcher.woken_ms == []
    assert len(limited.receive(10)) == 1
    assert received(limited).over_limit
    limited.delete(receipts[1], receipts[2], "nonsense")
    assert watcher.woken_ms == [limited.clock.now_ms()]


@pytest.mark.differs_on_postgres("there are no batches")
def test_a_receive_woken_at_the_limit_is_served_first(limited: Host) -> None:
    receipts = fill(limited)
    assert received(limited).over_limit
    watcher = Watcher(limited, receives=True)
    later = commands.Receive(queue=QUEUE)
    _, answer = limited.do_together(commands.Delete(queue=QUEUE, receipts=(receipts[0],)), later)
    assert [len(each.messages) for each in watcher.answers] == [1]
    assert answer.over_limit


def test_a_fifo_queue_at_its_limit_returns_an_empty_reply(limited: Host) -> None:
    queue = "a/orders"
    limited.do(commands.CreateQueue(queue=queue, settings={"fifo": True}))
    limited.put(*[message(f"m{number}", group=f"g{number}", dedup_id=f"m{number}") for number in range(6)], queue=queue)
    taken = limited.receive(10, queue=queue)
    assert len(taken) == 3
    answer = limited.do(commands.Receive(queue=queue, count=10))
    assert (answer.messages, answer.over_limit, answer.next_due_ms) == ([], False, limited.clock.now_ms() + 30_000)
    limited.delete(taken[0].receipt, queue=queue)
    assert len(limited.receive(10, queue=queue)) == 1
    assert limited.counts(queue) == (2, 3, 0)
    limited.advance(30_000)
    assert len(limited.receive(10, queue=queue)) == 3


@pytest.mark.parametrize("way", ["delete", "release", "retention"])
def test_waiters_of_a_fifo_queue_at_its_limit_are_woken(limited: Host, way: str) -> None:
    queue = "a/orders"
    limited.do(commands.CreateQueue(queue=queue, settings={"fifo": True, "retention_s": 60}))
    limited.put(*(message(f"m{number}", group=f"g{number}", dedup_id=f"m{number}") for number in range(3)), queue=queue)
    taken = limited.receive(10, queue=queue, timeout_s=3_600)
    limited.advance(30_000)
    limited.put(message("young", group="young", dedup_id="young"), queue=queue)
    assert limited.receive(10, queue=queue) == []
    wakes = limited.watch(queue)
    match way:
        case "delete":
            limited.delete(taken[0].receipt, queue=queue)
        case "release":
            limited.change(taken[0].receipt, 0, queue=queue)
        case "retention":
            limited.advance(31_000)
    assert any(wake <= limited.clock.now_ms() for wake in wakes)
    assert len(limited.receive(1, queue=queue)) == 1


def test_waiters_are_woken_when_a_dead_letter_in_flight_expires(limited: Host) -> None:
    """Dead letters expire by their first send, so their order of arrival does not tell when."""
    dead = "000000000000/dead"
    limited.create(dead, retention_s=60, in_flight_max=1)
    limited.set_queue(dead_letter_queue=dead, receives_max=1)
    limited.send("old")
    limited.advance(30_000)
    limited.send("young")
    limited.receive(10, timeout_s=0)
    assert limited.receive(10) == []
    assert limited.receive_one(queue=dead, timeout_s=3_600).body == "old"
    assert limited.receive(queue=dead) == []
    wakes = limited.watch(dead)
    limited.advance(31_000)
    assert any(wake <= limited.clock.now_ms() for wake in wakes)
    assert limited.receive_one(queue=dead).body == "young"


def test_the_default_in_flight_limits_are_those_of_sqs() -> None:
    assert (limits.IN_FLIGHT.default, limits.FIFO_IN_FLIGHT.default) == (120_000, 20_000)
    assert (RESTLESS.in_flight_max, RESTLESS.fifo_in_flight_max) == (120_000, 20_000)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fifo", "quota_whole", "waiting_whole"), [
    (False, 120_000, 2_000_000), (True, 20_000, 200_000),
], ids=["standard", "fifo"])  # fmt: skip
def test_the_limit_is_exact_at_full_size(tmp_path: Path, *, fifo: bool, quota_whole: int, waiting_whole: int) -> None:
    """With `PROVE=whole` the limit is the default, and two million messages wait; otherwise it is 3,000.

    Fewer wait in a FIFO queue, where each has a deduplication id to store.
    """
    quota, waiting = (quota_whole, waiting_whole) if WHOLE else (3_000, 100)
    with ExitStack() as stack:
        options = replace(RESTLESS, in_flight_max=quota, fifo_in_flight_max=quota)
        host = stack.enter_context(hosting(tmp_path / "store", options=options))
        host.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": fifo}))
        for first in range(0, quota + waiting, 100):
            new = tuple(
                message(f"m{number}", group=f"g{number}", dedup_id=f"m{number}") if fifo else message(f"m{number}")
                for number in range(first, first + 100)
            )
            host.put(*new)
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


def throttled_receives(host: Host, times: int) -> int:
    answers = host.do_together(*(Receive(queue=QUEUE) for _ in range(times)))
    refusals = [answer for answer in answers if isinstance(answer, ReceivesThrottled)]
    assert all(refusal.per_s_max == 3 for refusal in refusals)
    return len(refusals)


@pytest.fixture
def throttled(host: Host) -> Host:
    host.create(receives_per_s_max=3)
    return host


def test_at_most_so_many_receives_succeed_in_any_second(throttled: Host) -> None:
    throttled.send("a")
    assert throttled_receives(throttled, 1) == 0
    throttled.advance(600)
    assert throttled_receives(throttled, 3) == 1
    throttled.advance(399)
    assert throttled_receives(throttled, 1) == 1
    throttled.advance(1)
    assert throttled_receives(throttled, 2) == 1
    throttled.advance(600)
    assert throttled_receives(throttled, 3) == 1
    throttled.advance(10_000)
    assert throttled_receives(throttled, 10) == 7


def test_throttled_receives_do_not_count_and_take_no_message(throttled: Host) -> None:
    throttled.send(*"abcd")
    assert throttled_receives(throttled, 100) == 97
    assert throttled.counts() == (1, 3, 0)
    throttled.advance(1_000)
    assert throttled_receives(throttled, 100) == 97
    assert throttled.counts() == (0, 4, 0)


def test_a_long_poll_is_counted_at_its_request_only(throttled: Host) -> None:
    assert throttled_receives(throttled, 3) == 0
    for _ in range(10):
        throttled.do(Receive(queue=QUEUE, requested_at_ms=throttled.clock.now_ms()))
    throttled.advance(1_000)
    assert throttled_receives(throttled, 4) == 1


def test_only_receives_are_throttled(throttled: Host) -> None:
    throttled.send("a", "b")
    (a,) = throttled.receive(1)
    throttled_receives(throttled, 2)
    throttled.change(a.receipt, 5)
    throttled.delete(a.receipt)
    throttled.send("c")
    assert len(throttled.do(Peek(queue=QUEUE, count=10)).messages) == 1
    source = throttled.do(OpenSource(queue=QUEUE, source="s"))
    throttled.do(Claim(queue=QUEUE, source="s", epoch=source.epoch, number=1, messages_max=1))
    throttled.create("000000000000/other")
    throttled.receive(queue="000000000000/other")


def test_the_receive_limit_can_be_changed_and_removed(throttled: Host) -> None:
    throttled_receives(throttled, 3)
    throttled.set_queue(delay_s=1)
    assert throttled_receives(throttled, 1) == 1
    throttled.set_queue(receives_per_s_max=5)
    throttled.receive()
    throttled.set_queue(receives_per_s_max=0)
    for _ in range(20):
        throttled.receive()


def test_each_repetition_of_an_attempt_is_counted(host: Host) -> None:
    host.create(fifo=True, receives_per_s_max=3)
    host.put(message("a", group="g", dedup_id="a"))
    attempt = Receive(queue=QUEUE, attempt_id="t", timeout_s=30)
    first = host.do(attempt).messages
    host.advance(500)
    again = host.do(attempt).messages
    assert [each.receipt for each in first] == [each.receipt for each in again]
    host.do(attempt)
    due_ms = host.clock.now_ms() + 30_000
    host.advance(499)
    with pytest.raises(ReceivesThrottled):
        host.do(attempt)
    host.advance(1)
    assert host.due_ms() == due_ms


@pytest.mark.parametrize("fifo", [False, True])
def test_a_receive_deferred_to_the_next_batch_is_counted_once(host: Host, *, fifo: bool) -> None:
    host.create(receives_per_s_max=3, fifo=fifo)
    for number in range(60):
        name = str(number) if fifo else None
        host.put(message("x" * 1_000_000, group=name, dedup_id=name))
    answers = host.do_together(*(Receive(queue=QUEUE, count=10) for _ in range(3)))
    assert not any(isinstance(answer, ReceivesThrottled) for answer in answers)
    assert all(answer.messages for answer in answers)
    assert throttled_receives(host, 1) == 1


def test_a_receive_at_the_limit_returns_the_end_of_the_first_lease(limited: Host) -> None:
    limited.send("ended")
    limited.receive(1, timeout_s=1)
    limited.advance(1_000)
    limited.send("soon", delay_s=2)
    limited.send(*(f"m{number}" for number in range(QUOTA)))
    for timeout_s in (50, 40, 30, 60, 70):
        limited.receive(1, timeout_s=timeout_s)
    answer = received(limited)
    assert (answer.over_limit, answer.next_due_ms) == (True, limited.clock.now_ms() + 30_000)
