"""Tables of messages in SQLite: runs and group cursors, and the effects of the janitor, dead letters and move tasks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.host import QUEUE, RESTLESS, Host, hosting, message
from tests.store.test_dead_letters import DEAD, PAUSE_MS, dead_letter, finish, latest, pair, start
from tests.store.test_moves import OTHER
from veilmq.core import commands
from veilmq.core.claims import Claim, OpenSource
from veilmq.core.commands import Command, InspectQueue, MessageState, MoveStatus, Peek, Receive, Send
from veilmq.core.errors import InternalError
from veilmq.core.limits import SECOND_MS
from veilmq.store.cold import Sweep
from veilmq.store.moves import MoveStep
from veilmq.store.sqlite import fifo, settling, standard
from veilmq.store.sqlite.transaction import HANDLERS, handler
from veilmq.store.transaction import Transaction

# tables with rows for messages
TABLES = ("message", "ready", "visibility", "ordered", "ordered_run", "message_group", "fair_group", "claimed")


@pytest.fixture
def idle(host: Host) -> Host:
    """A store with the janitor stopped."""
    host.stop()
    return host


def sweep_all(host: Host) -> int:
    """Run the janitor until nothing is left; return the number of slices."""
    count = 1
    while host.do(Sweep()) < SECOND_MS:
        count += 1
        assert count < 1_000
    return count


def rows(host: Host) -> dict[str, int]:
    return {table: count for table in TABLES if (count := host.rows(table))}


def create_and_fill(host: Host, kind: str, count: int, queue: str = QUEUE) -> None:
    """Create a queue and send messages; those of kind `fifo` and `fair` have two groups."""
    host.create(queue, fifo=kind == "fifo", retention_s=60)
    for first in range(0, count, 100):
        numbers = range(first, min(first + 100, count))
        groups = {number: None if kind == "standard" else f"g{number % 2}" for number in numbers}
        host.put(*(message(f"{each}", group=group, dedup_id=f"{each}") for each, group in groups.items()), queue=queue)


@pytest.mark.parametrize("kind", ["standard", "fair", "fifo"])
@pytest.mark.parametrize("ending", ["retention", "purge", "drop"])
def test_unreachable_messages_are_deleted_in_slices(idle: Host, kind: str, ending: str) -> None:
    """Received, delayed and claimed ones, too, and after a restart; no rows of groups and runs remain."""
    create_and_fill(idle, kind, 2_500)
    idle.receive(10, timeout_s=1_000)
    if kind != "fifo":
        idle.send("delayed", delay_s=900)
    idle.do(OpenSource(queue=QUEUE, source="s"))
    idle.do(Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=10))
    claimed = 0 if ending != "retention" else 10
    if ending == "retention":
        idle.in_loop(lambda: idle.clock.advance(60_000))
    else:
        getattr(idle, ending)()
    idle.reopen()
    idle.stop()
    assert sweep_all(idle) <= 8, "a thousand rows each, and groups"
    assert rows(idle).pop("message", 0) <= claimed
    if not claimed:
        assert rows(idle) == {}


def test_many_purges_are_swept_in_a_few_slices(idle: Host) -> None:
    idle.create()
    for _ in range(300):
        idle.send("x")
        idle.purge()
    assert sweep_all(idle) <= 10
    assert (rows(idle), idle.rows("part")) == ({}, 1)


def test_freed_space_is_returned_to_the_disk(tmp_path: Path, idle: Host) -> None:
    """Except for 16 MiB of 60 MB, which are kept for new messages."""
    idle.create()
    for _ in range(60):
        idle.send(*["x" * 100_000] * 10)
    idle.purge()
    sweep_all(idle)
    assert (tmp_path / "store" / "store.db").stat().st_size < 20_000_000


def test_old_entries_are_deleted_on_time(tmp_path: Path) -> None:
    tables = ("accepted", "attempt", "pause")
    options = replace(RESTLESS, purge_pause_s=60, queue_name_pause_s=120)
    with hosting(tmp_path / "store", options=options) as host:
        host.stop()
        host.create("000000000000/gone")
        host.drop("000000000000/gone")
        create_and_fill(host, "fifo", 10)
        host.do(Receive(queue=QUEUE, count=3, attempt_id="x"))
        host.purge()
        seen = []
        for wait_ms in (59_999, 1, 60_000, 179_999, 1):
            host.in_loop(lambda wait_ms=wait_ms: host.clock.advance(wait_ms))  # type: ignore[misc]
            sweep_all(host)
            seen.append([host.rows(table) for table in tables])
        assert seen == [[1, 1, 2], [1, 1, 1], [1, 1, 0], [1, 1, 0], [0, 0, 0]]
        assert host.do(commands.ShowQueue(queue=QUEUE)).queue == QUEUE


def test_old_entries_are_deleted_as_fast_as_new_ones_arrive(tmp_path: Path) -> None:
    """A full slice is followed by another one at once; otherwise a minute could only delete one slice."""
    with hosting(tmp_path / "store", options=RESTLESS) as host:
        host.stop()
        host.create(fifo=True)
        for number in range(1_100):
            host.put(message("x", group="g", dedup_id=f"{number}"))
            host.do(Receive(queue=QUEUE, attempt_id=f"{number}"))
        host.in_loop(lambda: host.clock.advance(300_000))
        sweep_all(host)
        assert (host.rows("accepted"), host.rows("attempt")) == (0, 0)


# The ready list.


@pytest.fixture
def short_retention(host: Host) -> Host:
    host.create(retention_s=60)
    return host


def test_messages_sent_together_are_one_row(short_retention: Host) -> None:
    short_retention.send("a", "b", "c", "d")
    assert (short_retention.rows("ready"), short_retention.rows("visibility")) == (1, 0)
    assert short_retention.bodies(3) == ["a", "b", "c"]
    assert (short_retention.rows("ready"), short_retention.rows("visibility")) == (1, 3)
    assert short_retention.bodies(10) == ["d"]
    assert (short_retention.rows("ready"), short_retention.rows("visibility")) == (0, 4)


def test_each_priority_has_its_own_runs(short_retention: Host) -> None:
    short_retention.send("late", delay_s=1)
    short_retention.send("low", priority=9)
    short_retention.send("high", priority=1)
    short_retention.send("low too", priority=9)
    assert (short_retention.rows("ready"), short_retention.rows("visibility")) == (3, 1)
    short_retention.reopen()
    assert short_retention.bodies(10) == ["high", "low", "low too"]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_receive_skips_a_limited_number_of_expired_messages(
    short_retention: Host, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """Also in a fair queue. While there are more, the receive is repeated at once; others are deleted meanwhile."""
    short_retention.put(*(message(f"{number}", group=group) for number in range(30)))
    short_retention.receive(30, timeout_s=0)
    short_retention.advance(59_000)
    short_retention.send("lives")
    monkeypatch.setattr(settling, "_DELETED_AT_ONCE", 2)
    monkeypatch.setattr(standard, "EXPIRED_SKIPPED_MAX", 10)
    short_retention.stop()
    short_retention.advance(1_000)
    receives = 1
    while not (received := short_retention.bodies(10)):
        assert short_retention.due_ms() == short_retention.clock.now_ms()
        receives += 1
    assert (received, receives) == (["lives"], 6)


def test_runs_of_a_fifo_queue_are_deleted_with_their_last_message(host: Host) -> None:
    host.create(fifo=True, content_deduplication=True, retention_s=60)
    for group in ("x", "y", "z"):
        messages = tuple(message(f"{group}{n}", group=group) for n in range(2))
        host.do(Send(queue=QUEUE, messages=messages))
    taken = host.receive(10)
    assert ([each.body for each in taken], host.rows("ordered_run")) == (["x0", "x1", "y0", "y1", "z0", "z1"], 3)
    for each in (taken[2], taken[1], taken[0]):
        host.delete(each.receipt)
        host.check()
    assert (host.rows("ordered_run"), host.counts()) == (2, (0, 3, 0))
    host.advance(60_000)
    host.sweep()
    assert (host.rows("ordered_run"), host.rows("ordered"), host.rows("message")) == (0, 0, 0)


# The cursors of groups.


@pytest.mark.parametrize("skipped_max", [150, 60])
def test_expired_groups_are_skipped(host: Host, monkeypatch: pytest.MonkeyPatch, skipped_max: int) -> None:
    """A receive skips a limited number, and is repeated at once while there are more; others are deleted meanwhile."""
    host.create(fifo=True, retention_s=60)
    new = [message(str(number), group=str(number), dedup_id=str(number)) for number in range(150)]
    host.put(*new)
    host.advance(59_999)
    new = [message(f"{group} lives", group=group, dedup_id=f"living {group}") for group in ("0", "149", "z")]
    host.put(*new)
    monkeypatch.setattr(settling, "_DELETED_AT_ONCE", 4)
    monkeypatch.setattr(fifo, "EXPIRED_SKIPPED_MAX", skipped_max)
    host.stop()
    host.advance(1)
    received: list[str] = []
    receives = 0
    while len(received) < 3:
        assert host.due_ms() == host.clock.now_ms()
        shown = [each.body for each in host.do(Peek(queue=QUEUE, count=3)).messages]
        received += host.bodies(3, timeout_s=900)
        assert set(shown) <= set(received)
        host.check()
        receives += 1
    assert sorted(received) == ["0 lives", "149 lives", "z lives"]
    assert (receives == 1) == (skipped_max == 150)
    assert host.rows("message") > 3
    monkeypatch.undo()
    host.sweep()
    assert (host.counts(), host.rows("ordered")) == ((0, 3, 0), 6)


def test_a_shorter_retention_wakes_waiters_of_freed_groups(idle: Host) -> None:
    """A message in flight that it expires no longer blocks its group."""
    idle.create(fifo=True)
    idle.put(message("old", group="g", dedup_id="1"))
    idle.receive_one(timeout_s=600)
    idle.advance(61_000)
    idle.put(message("new", group="g", dedup_id="2"))
    notifications = idle.watch()
    idle.set_queue(retention_s=60)
    assert idle.clock.now_ms() in notifications
    assert idle.receive_one().body == "new"


def test_new_and_returned_messages_are_received_by_visibility(short_retention: Host) -> None:
    short_retention.send("returns at 1000", "returns at 2000")
    assert short_retention.bodies(timeout_s=1) == ["returns at 1000"]
    assert short_retention.bodies(timeout_s=2) == ["returns at 2000"]
    for at_ms in (500, 1_000, 1_500, 2_500):
        short_retention.advance(500 if at_ms < 2_000 else 1_000)
        short_retention.send(f"sent at {at_ms}")
    short_retention.advance(500)
    expected = ["sent at 500", "returns at 1000", "sent at 1000", "sent at 1500", "returns at 2000", "sent at 2500"]
    for count in range(1, 7):
        seen = short_retention.do(InspectQueue(queue=QUEUE, count=count, state=MessageState.VISIBLE))
        assert [each.body for each in seen] == expected[:count]
    assert short_retention.bodies(10) == expected


# Move tasks and dead letters.


LONG = "x" * 300_000


class Change(Command, frozen=True, kw_only=True):
    """Run what the test defines."""


@pytest.fixture
def dying(host: Host) -> Host:
    host.create(OTHER)
    pair(host, receives_max=1, retention_s=60)
    return host


def test_any_of_the_selected_messages_can_move(dying: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages between them keep their order; consecutive ones never received are one row in the target."""

    async def change(tx: Transaction, command: Change) -> Any:
        source, target = await tx.queue(QUEUE), await tx.queue(OTHER)
        chosen, _ = await tx.select_visible(source, 10)
        assert [each.size_bytes for each in chosen] == [1] * 8
        return await tx.move(source, target, [each for each in chosen if each.row[6] in "bcfg"])

    monkeypatch.setitem(HANDLERS, Change, handler(change, changes=True))  # type: ignore[misc]
    dying.send("a", "b", "c", "d")
    dying.send("e")
    dying.send("f", "g", "h")
    assert dying.do(Change()) == 4
    dying.check()
    assert (dying.rows("ready"), dying.rows("visibility")) == (5, 0)
    assert dying.bodies(10) == ["a", "d", "e", "h"]
    assert dying.bodies(10, queue=OTHER) == ["b", "c", "f", "g"]


