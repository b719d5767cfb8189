"""FIFO queues: order, blocking, deduplication, sequence numbers, receive attempts and delays."""

import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from tests.store.host import QUEUE, Host, message
from tests.store.test_dead_letters import DEAD
from veilmq.core import commands
from veilmq.core.commands import Peek, SendOptions
from veilmq.core.errors import DeduplicationIdMissing, GroupMissing, ReceiptState
from veilmq.core.messages import NewMessage

LIVE, EXPIRED, SUPERSEDED, GONE = ReceiptState.LIVE, ReceiptState.EXPIRED, ReceiptState.SUPERSEDED, ReceiptState.GONE


@pytest.fixture
def fifo(host: Host) -> Host:
    host.create(fifo=True)
    return host


def receive(host: Host, count: int = 10, *, timeout_s: int | None = None, attempt: str | None = None) -> Any:
    return host.do(commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s, attempt_id=attempt)).messages


def bodies(messages: list[commands.ReceivedMessage]) -> str:
    return " ".join(message.body for message in messages)


def test_a_receive_skips_a_hundred_delayed_messages_of_a_group(fifo: Host) -> None:
    fifo.send_to_groups(*(f"a{at}" for at in range(100)), delay_s=900)
    fifo.send_to_groups("a100", "a101")
    for body in ("a100", "a101"):
        (first,) = receive(fifo, 1)
        assert first.body == body
        fifo.delete(first.receipt)
    assert receive(fifo) == []


def test_a_lease_behind_more_than_a_hundred_delayed_messages_blocks_its_group(fifo: Host) -> None:
    fifo.send_to_groups(*(f"a{at}" for at in range(105)), delay_s=900)
    fifo.send_to_groups("a105", "a106")
    first, second = receive(fifo, timeout_s=30)
    fifo.send_to_groups("a107")
    fifo.change(second.receipt, 20)
    assert (first.body, receive(fifo), fifo.counts()) == ("a105", [], (1, 2, 105))
    fifo.advance(30_000)
    assert bodies(receive(fifo)) == "a105 a106 a107"


@pytest.mark.parametrize(("in_flight_max", "given"), [(100, ["a1 a2", "b1 c1", ""]), (3, ["a1 a2", "b1", ""])])
def test_concurrent_receives_share_no_group(fifo: Host, in_flight_max: int, given: list[str]) -> None:
    fifo.set_queue(in_flight_max=in_flight_max)
    fifo.send_to_groups("a1", "a2", "a3", "b1", "c1", "c2")
    answers = fifo.do_together(*(commands.Receive(queue=QUEUE, count=2, timeout_s=60) for _ in range(3)))
    assert [bodies(answer.messages) for answer in answers] == given


@pytest.mark.differs_on_postgres("concurrent commands have no order")
def test_a_receive_of_a_batch_returns_messages_sent_before_it(fifo: Host) -> None:
    """Also one behind a dead letter of its group, which the first receive moves."""
    fifo.create(DEAD, fifo=True)
    fifo.set_queue(dead_letter_queue=DEAD, receives_max=1)
    fifo.send_to_groups("b0")
    fifo.receive(timeout_s=0)
    fifo.send_to_groups("a1")
    news = [message(body, group=body[0], dedup_id=body) for body in ("a2", "b1", "c1")]
    first, _, second, _, third = fifo.do_together(
        commands.Receive(queue=QUEUE, count=2),
        commands.Send(queue=QUEUE, messages=tuple(news[:2])),
        commands.Receive(queue=QUEUE, count=1),
        commands.Send(queue=QUEUE, messages=tuple(news[2:])),
        commands.Receive(queue=QUEUE, count=2),
    )
    assert [bodies(answer.messages) for answer in (first, second, third)] == ["a1", "b1", "c1"]
    assert bodies(fifo.receive(10, queue=DEAD)) == "b0"
    assert (fifo.counts(), fifo.counts(DEAD)) == ((1, 3, 0), (0, 1, 0))


def test_groups_whose_leases_end_together_are_ordered_by_first_message(fifo: Host) -> None:
    fifo.send_to_groups("a1", "b1", "a2")
    assert [bodies(receive(fifo, 1, timeout_s=30)) for _ in "ab"] == ["a1", "b1"]
    fifo.advance(30_000)
    assert bodies(receive(fifo)) == "a1 a2 b1"


