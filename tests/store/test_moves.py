"""Move tasks: dead letters on their way back, on a virtual clock."""

from pathlib import Path

import pytest

from tests.store.host import QUEUE, Host, fill
from tests.store.postgres_host import Store, on_sqlite
from tests.store.test_dead_letters import (
    DEAD,
    DEEPER,
    LONG_S,
    PAUSE_MS,
    bodies,
    finish,
    kill,
    latest,
    pair,
    run,
    start,
    wear_out,
)
from veilmq.core import commands
from veilmq.core.commands import NOT_ALLOWED, QUEUE_MISSING, SOURCE_UNKNOWN, MoveStatus
from veilmq.core.errors import DestinationRefused, MoveTaskNotFound, MoveTaskRunning, NotADeadLetterQueue, QueueNotFound
from veilmq.core.limits import MOVE_TASKS_KEPT
from veilmq.core.messages import NewMessage

OTHER = "000000000000/other"


@pytest.fixture
def dying(host: Host) -> Host:
    pair(host, receives_max=1, retention_s=LONG_S)
    return host


# What is moved, and how it arrives.


def test_dead_letters_go_back_to_where_they_came_from(dying: Host) -> None:
    dying.create(OTHER, dead_letter_queue=DEAD, receives_max=1)
    kill(dying, "a", "b")
    kill(dying, "c", queue=OTHER)
    task = start(dying)
    assert (task.messages_moved, task.messages_to_move, task.started_at_ms) == (0, 3, dying.clock.now_ms())
    ended = finish(dying)
    assert (ended.id, ended.status, ended.messages_moved, ended.failure) == (task.id, MoveStatus.COMPLETED, 3, None)
    assert (bodies(dying), bodies(dying, OTHER), bodies(dying, DEAD)) == (["a", "b"], ["c"], [])


def test_a_moved_message_is_a_new_one(dying: Host) -> None:
    """Another id, sent now, received never, of no source; visible at once whatever the destination's delay."""
    dying.put(NewMessage(body="a", size_bytes=1, properties=b"opaque", priority=3))
    wear_out(dying, 2)
    dead = dying.receive_one(queue=DEAD, timeout_s=0)
    dying.advance(5_000)
    dying.set_queue(delay_s=60)
    start(dying)
    finish(dying)
    now_ms = dying.clock.now_ms()
    got = dying.receive_one()
    assert (got.body, got.properties, got.priority) == ("a", b"opaque", 3)
    assert got.id != dead.id
    assert (got.receive_count, got.source) == (1, None)
    assert now_ms - 100 <= got.sent_at_ms <= got.first_received_at_ms == now_ms


def test_a_moved_message_may_die_again_and_a_task_does_not_chase_it(dying: Host) -> None:
    """A task moves no more than was there when it began."""
    kill(dying, "a", "b", "c")
    start(dying, rate=1)
    dying.advance(PAUSE_MS)  # the first one
    wear_out(dying, 2)  # it dies again, behind the others
    assert sum(dying.counts(DEAD)) == 3 - 2
    ended = finish(dying)
    assert (ended.status, ended.messages_moved) == (MoveStatus.COMPLETED, 3)
    assert sum(dying.counts(DEAD)) + sum(dying.counts()) == 3


def test_only_visible_messages_are_moved(dying: Host) -> None:
    dying.create(OTHER)
    kill(dying, "a", "b")
    dying.send("delayed", queue=DEAD, delay_s=60)
    held = dying.receive(1, queue=DEAD, timeout_s=600)[0]
    assert start(dying, OTHER).messages_to_move == 1
    assert finish(dying).messages_moved == 1
    assert dying.counts(DEAD) == (0, 1, 1)
    assert [state.value for state in dying.delete(held.receipt, queue=DEAD)] == ["live"]


def test_a_message_that_returns_while_the_task_runs_takes_the_place_of_one_that_was_received(dying: Host) -> None:
    dying.create(OTHER)
    kill(dying, "a", "b", "c")
    held = dying.receive(1, queue=DEAD, timeout_s=600)[0]
    start(dying, OTHER, rate=1)
    dying.advance(0)  # the first slice
    dying.receive(1, queue=DEAD, timeout_s=600)
    dying.change(held.receipt, 0, queue=DEAD)
    assert finish(dying).messages_moved == 2
    assert bodies(dying, OTHER) == ["b", "a"]
    assert dying.counts(DEAD) == (0, 1, 0)


