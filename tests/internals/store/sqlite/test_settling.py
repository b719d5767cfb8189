"""The tables of messages on SQLite: runs and cursors of groups; what the janitor, dead letters and tasks do to them."""

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
from veilmq.store.sqlite.transaction import HANDLERS, driven
from veilmq.store.transaction import Transaction

TABLES = ("message", "ready", "visibility", "ordered", "ordered_run", "message_group", "fair_group", "claimed")
"""Those that have rows for messages."""


@pytest.fixture
def idle(host: Host) -> Host:
    """A store whose janitor does nothing by itself."""
    host.stop()
    return host


def slices(host: Host) -> int:
    """Sweep; return in how many slices."""
    count = 1
    while host.do(Sweep()) < SECOND_MS:
        count += 1
        assert count < 1_000
    return count


def rows(host: Host) -> dict[str, int]:
    return {table: count for table in TABLES if (count := host.rows(table))}


def filled(host: Host, kind: str, count: int, queue: str = QUEUE) -> None:
    """Create a queue and send so many messages; `fifo` and `fair` ones to two groups."""
    host.create(queue, fifo=kind == "fifo", retention_s=60)
    for first in range(0, count, 100):
        numbers = range(first, min(first + 100, count))
        groups = {number: None if kind == "standard" else f"g{number % 2}" for number in numbers}
        host.put(*(message(f"{each}", group=group, dedup_id=f"{each}") for each, group in groups.items()), queue=queue)


@pytest.mark.parametrize("kind", ["standard", "fair", "fifo"])
@pytest.mark.parametrize("ending", ["retention", "purge", "drop"])
def test_what_is_out_of_reach_is_deleted_in_slices(idle: Host, kind: str, ending: str) -> None:
    """Received, delayed and claimed messages too, after a restart too; nothing is left of groups and runs either."""
    filled(idle, kind, 2_500)
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
    assert slices(idle) <= 8, "a thousand rows each, and groups"
    assert rows(idle).pop("message", 0) <= claimed
    if not claimed:
        assert rows(idle) == {}


def test_many_purges_are_swept_in_a_few_slices(idle: Host) -> None:
    idle.create()
    for _ in range(300):
        idle.send("x")
        idle.purge()
    assert slices(idle) <= 10
    assert (rows(idle), idle.rows("part")) == ({}, 1)


def test_drained_space_goes_back_to_the_disk(tmp_path: Path, idle: Host) -> None:
    """But for what is kept for the next messages: 16 MiB of 60 MB."""
    idle.create()
    for _ in range(60):
        idle.send(*["x" * 100_000] * 10)
    idle.purge()
    slices(idle)
    assert (tmp_path / "store" / "store.db").stat().st_size < 20_000_000


def test_what_is_remembered_is_forgotten_when_it_is_over(tmp_path: Path) -> None:
    remembered = ("accepted", "attempt", "pause")
    options = replace(RESTLESS, purge_pause_s=60, queue_name_pause_s=120)
    with hosting(tmp_path / "store", options=options) as host:
        host.stop()
        host.create("000000000000/gone")
        host.drop("000000000000/gone")
        filled(host, "fifo", 10)
        host.do(Receive(queue=QUEUE, count=3, attempt_id="x"))
        host.purge()
        seen = []
        for wait_ms in (59_999, 1, 60_000, 179_999, 1):
            host.in_loop(lambda wait_ms=wait_ms: host.clock.advance(wait_ms))  # type: ignore[misc]
            slices(host)
            seen.append([host.rows(table) for table in remembered])
        assert seen == [[1, 1, 2], [1, 1, 1], [1, 1, 0], [1, 1, 0], [0, 0, 0]]
        assert host.do(commands.ShowQueue(queue=QUEUE)).queue == QUEUE


def test_what_is_remembered_is_forgotten_as_fast_as_it_comes(tmp_path: Path) -> None:
    """A full slice is followed by another at once: otherwise a minute may bring no more than one slice has."""
    with hosting(tmp_path / "store", options=RESTLESS) as host:
        host.stop()
        host.create(fifo=True)
        for number in range(1_100):
            host.put(message("x", group="g", dedup_id=f"{number}"))
            host.do(Receive(queue=QUEUE, attempt_id=f"{number}"))
        host.in_loop(lambda: host.clock.advance(300_000))
        slices(host)
        assert (host.rows("accepted"), host.rows("attempt")) == (0, 0)


