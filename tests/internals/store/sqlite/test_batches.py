"""Batches of the store on SQLite: their size, the order of their commands, what fails alone and what that undoes."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import apsw
import pytest

from tests.store.host import QUEUE, Host, hosting, message
from veilmq.core.claims import Publish, Stage
from veilmq.core.commands import Command, CreateQueue, Delete, Receive, Send, ShowQueue
from veilmq.core.errors import InternalError, MessageTooLong, QueueDeletedRecently, ReceiptState, StoreFull, VeilmqError
from veilmq.core.messages import NewMessage
from veilmq.core.topics import CreateTopic, PublishToTopic, Subscribe, Subscription
from veilmq.store.sqlite import standard
from veilmq.store.sqlite.database import EngineOptions
from veilmq.store.sqlite.session import Session
from veilmq.store.sqlite.transaction import HANDLERS, driven
from veilmq.store.transaction import Transaction

TOPIC = "000000000000/news"


SUBSCRIBE = Subscribe(subscription=Subscription(topic=TOPIC, name="s", endpoint=QUEUE, queue=QUEUE))


@pytest.fixture
def host(host: Host) -> Host:
    host.create()
    host.do(CreateTopic(topic=TOPIC))
    host.do(SUBSCRIBE)
    return host


def send(*bodies: str, properties: bytes = b"") -> Send:
    new = [NewMessage(body=body, size_bytes=1, properties=properties) for body in bodies or ("",)]
    return Send(queue=QUEUE, messages=tuple(new))


def sizes(host: Host, monkeypatch: pytest.MonkeyPatch, *together: Command) -> list[int]:
    found: list[int] = []
    run = host.engine._batch.run

    def noted(entries: Any, *more: Any, **terms: Any) -> bool:
        before = len(entries)
        changed = run(entries, *more, **terms)
        found.append(before - len(entries))
        return changed

    monkeypatch.setattr(host.engine._batch, "run", noted)
    host.do_together(*together)
    return found


# What a batch holds.


@pytest.mark.parametrize(("asked", "batches"), [
    ([ShowQueue(queue=QUEUE)] * 3_000, [1_024, 1_024, 952]), ([send("x" * 1_000_000)] * 7, [2, 2, 2, 1]),
    ([send(properties=bytes(1_000_000))] * 7, [2, 2, 2, 1]), ([Receive(queue=QUEUE)] * 7, [2, 2, 2, 1]),
], ids=["commands", "bodies", "properties", "received"])  # fmt: skip
def test_a_batch_is_bounded(
    host: Host, monkeypatch: pytest.MonkeyPatch, asked: list[Command], batches: list[int]
) -> None:
    """By its commands, by what it carries, and by what it hands out: so it is durable soon, whatever comes."""
    for number in range(7):
        host.do(send("y" * 1_000_000) if number % 2 else send(properties=bytes(1_000_000)))
    assert sizes(host, monkeypatch, *asked) == batches


@pytest.mark.parametrize("large", [send("x" * 1_000_000), Receive(queue=QUEUE)], ids=["sent", "received"])
def test_large_messages_of_a_queue_let_what_is_asked_of_others_pass(host: Host, large: Command) -> None:
    """In the batch that they fill half of; what is asked of their own queue keeps its order."""
    small = "000000000000/small"
    host.create(small)
    for _ in range(6):
        host.do(send("y" * 1_000_000))
    answered: list[str] = []
    others = [Send(queue=small, messages=(message("a"),)), Receive(queue=small), ShowQueue(queue=small, counts=True)]
    host.do_together(*[large] * 6, *others, on_result=lambda answer: answered.append(type(answer).__name__))
    kind = "list" if isinstance(large, Send) else "Received"
    assert answered == [kind] * 2 + ["list", "Received", "QueueView"] + [kind] * 4


# The order of its commands.


def test_a_delete_behind_a_receive_comes_after_it(host: Host) -> None:
    """The receipt of a message whose lease has ended is superseded by a receive before it, and not by one behind it."""
    host.send("a")
    receipt = host.receive_one(timeout_s=1).receipt
    host.advance(1_000)
    received, states = host.do_together(Receive(queue=QUEUE), Delete(queue=QUEUE, receipts=(receipt,)))
    assert [len(received.messages), states] == [1, [ReceiptState.SUPERSEDED]]
    host.advance(30_000)
    again = received.messages[0].receipt
    states, late = host.do_together(Delete(queue=QUEUE, receipts=(again,)), Receive(queue=QUEUE))
    assert [states, late.messages] == [[ReceiptState.EXPIRED], []]


@pytest.mark.parametrize("timeout_s", [0, None])
def test_a_receive_that_hides_nothing_leaves_its_messages_to_the_next_one(host: Host, timeout_s: int | None) -> None:
    """Its own timeout is 0, or that of its class of messages."""
    classes = [{"name": f"{each}", "visibility_timeout_s": each} for each in (0, 60)]
    host.set_queue(visibility_rules=json.dumps({"version": 1, "classes": classes, "default": 0}))
    host.send("a")
    first, second = host.do_together(Receive(queue=QUEUE, timeout_s=timeout_s), Receive(queue=QUEUE))
    assert [each.receive_count for each in (*first.messages, *second.messages)] == [1, 2]


def test_queues_of_a_batch_do_not_mix(host: Host) -> None:
    names = [f"000000000000/q{number}" for number in range(5)]
    for name in names:
        host.create(name)
    host.do_together(*(Send(queue=name, messages=(message(name),)) for name in names))
    received = host.do_together(*(Receive(queue=name) for name in names))
    assert [each.messages[0].body for each in received] == names
    deletes = [
        Delete(queue=name, receipts=(each.messages[0].receipt,)) for name, each in zip(names, received, strict=True)
    ]
    assert host.do_together(*deletes) == [[ReceiptState.LIVE]] * 5
    assert host.rows("message") == 0


# What fails.


def test_a_command_that_fails_fails_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its batch are carried out, and what it wrote before is undone."""
    store = standard.send

    def failing(session: Any, queue: Any, sends: Any, answers: Any) -> Any:
        stored = store(session, queue, sends, answers)
        if any(command.messages[-1].body == "bad" for _, command in sends):
            raise RuntimeError("a defect")
        return stored

    monkeypatch.setattr(standard, "send", failing)
    first, bad, second, received = host.do_together(
        send("a"), send("b", "bad"), send("c"), Receive(queue=QUEUE, count=9)
    )
    assert [len(first), len(second)] == [1, 1]
    assert isinstance(bad, InternalError)
    assert [each.body for each in received.messages] == ["a", "c"]
    host.reopen()
    assert host.counts() == (0, 2, 0)


