"""Move tasks, which return dead letters, on a virtual clock."""

from pathlib import Path

import pytest

from tests.store.host import QUEUE, Host, fill, message
from tests.store.postgres_host import Store, on_sqlite
from tests.store.test_dead_letters import (
    DEAD,
    DEEPER,
    LONG_S,
    PAUSE_MS,
    bodies,
    dead_letter,
    finish,
    latest,
    pair,
    receive_repeatedly,
    run,
    start,
)
from veilmq.core import commands
from veilmq.core.commands import NOT_ALLOWED, QUEUE_MISSING, SOURCE_UNKNOWN, MoveStatus
from veilmq.core.errors import DestinationRefused, MoveTaskNotFound, MoveTaskRunning, NotADeadLetterQueue, QueueNotFound
from veilmq.core.limits import MOVE_TASKS_KEPT
from veilmq.core.messages import NewMessage

OTHER = "000000000000/other"


@pytest.fixture
def queues(host: Host) -> Host:
    pair(host, receives_max=1, retention_s=LONG_S)
    return host


def test_a_move_without_a_destination_returns_messages_to_their_source_queues(queues: Host) -> None:
    queues.create(OTHER, dead_letter_queue=DEAD, receives_max=1)
    dead_letter(queues, "a", "b")
    dead_letter(queues, "c", queue=OTHER)
    task = start(queues)
    assert (task.messages_moved, task.messages_to_move, task.started_at_ms) == (0, 3, queues.clock.now_ms())
    ended = finish(queues)
    assert (ended.id, ended.status, ended.messages_moved, ended.failure) == (task.id, MoveStatus.COMPLETED, 3, None)
    assert (bodies(queues), bodies(queues, OTHER), bodies(queues, DEAD)) == (["a", "b"], ["c"], [])


def test_a_moved_message_gets_a_new_id_and_send_time_and_no_delay(queues: Host) -> None:
    queues.put(NewMessage(body="a", size_bytes=1, properties=b"opaque", priority=3))
    receive_repeatedly(queues, 2)
    dead = queues.receive_one(queue=DEAD, timeout_s=0)
    queues.advance(5_000)
    queues.set_queue(delay_s=60)
    start(queues)
    finish(queues)
    now_ms = queues.clock.now_ms()
    got = queues.receive_one()
    assert (got.body, got.properties, got.priority) == ("a", b"opaque", 3)
    assert got.id != dead.id
    assert (got.receive_count, got.source) == (1, None)
    assert now_ms - 100 <= got.sent_at_ms <= got.first_received_at_ms == now_ms


def test_a_move_task_stops_after_the_messages_present_at_its_start(queues: Host) -> None:
    dead_letter(queues, "a", "b", "c")
    start(queues, rate=1)
    queues.advance(PAUSE_MS)  # the first one
    receive_repeatedly(queues, 2)  # it is dead-lettered again, behind the others
    assert sum(queues.counts(DEAD)) == 3 - 2
    ended = finish(queues)
    assert (ended.status, ended.messages_moved) == (MoveStatus.COMPLETED, 3)
    assert sum(queues.counts(DEAD)) + sum(queues.counts()) == 3


def test_only_visible_messages_are_moved(queues: Host) -> None:
    queues.create(OTHER)
    dead_letter(queues, "a", "b")
    queues.send("delayed", queue=DEAD, delay_s=60)
    held = queues.receive(1, queue=DEAD, timeout_s=600)[0]
    assert start(queues, OTHER).messages_to_move == 1
    assert finish(queues).messages_moved == 1
    assert queues.counts(DEAD) == (0, 1, 1)
    assert [state.value for state in queues.delete(held.receipt, queue=DEAD)] == ["live"]


def test_a_message_released_during_a_move_replaces_one_that_was_received(queues: Host) -> None:
    queues.create(OTHER)
    dead_letter(queues, "a", "b", "c")
    held = queues.receive(1, queue=DEAD, timeout_s=600)[0]
    start(queues, OTHER, rate=1)
    queues.advance(0)  # the first slice
    queues.receive(1, queue=DEAD, timeout_s=600)
    queues.change(held.receipt, 0, queue=DEAD)
    assert finish(queues).messages_moved == 2
    assert bodies(queues, OTHER) == ["b", "a"]
    assert queues.counts(DEAD) == (0, 1, 0)


