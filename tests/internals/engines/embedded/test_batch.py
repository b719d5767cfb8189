"""The way back: a command that fails does so alone, and nothing of it stays."""

import logging
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import CreateQueue, DeleteQueue, NewMessage, PurgeQueue, Receive, Send, ShowQueue
from veilmq.core.errors import InternalError, QueueNotFound, StoreFull
from veilmq.core.topics import CreateTopic, PublishToTopic, Subscribe, Subscription
from veilmq.engines.embedded.batch import Entry
from veilmq.engines.embedded.lane import Lane


def _send(body: str, queue: str = QUEUE) -> Send:
    return Send(queue=queue, messages=(NewMessage(body=body, size_bytes=len(body)),))


def _note(told: list[str], name: str, _: object) -> None:
    told.append(name)


def test_a_command_refused_leaves_the_others_alone() -> None:
    store = Store()
    store.create()
    first, missing, last = store.run(_send("a"), PurgeQueue(queue="000000000000/none"), _send("b"))
    assert isinstance(missing, QueueNotFound)
    assert len(first) == len(last) == 1
    assert store.bodies(10) == ["a", "b"]
    store.close()


def test_a_command_that_raises_in_the_middle_is_undone_and_the_rest_is_applied_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    store.create()
    add = Lane.add

    def add_or_fail(lane: Lane, message_id: bytes, body: str, *more: Any) -> None:
        add(lane, message_id, body, *more)
        if body == "poison":
            raise RuntimeError("a defect, after it changed memory and the journal")

    monkeypatch.setattr(Lane, "add", add_or_fail)
    with caplog.at_level(logging.CRITICAL):
        before, poison, after, show = store.run(
            _send("a"), _send("poison"), _send("b"), ShowQueue(queue=QUEUE, counts=True)
        )
    assert isinstance(poison, InternalError)
    assert len(before) == len(after) == 1
    assert show.counts.visible == 2
    assert store.bodies(10) == ["a", "b"]
    store.close()


def test_on_a_full_disk_sends_fail_and_the_rest_of_the_batch_goes_on() -> None:
    store = Store(database_pages_max=60)
    store.create()
    store.send("small")
    big = "x" * 300_000
    sent, received = store.run(_send(big), Receive(queue=QUEUE, count=1))
    assert isinstance(sent, StoreFull)
    assert [message.body for message in received.messages] == ["small"]
    assert store.delete(received.messages[0].receipt)[0].value == "live"
    assert not isinstance(store.send("small again")[0], StoreFull)
    store.close()


def test_on_a_full_disk_publications_fail_and_the_rest_of_the_batch_goes_on() -> None:
    store = Store(database_pages_max=80)
    store.create()
    topic = "000000000000/news"
    store.run(CreateTopic(topic=topic))
    store.run(Subscribe(subscription=Subscription(topic=topic, name="s", endpoint=QUEUE, queue=QUEUE)))
    store.send("small")
    big = NewMessage(body="x" * 400_000, size_bytes=1)
    published, received = store.run(
        PublishToTopic(topic=topic, size_bytes=1, make=lambda _: big), Receive(queue=QUEUE, count=1)
    )
    assert isinstance(published, StoreFull)
    assert [message.body for message in received.messages] == ["small"]
    store.close()


def test_rows_that_cannot_be_written_fail_their_own_command_alone() -> None:
    store = Store()
    store.create()
    before, bad, after = store.run(_send("a"), _send("\ud800"), _send("b"))
    assert isinstance(bad, InternalError)
    assert len(before) == len(after) == 1
    assert store.bodies(10) == ["a", "b"]
    store.close()


def test_a_batch_is_repeated_at_most_twice_however_many_of_its_commands_fail() -> None:
    """Counted by a publication, whose message is made anew each time that it is applied."""
    store = Store()
    store.create()
    topic = "000000000000/news"
    store.run(CreateTopic(topic=topic))
    applied: list[object] = []

    def make(published: object) -> NewMessage:
        applied.append(published)
        return NewMessage(body="b", size_bytes=1)

    store.run(Subscribe(subscription=Subscription(topic=topic, name="s", endpoint=QUEUE, queue=QUEUE)))
    publication = PublishToTopic(topic=topic, size_bytes=1, make=make)
    bad = [_send("\ud800") for _ in range(50)]
    _, *refused, last = store.run(publication, *bad, _send("a"))
    assert [type(each) for each in refused] == [InternalError] * 50
    assert not isinstance(last[0], InternalError)
    assert 1 < len(applied) <= 3
    assert store.bodies(10) == ["b", "a"]
    store.close()


def test_a_full_disk_that_somebody_reads_is_refused_and_not_tried_for_ever(tmp_path: Path) -> None:
    store = Store(tmp_path, database_pages_max=60)
    store.create()
    store.send("a")
    reader = apsw.Connection(str(tmp_path / "veilmq.db"))
    reader.execute("BEGIN; SELECT count(*) FROM message")
    (refused,) = store.run(_send("x" * 300_000))
    assert isinstance(refused, StoreFull)
    reader.close()
    store.close()