def test_a_batch_is_repeated_once_however_many_of_its_commands_fail(host: Host) -> None:
    """Counted by a publication, whose message is made anew each time that it is applied."""
    applied: list[object] = []

    def make(published: object) -> NewMessage:
        applied.append(published)
        return message("b")

    publication = PublishToTopic(topic=TOPIC, size_bytes=1, make=make)
    _, *refused, last = host.do_together(publication, *[send("\ud800")] * 50, send("a"))
    assert {type(each) for each in refused} == {InternalError}
    assert (len(last), len(applied)) == (1, 2)
    assert host.bodies(10) == ["b", "a"]


def test_a_queue_whose_creation_was_undone_can_be_created_and_watched(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was in memory: it is made anew from the database, and who watches still does."""
    finish = Session.finish
    failures = [OSError("before the commit"), OSError("and when it was tried again")]

    def fail_twice(session: Session) -> None:
        if failures:
            raise failures.pop()
        finish(session)

    woken = host.watch("a/other")
    monkeypatch.setattr(Session, "finish", fail_twice)
    (failed,) = host.do_together(CreateQueue(queue="a/other"))
    assert isinstance(failed, InternalError)
    assert host.do(CreateQueue(queue="a/other")).is_new
    host.send("a", queue="a/other")
    failures.append(OSError("once more"))
    woken.clear()
    host.send("b", queue="a/other")
    host.send("c", queue="a/other")
    assert woken[-1] == host.clock.now_ms()
    assert host.counts("a/other") == (3, 0, 0)


def test_a_receive_has_what_was_published_before_it_in_its_batch(host: Host) -> None:
    publication = PublishToTopic(topic=TOPIC, size_bytes=1, make=lambda _: message("m"))
    _, received = host.do_together(publication, Receive(queue=QUEUE))
    assert [each.body for each in received.messages] == ["m"]


def test_on_a_full_disk_publications_fail_and_the_rest_of_the_batch_goes_on(host: Host) -> None:
    host.send("small")
    connection = host.engine._session.connection
    connection.pragma("max_page_count", connection.pragma("page_count") + 20)
    publication = PublishToTopic(topic=TOPIC, size_bytes=1, make=lambda _: message("x" * 400_000))
    published, received = host.do_together(publication, Receive(queue=QUEUE))
    assert isinstance(published, StoreFull)
    assert [each.body for each in received.messages] == ["small"]


def test_a_full_disk_that_somebody_reads_is_refused_and_not_tried_for_ever(host: Host) -> None:
    assert host.folder is not None
    connection = host.engine._session.connection
    connection.pragma("max_page_count", connection.pragma("page_count") + 10)
    reader = apsw.Connection(str(host.folder / "store.db"))
    reader.execute("BEGIN; SELECT count(*) FROM message")
    (refused,) = host.do_together(send("x" * 300_000))
    assert isinstance(refused, StoreFull)
    reader.close()


def test_a_name_that_rests_is_refused_without_a_write(tmp_path: Path) -> None:
    """A client that tries again and again must not have what is cached of all queues dropped each time."""
    with hosting(tmp_path / "store", options=EngineOptions()) as host:
        host.create()
        host.create("a/other")
        host.drop("a/other")
        cached = host.engine._session.find(QUEUE)
        with pytest.raises(QueueDeletedRecently):
            host.do(CreateQueue(queue="a/other"))
        assert host.engine._session.find(QUEUE) is cached


# What an error of a cold command undoes.


class Change(Command, frozen=True, kw_only=True):
    """Write something, then do what the test says."""


async def write(tx: Transaction) -> None:
    for name in ("000000000000/a", "000000000000/b.fifo"):
        queue = await tx.queue(name)
        await tx.store(queue, [message("x", group="g", dedup_id="x")], [tx.ids.next()])
    await tx.run("put_setting", "name", b"value")


def test_an_error_undoes_what_its_command_wrote(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands before and behind it in the batch wrote stays, totals and all."""

    async def change(tx: Transaction, command: Change) -> None:
        await write(tx)
        raise MessageTooLong(1)

    monkeypatch.setitem(HANDLERS, Change, driven(change, changes=True))  # type: ignore[misc]
    for name in ("000000000000/a", "000000000000/b.fifo"):
        host.create(name, fifo=name.endswith("fifo"))
    send = Send(queue=QUEUE, messages=(message("before"),))
    first, error, second, view = host.do_together(send, Change(), send, ShowQueue(queue=QUEUE, counts=True))
    assert [len(first), len(second), view.counts.visible] == [1, 1, 2]
    assert isinstance(error, MessageTooLong)
    host.check()
    assert host.rows("message") == 2
    assert host.rows("setting WHERE name = 'name'") == 0
    host.reopen()
    assert host.counts() == (2, 0, 0)


def test_a_cold_command_that_suspends_is_a_defect(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def change(tx: Transaction, command: Change) -> Any:
        await tx.run("put_setting", "name", b"value")
        await asyncio.sleep(0)

    monkeypatch.setitem(HANDLERS, Change, driven(change, changes=True))  # type: ignore[misc]
    with pytest.raises(VeilmqError) as raised:
        host.do(Change())
    assert type(raised.value) is InternalError
    assert host.rows("setting WHERE name = 'name'") == 0


# Publications: what a batch takes of them, and what is left of a damaged one.


def stage(body: str, attempt: str) -> Stage:
    return Stage(queue=QUEUE, writer="w", batch=0, attempt=attempt, part=0, messages=(message(body),))


def publish(*attempts: str) -> Publish:
    return Publish(queue=QUEUE, writer="w", batch=0, attempts=tuple((attempt, 1) for attempt in attempts))


def test_what_is_staged_beyond_the_bytes_of_a_batch_is_left_to_the_next_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = host.engine._session
    finished = Mock(wraps=session.finish)
    monkeypatch.setattr(session, "finish", finished)
    *staged, published = host.do_together(*(stage("x" * 900_000, attempt) for attempt in "abcdef"), publish(*"abcdef"))
    assert [each.messages for each in staged] == [1] * 6
    assert published.messages == 6
    assert finished.call_count == 3


def test_a_stage_without_its_pieces_keeps_nothing_back(host: Host) -> None:
    host.do_together(stage("a", "a"), stage("b", "b"))
    host.engine._session.connection.execute("DELETE FROM piece WHERE stage_id = 1")
    assert not host.do(publish("a", "b")).more
    assert host.receive_one().body == "b"
