"""Dead letters: who may have which dead-letter queue, when a message goes there, and what it keeps."""

from pathlib import Path
from uuid import UUID

import pytest

from tests.store.host import QUEUE, Host, fill
from tests.store.postgres_host import on_sqlite
from veilmq.core import commands
from veilmq.core.commands import MoveStatus, MoveTask
from veilmq.core.errors import DeadLetterQueueRefused, QueueNotFound, ReceiptState
from veilmq.core.limits import DEAD_LETTERS_PER_RECEIVE
from veilmq.core.messages import Attribute, NewMessage, Properties, decode_properties, encode_properties
from veilmq.core.settings import SettingValue

PAUSE_MS = 10

DEAD = "000000000000/dead"
DEEPER = "000000000000/deeper"
LONG_S = 1_209_600


def pair(host: Host, *, receives_max: int = 2, **settings: SettingValue) -> None:
    host.create(DEAD, **settings)
    host.create(QUEUE, dead_letter_queue=DEAD, receives_max=receives_max, **settings)


def wear_out(host: Host, times: int, queue: str = QUEUE) -> None:
    for _ in range(times):
        while host.receive(10, queue=queue, timeout_s=1):
            pass
        host.advance(1_000)


def bodies(host: Host, queue: str = QUEUE) -> list[str]:
    return host.bodies(10, queue=queue, timeout_s=0)


def kill(host: Host, *sent: str, queue: str = QUEUE) -> None:
    for first in range(0, len(sent), 100):
        host.send(*sent[first : first + 100], queue=queue)
    wear_out(host, 1, queue)
    while any(host.counts(queue)):
        host.receive(10, queue=queue)


def start(host: Host, destination: str | None = None, rate: int | None = None, source: str = DEAD) -> MoveTask:
    task: MoveTask = host.do(commands.StartMove(source=source, destination=destination, moves_per_s_max=rate))
    assert task.status is MoveStatus.RUNNING
    return task


def latest(host: Host, source: str = DEAD) -> MoveTask:
    task: MoveTask
    (task,) = host.do(commands.ListMoves(source=source))
    return task


def run(host: Host, time_ms: int) -> None:
    for _ in range(0, time_ms, PAUSE_MS):
        host.advance(PAUSE_MS)


def finish(host: Host, source: str = DEAD) -> MoveTask:
    """Let time pass until the task has ended, as little as possible; return it."""
    for _ in range(1_000):
        task = latest(host, source)
        if task.status is not MoveStatus.RUNNING:
            return task
        host.advance(PAUSE_MS)
    pytest.fail("the task does not end")


# Who may have which.


@pytest.mark.parametrize(("ours", "theirs", "why"), [
    ({}, None, "does not exist"), ({"fifo": True}, {}, "has another type"), ({}, {"fifo": True}, "has another type"),
    ({}, {"redrive_permission": "none"}, "does not allow"),
    ({}, {"redrive_permission": "listed", "redrive_sources": (DEEPER,)}, "does not allow"),
])  # fmt: skip
@pytest.mark.parametrize("later", [False, True], ids=["created", "set"])
def test_a_dead_letter_queue_that_cannot_serve_is_refused(
    host: Host, ours: dict[str, SettingValue], theirs: dict[str, SettingValue] | None, why: str, *, later: bool
) -> None:
    """Missing, of another type, or without the permission; nothing is changed then."""
    if theirs is not None:
        host.create(DEAD, **theirs)
    redrive: dict[str, SettingValue] = {"dead_letter_queue": DEAD, "receives_max": 3}
    if later:
        host.create(QUEUE, **ours)
        with pytest.raises(DeadLetterQueueRefused, match=why):
            host.set_queue(QUEUE, **redrive)
        assert host.do(commands.ShowQueue(queue=QUEUE)).settings.dead_letter_queue == ""
    else:
        with pytest.raises(DeadLetterQueueRefused, match=why):
            host.create(QUEUE, **ours, **redrive)
        with pytest.raises(QueueNotFound):
            host.counts()


def test_a_queue_is_not_another_accounts_dead_letter_queue(host: Host) -> None:
    host.create(QUEUE)
    host.create("111111111111/dead")
    with pytest.raises(DeadLetterQueueRefused, match="another account"):
        host.set_queue(dead_letter_queue="111111111111/dead", receives_max=3)


