"""Dead letters and move tasks of FIFO queues: the order of each group is kept, and retention begins anew."""

from uuid import UUID

import pytest

from tests.store.dead_letters import DEAD, change, create, finish, latest, pair, run, start
from tests.store.host import QUEUE, Host
from veilmq.core import commands, properties
from veilmq.core.commands import NewMessage
from veilmq.core.limits import DEAD_LETTERS_PER_RECEIVE
from veilmq.core.properties import Attribute, Properties
from veilmq.core.results import MoveStatus, ReceiptState, SentMessage


def send(host: Host, *bodies: str, queue: str = QUEUE) -> list[SentMessage]:
    """Send messages whose first character is their group, and whose body is their deduplication id."""
    messages = tuple(NewMessage(body=body, size_bytes=len(body), group=body[0], dedup_id=body) for body in bodies)
    sent: list[SentMessage] = host.do(commands.Send(queue=queue, messages=messages))
    assert all(isinstance(each, SentMessage) for each in sent)
    return sent


def take(host: Host, queue: str = QUEUE, *, timeout_s: int = 0) -> list[str]:
    """Return the bodies that a receive of ten gives."""
    return [each.body for each in host.receive(10, queue=queue, timeout_s=timeout_s)]


@pytest.fixture
def ordered(host: Host) -> Host:
    """A pair of FIFO queues, the limit being one receive."""
    pair(host, receives_max=1, fifo=True)
    return host


def kill(host: Host, *bodies: str) -> None:
    """Send messages and let them become dead letters."""
    send(host, *bodies)
    assert sorted(take(host)) == sorted(bodies)
    assert take(host) == []


def groups(bodies: list[str]) -> dict[str, list[str]]:
    """Return the messages of each group in their order."""
    return {group: [body for body in bodies if body[0] == group] for group in {body[0] for body in bodies}}


def test_dead_letters_keep_the_order_of_their_group(ordered: Host) -> None:
    """Also behind those that are there already."""
    kill(ordered, "a1", "b1", "a2")
    kill(ordered, "a3", "b2")
    assert groups(take(ordered, DEAD)) == {"a": ["a1", "a2", "a3"], "b": ["b1", "b2"]}


def test_a_receive_moves_no_more_than_it_has_time_for(ordered: Host) -> None:
    """The next one goes on, however many groups have dead letters alone."""
    new = [NewMessage(body="a", size_bytes=1, group=str(place), dedup_id=str(place)) for place in range(150)]
    ordered.do(commands.Send(queue=QUEUE, messages=tuple(new)))
    assert sum(len(ordered.receive(10, timeout_s=30)) for _ in range(15)) == 150
    ordered.advance(30_000)
    assert take(ordered) == []
    assert ordered.counts(DEAD) == (DEAD_LETTERS_PER_RECEIVE, 0, 0)
    assert take(ordered) == []
    assert ordered.counts(DEAD) == (150, 0, 0)


def test_the_next_of_the_group_is_given_out_in_the_receive_that_moves_the_first(ordered: Host) -> None:
    """A dead letter does not block its group."""
    send(ordered, "a1")
    take(ordered)
    send(ordered, "a2", "a3")
    assert take(ordered, timeout_s=30) == ["a2", "a3"]
    assert take(ordered, DEAD, timeout_s=30) == ["a1"]


def test_a_dead_letter_of_a_fifo_queue_is_sent_anew(ordered: Host) -> None:
    """Another sent time and sequence number; its id, receives and first receive go on."""
    send(ordered, "a0", queue=DEAD)
    (sent,) = send(ordered, "a1")
    first_ms = ordered.clock.now_ms()
    take(ordered)
    ordered.advance(5_000)
    take(ordered)
    first, second = ordered.receive(10, queue=DEAD)
    assert (second.body, second.id, second.source) == ("a1", sent.id, QUEUE)
    assert (second.sent_at_ms, second.first_received_at_ms) == (first_ms + 5_000, first_ms)
    assert second.receive_count == 2
    assert first.sequence is not None
    assert second.sequence is not None
    assert second.sequence > first.sequence


def test_deduplication_of_the_dead_letter_queue_drops_no_dead_letter(ordered: Host) -> None:
    """What was sent there by that id does not stand in the way, nor the other way round."""
    send(ordered, "a1", queue=DEAD)
    kill(ordered, "a1")
    assert take(ordered, DEAD) == ["a1", "a1"]
    kill(ordered, "a2")
    send(ordered, "a2", queue=DEAD)
    assert take(ordered, DEAD) == ["a1", "a1", "a2", "a2"]


@pytest.mark.parametrize("given", ["mine", None])
def test_the_id_of_a_fifo_dead_letter_is_its_deduplication_id(ordered: Host, given: str | None) -> None:
    """As Amazon SQS documents; all else that it carries stays, and a task moves it back as it is."""
    ordered.do(commands.SetQueue(queue=QUEUE, settings={"content_deduplication": True}))
    carried = Properties(attributes={"n": Attribute("Number", "1")}, group="a", dedup_id=given)
    new = NewMessage(body="a1", size_bytes=2, group="a", dedup_id=given, properties=properties.encode(carried))
    (sent,) = ordered.do(commands.Send(queue=QUEUE, messages=(new,)))
    (before,) = ordered.receive(10, timeout_s=0)
    assert properties.decode(before.properties) == carried
    assert take(ordered) == []
    id_text = str(UUID(bytes=sent.id))
    (dead,) = ordered.receive(10, queue=DEAD, timeout_s=0)
    expected = Properties(attributes=carried.attributes, group="a", dedup_id=id_text)
    assert properties.decode(dead.properties) == expected
    start(ordered)
    finish(ordered)
    (back,) = ordered.receive(10)
    assert properties.decode(back.properties) == expected