# The ready list and the cursors of groups: what is taken from the front, and what is passed over.


@pytest.fixture
def brief(host: Host) -> Host:
    host.create(retention_s=60)
    return host


def test_messages_that_are_sent_together_are_one_row(brief: Host) -> None:
    brief.send("a", "b", "c", "d")
    assert (brief.rows("ready"), brief.rows("visibility")) == (1, 0)
    assert brief.bodies(3) == ["a", "b", "c"]
    assert (brief.rows("ready"), brief.rows("visibility")) == (1, 3)
    assert brief.bodies(10) == ["d"]
    assert (brief.rows("ready"), brief.rows("visibility")) == (0, 4)


def test_priorities_have_runs_of_their_own(brief: Host) -> None:
    brief.send("late", delay_s=1)
    brief.send("low", priority=9)
    brief.send("high", priority=1)
    brief.send("low too", priority=9)
    assert (brief.rows("ready"), brief.rows("visibility")) == (3, 1)
    brief.reopen()
    assert brief.bodies(10) == ["high", "low", "low too"]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_receive_passes_over_so_many_messages_past_their_retention(
    brief: Host, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """In a fair queue, too. While there are more it is made again at once: the others are deleted meanwhile."""
    brief.put(*(message(f"{number}", group=group) for number in range(30)))
    brief.receive(30, timeout_s=0)
    brief.advance(59_000)
    brief.send("lives")
    monkeypatch.setattr(settling, "_DELETED_AT_ONCE", 2)
    monkeypatch.setattr(standard, "EXPIRED_SKIPPED_MAX", 10)
    brief.stop()
    brief.advance(1_000)
    receives = 1
    while not (given := brief.bodies(10)):
        assert brief.due_ms() == brief.clock.now_ms()
        receives += 1
    assert (given, receives) == (["lives"], 6)


def test_runs_of_a_fifo_queue_go_with_their_last_message(host: Host) -> None:
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


@pytest.mark.parametrize("passed_max", [150, 60])
def test_groups_past_their_retention_are_passed_over(
    host: Host, monkeypatch: pytest.MonkeyPatch, passed_max: int
) -> None:
    """So many in a receive, which is made again at once while there are more: the others are deleted meanwhile."""
    host.create(fifo=True, retention_s=60)
    new = [message(str(number), group=str(number), dedup_id=str(number)) for number in range(150)]
    host.put(*new)
    host.advance(59_999)
    new = [message(f"{group} lives", group=group, dedup_id=f"living {group}") for group in ("0", "149", "z")]
    host.put(*new)
    monkeypatch.setattr(settling, "_DELETED_AT_ONCE", 4)
    monkeypatch.setattr(fifo, "EXPIRED_SKIPPED_MAX", passed_max)
    host.stop()
    host.advance(1)
    given: list[str] = []
    receives = 0
    while len(given) < 3:
        assert host.due_ms() == host.clock.now_ms()
        shown = [each.body for each in host.do(Peek(queue=QUEUE, count=3)).messages]
        given += host.bodies(3, timeout_s=900)
        assert set(shown) <= set(given)
        host.check()
        receives += 1
    assert sorted(given) == ["0 lives", "149 lives", "z lives"]
    assert (receives == 1) == (passed_max == 150)
    assert host.rows("message") > 3
    monkeypatch.undo()
    host.sweep()
    assert (host.counts(), host.rows("ordered")) == ((0, 3, 0), 6)


def test_a_shorter_retention_wakes_for_the_groups_that_it_frees(idle: Host) -> None:
    """A message in flight whose retention it ends blocks no group from then on."""
    idle.create(fifo=True)
    idle.put(message("old", group="g", dedup_id="1"))
    idle.receive_one(timeout_s=600)
    idle.advance(61_000)
    idle.put(message("new", group="g", dedup_id="2"))
    told = idle.watch()
    idle.set_queue(retention_s=60)
    assert idle.clock.now_ms() in told
    assert idle.receive_one().body == "new"


def test_what_waits_and_what_has_returned_comes_by_visibility(brief: Host) -> None:
    brief.send("returns at 1000", "returns at 2000")
    assert brief.bodies(timeout_s=1) == ["returns at 1000"]
    assert brief.bodies(timeout_s=2) == ["returns at 2000"]
    for at_ms in (500, 1_000, 1_500, 2_500):
        brief.advance(500 if at_ms < 2_000 else 1_000)
        brief.send(f"sent at {at_ms}")
    brief.advance(500)
    expected = ["sent at 500", "returns at 1000", "sent at 1000", "sent at 1500", "returns at 2000", "sent at 2500"]
    for count in range(1, 7):
        seen = brief.do(InspectQueue(queue=QUEUE, count=count, state=MessageState.VISIBLE))
        assert [each.body for each in seen] == expected[:count]
    assert brief.bodies(10) == expected


# What move tasks and dead letters do.


LONG = "x" * 300_000


class Change(Command, frozen=True, kw_only=True):
    """Do what the test says."""


@pytest.fixture
def dying(host: Host) -> Host:
    host.create(OTHER)
    pair(host, receives_max=1, retention_s=60)
    return host


def test_any_of_the_messages_that_were_chosen_can_move(dying: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands between them keeps its place; what was never received is one row there for all that follow."""

    async def change(tx: Transaction, command: Change) -> Any:
        source, target = await tx.queue(QUEUE), await tx.queue(OTHER)
        chosen, _ = await tx.select_visible(source, 10)
        assert [each.size_bytes for each in chosen] == [1] * 8
        return await tx.move(source, target, [each for each in chosen if each.row[6] in "bcfg"])

    monkeypatch.setitem(HANDLERS, Change, driven(change, changes=True))  # type: ignore[misc]
    dying.send("a", "b", "c", "d")
    dying.send("e")
    dying.send("f", "g", "h")
    assert dying.do(Change()) == 4
    dying.check()
    assert (dying.rows("ready"), dying.rows("visibility")) == (5, 0)
    assert dying.bodies(10) == ["a", "d", "e", "h"]
    assert dying.bodies(10, queue=OTHER) == ["b", "c", "f", "g"]


@pytest.mark.parametrize("fifo", [False, True])
def test_messages_past_their_retention_are_never_moved_however_many(
    dying: Host, monkeypatch: pytest.MonkeyPatch, *, fifo: bool
) -> None:
    """A task waits until those are deleted, and goes on with what is behind them."""
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
def test_a_slice_that_finds_no_room_in_its_batch_is_not_the_last(dying: Host, *, fifo: bool) -> None:
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


def test_what_is_in_memory_can_be_dropped_between_two_slices(dying: Host) -> None:
    dead_letter(dying, *"abcdefgh")
    dying.send("i", "j", queue=DEAD)
    start(dying, OTHER, rate=30)
    while latest(dying).status is MoveStatus.RUNNING:
        dying.forget()
        dying.advance(PAUSE_MS)
        dying.check()
    assert dying.bodies(20, queue=OTHER) == list("abcdefghij")


def test_a_dead_letter_that_arrives_when_another_one_ends_in_flight_is_counted(host: Host) -> None:
    """Retention ends a lease in a FIFO queue: its group has one less in flight."""
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


def test_groups_of_a_dead_letter_queue_know_their_first_message(dying: Host) -> None:
    """Also behind messages that passed their retention there, or beside one that was sent at the same instant."""
    dying.put(*(message("old", group=group) for group in "ab"), queue=DEAD)
    dying.advance(30_000)
    dying.put(*(message("dead", group=group) for group in "bc"))
    dying.receive(2, timeout_s=0)
    dying.advance(30_000)
    dying.put(message("new", group="c"), queue=DEAD)
    assert dying.receive(2) == []
    dying.check()
    assert dying.bodies(10, queue=DEAD) == ["dead", "dead", "new"]


def test_the_next_slice_counts_from_the_batch_of_the_last_one(dying: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from when that is durable: a slow sync would put each slice off a little more."""
    answers: list[Any] = []
    due: list[Any] = []

    def slices() -> None:
        monkeypatch.setattr(dying.engine, "submit", lambda step, done: answers.append(done))
        for _ in range(4):
            dying.engine._do_slice(MoveStep(), due.append)
        monkeypatch.undo()

    dying.in_loop(slices)
    dying.advance(30)
    error = InternalError()
    for done, answer in zip(answers, (500, 20, None, error), strict=True):
        done(answer)
    assert due == [470, 0, None, error]