@pytest.mark.parametrize("fifo", [False, True])
def test_expired_messages_are_never_moved(dying: Host, monkeypatch: pytest.MonkeyPatch, *, fifo: bool) -> None:
    """The task waits until they are deleted, then moves the messages after them."""
    source, target = (f"000000000000/{name}" for name in ("source", "target"))
    dying.create(target, fifo=fifo)
    dying.create(source, fifo=fifo, retention_s=60)
    dying.create("000000000000/any", fifo=fifo, dead_letter_queue=source, receives_max=1)
    for number in range(5):
        dying.put(message(f"old {number}", group="g", dedup_id=str(number)), queue=source)
    dying.advance(59_995)
    dying.put(message("young", group="g", dedup_id="young"), queue=source)
    monkeypatch.setattr(settling, "_DELETED_AT_ONCE", 1)
    dying.stop()
    dying.advance(5)
    start(dying, target, source=source)
    assert dying.rows("message") > 2
    ended = finish(dying, source)
    assert (ended.status, ended.messages_moved) == (MoveStatus.COMPLETED, 1)
    assert dying.bodies(10, queue=target) == ["young"]


@pytest.mark.parametrize("fifo", [False, True])
def test_a_move_slice_in_a_full_batch_is_not_the_last(dying: Host, *, fifo: bool) -> None:
    dying.create("000000000000/busy")
    dying.send(*([LONG] * 8), queue="000000000000/busy")
    target = "000000000000/target"
    dying.create(target, fifo=fifo)
    dying.create("000000000000/source", fifo=fifo)
    dying.create("000000000000/any", fifo=fifo, dead_letter_queue="000000000000/source", receives_max=1)
    dying.put(message("a", group="g", dedup_id="a"), queue="000000000000/source")
    start(dying, target, source="000000000000/source")
    dying.do_together(Receive(queue="000000000000/busy", count=8), MoveStep())
    assert finish(dying, "000000000000/source").messages_moved == 1


