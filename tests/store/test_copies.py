"""Copies of stores between folders and databases."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis.stateful import precondition, rule

from tests.store import test_model
from tests.store.host import QUEUE, RESTLESS, Host, message
from tests.store.model_frame import ModelFrame, run_model
from tests.store.naive import NaiveQueue
from tests.store.postgres_host import (
    CopyRefused,
    PostgresHost,
    copied,
    copied_to_database,
    copied_to_folder,
    making_database,
    prepare,
    set_clock,
)
from veilmq.core import commands
from veilmq.core.claims import AcknowledgeClaims, Claim, OpenSource, Stage
from veilmq.core.commands import SentMessage, SetAccount, ShowAccount
from veilmq.core.errors import ReceiptInvalid, ReceiptState
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import NewMessage
from veilmq.core.settings import AccountSettings
from veilmq.core.topics import CreateTopic, ListPushes, PublishToTopic, Subscribe, Subscription

DEAD = "000000000000/dead"
FIFO = "000000000000/ordered"


class CopyCase:
    """A host and the kind of store to copy it to; ``host`` is the open one."""

    def __init__(self, host: Host, goal: type[Host], url: str, folder: Path) -> None:
        self.host: Host | None = host
        self._goal = goal
        self._url = url
        self._folder = folder
        self.keeps_attempts = not isinstance(host, PostgresHost) and goal is not PostgresHost
        self.keeps_all = type(host) is goal

    @property
    def source(self) -> Host:
        assert self.host is not None
        return self.host

    def copy(self) -> Host:
        """Close the host, copy its store and open the copy."""
        host, self.host = self.host, None
        assert host is not None
        if self._goal is PostgresHost:
            self.host = copied_to_database(host, self._url)
        else:
            self.host = copied_to_folder(host, self._folder)
        return self.host


COPIES: dict[str, tuple[type[Host], type[Host]]] = {
    "from a folder to a database": (Host, PostgresHost),
    "from a database to a folder": (PostgresHost, Host),
    "from a folder to a folder": (Host, Host),
}


@pytest.fixture(params=list(COPIES))
def case(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> Iterator[CopyCase]:
    kind, goal = COPIES[request.param]
    host = PostgresHost.on_empty(postgres_url) if kind is PostgresHost else kind(tmp_path / "store")
    case = CopyCase(host, goal, postgres_url, tmp_path / "copy")
    try:
        yield case
    finally:
        if case.host is not None:
            case.host.check()
            case.host.close()


def fifo(body: str, group: str, dedup_id: str) -> NewMessage:
    return message(body, group=group, dedup_id=dedup_id)


def sent(host: Host, queue: str, *messages: NewMessage) -> list[SentMessage]:
    answers: list[SentMessage] = host.put(*messages, queue=queue)
    return answers


def bodies(messages: list[commands.ReceivedMessage]) -> list[str]:
    return [each.body for each in messages]


def test_copied_queues_keep_settings_tags_and_times(case: CopyCase) -> None:
    host = case.source
    host.create(DEAD)
    host.create(visibility_timeout_s=7, dead_letter_queue=DEAD, receives_max=3)
    host.advance(5_000)
    host.set_queue(delay_s=9)
    host.do(commands.TagQueue(queue=QUEUE, tags={"team": "mail"}))
    before = [host.do(commands.ShowQueue(queue=name, counts=True)) for name in (QUEUE, DEAD)]
    target = case.copy()
    assert [target.do(commands.ShowQueue(queue=name, counts=True)) for name in (QUEUE, DEAD)] == before
    page = target.do(commands.ListDeadLetterSources(queue=DEAD))
    assert page.names == [QUEUE]


def test_receive_attempts_are_copied_between_folders(case: CopyCase) -> None:
    """The same attempt id returns the same messages, and receipts of before the copy still act."""
    host = case.source
    host.create(FIFO, fifo=True)
    sent(host, FIFO, fifo("a", "g", "1"), fifo("b", "g", "2"))
    attempt = commands.Receive(queue=FIFO, count=2, timeout_s=60, attempt_id="again")
    before = host.do(attempt).messages
    host.advance(59_000)
    target = case.copy()
    after = target.do(attempt).messages
    if not case.keeps_attempts:
        assert after == []
        return
    assert [(each.id, each.receive_count) for each in after] == [(each.id, 1) for each in before]
    target.advance(59_000)
    receipts = [before[0].receipt, after[1].receipt]
    assert target.delete(*receipts, queue=FIFO) == [ReceiptState.LIVE, ReceiptState.LIVE]


def test_copied_dead_letters_keep_their_source_and_times(case: CopyCase) -> None:
    host = case.source
    host.create(DEAD, retention_s=600)
    host.create(dead_letter_queue=DEAD, receives_max=1, retention_s=600)
    host.send("poison")
    (dead,) = host.receive(1, timeout_s=0)
    host.advance(1_000)
    assert host.receive(1) == []
    host.receive(1, queue=DEAD, timeout_s=10)
    target = case.copy()
    target.advance(10_000)
    (letter,) = target.receive(1, queue=DEAD, timeout_s=0)
    assert (letter.body, letter.source, letter.receive_count) == ("poison", QUEUE, 3)
    assert (letter.first_received_at_ms, letter.sent_at_ms) == (dead.first_received_at_ms, dead.sent_at_ms)
    target.advance(600 * SECOND_MS - (target.clock.now_ms() - dead.sent_at_ms))
    assert target.counts(DEAD) == (0, 0, 0)
    assert target.receive(1, queue=DEAD) == []


def test_move_tasks_are_copied(case: CopyCase) -> None:
    host = case.source
    host.create(DEAD)
    host.create(dead_letter_queue=DEAD, receives_max=1)
    task = host.do(commands.StartMove(source=DEAD))
    host.advance(1_000)
    before = host.do(commands.ListMoves(source=DEAD, count=10))
    assert [each.id for each in before] == [task.id]
    target = case.copy()
    assert target.do(commands.ListMoves(source=DEAD, count=10)) == before
    target.do(commands.StartMove(source=DEAD))
    assert len(target.do(commands.ListMoves(source=DEAD, count=10))) == 2


def test_account_settings_and_queue_numbers_are_copied(case: CopyCase) -> None:
    """A new queue must not reuse the number of a deleted one: old receipts would match its messages."""
    host = case.source
    host.create()
    host.create("000000000000/deleted")
    host.send("a", queue="000000000000/deleted")
    (old,) = host.receive(1, queue="000000000000/deleted", timeout_s=600)
    host.drop("000000000000/deleted")
    host.do(SetAccount(account="000000000000", settings=AccountSettings(logging_bucket="logs")))
    target = case.copy()
    assert target.do(ShowAccount(account="000000000000")).logging_bucket == "logs"
    target.create("000000000000/deleted")
    assert isinstance(target.delete(old.receipt, queue="000000000000/deleted")[0], ReceiptInvalid)


def test_a_copied_queue_stays_fair(case: CopyCase) -> None:
    host = case.source
    host.create()
    sent(host, QUEUE, *(message(f"noisy {number}", group="noisy") for number in range(50)))
    host.receive(40, timeout_s=600)
    host.advance(10)
    sent(host, QUEUE, message("quiet", group="quiet"), message("none"))
    target = case.copy()
    assert bodies(target.receive(2, timeout_s=600)) == ["quiet", "none"]
    assert bodies(target.receive(10, timeout_s=600)) == [f"noisy {number}" for number in range(40, 50)]


def test_topics_and_subscriptions_are_copied(case: CopyCase) -> None:
    host = case.source
    host.create()
    host.do(CreateTopic(topic="000000000000/news"))
    for wanted in (
        Subscription(topic="000000000000/news", name="here", endpoint="here", queue=QUEUE),
        Subscription(topic="000000000000/news", name="target", endpoint="target", push_url="http://example.com/"),
    ):
        host.do(Subscribe(subscription=wanted))
    before = host.do(ListPushes())
    target = case.copy()
    assert target.do(ListPushes()) == before
    target.do(PublishToTopic(topic="000000000000/news", size_bytes=5, make=lambda _: message("hello")))
    assert bodies(target.receive(1)) == ["hello"]


def test_a_copy_between_databases_keeps_receipts_duplicates_and_claims(postgres_url: str) -> None:
    host = PostgresHost.on_empty(postgres_url)
    host.create()
    host.create(FIFO, fifo=True)
    host.send("claimed", "received", "ready")
    opened = host.do(OpenSource(queue=QUEUE, source="reader"))
    host.do(Claim(queue=QUEUE, source="reader", epoch=opened.epoch, number=1, messages_max=1))
    (received,) = host.receive(1, timeout_s=600)
    (answer,) = sent(host, FIFO, fifo("a", "g", "one"))
    host.values("ALTER TABLE mq.msg ADD COLUMN dropped text")
    host.values("ALTER TABLE mq.msg DROP COLUMN dropped")  # as a migration may leave it
    with making_database(postgres_url) as url:
        asyncio.run(prepare(url))
        asyncio.run(set_clock(url, host.clock.now_ms()))
        host.close()
        assert copied(postgres_url, url, host.clock.now_ms()) == 4
        target = PostgresHost(url)
        try:
            assert target.delete(received.receipt) == [ReceiptState.LIVE]
            assert sent(target, FIFO, fifo("again", "g", "one")) == [answer]
            acknowledge = AcknowledgeClaims(queue=QUEUE, source="reader", epoch=opened.epoch, number=1)
            assert target.do(acknowledge).acknowledged == 1
            assert bodies(target.receive(10)) == ["ready"]
            target.create("000000000000/new")
            target.check()
        finally:
            target.close()


def test_stages_of_a_deleted_queue_are_not_copied(case: CopyCase) -> None:
    host = case.source
    host.create()
    host.do(Stage(queue=QUEUE, writer="job", batch=1, attempt="a", part=0, messages=(message("staged"),)))
    host.drop()
    assert case.copy().do(commands.ListQueues(account="000000000000")).names == []


def test_a_copy_is_refused_while_purged_messages_have_unlogged_events(case: CopyCase) -> None:
    """The end of a receipt by a purge is logged when its message is removed, which may be later."""
    case.source.create(event_log="closed")
    case.source.send("in flight")
    case.source.receive(1, timeout_s=600)
    case.source.purge()
    if case.keeps_all:
        case.copy()
        return
    with pytest.raises(CopyRefused, match=r"export the event log|purged and deleted messages are removed"):
        case.copy()


def test_a_copy_to_another_kind_of_store_is_refused_with_open_stages(case: CopyCase) -> None:
    case.source.create()
    case.source.do(Stage(queue=QUEUE, writer="job", batch=1, attempt="a", part=0, messages=(message("staged"),)))
    if case.keeps_all:
        case.copy()
        return
    with pytest.raises(CopyRefused, match="stage"):
        case.copy()


def test_groups_keep_their_order_in_a_copy(case: CopyCase) -> None:
    """Of one millisecond, the later one with a delay of its own, 0."""
    case.source.create(fifo=True)
    case.source.put(message("b", group="b", dedup_id="b"), message("a", group="a", dedup_id="a", delay_s=0))
    assert [each.body for each in case.copy().receive(2)] == ["b", "a"]


UNBOUNDED = replace(RESTLESS, free_space_reserve_bytes=0)


class Copying(ModelFrame):
    """Copy the store at random, to each of ``kinds`` in turn, and go on with the copy."""

    kinds: ClassVar[tuple[type[Host], ...]]
    database: ClassVar[str]
    copies = 0

    @precondition(lambda self: self.host is not None)
    @rule()
    def copy_store(self) -> None:
        self.live.advance(10)  # sequence numbers of a folder go on from the next millisecond
        kind = self.kinds[self.copies % len(self.kinds)]
        self.copies += 1
        keeps_attempts = PostgresHost not in (type(self.live), kind)
        if kind is PostgresHost:
            self.host = copied_to_database(self.live, self.database)
        else:
            self.host = copied_to_folder(self.live, self.base / f"copy-{self.copies}" / "store", UNBOUNDED)
        self.live.check()
        self.note_copy(keeps_attempts=keeps_attempts)

    def note_copy(self, *, keeps_attempts: bool) -> None:
        """Clear the state of the model that is not copied."""

    def interrupt(self, kind: str) -> None:
        super().interrupt(kind)
        self.live.advance(1)  # messages that two nodes send in one millisecond have no order


class CopyingStandard(Copying, test_model.StandardAndModel): ...


class CopyingFifo(Copying, test_model.FifoAndModel):
    def note_copy(self, *, keeps_attempts: bool) -> None:
        if not keeps_attempts:  # a database does not take over receive attempts
            self.model.attempts.clear()
        self.model.fields = NaiveQueue.fields  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kinds", [(PostgresHost, Host), (Host,)], ids=["database", "folder"])
@pytest.mark.parametrize("machine", [CopyingStandard, CopyingFifo], ids=["standard", "fifo"])
def test_random_commands_work_on_copies(
    machine: type[Copying], kinds: tuple[type[Host], ...], postgres_url: str
) -> None:
    options = {"database": postgres_url, "kinds": kinds}
    run_model(type(machine.__name__, (machine,), options), examples=5, steps=30)


def test_the_deduplication_log_is_copied(case: CopyCase) -> None:
    """It also has messages that were deleted before the copy."""
    host = case.source
    for name in (FIFO, "000000000000/other"):
        host.create(name, fifo=True)
    (answer,) = sent(host, FIFO, fifo("a", "g", "one"))
    host.delete(*(each.receipt for each in host.receive(1, queue=FIFO)), queue=FIFO)
    host.advance(100_000)
    target = case.copy()
    assert sent(target, FIFO, fifo("again", "g", "one")) == [answer]
    assert target.counts(FIFO) == (0, 0, 0)
    sent(target, "000000000000/other", fifo("another", "g", "one"))
    assert target.counts("000000000000/other") == (1, 0, 0)
    target.advance(200_000)
    assert sent(target, FIFO, fifo("anew", "g", "one")) != [answer]
    assert target.counts(FIFO) == (1, 0, 0)


def test_expired_messages_are_not_copied(case: CopyCase) -> None:
    host = case.source
    host.create(retention_s=60)
    host.send("old")
    host.advance(59_999)
    host.send("new")
    host.advance(1)
    target = case.copy()
    target.set_queue(retention_s=345_600)
    assert bodies(target.receive(10)) == ["new"]
