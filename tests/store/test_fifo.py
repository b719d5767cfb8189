"""FIFO queues on every store: order, blocking, receipts, deduplication, sequence numbers and attempts."""

import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from tests.store.dead_letters import DEAD
from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.commands import InspectQueue, MessageState, Peek, SendOptions
from veilmq.core.errors import DeduplicationIdMissing, GroupMissing, LeaseTooLong, MessageTooLong, ReceiptState
from veilmq.core.messages import NewMessage

LIVE, EXPIRED, SUPERSEDED, GONE = ReceiptState.LIVE, ReceiptState.EXPIRED, ReceiptState.SUPERSEDED, ReceiptState.GONE


@pytest.fixture
def fifo(host: Host) -> Host:
    host.create(fifo=True)
    return host


def send(host: Host, *bodies: str, delay_s: int | None = None, dedup_id: str | None = None) -> list[Any]:
    messages = tuple(
        NewMessage(
            body=body,
            size_bytes=len(body),
            group=body[0],
            dedup_id=body if dedup_id is None else dedup_id,
            delay_s=delay_s,
        )
        for body in bodies
    )
    answers: list[Any] = host.put(*messages)
    return answers


def receive(host: Host, count: int = 10, *, timeout_s: int | None = None, attempt: str | None = None) -> Any:
    return host.do(commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s, attempt_id=attempt)).messages


def bodies(messages: list[commands.ReceivedMessage]) -> str:
    return " ".join(message.body for message in messages)


# Order and blocking.


def test_a_released_poison_message_does_not_come_first_for_ever(fifo: Host) -> None:
    """Its group comes behind those that could be had before it."""
    send(fifo, "a1")
    (poison,) = receive(fifo)
    fifo.advance(10)
    send(fifo, "b1")
    fifo.advance(10)
    fifo.change(poison.receipt, 0)
    assert bodies(receive(fifo, 1)) == "b1"
    assert bodies(receive(fifo, 1)) == "a1"


def test_a_group_that_goes_on_comes_by_the_age_of_its_next_message(fifo: Host) -> None:
    """Groups are served in the order of sending, not in that of their last visit."""
    for body in ("a1", "b1", "a2", "c1"):
        send(fifo, body)
        fifo.advance(1)
    (first,) = receive(fifo, 1)
    fifo.delete(first.receipt)
    assert bodies(receive(fifo, 3)) == "b1 a2 c1"


def test_a_shorter_retention_frees_the_groups_of_messages_that_it_ends(fifo: Host) -> None:
    """At once, whether they are in flight, or came back."""
    send(fifo, "a1", "b1", "c1")
    receive(fifo, 2, timeout_s=600)
    (last,) = receive(fifo, 1, timeout_s=600)
    fifo.change(last.receipt, 1)
    fifo.advance(61_000)
    send(fifo, "a2", "b2", "c2")
    fifo.set_queue(retention_s=60)
    assert fifo.counts() == (3, 0, 0)
    assert fifo.due_ms() == fifo.clock.now_ms()
    assert sorted(each.body for each in receive(fifo)) == ["a2", "b2", "c2"]


def test_a_peek_passes_over_groups_whose_messages_retention_has_ended(kept: Host) -> None:
    """They stand before the others until the janitor comes."""
    kept.create(fifo=True, retention_s=60)
    send(kept, *"abcdef")
    kept.advance(59_000)
    send(kept, "g1")
    kept.reopen()  # whose janitor comes later
    kept.advance(1_000)
    assert [each.body for each in kept.do(Peek(queue=QUEUE, count=3)).messages] == ["g1"]
    assert bodies(receive(kept, 3)) == "g1"


def test_a_hundred_delayed_messages_of_a_group_are_passed_over(fifo: Host) -> None:
    """Also when the group is asked again, after what was visible was deleted."""
    for start in range(0, 100, 10):
        send(fifo, *(f"a{at}" for at in range(start, start + 10)), delay_s=900)
    send(fifo, "a100", "a101")
    for body in ("a100", "a101"):
        (first,) = receive(fifo, 1)
        assert first.body == body
        fifo.delete(first.receipt)
    assert receive(fifo) == []