def test_a_move_keeps_the_order_of_unreceived_messages(queues: Host) -> None:
    """The order is priority, then send time, over several slices; a message that was received comes last."""
    queues.create(OTHER)
    for body, priority in (("a", 8), ("b", 8), ("c", 3), ("d", 8), ("e", 3), ("f", 8)):
        queues.send(body, queue=DEAD, priority=priority)
        queues.advance(1)
    queues.send("g", "h", queue=DEAD)
    queues.advance(1)
    assert queues.bodies(1, queue=DEAD, timeout_s=1) == ["c"]
    queues.advance(1_000)
    start(queues, OTHER, rate=30)
    assert finish(queues).messages_moved == 8
    assert queues.counts(DEAD) == (0, 0, 0)
    got = queues.receive(10, queue=OTHER)
    assert [(each.body, each.priority) for each in got] == [
        *[(body, 3) for body in "ec"],
        *[(body, 8) for body in "abdfgh"],
    ]
    assert {(each.receive_count, each.source) for each in got} == {(1, None)}


def test_messages_past_their_retention_are_not_moved(queues: Host) -> None:
    queues.set_queue(DEAD, retention_s=60)
    dead_letter(queues, "old", "older")
    queues.advance(56_000)
    dead_letter(queues, "young")
    start(queues, rate=1)
    queues.advance(PAUSE_MS)
    assert latest(queues).messages_moved == 1
    queues.advance(2_000)
    assert finish(queues).messages_moved == 2
    assert sorted(bodies(queues)) == ["old", "young"]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_move_continues_behind_messages_past_their_retention(host: Host, *, fifo: bool) -> None:
    """Also if there are more than one command deletes or skips."""
    host.create(DEAD, fifo=fifo, retention_s=60)
    host.create(fifo=fifo, dead_letter_queue=DEAD, receives_max=1)
    names = [str(number) for number in range(3_000)]
    host.put(*(message(name, group=name if fifo else None, dedup_id=name) for name in names), queue=DEAD)
    host.advance(59_000)
    host.reopen()  # the janitor runs a minute later
    host.put(message("live", group="live" if fifo else None, dedup_id="live"), queue=DEAD)
    host.advance(1_000)
    host.do(commands.StartMove(source=DEAD, destination=QUEUE))
    ended = finish(host)
    assert (ended.status, ended.messages_moved) == (MoveStatus.COMPLETED, 1)
    assert bodies(host) == ["live"]


def test_a_move_wakes_the_destination_once(queues: Host) -> None:
    dead_letter(queues, "a", "b")
    woken = queues.watch()
    start(queues)
    finish(queues)
    assert len(woken) == 1


def test_a_move_keeps_its_rate(queues: Host) -> None:
    dead_letter(queues, *(str(number) for number in range(30)))
    start(queues, rate=7)
    for second in range(1, 5):
        run(queues, 1_000)
        assert 7 * second - 1 <= latest(queues).messages_moved <= 7 * second + 1
    run(queues, 1_000)
    assert latest(queues).status is MoveStatus.COMPLETED


def test_a_rate_of_one_moves_one_message_each_second(queues: Host) -> None:
    dead_letter(queues, "a", "b", "c")
    start(queues, rate=1)
    queues.advance(0)
    assert latest(queues).messages_moved == 1
    queues.advance(999)
    assert latest(queues).messages_moved == 1
    queues.advance(1)
    assert latest(queues).messages_moved == 2


def test_a_move_without_a_rate_runs_in_slices_with_pauses(queues: Host) -> None:
    dead_letter(queues, *(str(number) for number in range(1_000)))
    start(queues)
    seen = []
    while latest(queues).status is MoveStatus.RUNNING:
        seen.append(latest(queues).messages_moved)
        assert sum(queues.counts()) + sum(queues.counts(DEAD)) == 1_000
        queues.advance(PAUSE_MS)
    steps = [later - earlier for earlier, later in zip(seen, [*seen[1:], 1_000], strict=True)]
    assert max(steps) <= 200
    assert (sum(queues.counts()), latest(queues).messages_moved) == (1_000, 1_000)


def test_large_messages_are_moved_in_smaller_slices(queues: Host) -> None:
    dead_letter(queues, *("x" * 600_000 for _ in range(6)))
    start(queues)
    seen = {latest(queues).messages_moved}
    while latest(queues).status is MoveStatus.RUNNING:
        queues.advance(PAUSE_MS)
        seen.add(latest(queues).messages_moved)
    assert seen >= {2, 4, 6}
    assert not seen & {3, 5}