@pytest.mark.parametrize("sent", ["a1 b1 c1", "a1 a2 a3"])
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_leases_that_end_one_after_another_are_counted(fifo: Host, sent: str, order: tuple[int, ...]) -> None:
    fifo.send_to_groups(*sent.split())
    received = receive(fifo, timeout_s=60)
    for timeouts_s in (order[::-1], order):
        for timeout_s, each in zip(timeouts_s, received, strict=True):
            fifo.change(each.receipt, timeout_s)
    counts = []
    for _ in order:
        fifo.advance(1_000)
        counts.append(fifo.counts())
    assert counts == [(1, 2, 0), (2, 1, 0), (3, 0, 0)]


@pytest.mark.differs_on_postgres("skips any number of delayed messages")
def test_a_message_behind_many_delayed_ones_of_its_group_is_not_due(fifo: Host) -> None:
    """Else a long poll would receive again and again."""
    fifo.put(*(message(f"a{number}", group="a", dedup_id=f"{number}", delay_s=60) for number in range(120)))
    fifo.send_to_groups("a_last")
    assert not receive(fifo)
    assert fifo.due_ms() == fifo.clock.now_ms() + 60_000


def test_a_group_whose_first_message_expired_is_ordered_by_its_next_one(fifo: Host) -> None:
    fifo.set_queue(retention_s=60)
    fifo.advance(1_000)  # the janitor has run before they expire
    fifo.send_to_groups("a1", "c1")
    fifo.advance(30_000)
    fifo.send_to_groups("b1")
    fifo.advance(29_999)
    fifo.send_to_groups("a2")
    fifo.advance(1)
    assert bodies(receive(fifo)) == "b1 a2"


def lease_two(fifo: Host) -> Any:
    """Lease a1, which expires in 30 s, and a2, which does not."""
    fifo.set_queue(retention_s=60)
    fifo.advance(1_000)
    fifo.send_to_groups("a1")
    fifo.advance(30_000)
    fifo.send_to_groups("a2")
    return receive(fifo, timeout_s=600)


def test_a_group_whose_last_returned_message_expired_is_received_at_once(fifo: Host) -> None:
    """It is ready since the return of another message, which was earlier."""
    first, second = lease_two(fifo)
    fifo.change(second.receipt, 0)
    fifo.advance(1_000)
    fifo.change(first.receipt, 0)
    fifo.advance(28_999)
    fifo.advance(1)
    assert bodies(receive(fifo)) == "a2"


@pytest.mark.parametrize("peeks", [True, False])
@pytest.mark.parametrize("order", ["a2 b1", "b1 a2"])
def test_a_group_whose_last_returned_message_expired_is_ordered_by_the_others(
    fifo: Host, order: str, *, peeks: bool
) -> None:
    """A peek shows that order, too. It is that of the return of a2, before or after the send of b1."""
    first, second = lease_two(fifo)
    for body in order.split():
        fifo.advance(1_000)
        if body == "b1":
            fifo.send_to_groups(body)
        else:
            fifo.change(second.receipt, 0)
    fifo.advance(1_000)
    fifo.change(first.receipt, 0)
    fifo.advance(26_999)
    fifo.advance(1)
    if peeks:  # without it, the receive deletes a1
        assert [each.body for each in fifo.do(Peek(queue=QUEUE, count=2)).messages] == order.split()
    assert bodies(receive(fifo)) == order


def test_a_group_whose_returned_messages_expired_is_ordered_by_its_next_one(fifo: Host) -> None:
    fifo.set_queue(retention_s=60)
    fifo.advance(1_000)
    fifo.send_to_groups("a1")
    assert bodies(receive(fifo, timeout_s=0)) == "a1"
    fifo.advance(30_000)
    fifo.send_to_groups("b1")
    fifo.advance(1)
    fifo.send_to_groups("a2")
    fifo.advance(29_998)
    fifo.advance(1)
    assert [each.body for each in fifo.do(Peek(queue=QUEUE, count=2)).messages] == ["b1", "a2"]
    assert bodies(receive(fifo)) == "b1 a2"


def test_a_message_delayed_during_a_lease_does_not_advance_its_group(fifo: Host) -> None:
    """Groups whose leases end together are ordered by their first received messages."""
    fifo.put(message("a1", group="a", dedup_id="a1", delay_s=1))
    fifo.send_to_groups("b1", "a2")
    assert bodies(receive(fifo, timeout_s=30)) == "b1 a2"
    fifo.advance(30_000)
    assert bodies(receive(fifo)) == "b1 a1 a2"