def test_an_undelayed_message_of_a_group_that_waits_for_a_delay_is_had_at_once(fifo: Host) -> None:
    """Also when the group's turn was to come with the end of the delay."""
    send(fifo, "a1", delay_s=5)
    assert fifo.due_ms() == fifo.clock.now_ms() + 5_000
    send(fifo, "a2", delay_s=2)
    assert fifo.due_ms() == fifo.clock.now_ms() + 2_000
    send(fifo, "a3")
    assert fifo.due_ms() == fifo.clock.now_ms()
    assert bodies(receive(fifo)) == "a3"
    send(fifo, "a4")
    assert receive(fifo) == []


def test_the_priority_of_another_protocol_does_not_part_a_group(fifo: Host) -> None:
    for number, priority in enumerate((16, 1, 8)):
        fifo.put(NewMessage(body=f"a{number}", size_bytes=2, group="a", dedup_id=str(number), priority=priority))
    assert bodies(receive(fifo)) == "a0 a1 a2"


@pytest.mark.parametrize(
    ("bad", "error"), [({"dedup_id": "x"}, GroupMissing), ({"group": "a"}, DeduplicationIdMissing)]
)
def test_a_message_without_a_group_or_an_id_fails_the_command(fifo: Host, bad: dict[str, Any], error: Any) -> None:
    good = NewMessage(body="a1", size_bytes=1, group="a", dedup_id="x")
    with pytest.raises(error):
        fifo.put(good, NewMessage(body="x", size_bytes=1, **bad))
    assert fifo.counts() == (0, 0, 0)


def test_a_message_that_is_too_long_fails_alone(fifo: Host) -> None:
    fifo.set_queue(message_bytes_max=1_024)
    messages = (
        NewMessage(body="x", size_bytes=1_025, group="a", dedup_id="x"),
        NewMessage(body="a1", size_bytes=1, group="a", dedup_id="x"),
    )
    answers = fifo.put(*messages)
    assert isinstance(answers[0], MessageTooLong)
    assert bodies(receive(fifo)) == "a1"


# Receipts.


def test_receipts_of_one_message_that_come_together_are_judged_in_order(fifo: Host) -> None:
    """Only behind the one that deletes its message another one finds it gone."""
    send(fifo, "a1")
    (before,) = receive(fifo, timeout_s=1)
    fifo.advance(1_000)
    (latest,) = receive(fifo)
    receipts = before.receipt, latest.receipt, before.receipt, latest.receipt
    deletes = [commands.Delete(queue=QUEUE, receipts=(receipt,)) for receipt in receipts]
    assert fifo.do_together(*deletes) == [[SUPERSEDED], [LIVE], [GONE], [GONE]]


def test_a_change_beyond_twelve_hours_is_refused_and_blocks_no_longer(fifo: Host) -> None:
    send(fifo, "a1", "a2")
    (message,) = receive(fifo, 1, timeout_s=30)
    fifo.advance(1)
    assert isinstance(fifo.change(message.receipt, 43_200), LeaseTooLong)
    fifo.advance(29_999)
    assert bodies(receive(fifo)) == "a1 a2"


# Waking.


def test_whoever_waits_for_a_group_is_told_when_it_is_free(fifo: Host) -> None:
    """By a delete and by a release, at once; not while something of it is in flight."""
    send(fifo, "a1", "a2", "a3")
    first, second = receive(fifo, 2)
    wakes: list[int] = []
    fifo.engine.watch(QUEUE, wakes.append)
    end_ms = fifo.due_ms()
    fifo.delete(first.receipt)
    send(fifo, "a4")
    assert set(wakes) == {end_ms}
    fifo.change(second.receipt, 0)
    assert wakes[-1] == fifo.clock.now_ms()


@pytest.mark.differs_on_postgres("whoever waits was told the end of retention by its receive, and looks then")
def test_whoever_waits_is_told_when_retention_frees_a_group(fifo: Host) -> None:
    fifo.set_queue(retention_s=60)
    send(fifo, "a1")
    receive(fifo, timeout_s=600)
    fifo.advance(30_000)
    send(fifo, "a2")
    wakes: list[int] = []
    fifo.engine.watch(QUEUE, wakes.append)
    fifo.advance(31_000)
    assert any(wake <= fifo.clock.now_ms() for wake in wakes)