def test_caches_can_be_cleared_between_two_slices(dying: Host) -> None:
    dead_letter(dying, *"abcdefgh")
    dying.send("i", "j", queue=DEAD)
    start(dying, OTHER, rate=30)
    while latest(dying).status is MoveStatus.RUNNING:
        dying.forget()
        dying.advance(PAUSE_MS)
        dying.check()
    assert dying.bodies(20, queue=OTHER) == list("abcdefghij")


def test_a_dead_letter_that_arrives_when_a_lease_expires_by_retention_is_counted(host: Host) -> None:
    """Retention ends a lease in a FIFO queue, so its group has one message less in flight."""
    pair(host, receives_max=1, fifo=True, retention_s=60)
    host.put(message("old", group="g", dedup_id="old"), queue=DEAD)
    assert len(host.receive(1, queue=DEAD, timeout_s=100)) == 1
    host.advance(59_000)
    host.put(message("a", group="h", dedup_id="a"))
    assert len(host.receive(1, timeout_s=0)) == 1
    host.stop()
    host.advance(1_000)
    assert host.receive(1) == []
    assert host.counts(DEAD) == (1, 0, 0)
    assert len(host.receive(10, queue=DEAD, timeout_s=30)) == 1
    host.advance(45_000)
    assert host.counts(DEAD) == (1, 0, 0)


def test_groups_of_a_dead_letter_queue_have_their_first_message(dying: Host) -> None:
    """Even after messages that have expired there, or with one of the same sending time."""
    dying.put(*(message("old", group=group) for group in "ab"), queue=DEAD)
    dying.advance(30_000)
    dying.put(*(message("dead", group=group) for group in "bc"))
    dying.receive(2, timeout_s=0)
    dying.advance(30_000)
    dying.put(message("new", group="c"), queue=DEAD)
    assert dying.receive(2) == []
    dying.check()
    assert dying.bodies(10, queue=DEAD) == ["dead", "dead", "new"]


def test_a_pause_counts_from_the_batch_of_the_last_slice(dying: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not count from the commit, because a slow sync would delay each slice further."""
    callbacks: list[Any] = []
    due: list[Any] = []

    def submit_slices() -> None:
        monkeypatch.setattr(dying.engine, "submit", lambda step, done: callbacks.append(done))
        for _ in range(4):
            dying.engine._step(MoveStep(), due.append)
        monkeypatch.undo()

    dying.in_loop(submit_slices)
    dying.advance(30)
    error = InternalError()
    for done, result in zip(callbacks, (500, 20, None, error), strict=True):
        done(result)
    assert due == [470, 0, None, error]