def test_a_longer_retention_does_not_unblock_a_group(fifo: Host) -> None:
    """The lease would have ended with the shorter retention."""
    fifo.set_queue(retention_s=60)
    fifo.send_to_groups("a1", "a2")
    assert bodies(receive(fifo, 1, timeout_s=600)) == "a1"
    fifo.set_queue(retention_s=120)
    fifo.advance(60_000)
    assert not fifo.do(Peek(queue=QUEUE, count=10)).messages
    assert not receive(fifo)
    assert fifo.counts() == (1, 1, 0)


def test_priorities_do_not_change_the_order_of_a_group(fifo: Host) -> None:
    for number, priority in enumerate((16, 1, 8)):
        fifo.put(NewMessage(body=f"a{number}", size_bytes=2, group="a", dedup_id=str(number), priority=priority))
    assert bodies(receive(fifo)) == "a0 a1 a2"


@pytest.mark.parametrize("options", [None, SendOptions(all_or_nothing=True)], ids=["each", "together"])
@pytest.mark.parametrize(
    ("bad", "error"), [({"dedup_id": "x"}, GroupMissing), ({"group": "a"}, DeduplicationIdMissing)]
)
def test_a_message_without_group_or_deduplication_id_fails_the_batch(
    fifo: Host, bad: dict[str, Any], error: type[Exception], options: SendOptions | None
) -> None:
    good = NewMessage(body="a1", size_bytes=1, group="a", dedup_id="x")
    with pytest.raises(error):
        fifo.put(good, NewMessage(body="x", size_bytes=1, **bad), options=options)
    assert fifo.counts() == (0, 0, 0)
    fifo.put(good)
    assert fifo.counts() == (1, 0, 0)


def test_concurrent_deletes_of_one_message_are_applied_in_order(fifo: Host) -> None:
    fifo.send_to_groups("a1")
    (before,) = receive(fifo, timeout_s=1)
    fifo.advance(1_000)
    (latest,) = receive(fifo)
    receipts = before.receipt, latest.receipt, before.receipt, latest.receipt
    deletes = [commands.Delete(queue=QUEUE, receipts=(receipt,)) for receipt in receipts]
    assert fifo.do_together(*deletes) == [[SUPERSEDED], [LIVE], [GONE], [GONE]]


def test_waiters_are_woken_when_a_group_is_unblocked(fifo: Host) -> None:
    fifo.send_to_groups("a1", "a2", "a3")
    first, second = receive(fifo, 2)
    wakes = fifo.watch()
    end_ms = fifo.due_ms()
    fifo.delete(first.receipt)
    fifo.send_to_groups("a4")
    assert set(wakes) == {end_ms}
    fifo.change(second.receipt, 0)
    assert wakes[-1] == fifo.clock.now_ms()


@pytest.mark.differs_on_postgres("waiters know the end of retention from their receive, and poll then")
def test_waiters_are_woken_when_retention_unblocks_a_group(fifo: Host) -> None:
    fifo.set_queue(retention_s=60)
    fifo.send_to_groups("a1")
    receive(fifo, timeout_s=600)
    fifo.advance(30_000)
    fifo.send_to_groups("a2")
    wakes = fifo.watch()
    fifo.advance(31_000)
    assert any(wake <= fifo.clock.now_ms() for wake in wakes)


@pytest.mark.differs_on_postgres("waiters know the end of retention from their receive, and poll then")
def test_a_command_that_expires_messages_wakes_before_the_janitor(fifo: Host) -> None:
    """The janitor runs once a minute."""
    fifo.set_queue(retention_s=60)
    fifo.send_to_groups("c1")
    fifo.advance(500)
    fifo.send_to_groups("a1")
    receive(fifo, timeout_s=600)
    fifo.advance(30_000)
    fifo.send_to_groups("a2")
    fifo.advance(29_500)
    wakes = fifo.watch()
    fifo.advance(600)
    assert wakes == []
    assert fifo.counts() == (1, 0, 0)
    assert wakes == [fifo.clock.now_ms()]


def test_each_queue_has_its_own_deduplication_log(fifo: Host) -> None:
    other = "000000000000/other"
    fifo.do(commands.CreateQueue(queue=other, settings={"fifo": True}))
    fifo.send_to_groups("a1", dedup_id="same")
    (first,) = fifo.put(NewMessage(body="a1", size_bytes=2, group="a", dedup_id="same"), queue=other)
    assert len(receive(fifo)) == 1
    assert fifo.receive_one(queue=other).id == first.id


def test_content_deduplication_uses_the_hash_of_the_body(fifo: Host) -> None:
    fifo.set_queue(content_deduplication=True)
    plain = NewMessage(body="a1", size_bytes=2, group="a")
    named = NewMessage(body="a2", size_bytes=2, group="a", dedup_id=sha256(b"a1").hexdigest())
    other = NewMessage(body="a1", size_bytes=2, group="a", dedup_id="other", properties=b"\x90")
    one, same, hashed, another = fifo.put(plain, plain, named, other)
    assert one == same == hashed != another
    assert bodies(receive(fifo)) == "a1 a1"