@pytest.mark.parametrize(
    "theirs", [{}, {"redrive_permission": "all"}, {"redrive_permission": "listed", "redrive_sources": (DEEPER, QUEUE)}]
)
def test_a_dead_letter_queue_that_allows_it_serves(host: Host, theirs: dict[str, SettingValue]) -> None:
    host.create(DEAD, **theirs)
    host.create(dead_letter_queue=DEAD, receives_max=1)
    host.send("a")
    wear_out(host, 2)
    assert host.counts(DEAD) == (1, 0, 0)


def test_other_settings_can_be_changed_while_the_dead_letter_queue_is_gone(host: Host) -> None:
    pair(host)
    host.drop(DEAD)
    host.set_queue(visibility_timeout_s=7)
    with pytest.raises(DeadLetterQueueRefused):
        host.set_queue(dead_letter_queue=DEAD, receives_max=5)
    host.set_queue(dead_letter_queue="", receives_max=0)


def test_the_sources_of_a_dead_letter_queue_are_listed(kept: Host) -> None:
    """By name, in pages, as they are now; also after a restart and for one that was created anew."""
    kept.create(DEAD)
    names = [f"000000000000/source-{number}" for number in range(5)]
    for name in reversed(names):
        kept.create(name, dead_letter_queue=DEAD, receives_max=3)
    kept.create(QUEUE)
    kept.set_queue(names[1], dead_letter_queue="", receives_max=0)
    kept.set_queue(dead_letter_queue=DEAD, receives_max=1)
    kept.drop(names[3])
    left = [QUEUE, names[0], names[2], names[4]]
    for _ in range(2):
        page = kept.do(commands.ListDeadLetterSources(queue=DEAD))
        assert (page.names, page.more) == (left, False)
        page = kept.do(commands.ListDeadLetterSources(queue=DEAD, count=3))
        assert (page.names, page.more) == (left[:3], True)
        page = kept.do(commands.ListDeadLetterSources(queue=DEAD, count=3, after=left[2]))
        assert (page.names, page.more) == (left[3:], False)
        kept.reopen()
    kept.drop(DEAD)
    with pytest.raises(QueueNotFound):
        kept.do(commands.ListDeadLetterSources(queue=DEAD))
    assert kept.do(commands.ListDeadLetterSources(queue=QUEUE)).names == []


# When a message goes there.


def test_a_lower_limit_counts_for_messages_that_are_there(host: Host) -> None:
    pair(host, receives_max=5)
    host.send("a")
    wear_out(host, 2)
    host.set_queue(dead_letter_queue=DEAD, receives_max=2)
    assert bodies(host) == []
    assert bodies(host, DEAD) == ["a"]


def test_those_that_a_receive_moves_together_stay_in_the_order_of_sending(host: Host) -> None:
    pair(host, receives_max=1)
    host.send("a", "b")
    assert [host.bodies(1, timeout_s=timeout_s) for timeout_s in (2, 1)] == [["a"], ["b"]]
    host.advance(2_000)
    assert bodies(host) == []
    assert bodies(host, DEAD) == ["a", "b"]


def test_a_receive_moves_a_bounded_number_and_says_that_there_is_more(host: Host) -> None:
    """Many dead letters take several receives, each of them short; the sound message behind them comes in the end."""
    pair(host, receives_max=1, visibility_timeout_s=1)
    dead = 2 * DEAD_LETTERS_PER_RECEIVE + 50
    for first in range(0, dead, 50):
        host.send(*(str(number) for number in range(first, first + 50)))
    wear_out(host, 1)
    host.send("sound")
    found = []
    for receives in range(1, 4):
        received = host.do(commands.Receive(queue=QUEUE, count=10))
        found += [each.body for each in received.messages]
        moved = min(dead, receives * DEAD_LETTERS_PER_RECEIVE)
        assert host.counts(DEAD) == (moved, 0, 0)
        if moved < dead:
            assert received.next_due_ms == host.clock.now_ms()
    assert found == ["sound"]


@pytest.mark.differs_on_postgres("a statement moves all that it meets, at most as many messages as were asked for")
def test_a_receive_moves_a_bounded_number_of_bytes(host: Host) -> None:
    pair(host, receives_max=1)
    host.send(*["x" * 700_000] * 3)
    wear_out(host, 1)
    assert bodies(host) == []
    assert host.counts(DEAD) == (2, 0, 0)
    assert host.due_ms() == host.clock.now_ms()
    assert bodies(host) == []
    assert (host.counts(), host.counts(DEAD)) == ((0, 0, 0), (3, 0, 0))