def test_messages_that_nobody_received_go_on_in_their_order(dying: Host) -> None:
    """By priority, and of one as they were sent, over several slices; one that was received and came back is last."""
    dying.create(OTHER)
    for body, priority in (("a", 8), ("b", 8), ("c", 3), ("d", 8), ("e", 3), ("f", 8)):
        dying.send(body, queue=DEAD, priority=priority)
        dying.advance(1)
    dying.send("g", "h", queue=DEAD)
    dying.advance(1)
    assert dying.bodies(1, queue=DEAD, timeout_s=1) == ["c"]
    dying.advance(1_000)
    start(dying, OTHER, rate=30)
    assert finish(dying).messages_moved == 8
    assert dying.counts(DEAD) == (0, 0, 0)
    got = dying.receive(10, queue=OTHER)
    assert [(each.body, each.priority) for each in got] == [
        *[(body, 3) for body in "ec"],
        *[(body, 8) for body in "abdfgh"],
    ]
    assert {(each.receive_count, each.source) for each in got} == {(1, None)}


def test_messages_past_their_retention_are_not_moved(dying: Host) -> None:
    dying.set_queue(DEAD, retention_s=60)
    kill(dying, "old", "older")
    dying.advance(56_000)
    kill(dying, "young")
    start(dying, rate=1)
    dying.advance(PAUSE_MS)
    assert latest(dying).messages_moved == 1
    dying.advance(2_000)
    assert finish(dying).messages_moved == 2
    assert sorted(bodies(dying)) == ["old", "young"]


def test_the_destination_is_roused(dying: Host) -> None:
    kill(dying, "a", "b")
    woken = dying.watch()
    start(dying)
    finish(dying)
    assert len(woken) == 1


# How fast.


def test_a_rate_holds(dying: Host) -> None:
    """Never more in a second than asked for, and not much less."""
    kill(dying, *(str(number) for number in range(30)))
    start(dying, rate=7)
    for second in range(1, 5):
        run(dying, 1_000)
        assert 7 * second - 1 <= latest(dying).messages_moved <= 7 * second + 1
    run(dying, 1_000)
    assert latest(dying).status is MoveStatus.COMPLETED


def test_the_slowest_rate_is_one_a_second(dying: Host) -> None:
    kill(dying, "a", "b", "c")
    start(dying, rate=1)
    dying.advance(0)
    assert latest(dying).messages_moved == 1
    dying.advance(999)
    assert latest(dying).messages_moved == 1
    dying.advance(1)
    assert latest(dying).messages_moved == 2


def test_without_a_rate_slices_follow_each_other_with_a_pause(dying: Host) -> None:
    """Many messages take many slices, none of them long, and others get their turn between them."""
    kill(dying, *(str(number) for number in range(1_000)))
    start(dying)
    seen = []
    while latest(dying).status is MoveStatus.RUNNING:
        seen.append(latest(dying).messages_moved)
        assert sum(dying.counts()) + sum(dying.counts(DEAD)) == 1_000
        dying.advance(PAUSE_MS)
    steps = [later - earlier for earlier, later in zip(seen, [*seen[1:], 1_000], strict=True)]
    assert max(steps) <= 200
    assert (sum(dying.counts()), latest(dying).messages_moved) == (1_000, 1_000)


def test_large_messages_make_small_slices(dying: Host) -> None:
    kill(dying, *("x" * 600_000 for _ in range(6)))
    start(dying)
    seen = {latest(dying).messages_moved}
    while latest(dying).status is MoveStatus.RUNNING:
        dying.advance(PAUSE_MS)
        seen.add(latest(dying).messages_moved)
    assert seen >= {2, 4, 6}
    assert not seen & {3, 5}


def test_tasks_of_several_queues_run_beside_each_other(dying: Host) -> None:
    dying.create(DEEPER)
    dying.create(OTHER, dead_letter_queue=DEEPER, receives_max=1)
    kill(dying, "a", "b")
    kill(dying, "c", queue=OTHER)
    start(dying, rate=1)
    start(dying, source=DEEPER)
    assert finish(dying, DEEPER).messages_moved == 1
    assert latest(dying).messages_moved == 1
    assert finish(dying).messages_moved == 2