def test_retention_of_a_fifo_dead_letter_begins_with_its_move(host: Host) -> None:
    """Its dead-letter queue has it for the whole of its own retention."""
    pair(host, receives_max=1, fifo=True, retention_s=60)
    send(host, "a1")
    take(host)
    host.advance(59_000)
    take(host)
    host.advance(59_999)
    assert take(host, DEAD) == ["a1"]
    host.advance(1)
    assert take(host, DEAD) == []


def test_a_receipt_of_the_source_is_gone(ordered: Host) -> None:
    """The message is another queue's now; its group is free in both."""
    send(ordered, "a1")
    old = ordered.receive(1, timeout_s=1)[0]
    ordered.advance(1_000)
    assert take(ordered) == []
    assert ordered.delete(old.receipt) == [ReceiptState.GONE]
    send(ordered, "a2")
    assert take(ordered, timeout_s=30) == ["a2"]
    new = ordered.receive(1, queue=DEAD)[0]
    assert ordered.delete(new.receipt, queue=DEAD) == [ReceiptState.LIVE]


def test_messages_stay_in_order_while_the_dead_letter_queue_is_gone(ordered: Host) -> None:
    """They go on being delivered, the first one first."""
    send(ordered, "a1", "a2")
    ordered.do(commands.DeleteQueue(queue=DEAD))
    for _ in range(4):
        assert take(ordered) == ["a1", "a2"]


def test_a_task_keeps_the_order_of_each_group(ordered: Host) -> None:
    """Back where they came from, a few at a time, over several slices."""
    kill(ordered, *(f"{group}{number}" for number in range(3) for group in "abc"))
    start(ordered, rate=20)
    assert latest(ordered).messages_to_move == 9
    ended = finish(ordered)
    assert (ended.status, ended.messages_moved) == (MoveStatus.COMPLETED, 9)
    found = [each for _ in range(3) for each in take(ordered, timeout_s=600)]
    assert groups(found) == {group: [f"{group}{number}" for number in range(3)] for group in "abc"}


def test_a_group_in_flight_is_not_moved(ordered: Host) -> None:
    """What stands behind the message in flight stays with it; other groups go."""
    create(ordered, "000000000000/other", fifo=True)
    kill(ordered, "a1", "a2", "b1")
    held = ordered.receive(1, queue=DEAD, timeout_s=600)[0]
    assert held.body == "a1"
    start(ordered, "000000000000/other")
    assert finish(ordered).messages_moved == 1
    assert take(ordered, "000000000000/other") == ["b1"]
    assert ordered.delete(held.receipt, queue=DEAD) == [ReceiptState.LIVE]
    assert take(ordered, DEAD) == ["a2"]


def test_a_moved_message_of_a_fifo_queue_is_a_new_one_and_not_a_duplicate(ordered: Host) -> None:
    """Back within five minutes of its first sending, it is there, with a new sequence number."""
    (sent,) = send(ordered, "a1")
    take(ordered)
    take(ordered)
    start(ordered)
    finish(ordered)
    (got,) = ordered.receive(10)
    assert (got.body, got.receive_count, got.source) == ("a1", 1, None)
    assert got.id != sent.id
    assert got.sequence is not None
    assert sent.sequence is not None
    assert got.sequence > sent.sequence


def test_a_moved_message_does_not_wait_for_the_delay_of_its_queue(ordered: Host) -> None:
    """Also behind messages of its group that do."""
    kill(ordered, "a1", "b1")
    send(ordered, "a2")
    start(ordered)
    finish(ordered)
    change(ordered, QUEUE, delay_s=60)
    assert sorted(take(ordered)) == ["a1", "b1"]
    ordered.advance(60_000)
    assert take(ordered) == ["a2"]


def test_a_message_of_unknown_source_fails_the_task_and_blocks_nothing(ordered: Host) -> None:
    """It is given back to its group, before those behind it."""
    send(ordered, "a1", "a2", queue=DEAD)
    start(ordered)
    assert finish(ordered).status is MoveStatus.FAILED
    assert take(ordered, DEAD) == ["a1", "a2"]
    start(ordered)
    assert finish(ordered).status is MoveStatus.FAILED
    assert take(ordered, DEAD) == ["a1", "a2"]


def test_dead_letters_and_tasks_over_crashes(kept: Host) -> None:
    """Each message once, each group in order, the store sound, wherever it stopped."""
    pair(kept, receives_max=1, fifo=True)
    bodies = [f"{group}{number}" for number in range(3) for group in "abc"]
    send(kept, *bodies)
    take(kept)
    kept.crash()
    take(kept)
    kept.crash()
    assert (kept.counts(), kept.counts(DEAD)) == ((0, 0, 0), (9, 0, 0))
    start(kept, rate=10)
    while latest(kept).status is MoveStatus.RUNNING:
        run(kept, 100)
        kept.crash()
        moved = latest(kept).messages_moved
        assert (sum(kept.counts()), sum(kept.counts(DEAD))) == (moved, 9 - moved)
        kept.check()
    found = [each for _ in range(3) for each in take(kept, timeout_s=600)]
    assert groups(found) == groups(sorted(bodies))