def test_the_dead_letter_queue_is_roused_once_a_receive(host: Host) -> None:
    pair(host, receives_max=1)
    host.send("a", "b", "c")
    wear_out(host, 1)
    woken = host.watch(DEAD)
    assert host.receive(10) == []
    assert woken == [host.clock.now_ms()]
    assert host.receive(10) == []
    assert len(woken) == 1


# What it keeps.


def test_a_dead_letter_of_a_standard_queue_keeps_what_it_had(kept: Host) -> None:
    """Id, body, properties, priority, the time at which it was sent, the first receive; its receives go on counting."""
    pair(kept, receives_max=2)
    (sent,) = kept.put(NewMessage(body="a", size_bytes=1, properties=b"opaque", priority=3))
    sent_at_ms = kept.clock.now_ms()
    kept.advance(5)
    wear_out(kept, 2)
    assert bodies(kept) == []
    for count in (3, 4):
        got = kept.receive_one(queue=DEAD, timeout_s=0)
        assert (got.id, got.body, got.properties, got.priority) == (sent.id, "a", b"opaque", 3)
        assert (got.sent_at_ms, got.first_received_at_ms) == (sent_at_ms, sent_at_ms + 5)
        assert (got.receive_count, got.source) == (count, QUEUE)
        kept.crash()


# Where it cannot go.


@pytest.mark.parametrize("folder", ["memory", "folder"])
def test_dead_letters_stay_and_are_delivered_while_the_disk_is_full(folder: str, tmp_path: Path) -> None:
    """Moving takes room first; nothing is lost, the queue can be drained, and what is left dies when there is room."""
    store = tmp_path / "store" if folder == "folder" else None
    with on_sqlite(store).open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        pair(host, receives_max=1)
        sent = fill(host, "x" * 20_000)
        wear_out(host, 1)
        delivered = [each for _ in sent for each in host.receive(1)]
        assert host.failures == []
        assert host.counts(DEAD) == (0, 0, 0)
        assert [each.body for each in delivered] == sent
        host.delete(*(each.receipt for each in delivered[2:]))
        host.advance(30_000)
        wear_out(host, 1)
        assert (host.counts(), host.counts(DEAD)) == ((0, 0, 0), (2, 0, 0))


def test_a_move_that_fills_the_disk_is_undone_and_the_receive_goes_on(tmp_path: Path) -> None:
    """The reserve was not seen in time: the transaction runs out of room, and is done once more without the move."""
    with on_sqlite(tmp_path / "store").open(database_pages_max=350, free_space_reserve_bytes=0) as host:
        pair(host, receives_max=1)
        host.send(*("x" * 500_000 for _ in range(2)))
        wear_out(host, 1)
        for _ in range(6):
            host.receive(10, timeout_s=1)
            host.advance(1_000)
            total = sum(host.counts()) + sum(host.counts(DEAD))
            assert (total, host.failures) == (2, [])


# Retention.


@pytest.mark.differs_on_postgres("looks into the folder of the store")
def test_the_janitor_ends_dead_letters_that_nobody_asks_for(kept: Host) -> None:
    pair(kept, receives_max=1, retention_s=60)
    kept.send(*(str(number) for number in range(150)))
    wear_out(kept, 3)
    assert kept.counts(DEAD) == (150, 0, 0)
    kept.advance(60_000)
    assert kept.folder is not None
    assert kept.rows("message") == 0


def test_many_dead_letters_that_end_at_once_are_never_delivered(host: Host) -> None:
    """More than a command deletes: what is left is passed over, and the living message behind them comes."""
    host.create(DEAD, retention_s=LONG_S)
    host.create(dead_letter_queue=DEAD, receives_max=1, retention_s=LONG_S)
    for first in range(0, 1_600, 400):
        host.send(*(str(number) for number in range(first, first + 400)))
    wear_out(host, 1)
    while sum(host.counts()):
        host.receive(10)
    held = host.receive(1, queue=DEAD, timeout_s=43_200)[0]
    host.advance(60_000)
    host.send("living", queue=DEAD)
    host.set_queue(DEAD, retention_s=60)
    assert host.delete(held.receipt, queue=DEAD) == [ReceiptState.GONE]
    found = [body for _ in range(3) for body in bodies(host, DEAD)]
    assert set(found) == {"living"}
    assert host.counts(DEAD) == (1, 0, 0)