def test_a_deduplication_id_counts_for_five_minutes(fifo: Host) -> None:
    new = message("a1", group="a", dedup_id="x")
    (first,) = fifo.put(new)
    fifo.advance(299_999)
    assert fifo.put(new) == [first]
    fifo.advance(1)
    assert fifo.put(new) != [first]
    assert bodies(receive(fifo)) == "a1 a1"


@pytest.mark.parametrize("kinds", [("quick", "slow"), ("slow", "quick")])
def test_a_group_is_blocked_until_the_last_of_its_leases_ends(host: Host, kinds: tuple[str, str]) -> None:
    """Visibility rules give the messages of one receive different timeouts."""
    classes = '[{"name": "a", "visibility_timeout_s": 1}, {"name": "b", "visibility_timeout_s": 30}]'
    rules = f'{{"version": 1, "keys": {{"quick": 0, "slow": 1}}, "default": 0, "classes": {classes}}}'
    host.create(fifo=True, visibility_rules=rules)
    host.put(*(message(f"a{kind}", group="a", dedup_id=kind, kind=kind) for kind in (*kinds, "new")))
    assert len(receive(host, 2)) == 2
    host.advance(1_000)
    assert receive(host) == []
    assert host.counts() == (2, 1, 0)
    host.advance(29_000)
    assert bodies(receive(host)) == f"a{kinds[0]} a{kinds[1]} anew"


@pytest.mark.parametrize(("lease_s_max", "end_ms"), [(60, 60_000), (None, 43_210_000)], ids=["a-minute", "no-end"])
def test_a_repeated_attempt_respects_its_lease_limit(fifo: Host, lease_s_max: int | None, end_ms: int) -> None:
    fifo.send_to_groups("a1")
    began_ms = fifo.clock.now_ms()
    command = commands.Receive(queue=QUEUE, timeout_s=30, attempt_id="x", lease_s_max=lease_s_max)
    first = fifo.do(command).messages
    fifo.advance(10_000)
    (again,) = fifo.do(replace(command, timeout_s=43_200)).messages
    assert (again.receipt, again.visible_at_ms) == (first[0].receipt, began_ms + end_ms)


def test_a_released_delayed_message_does_not_follow_the_delay_of_the_queue(host: Host) -> None:
    """Its new deadline is the instant at which it was sent."""
    host.create(fifo=True, delay_s=60)
    (sent,) = host.put(message("a1", group="a", dedup_id="a", delay_s=30), options=SendOptions(receipts=True))
    host.change(sent.receipt, 0)
    assert bodies(receive(host)) == "a1"


def test_an_attempt_can_be_repeated_for_five_minutes_from_its_first_receive(fifo: Host) -> None:
    fifo.send_to_groups("a1")
    (first,) = receive(fifo, timeout_s=900, attempt="x")
    fifo.advance(299_999)
    assert [each.receipt for each in receive(fifo, timeout_s=900, attempt="x")] == [first.receipt]
    fifo.advance(1)
    assert receive(fifo, attempt="x") == []


def test_an_attempt_can_be_repeated_at_the_in_flight_limit(fifo: Host) -> None:
    fifo.set_queue(in_flight_max=3)
    fifo.send_to_groups("a1", "a2", "b1", "c1", "d1")
    first = receive(fifo, 3, timeout_s=30, attempt="x")
    for _ in range(2):
        again = receive(fifo, 3, timeout_s=30, attempt="x")
        assert [message.receipt for message in again] == [message.receipt for message in first]
        assert receive(fifo, attempt="y") == []
    fifo.delete(first[0].receipt)
    assert bodies(receive(fifo, attempt="y")) == "c1"