# What cannot be started.


@pytest.mark.parametrize(("source", "destination", "error", "why"), [
    (QUEUE, None, NotADeadLetterQueue, f"No queue names {QUEUE} as its dead-letter queue"),
    ("000000000000/nothing", None, QueueNotFound, "nothing"), (DEAD, DEAD, DestinationRefused, "itself"),
    (DEAD, "000000000000/ordered", DestinationRefused, "another type"),
    (DEAD, "111111111111/foreign", DestinationRefused, "another account"),
    (DEAD, "000000000000/nothing", QueueNotFound, "nothing"),
])  # fmt: skip
def test_a_task_needs_a_dead_letter_queue_and_a_destination_that_fits(
    dying: Host, source: str, destination: str | None, error: type[Exception], why: str
) -> None:
    dying.create("000000000000/ordered", fifo=True)
    dying.create("111111111111/foreign")
    with pytest.raises(error, match=why):
        dying.do(commands.StartMove(source=source, destination=destination))
    assert dying.do(commands.ListMoves(source=DEAD)) == []


def test_a_source_has_one_task_at_a_time(dying: Host) -> None:
    """The next one may follow when it has ended, while some queue names the source as its dead-letter queue."""
    kill(dying, "a", "b")
    start(dying, rate=1)
    with pytest.raises(MoveTaskRunning):
        start(dying)
    finish(dying)
    start(dying)
    finish(dying)
    dying.set_queue(dead_letter_queue="", receives_max=0)
    with pytest.raises(NotADeadLetterQueue):
        start(dying)


# How a task ends.


def test_a_task_can_be_cancelled(dying: Host) -> None:
    """What is moved stays moved, the rest stays; a task that has ended cannot be cancelled."""
    kill(dying, *"abcdef")
    task = start(dying, rate=1)
    run(dying, 1_000)
    cancelled = dying.do(commands.CancelMove(source=DEAD, task=task.id))
    assert (cancelled.status, cancelled.messages_moved, cancelled.messages_to_move) == (MoveStatus.CANCELLED, 2, 6)
    dying.advance(60_000)
    assert latest(dying) == cancelled
    assert (dying.counts(), dying.counts(DEAD)) == ((2, 0, 0), (4, 0, 0))
    for unknown in (task.id, b"0" * 16):
        with pytest.raises(MoveTaskNotFound):
            dying.do(commands.CancelMove(source=DEAD, task=unknown))


def test_a_task_is_cancelled_under_its_own_queue_alone(dying: Host) -> None:
    """Its id beside the name of another queue, which may be somebody else's, stops nothing."""
    kill(dying, *"abcdef")
    dying.create(OTHER)
    task = start(dying, rate=1)
    for elsewhere in (OTHER, QUEUE):
        with pytest.raises(MoveTaskNotFound):
            dying.do(commands.CancelMove(source=elsewhere, task=task.id))
    with pytest.raises(QueueNotFound):
        dying.do(commands.CancelMove(source=f"{QUEUE}-nowhere", task=task.id))
    assert latest(dying).status is MoveStatus.RUNNING


def test_a_message_of_unknown_source_fails_a_task_without_a_destination(dying: Host) -> None:
    """It stays, visible and unharmed, with all behind it; what came before it is moved."""
    kill(dying, "a")
    dying.send("direct", queue=DEAD)
    dying.advance(1)
    kill(dying, "b")
    start(dying)
    ended = finish(dying)
    assert (ended.status, ended.failure, ended.messages_moved) == (MoveStatus.FAILED, SOURCE_UNKNOWN, 1)
    assert dying.counts(DEAD) == (2, 0, 0)
    assert [each.receive_count for each in dying.receive(1, queue=DEAD, timeout_s=0)] == [1]
    assert bodies(dying) == ["a"]


def test_a_returned_message_of_unknown_source_stays_as_it_was(dying: Host) -> None:
    dying.send("direct", queue=DEAD)
    dying.receive(1, queue=DEAD, timeout_s=0)
    for _ in range(2):
        start(dying)
        assert finish(dying).status is MoveStatus.FAILED
        assert dying.counts(DEAD) == (1, 0, 0)
    assert dying.receive_one(queue=DEAD).receive_count == 2