def test_a_longer_retention_counts_for_all_dead_letters_that_come_from_then_on(host: Host) -> None:
    """However far the shorter one had come: what it ended is gone, and nothing else."""
    host.create(DEAD, retention_s=60)
    host.create(dead_letter_queue=DEAD, receives_max=1, retention_s=LONG_S)
    host.send("ends", "waits")
    host.receive(1, timeout_s=0)
    host.receive(1, timeout_s=600)
    assert host.receive(1) == []
    assert host.counts(DEAD) == (1, 0, 0)
    host.advance(60_001)
    assert host.counts(DEAD) == (0, 0, 0)
    host.set_queue(DEAD, retention_s=LONG_S)
    host.advance(600_000)
    assert host.receive(10) == []
    assert bodies(host, DEAD) == ["waits"]


def test_what_a_receive_of_a_dead_letter_answers_is_a_plain_message(host: Host) -> None:
    """No field is forgotten: all but the source and the count are those of the message before."""
    pair(host, receives_max=1)
    host.send("a")
    before = host.receive_one(timeout_s=0)
    bodies(host)
    after = host.receive_one(queue=DEAD, timeout_s=0)
    same = [
        name for name in commands.ReceivedMessage.__struct_fields__ if getattr(before, name) == getattr(after, name)
    ]
    others = {"receipt", "receive_count", "source"}
    assert set(same) == set(commands.ReceivedMessage.__struct_fields__) - others


# Dead letters and move tasks of FIFO queues: the order of each group is kept, and retention begins anew.


def take(host: Host, queue: str = QUEUE, *, timeout_s: int = 0) -> list[str]:
    return host.bodies(10, queue=queue, timeout_s=timeout_s)


@pytest.fixture
def ordered(host: Host) -> Host:
    pair(host, receives_max=1, fifo=True)
    return host


def kill_in_turn(host: Host, *bodies: str) -> None:
    host.send_in_turn(*bodies)
    assert sorted(take(host)) == sorted(bodies)
    assert take(host) == []


def groups(bodies: list[str]) -> dict[str, list[str]]:
    return {group: [body for body in bodies if body[0] == group] for group in {body[0] for body in bodies}}


def test_a_receive_moves_no_more_than_it_has_time_for(ordered: Host) -> None:
    """The next one goes on, however many groups have dead letters alone."""
    ordered.put(*[NewMessage(body="a", size_bytes=1, group=str(place), dedup_id=str(place)) for place in range(150)])
    assert sum(len(ordered.receive(10, timeout_s=30)) for _ in range(15)) == 150
    ordered.advance(30_000)
    assert take(ordered) == []
    assert ordered.counts(DEAD) == (DEAD_LETTERS_PER_RECEIVE, 0, 0)
    assert take(ordered) == []
    assert ordered.counts(DEAD) == (150, 0, 0)


def test_the_next_of_the_group_is_given_out_in_the_receive_that_moves_the_first(ordered: Host) -> None:
    ordered.send_in_turn("a1")
    take(ordered)
    ordered.send_in_turn("a2", "a3")
    assert take(ordered, timeout_s=30) == ["a2", "a3"]
    assert take(ordered, DEAD, timeout_s=30) == ["a1"]


def test_a_dead_letter_of_a_fifo_queue_is_sent_anew(ordered: Host) -> None:
    """Another sent time and sequence number; its id, receives and first receive go on."""
    ordered.send_in_turn("a0", queue=DEAD)
    (sent,) = ordered.send_in_turn("a1")
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
    ordered.send_in_turn("a1", queue=DEAD)
    kill_in_turn(ordered, "a1")
    assert take(ordered, DEAD) == ["a1", "a1"]
    kill_in_turn(ordered, "a2")
    ordered.send_in_turn("a2", queue=DEAD)
    assert take(ordered, DEAD) == ["a1", "a1", "a2", "a2"]