def test_an_attempt_is_not_repeated_once_a_message_has_changed_or_expired(fifo: Host) -> None:
    """Then it is an ordinary receive, which counts, and which the next repetition returns."""
    fifo.set_queue(retention_s=120)
    fifo.send_to_groups("a1", "b1", "c1")
    _, changed, _ = receive(fifo, 3, timeout_s=30, attempt="x")
    fifo.change(changed.receipt, 60)
    assert receive(fifo, 3, attempt="x") == []
    fifo.advance(30_000)
    first, last = again = receive(fifo, 3, timeout_s=60, attempt="x")
    assert [(each.body, each.receive_count) for each in again] == [("a1", 2), ("c1", 2)]
    fifo.delete(first.receipt)
    assert receive(fifo, 3, attempt="x") == []
    fifo.change(last.receipt, 0)
    assert bodies(receive(fifo, 1, timeout_s=20, attempt="y")) == "c1"
    fifo.advance(20_000)
    (kept,) = receive(fifo, 1, timeout_s=600, attempt="y")
    assert (kept.body, kept.receive_count) == ("c1", 4)
    fifo.advance(69_999)
    assert [each.receipt for each in receive(fifo, 1, timeout_s=600, attempt="y")] == [kept.receipt]
    fifo.advance(1)
    assert receive(fifo, 1, attempt="y") == []


@pytest.mark.parametrize(("groups", "receives"), [(3, 1), pytest.param(2_500, 40, marks=pytest.mark.slow)])
def test_many_messages_that_expire_together_are_never_delivered(host: Host, groups: int, receives: int) -> None:
    """There are more than one command deletes. They do not become dead letters either."""
    host.create(DEAD, fifo=True)
    host.create(fifo=True, dead_letter_queue=DEAD, receives_max=1)
    crowd(host, 2_500, groups)
    while receive(host, 250, timeout_s=1):
        pass
    host.advance(60_000)
    living = [f"{group} lives" for group in ("g0", f"g{groups - 1}", "h")]
    host.put(*(message(body, group=body.split()[0], dedup_id=body) for body in living))
    host.set_queue(retention_s=60)
    shown: list[str] = []
    given: list[commands.ReceivedMessage] = []
    for _ in range(receives):
        shown += [each.body for each in host.do(Peek(queue=QUEUE, count=10)).messages]
        given += receive(host, timeout_s=900)
    assert set(shown) <= set(living)
    assert sorted(each.body for each in given) == living
    host.sweep()
    assert (host.counts(), host.counts(DEAD)) == ((0, 3, 0), (0, 0, 0))
    assert host.delete(*[each.receipt for each in given]) == [LIVE] * 3
    assert host.counts() == (0, 0, 0)


@pytest.mark.differs_on_postgres("a node deletes them once a second")
@pytest.mark.parametrize("groups", [1, 2_500])
def test_many_messages_that_expire_in_flight_do_not_block_their_groups(host: Host, groups: int) -> None:
    """There are more than one command deletes: an empty receive returns that the next is due at once."""
    host.create(fifo=True)
    crowd(host, 2_500, groups)
    assert len(receive(host, 2_500, timeout_s=900)) == 2_500
    host.advance(60_000)
    host.put(message("lives", group=f"g{groups - 1}", dedup_id="lives"))
    host.set_queue(retention_s=60)
    while not (given := receive(host)):
        assert host.due_ms() == host.clock.now_ms()
    assert bodies(given) == "lives"


def crowd(host: Host, count: int, groups: int | None = None) -> None:
    """Send messages in turn to `groups` groups, by default to one group each."""
    for start in range(0, count, 1_000):
        messages = tuple(
            NewMessage(body=f"m{at}", size_bytes=9, group=f"g{at % (groups or count)}", dedup_id=f"{at}")
            for at in range(start, min(start + 1_000, count))
        )
        host.put(*messages)


@pytest.mark.differs_on_postgres("the test cannot count the steps of the database")
@pytest.mark.parametrize("delay_s", [0, 100])
def test_a_delay_change_takes_constant_time(host: Host, delay_s: int) -> None:
    """20,000 groups take no more calls than 2,000; a slice of background work (5,000 calls) may fall into either."""
    host.create(fifo=True, delay_s=10 if delay_s else 900)
    steps = {}
    for groups in (2_000, 20_000):
        host.purge()
        host.set_queue(delay_s=10 if delay_s else 900)
        crowd(host, groups)
        steps[groups] = calls(lambda: host.set_queue(delay_s=delay_s)), calls(host.counts)
        delayed = groups if delay_s else 0
        assert host.counts() == (groups - delayed, 0, delayed)
    assert all(many < few * 1.2 + 8_000 for few, many in zip(steps[2_000], steps[20_000], strict=True)), steps


def calls(work: Callable[[], object]) -> int:
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_lower_delay_makes_all_messages_visible_after_a_crash(durable: Host) -> None:
    durable.create(fifo=True, delay_s=900)
    crowd(durable, 1_000)
    durable.set_queue(delay_s=0)
    durable.crash()
    durable.sweep()
    got = [each.body for _ in range(100) for each in receive(durable, timeout_s=900)]
    assert sorted(got) == sorted(f"m{at}" for at in range(1_000))