def test_a_batch_is_bounded_by_what_it_carries() -> None:
    store = Store()
    store.create()
    told: list[object] = []
    heavy = Send(queue=QUEUE, messages=(NewMessage(body="x", size_bytes=1, properties=bytes(1_000_000)),))
    entries: deque[Entry] = deque((heavy, told.append) for _ in range(100))
    store.batch.run(entries, store.now_ms)
    store.batch.deliver()
    assert len(told) == 3
    store.journal.commit()
    store.close()


def test_a_batch_is_bounded_by_what_it_hands_out() -> None:
    store = Store()
    store.create()
    for _ in range(30):
        store.send("y" * 1_000_000)
    told: list[object] = []
    entries: deque[Entry] = deque((Receive(queue=QUEUE), told.append) for _ in range(30))
    store.batch.run(entries, store.now_ms)
    store.batch.deliver()
    assert len(told) == 3
    store.close()


@pytest.mark.parametrize("heavy", ["send", "receive"])
def test_large_messages_of_a_queue_let_other_commands_pass(heavy: str) -> None:
    """In the batch that they fill, and each kind of command in its order."""
    store = Store()
    store.create()
    store.create("000000000000/small")
    large = {"send": _send("y" * 1_000_000), "receive": Receive(queue=QUEUE)}[heavy]
    store.send(*["y" * 1_000_000] * 10)
    told: list[str] = []
    names = [f"large {number}" for number in range(10)] + ["count", "small 1", "small 2"]
    others = (ShowQueue(queue=QUEUE, counts=True), *(_send(each, "000000000000/small") for each in "ab"))
    commands = (*[large] * 10, *others)
    entries: deque[Entry] = deque()
    for command, name in zip(commands, names, strict=True):
        entries.append((command, partial(_note, told, name)))
    store.batch.run(entries, store.now_ms)
    assert not store.batch.deliver(until_s=0)
    assert told == ["large 0"]
    assert store.batch.deliver()
    assert told == ["large 0", "large 1", "count", "small 1", "small 2", "large 2"]
    store.batch.run(entries, store.now_ms)
    store.batch.deliver()
    assert told[6:] == ["large 3", "large 4", "large 5"]
    store.journal.commit()
    store.close()


def test_what_a_watch_submits_is_applied_next() -> None:
    store = Store()
    store.create()
    woken: list[object] = []

    def wake(due_ms: int) -> None:
        assert due_ms == store.now_ms
        store.batch.insert((Receive(queue=QUEUE), woken.append))

    store.machine.watch(QUEUE, wake)
    _, late = store.run(_send("a"), Receive(queue=QUEUE))
    assert late.messages == []  # the one that waited was served before the one that came
    (first,) = woken
    assert [message.body for message in first.messages] == ["a"]  # type: ignore[attr-defined]
    store.close()


def test_a_watch_outlives_a_batch_that_was_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.create()
    woken: list[int] = []
    store.machine.watch(QUEUE, woken.append)
    finish = store.journal.finish
    failures = [OSError("before the commit")]

    def fail_once(now_ms: int) -> bool:
        if failures:
            raise failures.pop()
        return finish(now_ms)

    monkeypatch.setattr(store.journal, "finish", fail_once)
    store.run(_send("a"))
    woken.clear()
    store.run(_send("b"))
    assert woken == [store.now_ms]
    store.close()


def test_a_watch_is_there_before_its_queue_and_after_it() -> None:
    store = Store()
    woken: list[int] = []
    store.machine.watch(QUEUE, woken.append)
    store.create()
    store.send("a")
    assert woken == [store.now_ms]
    store.run(DeleteQueue(queue=QUEUE))
    assert woken == [store.now_ms] * 2
    store.create()
    store.send("b")
    assert woken == [store.now_ms] * 3
    store.machine.unwatch(QUEUE)
    store.send("c")
    assert woken == [store.now_ms] * 3
    store.close()


def test_a_batch_has_a_bounded_number_of_commands() -> None:
    store = Store()
    store.create()
    told: list[object] = []
    entries: deque[Entry] = deque((ShowQueue(queue=QUEUE), told.append) for _ in range(3_000))
    store.batch.run(entries, store.now_ms)
    assert len(entries) == 3_000 - 1_024
    store.batch.deliver()
    assert len(told) == 1_024
    store.close()


def test_creating_a_queue_that_was_rolled_back_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    finish = store.journal.finish
    failures = [OSError("before the commit"), OSError("and when it was tried again")]

    def fail_twice(now_ms: int) -> bool:
        if failures:
            raise failures.pop()
        return finish(now_ms)

    monkeypatch.setattr(store.journal, "finish", fail_twice)
    (failed,) = store.run(CreateQueue(queue=QUEUE))
    assert isinstance(failed, InternalError)
    (view,) = store.run(CreateQueue(queue=QUEUE))
    assert view.queue == QUEUE
    store.close()