@pytest.mark.parametrize("given", ["mine", None])
def test_the_id_of_a_fifo_dead_letter_is_its_deduplication_id(ordered: Host, given: str | None) -> None:
    """As Amazon SQS documents; all else that it carries stays, and a task moves it back as it is."""
    ordered.set_queue(content_deduplication=True)
    carried = Properties(attributes={"n": Attribute("Number", "1")}, group="a", dedup_id=given)
    new = NewMessage(body="a1", size_bytes=2, group="a", dedup_id=given, properties=encode_properties(carried))
    (sent,) = ordered.put(new)
    (before,) = ordered.receive(10, timeout_s=0)
    assert decode_properties(before.properties) == carried
    assert take(ordered) == []
    id_text = str(UUID(bytes=sent.id))
    (dead,) = ordered.receive(10, queue=DEAD, timeout_s=0)
    expected = Properties(attributes=carried.attributes, group="a", dedup_id=id_text)
    assert decode_properties(dead.properties) == expected
    start(ordered)
    finish(ordered)
    (back,) = ordered.receive(10)
    assert decode_properties(back.properties) == expected


def test_a_receipt_of_the_source_is_gone(ordered: Host) -> None:
    ordered.send_in_turn("a1")
    old = ordered.receive(1, timeout_s=1)[0]
    ordered.advance(1_000)
    assert take(ordered) == []
    assert ordered.delete(old.receipt) == [ReceiptState.GONE]
    ordered.send_in_turn("a2")
    assert take(ordered, timeout_s=30) == ["a2"]
    new = ordered.receive(1, queue=DEAD)[0]
    assert ordered.delete(new.receipt, queue=DEAD) == [ReceiptState.LIVE]


def test_messages_stay_in_order_while_the_dead_letter_queue_is_gone(ordered: Host) -> None:
    ordered.send_in_turn("a1", "a2")
    ordered.drop(DEAD)
    for _ in range(4):
        assert take(ordered) == ["a1", "a2"]


def test_a_group_in_flight_is_not_moved(ordered: Host) -> None:
    ordered.create("000000000000/other", fifo=True)
    kill_in_turn(ordered, "a1", "a2", "b1")
    held = ordered.receive(1, queue=DEAD, timeout_s=600)[0]
    assert held.body == "a1"
    start(ordered, "000000000000/other")
    assert finish(ordered).messages_moved == 1
    assert take(ordered, "000000000000/other") == ["b1"]
    assert ordered.delete(held.receipt, queue=DEAD) == [ReceiptState.LIVE]
    assert take(ordered, DEAD) == ["a2"]


def test_a_moved_message_of_a_fifo_queue_is_a_new_one_and_not_a_duplicate(ordered: Host) -> None:
    """Back within five minutes of its first sending, it is there, with a new sequence number."""
    (sent,) = ordered.send_in_turn("a1")
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
    kill_in_turn(ordered, "a1", "b1")
    ordered.send_in_turn("a2")
    start(ordered)
    finish(ordered)
    ordered.set_queue(delay_s=60)
    assert sorted(take(ordered)) == ["a1", "b1"]
    ordered.advance(60_000)
    assert take(ordered) == ["a2"]


def test_a_message_of_unknown_source_fails_the_task_and_blocks_nothing(ordered: Host) -> None:
    ordered.send_in_turn("a1", "a2", queue=DEAD)
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
    kept.send_in_turn(*bodies)
    take(kept)
    kept.crash()
    take(kept)
    kept.crash()
    assert (kept.counts(), kept.counts(DEAD)) == ((0, 0, 0), (9, 0, 0))
    start(kept, rate=10)
    assert latest(kept).messages_to_move == 9
    while latest(kept).status is MoveStatus.RUNNING:
        run(kept, 100)
        kept.crash()
        moved = latest(kept).messages_moved
        assert (sum(kept.counts()), sum(kept.counts(DEAD))) == (moved, 9 - moved)
        kept.check()
    assert (latest(kept).status, latest(kept).messages_moved) == (MoveStatus.COMPLETED, 9)
    found = [each for _ in range(3) for each in take(kept, timeout_s=600)]
    assert groups(found) == groups(sorted(bodies))


def test_a_purge_of_the_dead_letter_queue_takes_all(kept: Host) -> None:
    """Moved messages are messages of that queue."""
    pair(kept, receives_max=1)
    kept.send("a", "b")
    wear_out(kept, 2)
    assert kept.counts(DEAD) == (2, 0, 0)
    kept.purge(DEAD)
    assert kept.counts(DEAD) == (0, 0, 0)
    kept.reopen()
    assert kept.counts(DEAD) == (0, 0, 0)