def test_move_tasks_of_different_queues_run_concurrently(queues: Host) -> None:
    queues.create(DEEPER)
    queues.create(OTHER, dead_letter_queue=DEEPER, receives_max=1)
    dead_letter(queues, "a", "b")
    dead_letter(queues, "c", queue=OTHER)
    start(queues, rate=1)
    start(queues, source=DEEPER)
    assert finish(queues, DEEPER).messages_moved == 1
    assert latest(queues).messages_moved == 1
    assert finish(queues).messages_moved == 2


@pytest.mark.parametrize(("source", "destination", "error", "why"), [
    (QUEUE, None, NotADeadLetterQueue, f"No queue names {QUEUE} as its dead-letter queue"),
    ("000000000000/nothing", None, QueueNotFound, "nothing"), (DEAD, DEAD, DestinationRefused, "itself"),
    (DEAD, "000000000000/ordered", DestinationRefused, "another type"),
    (DEAD, "111111111111/foreign", DestinationRefused, "another account"),
    (DEAD, "000000000000/nothing", QueueNotFound, "nothing"),
])  # fmt: skip
def test_a_move_is_refused_without_a_dead_letter_queue_or_a_valid_destination(
    queues: Host, source: str, destination: str | None, error: type[Exception], why: str
) -> None:
    queues.create("000000000000/ordered", fifo=True)
    queues.create("111111111111/foreign")
    with pytest.raises(error, match=why):
        queues.do(commands.StartMove(source=source, destination=destination))
    assert queues.do(commands.ListMoves(source=DEAD)) == []


def test_a_source_has_one_move_task_at_a_time(queues: Host) -> None:
    dead_letter(queues, "a", "b")
    start(queues, rate=1)
    with pytest.raises(MoveTaskRunning):
        start(queues)
    finish(queues)
    start(queues)
    finish(queues)
    queues.set_queue(dead_letter_queue="", receives_max=0)
    with pytest.raises(NotADeadLetterQueue):
        start(queues)


def test_a_running_move_can_be_cancelled_once(queues: Host) -> None:
    dead_letter(queues, *"abcdef")
    task = start(queues, rate=1)
    run(queues, 1_000)
    cancelled = queues.do(commands.CancelMove(source=DEAD, task=task.id))
    assert (cancelled.status, cancelled.messages_moved, cancelled.messages_to_move) == (MoveStatus.CANCELLED, 2, 6)
    queues.advance(60_000)
    assert latest(queues) == cancelled
    assert (queues.counts(), queues.counts(DEAD)) == ((2, 0, 0), (4, 0, 0))
    for unknown in (task.id, b"0" * 16):
        with pytest.raises(MoveTaskNotFound):
            queues.do(commands.CancelMove(source=DEAD, task=unknown))


def test_a_move_is_cancelled_only_by_its_source_queue_and_id(queues: Host) -> None:
    """The other queue may belong to another user."""
    dead_letter(queues, *"abcdef")
    queues.create(OTHER)
    task = start(queues, rate=1)
    for elsewhere in (OTHER, QUEUE):
        with pytest.raises(MoveTaskNotFound):
            queues.do(commands.CancelMove(source=elsewhere, task=task.id))
    with pytest.raises(QueueNotFound):
        queues.do(commands.CancelMove(source=f"{QUEUE}-nowhere", task=task.id))
    assert latest(queues).status is MoveStatus.RUNNING


def test_a_message_without_a_source_fails_a_move_without_a_destination(queues: Host) -> None:
    """It and the messages behind it stay visible; those before it are moved."""
    dead_letter(queues, "a")
    queues.send("direct", queue=DEAD)
    queues.advance(1)
    dead_letter(queues, "b")
    start(queues)
    ended = finish(queues)
    assert (ended.status, ended.failure, ended.messages_moved) == (MoveStatus.FAILED, SOURCE_UNKNOWN, 1)
    assert queues.counts(DEAD) == (2, 0, 0)
    assert [each.receive_count for each in queues.receive(1, queue=DEAD, timeout_s=0)] == [1]
    assert bodies(queues) == ["a"]


def test_a_failed_move_leaves_the_message_unchanged(queues: Host) -> None:
    queues.send("direct", queue=DEAD)
    queues.receive(1, queue=DEAD, timeout_s=0)
    for _ in range(2):
        start(queues)
        assert finish(queues).status is MoveStatus.FAILED
        assert queues.counts(DEAD) == (1, 0, 0)
    assert queues.receive_one(queue=DEAD).receive_count == 2