@pytest.mark.differs_on_postgres("whoever waits was told the end of retention by its receive, and looks then")
def test_whoever_waits_is_told_by_the_command_that_comes_before_the_janitor(fifo: Host) -> None:
    """Which looks once a second: who asks for the counters between two looks deletes what has ended."""
    fifo.set_queue(retention_s=60)
    send(fifo, "c1")
    fifo.advance(500)
    send(fifo, "a1")
    receive(fifo, timeout_s=600)
    fifo.advance(30_000)
    send(fifo, "a2")
    fifo.advance(29_500)
    wakes: list[int] = []
    fifo.engine.watch(QUEUE, wakes.append)
    fifo.advance(600)
    assert wakes == []
    assert fifo.counts() == (1, 0, 0)
    assert wakes == [fifo.clock.now_ms()]


# Deduplication and sequence numbers.


def test_a_duplicate_within_one_command_is_one(fifo: Host) -> None:
    """Both entries have the same answer, and one message is there."""
    first, second = send(fifo, "a1", "b1", dedup_id="same")
    assert first == second
    assert fifo.counts() == (1, 0, 0)


def test_another_queue_has_other_duplicates(fifo: Host) -> None:
    """Nothing is shared, not even with the queue that had the name before."""
    other = "000000000000/other"
    fifo.do(commands.CreateQueue(queue=other, settings={"fifo": True}))
    send(fifo, "a1", dedup_id="same")
    (first,) = fifo.put(NewMessage(body="a1", size_bytes=2, group="a", dedup_id="same"), queue=other)
    assert len(receive(fifo)) == 1
    assert fifo.receive_one(queue=other).id == first.id


def test_content_takes_the_place_of_an_id(fifo: Host) -> None:
    """The body's SHA-256, and it can be given as an id as well; an id given explicitly comes first."""
    fifo.set_queue(content_deduplication=True)
    plain = NewMessage(body="a1", size_bytes=2, group="a")
    named = NewMessage(body="a2", size_bytes=2, group="a", dedup_id=sha256(b"a1").hexdigest())
    other = NewMessage(body="a1", size_bytes=2, group="a", dedup_id="other", properties=b"\x90")
    one, same, hashed, another = fifo.put(plain, plain, named, other)
    assert one == same == hashed != another
    assert bodies(receive(fifo)) == "a1 a1"


# Attempts.


@pytest.mark.parametrize("how", ["delete", "change", "renew", "release"])
def test_an_attempt_is_void_once_one_of_its_messages_was_touched(fifo: Host, how: str) -> None:
    """What is left of it stays blocked, and others are given."""
    send(fifo, "a1", "a2")
    first, second = receive(fifo, timeout_s=30, attempt="x")
    send(fifo, "b1")
    if how == "delete":
        fifo.delete(first.receipt)
    else:
        fifo.change(first.receipt, 0 if how == "release" else 40, renew_receipt=how == "renew")
    assert bodies(receive(fifo, attempt="x")) == "b1"
    assert bodies(receive(fifo, attempt="x")) == "b1"
    assert fifo.delete(second.receipt) == [LIVE]


@pytest.mark.parametrize(("lease_s_max", "end_ms"), [(60, 60_000), (None, 43_210_000)], ids=["a-minute", "no-end"])
def test_a_repetition_keeps_to_the_longest_lease_that_it_names(
    fifo: Host, lease_s_max: int | None, end_ms: int
) -> None:
    """Also where that is another one than twelve hours, or none."""
    send(fifo, "a1")
    began_ms = fifo.clock.now_ms()
    command = commands.Receive(queue=QUEUE, timeout_s=30, attempt_id="x", lease_s_max=lease_s_max)
    first = fifo.do(command).messages
    fifo.advance(10_000)
    (again,) = fifo.do(replace(command, timeout_s=43_200)).messages
    assert (again.receipt, again.visible_at_ms) == (first[0].receipt, began_ms + end_ms)


def test_an_attempt_that_gave_nothing_is_not_remembered(fifo: Host) -> None:
    """The next one is a receive like any other; other ids and other queues are other attempts."""
    assert receive(fifo, attempt="x") == []
    send(fifo, "a1")
    assert bodies(receive(fifo, attempt="x")) == "a1"
    assert receive(fifo, attempt="y") == []
    assert bodies(receive(fifo, attempt="x")) == "a1"


