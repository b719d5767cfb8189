"""What move tasks and dead letters do to the tables of the store on SQLite."""

from typing import Any

import pytest

from tests.store.dead_letters import DEAD, PAUSE_MS, finish, kill, latest, pair, start
from tests.store.host import QUEUE, Host, message
from tests.store.test_moves import OTHER
from veilmq.core.commands import Command, MoveStatus, Receive
from veilmq.core.errors import InternalError
from veilmq.store.moves import MoveStep
from veilmq.store.sqlite import settling
from veilmq.store.sqlite.batch import HANDLERS
from veilmq.store.sqlite.transaction import driven
from veilmq.store.transaction import Transaction

BYTES_MAX = 1_048_576
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
        chosen, _ = await tx.choose(source, 10, BYTES_MAX)
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
    monkeypatch.setattr(settling, "_SWEPT_AT_ONCE", 1)
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
    kill(dying, *"abcdefgh")
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