@pytest.mark.parametrize("destination", [None, OTHER])
def test_a_queue_that_is_gone_fails_the_task(dying: Host, destination: str | None) -> None:
    """The destination, or the source of a message, is deleted while the task runs; nothing is lost."""
    dying.create(OTHER)
    kill(dying, "a", "b", "c")
    dying.create(DEEPER, dead_letter_queue=DEAD, receives_max=1)  # so that it stays a dead-letter queue
    start(dying, destination, rate=1)
    dying.advance(0)
    dying.drop(destination or QUEUE)
    ended = finish(dying)
    assert (ended.status, ended.failure, ended.messages_moved) == (MoveStatus.FAILED, QUEUE_MISSING, 1)
    assert sorted(bodies(dying, DEAD)) == ["b", "c"]


def test_a_task_ends_with_its_queue(dying: Host) -> None:
    """Deleting the dead-letter queue ends the task and its history; the next of that name has none."""
    kill(dying, "a", "b")
    task = start(dying, rate=1)
    dying.drop(DEAD)
    for about in (commands.CancelMove(source=DEAD, task=task.id), commands.ListMoves(source=DEAD)):
        with pytest.raises(QueueNotFound):
            dying.do(about)
    dying.create(DEAD)
    dying.advance(5_000)
    assert dying.do(commands.ListMoves(source=DEAD)) == []
    start(dying)
    assert finish(dying).status is MoveStatus.COMPLETED


def test_a_task_goes_on_as_long_as_its_starter_may_send(store: Store) -> None:
    with store.open(may_send=lambda starter, queue, policy: starter == policy) as host:
        pair(host, receives_max=1)
        host.create(OTHER, policy="her")
        kill(host, "a", "b", "c")
        host.do(commands.StartMove(source=DEAD, destination=OTHER, moves_per_s_max=1, starter="her"))
        host.advance(0)
        host.set_queue(OTHER, policy="him")
        ended = finish(host)
        assert (ended.status, ended.failure, ended.messages_moved) == (MoveStatus.FAILED, NOT_ALLOWED, 1)
        assert (host.counts(OTHER), host.counts(DEAD)) == ((1, 0, 0), (2, 0, 0))


def test_a_purge_completes_the_task(dying: Host) -> None:
    kill(dying, "a", "b", "c")
    start(dying, rate=1)
    dying.advance(0)
    dying.purge(DEAD)
    ended = finish(dying)
    assert (ended.status, ended.messages_moved, ended.messages_to_move) == (MoveStatus.COMPLETED, 1, 3)


def test_the_latest_tasks_are_kept(dying: Host) -> None:
    begun = []
    for _ in range(MOVE_TASKS_KEPT + 2):
        begun.append(start(dying).id)
        finish(dying)
    told = dying.do(commands.ListMoves(source=DEAD, count=10))
    assert [task.id for task in told] == begun[:1:-1]
    assert [task.id for task in dying.do(commands.ListMoves(source=DEAD, count=3))] == begun[:-4:-1]


# Accidents.


@pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "crashed"])
def test_a_task_goes_on_after_a_restart(kept: Host, *, abruptly: bool) -> None:
    pair(kept, receives_max=1)
    kill(kept, *"abcdef")
    task = start(kept, rate=2)
    run(kept, 600)
    assert latest(kept).messages_moved == 2
    for _ in range(3):
        if abruptly:
            kept.crash()
        else:
            kept.reopen()
    kept.advance(0)
    assert latest(kept).messages_moved == 2
    run(kept, 400)
    assert latest(kept).messages_moved == 3
    ended = finish(kept)
    assert (ended.id, ended.status, ended.messages_moved) == (task.id, MoveStatus.COMPLETED, 6)
    kept.reopen()
    assert latest(kept) == ended
    assert (kept.counts(), kept.counts(DEAD)) == ((6, 0, 0), (0, 0, 0))
    kept.check()


def test_a_full_disk_holds_a_task_up_and_loses_nothing(tmp_path: Path) -> None:
    with on_sqlite(tmp_path / "store").open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        pair(host, receives_max=1)
        kill(host, "a", "b")
        fill(host, "x" * 20_000)
        start(host)
        host.advance(3_000)
        assert (latest(host).status, latest(host).messages_moved) == (MoveStatus.RUNNING, 0)
        host.purge()
        host.advance(60_000)
        assert finish(host).messages_moved == 2
        assert host.failures == []