@pytest.mark.parametrize("destination", [None, OTHER])
def test_a_deleted_queue_fails_the_move(queues: Host, destination: str | None) -> None:
    queues.create(OTHER)
    dead_letter(queues, "a", "b", "c")
    queues.create(DEEPER, dead_letter_queue=DEAD, receives_max=1)  # keeps DEAD a dead-letter queue
    start(queues, destination, rate=1)
    queues.advance(0)
    queues.drop(destination or QUEUE)
    ended = finish(queues)
    assert (ended.status, ended.failure, ended.messages_moved) == (MoveStatus.FAILED, QUEUE_MISSING, 1)
    assert sorted(bodies(queues, DEAD)) == ["b", "c"]


def test_deleting_the_dead_letter_queue_ends_its_moves_and_their_history(queues: Host) -> None:
    dead_letter(queues, "a", "b")
    task = start(queues, rate=1)
    queues.drop(DEAD)
    for about in (commands.CancelMove(source=DEAD, task=task.id), commands.ListMoves(source=DEAD)):
        with pytest.raises(QueueNotFound):
            queues.do(about)
    queues.create(DEAD)
    queues.advance(5_000)
    assert queues.do(commands.ListMoves(source=DEAD)) == []
    start(queues)
    assert finish(queues).status is MoveStatus.COMPLETED


def test_a_move_fails_once_its_starter_may_no_longer_send(store: Store) -> None:
    with store.open(may_send=lambda starter, queue, policy: starter == policy) as host:
        pair(host, receives_max=1)
        host.create(OTHER, policy="alice")
        dead_letter(host, "a", "b", "c")
        host.do(commands.StartMove(source=DEAD, destination=OTHER, moves_per_s_max=1, starter="alice"))
        host.advance(0)
        host.set_queue(OTHER, policy="bob")
        ended = finish(host)
        assert (ended.status, ended.failure, ended.messages_moved) == (MoveStatus.FAILED, NOT_ALLOWED, 1)
        assert (host.counts(OTHER), host.counts(DEAD)) == ((1, 0, 0), (2, 0, 0))


def test_a_purge_completes_the_move(queues: Host) -> None:
    dead_letter(queues, "a", "b", "c")
    start(queues, rate=1)
    queues.advance(0)
    queues.purge(DEAD)
    ended = finish(queues)
    assert (ended.status, ended.messages_moved, ended.messages_to_move) == (MoveStatus.COMPLETED, 1, 3)


def test_only_the_latest_move_tasks_are_listed(queues: Host) -> None:
    task_ids = []
    for _ in range(MOVE_TASKS_KEPT + 2):
        task_ids.append(start(queues).id)
        finish(queues)
    listed = queues.do(commands.ListMoves(source=DEAD, count=2 * MOVE_TASKS_KEPT))
    assert [task.id for task in listed] == task_ids[:1:-1]
    assert [task.id for task in queues.do(commands.ListMoves(source=DEAD, count=3))] == task_ids[:-4:-1]


@pytest.mark.parametrize("restart", ["reopen", "crash"])
def test_a_move_resumes_after_a_restart(durable: Host, restart: str) -> None:
    pair(durable, receives_max=1)
    dead_letter(durable, *"abcdef")
    task = start(durable, rate=2)
    run(durable, 600)
    assert latest(durable).messages_moved == 2
    for _ in range(3):
        getattr(durable, restart)()
    durable.advance(0)
    assert latest(durable).messages_moved == 2
    run(durable, 400)
    assert latest(durable).messages_moved == 3
    ended = finish(durable)
    assert (ended.id, ended.status, ended.messages_moved) == (task.id, MoveStatus.COMPLETED, 6)
    durable.reopen()
    assert latest(durable) == ended
    assert (durable.counts(), durable.counts(DEAD)) == ((6, 0, 0), (0, 0, 0))
    durable.check()


def test_a_full_disk_delays_a_move_and_loses_no_message(tmp_path: Path) -> None:
    with on_sqlite(tmp_path / "store").open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        pair(host, receives_max=1)
        dead_letter(host, "a", "b")
        fill(host, "x" * 20_000)
        start(host)
        host.advance(3_000)
        assert (latest(host).status, latest(host).messages_moved) == (MoveStatus.RUNNING, 0)
        host.purge()
        host.advance(60_000)
        assert finish(host).messages_moved == 2
        assert host.failures == []
