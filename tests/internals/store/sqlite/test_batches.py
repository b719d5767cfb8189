"""Batches of the SQLite store: their size and start, the order of their commands, and what a failure rolls back."""

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
from veilmq.store.port import execute
from veilmq.store.sqlite import standard
from veilmq.store.sqlite import store as store_module
from veilmq.store.sqlite.database import EngineOptions
from veilmq.store.sqlite.session import Session
from veilmq.store.sqlite.transaction import HANDLERS, handler
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


@pytest.fixture
def batches(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands in each batch so far."""
    found: list[int] = []
    run = host.engine._batch.run

    def record(entries: Any, *more: Any, **keywords: Any) -> bool:
        before = len(entries)
        changed = run(entries, *more, **keywords)
        found.append(before - len(entries))
        return changed

    monkeypatch.setattr(host.engine._batch, "run", record)
    return found


# The size of a batch.


@pytest.mark.parametrize(("commands", "sizes"), [
    ([ShowQueue(queue=QUEUE)] * 3_000, [1_024, 1_024, 952]), ([send("x" * 1_000_000)] * 7, [2, 2, 2, 1]),
    ([send(properties=bytes(1_000_000))] * 7, [2, 2, 2, 1]), ([Receive(queue=QUEUE)] * 7, [2, 2, 2, 1]),
    ([Receive(queue=QUEUE, timeout_s=0)] * 7, [2, 2, 2, 1]),
], ids=["commands", "bodies", "properties", "received", "received-with-timeout-0"])  # fmt: skip
def test_the_size_of_a_batch_is_limited(
    host: Host, batches: list[int], commands: list[Command], sizes: list[int]
) -> None:
    """The limits are the number of commands, and the bytes written and read."""
    for number in range(7):
        host.do(send("y" * 1_000_000) if number % 2 else send(properties=bytes(1_000_000)))
    batches.clear()
    host.do_together(*commands)
    assert batches == sizes


# When a batch starts.


def test_clients_that_send_again_at_different_times_share_their_batches(host: Host, batches: list[int]) -> None:
    async def client(iterations: int) -> None:
        for _ in range(10):
            await execute(host.engine, ShowQueue(queue=QUEUE))
            for _ in range(iterations):
                await asyncio.sleep(0)

    async def clients() -> None:
        await asyncio.gather(*map(client, range(8)))

    host.run(clients())
    assert batches == [8] * 10


@pytest.mark.parametrize(("sync_s", "wait_s"), [(0.0001, 0.000_025), (0.02, 0.000_05)])
def test_a_batch_waits_for_an_expected_command_once(
    host: Host, batches: list[int], monkeypatch: pytest.MonkeyPatch, sync_s: float, wait_s: float
) -> None:
    now_s = 0.0
    monkeypatch.setattr(store_module, "stopwatch_s", lambda: now_s)
    host.engine._database.usual_sync_s = sync_s
    host.do_together(ShowQueue(queue=QUEUE), ShowQueue(queue=QUEUE))

    async def one_client() -> None:
        nonlocal now_s
        reply = asyncio.ensure_future(execute(host.engine, ShowQueue(queue=QUEUE)))
        for instant_s in (0, wait_s * 0.99):
            now_s = instant_s
            for _ in range(10):
                await asyncio.sleep(0)
            assert not reply.done()
        now_s = wait_s
        await reply
        await execute(host.engine, ShowQueue(queue=QUEUE))

    host.run(one_client())
    assert batches == [2, 1, 1]


def test_a_batch_waits_at_most_5_ms_although_commands_arrive(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside clients whose requests take the loop long, each iteration brings one, and others would wait for them."""
    now_s = 0.0
    monkeypatch.setattr(store_module, "stopwatch_s", lambda: now_s)
    host.do_together(*[ShowQueue(queue=QUEUE)] * 100)

    async def clients() -> None:
        nonlocal now_s
        replies = [asyncio.ensure_future(execute(host.engine, ShowQueue(queue=QUEUE)))]
        while not replies[0].done():
            replies.append(asyncio.ensure_future(execute(host.engine, ShowQueue(queue=QUEUE))))
            await asyncio.sleep(0)
            now_s += 0.001
        assert len(replies) <= 10
        while not all(reply.done() for reply in replies):
            await asyncio.sleep(0)
            now_s += 0.001

    host.run(clients())


@pytest.mark.parametrize("large", [send("x" * 1_000_000), Receive(queue=QUEUE)], ids=["sent", "received"])
def test_commands_on_other_queues_overtake_large_messages(host: Host, large: Command) -> None:
    """Large messages of a queue fill half of a batch; commands on their own queue keep their order."""
    small = "000000000000/small"
    host.create(small)
    for _ in range(6):
        host.do(send("y" * 1_000_000))
    results: list[str] = []
    others = [Send(queue=small, messages=(message("a"),)), Receive(queue=small), ShowQueue(queue=small, counts=True)]
    host.do_together(*[large] * 6, *others, on_result=lambda result: results.append(type(result).__name__))
    kind = "list" if isinstance(large, Send) else "Received"
    assert results == [kind] * 2 + ["list", "Received", "QueueView"] + [kind] * 4


# The order of commands.


def test_a_receive_sees_no_send_that_follows_it(host: Host) -> None:
    """The next receive of the batch does."""
    first, _, second = host.do_together(Receive(queue=QUEUE), send("a"), Receive(queue=QUEUE))
    assert [len(first.messages), len(second.messages)] == [0, 1]


def test_a_delete_after_a_receive_is_applied_after_it(host: Host) -> None:
    """A receive supersedes an expired receipt before a later delete, but not before an earlier one."""
    host.send("a")
    receipt = host.receive_one(timeout_s=1).receipt
    host.advance(1_000)
    received, states = host.do_together(Receive(queue=QUEUE), Delete(queue=QUEUE, receipts=(receipt,)))
    assert [len(received.messages), states] == [1, [ReceiptState.SUPERSEDED]]
    host.advance(30_000)
    receipt = received.messages[0].receipt
    states, late = host.do_together(Delete(queue=QUEUE, receipts=(receipt,)), Receive(queue=QUEUE))
    assert [states, late.messages] == [[ReceiptState.EXPIRED], []]


@pytest.mark.parametrize("timeout_s", [0, None])
def test_a_receive_with_timeout_0_leaves_its_messages_to_the_next_one(host: Host, timeout_s: int | None) -> None:
    """The timeout is the command's, or that of the messages' class."""
    classes = [{"name": f"{each}", "visibility_timeout_s": each} for each in (0, 60)]
    host.set_queue(visibility_rules=json.dumps({"version": 1, "classes": classes, "default": 0}))
    host.send("a")
    first, second = host.do_together(Receive(queue=QUEUE, timeout_s=timeout_s), Receive(queue=QUEUE))
    assert [each.receive_count for each in (*first.messages, *second.messages)] == [1, 2]


def test_commands_of_one_batch_use_their_own_queues(host: Host) -> None:
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


# Failures.


def test_a_command_that_fails_does_not_affect_its_batch(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writes are rolled back; the other commands of the batch are applied."""
    store = standard.send

    def failing(session: Any, queue: Any, sends: Any, results: Any) -> Any:
        stored = store(session, queue, sends, results)
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


def test_a_batch_is_repeated_once_even_if_several_commands_fail(host: Host) -> None:
    """A publication, whose message is made each time it is applied, counts the repetitions."""
    applied: list[object] = []

    def make(published: object) -> NewMessage:
        applied.append(published)
        return message("b")

    publication = PublishToTopic(topic=TOPIC, size_bytes=1, make=make)
    _, *refused, last = host.do_together(publication, *[send("\ud800")] * 50, send("a"))
    assert {type(each) for each in refused} == {InternalError}
    assert (len(last), len(applied)) == (1, 2)
    assert host.bodies(10) == ["b", "a"]


def test_a_queue_can_be_created_and_watched_after_its_creation_was_rolled_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches are reloaded from the database, and watches remain."""
    finish = Session.finish
    failures = [OSError("before the commit"), OSError("in the repetition")]

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


def test_a_receive_sees_messages_published_before_it_in_the_batch(host: Host) -> None:
    publication = PublishToTopic(topic=TOPIC, size_bytes=1, make=lambda _: message("m"))
    _, received = host.do_together(publication, Receive(queue=QUEUE))
    assert [each.body for each in received.messages] == ["m"]


def test_on_a_full_disk_only_publications_of_a_batch_fail(host: Host) -> None:
    host.send("small")
    connection = host.engine._session.connection
    connection.pragma("max_page_count", connection.pragma("page_count") + 20)
    publication = PublishToTopic(topic=TOPIC, size_bytes=1, make=lambda _: message("x" * 400_000))
    published, received = host.do_together(publication, Receive(queue=QUEUE))
    assert isinstance(published, StoreFull)
    assert [each.body for each in received.messages] == ["small"]


def test_a_send_to_a_full_disk_with_an_open_reader_is_refused(host: Host) -> None:
    assert host.folder is not None
    connection = host.engine._session.connection
    connection.pragma("max_page_count", connection.pragma("page_count") + 10)
    reader = apsw.Connection(str(host.folder / "store.db"))
    reader.execute("BEGIN; SELECT count(*) FROM message")
    (refused,) = host.do_together(send("x" * 300_000))
    assert isinstance(refused, StoreFull)
    reader.close()


def test_a_queue_name_in_cooldown_is_refused_without_a_write(tmp_path: Path) -> None:
    """Retries of a client must not clear the caches of all queues."""
    with hosting(tmp_path / "store", options=EngineOptions()) as host:
        host.create()
        host.create("a/other")
        host.drop("a/other")
        cached = host.engine._session.find(QUEUE)
        with pytest.raises(QueueDeletedRecently):
            host.do(CreateQueue(queue="a/other"))
        assert host.engine._session.find(QUEUE) is cached


# The rollback of a cold command.


class Change(Command, frozen=True, kw_only=True):
    """Run what the test defines."""


async def write(tx: Transaction) -> None:
    for name in ("000000000000/a", "000000000000/b.fifo"):
        queue = await tx.queue(name)
        await tx.store(queue, [message("x", group="g", dedup_id="x")], [tx.ids.next()])
    await tx.run("put_setting", "name", b"value")


def test_an_error_rolls_back_what_its_command_wrote(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writes of earlier and later commands in the batch remain, totals included."""

    async def change(tx: Transaction, command: Change) -> None:
        await write(tx)
        raise MessageTooLong(1)

    monkeypatch.setitem(HANDLERS, Change, handler(change, changes=True))  # type: ignore[misc]
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


def test_a_cold_command_that_suspends_is_an_internal_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def change(tx: Transaction, command: Change) -> Any:
        await tx.run("put_setting", "name", b"value")
        await asyncio.sleep(0)

    monkeypatch.setitem(HANDLERS, Change, handler(change, changes=True))  # type: ignore[misc]
    with pytest.raises(VeilmqError) as raised:
        host.do(Change())
    assert type(raised.value) is InternalError
    assert host.rows("setting WHERE name = 'name'") == 0


# Publications.


def stage(body: str, attempt: str) -> Stage:
    return Stage(queue=QUEUE, writer="w", batch=0, attempt=attempt, part=0, messages=(message(body),))


def publish(*attempts: str) -> Publish:
    return Publish(queue=QUEUE, writer="w", batch=0, attempts=tuple((attempt, 1) for attempt in attempts))


def test_stages_that_exceed_the_bytes_of_a_batch_are_deferred(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    session = host.engine._session
    finished = Mock(wraps=session.finish)
    monkeypatch.setattr(session, "finish", finished)
    *staged, published = host.do_together(*(stage("x" * 900_000, attempt) for attempt in "abcdef"), publish(*"abcdef"))
    assert [each.messages for each in staged] == [1] * 6
    assert published.messages == 6
    assert finished.call_count == 3


def test_a_stage_without_pieces_does_not_block_its_publication(host: Host) -> None:
    host.do_together(stage("a", "a"), stage("b", "b"))
    host.engine._session.connection.execute("DELETE FROM piece WHERE stage_id = 1")
    assert not host.do(publish("a", "b")).more
    assert host.receive_one().body == "b"
