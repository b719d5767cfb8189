"""A queue that bounds its receives: so many in any second, counted as they are asked, and no others."""

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.claims import Claim, OpenSource
from veilmq.core.commands import Peek, Receive
from veilmq.core.errors import ReceivesThrottled


def ask(host: Host, times: int) -> int:
    """Receive so often; return how many of these receives were refused."""
    answers = host.do_together(*(Receive(queue=QUEUE) for _ in range(times)))
    refusals = [answer for answer in answers if isinstance(answer, ReceivesThrottled)]
    assert all(refusal.per_s_max == 3 for refusal in refusals)
    return len(refusals)


@pytest.fixture
def throttled(host: Host) -> Host:
    """Return a queue that allows three receives a second."""
    host.create(receives_per_s_max=3)
    return host


def test_so_many_receives_in_any_second(throttled: Host) -> None:
    """Whether they give anything or not; the next one may be asked a second after the first one, to the millisecond."""
    throttled.send("a")
    assert ask(throttled, 1) == 0
    throttled.advance(600)
    assert ask(throttled, 3) == 1
    throttled.advance(399)
    assert ask(throttled, 1) == 1
    throttled.advance(1)
    assert ask(throttled, 2) == 1
    throttled.advance(600)
    assert ask(throttled, 3) == 1
    throttled.advance(10_000)
    assert ask(throttled, 10) == 7


def test_what_is_refused_does_not_count_and_takes_nothing(throttled: Host) -> None:
    """Who asks all the time gets three a second, and the messages are there for who comes later."""
    throttled.send(*"abcd")
    assert ask(throttled, 100) == 97
    assert throttled.counts() == (1, 3, 0)
    throttled.advance(1_000)
    assert ask(throttled, 100) == 97
    assert throttled.counts() == (0, 4, 0)


def test_a_receive_that_waited_was_counted_when_it_was_asked(throttled: Host) -> None:
    """However often the server asks again for it, and in whichever second."""
    assert ask(throttled, 3) == 0
    for _ in range(10):
        throttled.do(Receive(queue=QUEUE, requested_at_ms=throttled.clock.now_ms()))
    throttled.advance(1_000)
    assert ask(throttled, 4) == 1


def test_nothing_else_is_throttled(throttled: Host) -> None:
    """Sends, deletes, changes, peeks and claims; nor other queues."""
    throttled.send("a", "b")
    (a,) = throttled.receive(1)
    ask(throttled, 2)
    throttled.change(a.receipt, 5)
    throttled.delete(a.receipt)
    throttled.send("c")
    assert len(throttled.do(Peek(queue=QUEUE, count=10)).messages) == 1
    source = throttled.do(OpenSource(queue=QUEUE, source="s"))
    throttled.do(Claim(queue=QUEUE, source="s", epoch=source.epoch, number=1, messages_max=1))
    throttled.create("000000000000/other")
    throttled.receive(queue="000000000000/other")


def test_the_limit_may_be_changed_and_taken_away(throttled: Host) -> None:
    """From the next receive on; another setting leaves the count as it is."""
    ask(throttled, 3)
    throttled.do(commands.SetQueue(queue=QUEUE, settings={"delay_s": 1}))
    assert ask(throttled, 1) == 1
    throttled.do(commands.SetQueue(queue=QUEUE, settings={"receives_per_s_max": 5}))
    throttled.receive()
    throttled.do(commands.SetQueue(queue=QUEUE, settings={"receives_per_s_max": 0}))
    for _ in range(20):
        throttled.receive()


@pytest.mark.differs_on_postgres("counts for all nodes together, so that the count outlives each of them")
def test_the_limit_is_kept(kept: Host) -> None:
    """It is a setting; only the count is forgotten."""
    kept.create(receives_per_s_max=3)
    ask(kept, 3)
    kept.reopen()
    assert ask(kept, 5) == 2


def test_an_attempt_counts_once_each_time_it_is_asked(host: Host) -> None:
    """Also when it is repeated, and when it is refused it is void of effect."""
    host.create(fifo=True, receives_per_s_max=3)
    host.do(commands.Send(queue=QUEUE, messages=(message("a", group="g", dedup_id="a"),)))
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
def test_a_receive_that_finds_no_room_in_a_batch_is_counted_once(host: Host, *, fifo: bool) -> None:
    """Its messages are so large that a later batch serves it."""
    host.create(receives_per_s_max=3, fifo=fifo)
    for number in range(60):
        name = str(number) if fifo else None
        host.do(commands.Send(queue=QUEUE, messages=(message("x" * 1_000_000, group=name, dedup_id=name),)))
    answers = host.do_together(*(Receive(queue=QUEUE, count=10) for _ in range(3)))
    assert not any(isinstance(answer, ReceivesThrottled) for answer in answers)
    assert all(answer.messages for answer in answers)
    assert ask(host, 1) == 1