def test_an_attempt_is_repeated_at_the_quota(fifo: Host) -> None:
    """Its messages have their places already, and take no others."""
    fifo.set_queue(in_flight_max=3)
    send(fifo, "a1", "a2", "b1", "c1", "d1")
    first = receive(fifo, 3, timeout_s=30, attempt="x")
    for _ in range(2):
        again = receive(fifo, 3, timeout_s=30, attempt="x")
        assert [message.receipt for message in again] == [message.receipt for message in first]
        assert receive(fifo, attempt="y") == []
    fifo.delete(first[0].receipt)
    assert bodies(receive(fifo, attempt="y")) == "c1"


# Retention.


def test_what_its_retention_has_ended_stays_ended(fifo: Host) -> None:
    """A longer one brings back nothing, whether or not anybody has swept since; what is left stays in order."""
    fifo.set_queue(retention_s=60)
    fifo.advance(30_000)
    send(fifo, "a1", "b1")
    (held,) = receive(fifo, 1, timeout_s=1_000)
    fifo.advance(59_999)
    send(fifo, "a2", "b2")
    fifo.advance(1)
    fifo.set_queue(retention_s=1_000)
    assert fifo.counts() == (2, 0, 0)
    assert bodies(receive(fifo)) == "a2 b2"
    assert fifo.delete(held.receipt) == [GONE]


@pytest.mark.parametrize(("groups", "receives"), [(3, 1), pytest.param(2_500, 40, marks=pytest.mark.slow)])
def test_many_messages_that_end_at_once_are_never_given(host: Host, groups: int, receives: int) -> None:
    """More than a command deletes: what follows them is given, at once or when not too many groups are to be passed.

    Nor are they dead letters, however often they were received.
    """
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


@pytest.mark.differs_on_postgres("a node deletes them once a second, whatever is asked for")
@pytest.mark.parametrize("groups", [1, 2_500])
def test_what_retention_ends_in_flight_blocks_nothing_behind_many_others(host: Host, groups: int) -> None:
    """More than a command deletes: a receive that gives nothing for that is to be made again at once."""
    host.create(fifo=True)
    crowd(host, 2_500, groups)
    assert len(receive(host, 2_500, timeout_s=900)) == 2_500
    host.advance(60_000)
    host.put(message("lives", group=f"g{groups - 1}", dedup_id="lives"))
    host.set_queue(retention_s=60)
    while not (given := receive(host)):
        assert host.due_ms() == host.clock.now_ms()
    assert bodies(given) == "lives"


# Restarts.


@pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "crashed"])
def test_everything_survives_a_restart(kept: Host, *, abruptly: bool) -> None:
    """Blocked groups, their order, duplicates, sequence numbers and attempts."""
    kept.create(fifo=True)
    sent = send(kept, "a1", "a2", "b1", "b2")
    send(kept, "c1", delay_s=30)
    first = receive(kept, 3, timeout_s=60, attempt="x")
    if abruptly:
        kept.crash()
    else:
        kept.reopen()
    assert send(kept, "a1") == [sent[0]]
    assert receive(kept) == []
    assert receive(kept, 3, timeout_s=60, attempt="x") == first
    kept.delete(first[0].receipt)
    assert receive(kept) == []
    kept.delete(first[1].receipt, first[2].receipt)
    kept.advance(30_000)
    assert bodies(receive(kept)) == "b2 c1"
    (later,) = send(kept, "d1")
    assert later.sequence > max(each.sequence for each in sent)


# The queue's delay.


def crowd(host: Host, count: int, groups: int | None = None) -> None:
    """Send messages of as many groups in turn; by default of a group each."""
    for start in range(0, count, 1_000):
        messages = tuple(
            NewMessage(body=f"m{at}", size_bytes=9, group=f"g{at % (groups or count)}", dedup_id=f"{at}")
            for at in range(start, min(start + 1_000, count))
        )
        host.put(*messages)


@pytest.mark.differs_on_postgres("not in what it does: its database's steps are not seen from here")
@pytest.mark.parametrize("delay_s", [0, 100])
def test_a_new_delay_takes_as_many_steps_whatever_waits_for_it(host: Host, delay_s: int) -> None:
    """20,000 groups are no more work than 2,000, neither for the change nor for a look at the counts.

    A slice of what goes on by itself (5,000 calls) may fall into either; a call for each group would be 18,000.
    """
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


def test_all_that_a_lower_delay_makes_due_can_be_had(kept: Host) -> None:
    """Also what does not follow with the change itself, when the server ends right after it."""
    kept.create(fifo=True, delay_s=900)
    crowd(kept, 1_000)
    kept.set_queue(delay_s=0)
    kept.crash()
    kept.sweep()
    got = [each.body for _ in range(100) for each in receive(kept, timeout_s=900)]
    assert sorted(got) == sorted(f"m{at}" for at in range(1_000))


def test_a_higher_delay_leaves_messages_with_a_delay_of_their_own_as_they_are(fifo: Host) -> None:
    """They come before those that it delays, whether they were sent before a receive of their group or after it."""
    send(fifo, "a0", "a1", "b0")
    send(fifo, "a2", delay_s=1)
    held = receive(fifo, 1) + receive(fifo, 1)
    assert bodies(held) == "a0 b0"
    send(fifo, "b1", "c1")
    send(fifo, "b2", "c2", delay_s=1)
    fifo.delete(*[each.receipt for each in held])
    fifo.advance(1_000)
    fifo.set_queue(delay_s=60)
    assert fifo.due_ms() == fifo.clock.now_ms()
    assert sorted(each.body for each in receive(fifo, timeout_s=900)) == ["a2", "b2", "c2"]
    assert fifo.counts() == (0, 3, 3)


def test_a_higher_delay_leaves_a_message_as_it_is_whose_own_was_changed(fifo: Host) -> None:
    terms = SendOptions(receipts=True, dedup_id_optional=True)
    send(fifo, "a1")
    (sent,) = fifo.put(message("a2", group="a", delay_s=30), terms=terms)
    fifo.change(sent.receipt, 0)
    fifo.set_queue(delay_s=60)
    assert bodies(receive(fifo, timeout_s=0)) == "a2"
    fifo.set_queue(delay_s=0)
    assert bodies(receive(fifo)) == "a1 a2"


@pytest.mark.parametrize("delay_s", [0, 30])
def test_a_group_that_can_give_a_message_keeps_its_turn_through_a_new_delay(fifo: Host, delay_s: int) -> None:
    """From the instant at which the first of its messages became visible, which need not be the first in order."""
    fifo.set_queue(delay_s=30 - delay_s)
    send(fifo, "a1", delay_s=30)
    send(fifo, "a2", delay_s=1)
    fifo.advance(2_000)
    send(fifo, "b1", delay_s=0)
    fifo.advance(28_000)
    fifo.set_queue(delay_s=delay_s)
    fifo.sweep()
    assert bodies(receive(fifo)) == "a1 a2 b1"


def test_a_group_is_ready_from_its_first_visible_message_on_when_the_last_lease_is_deleted(fifo: Host) -> None:
    send(fifo, "a0")
    send(fifo, "a1", delay_s=30)
    send(fifo, "a2", delay_s=1)
    (held,) = receive(fifo, 1, timeout_s=600)
    fifo.advance(2_000)
    send(fifo, "b1")
    fifo.advance(30_000)
    fifo.delete(held.receipt)
    assert bodies(receive(fifo)) == "a1 a2 b1"


def test_a_group_is_ready_from_its_last_lease_on_whatever_expired_receipts_do(fifo: Host) -> None:
    """The lease that ended last need not be that of the first message."""
    send(fifo, "a1", "a2", "a3")
    first, _ = receive(fifo, 2, timeout_s=30)
    fifo.change(first.receipt, 10)
    fifo.advance(20_000)
    send(fifo, "b1")
    fifo.advance(11_000)
    assert fifo.delete(first.receipt) == [EXPIRED]
    assert bodies(receive(fifo)) == "b1 a1 a2 a3"


def test_counts_and_looks_tell_of_what_the_queue_delays(host: Host) -> None:
    host.create(fifo=True, delay_s=60)
    send(host, "a1", "a2", "b1")
    send(host, "b2", delay_s=5)
    send(host, "c1", delay_s=0)
    assert host.counts() == (1, 0, 4)
    assert bodies(receive(host, timeout_s=900)) == "c1"
    host.advance(30_000)
    send(host, "a3")
    assert host.counts() == (1, 1, 4)
    host.set_queue(delay_s=30)
    assert host.counts() == (4, 1, 1)
    seen = host.do(InspectQueue(queue=QUEUE, state=MessageState.DELAYED))
    assert [(each.body, each.visible_at_ms) for each in seen] == [("a3", host.clock.now_ms() + 30_000)]
    assert bodies(receive(host)) == "b1 b2 a1 a2"
