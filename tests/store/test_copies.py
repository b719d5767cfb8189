"""Stores are copied to stores of each kind: what anybody can see of a queue is the same there."""

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
    making_database,
    moved_to_database,
    moved_to_folder,
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


class House:
    """A host, and the way to a store of the kind `goal`; `host` is the one that is open."""

    def __init__(self, host: Host, goal: type[Host], url: str, folder: Path) -> None:
        self.host: Host | None = host
        self._goal = goal
        self._url = url
        self._folder = folder
        self.keeps_attempts = not isinstance(host, PostgresHost) and goal is not PostgresHost
        self.keeps_all = type(host) is goal

    @property
    def first(self) -> Host:
        """The host whose store is to be copied."""
        assert self.host is not None
        return self.host

    def move(self) -> Host:
        """Go on with a copy; a copy that is refused leaves nothing open."""
        host, self.host = self.host, None
        assert host is not None
        if self._goal is PostgresHost:
            self.host = moved_to_database(host, self._url)
        else:
            self.host = moved_to_folder(host, self._folder)
        return self.host


WAYS: dict[str, tuple[type[Host], type[Host]]] = {
    "from a folder to a database": (Host, PostgresHost),
    "from a database to a folder": (PostgresHost, Host),
    "from a folder to a folder": (Host, Host),
}


@pytest.fixture(params=list(WAYS))
def house(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> Iterator[House]:
    kind, goal = WAYS[request.param]
    host = PostgresHost.on_empty(postgres_url) if kind is PostgresHost else kind(tmp_path / "store")
    house = House(host, goal, postgres_url, tmp_path / "copy")
    try:
        yield house
    finally:
        if house.host is not None:
            house.host.check()
            house.host.close()


def fifo(body: str, group: str, dedup_id: str) -> NewMessage:
    return message(body, group=group, dedup_id=dedup_id)


def sent(host: Host, queue: str, *messages: NewMessage) -> list[SentMessage]:
    answers: list[SentMessage] = host.put(*messages, queue=queue)
    return answers


def bodies(messages: list[commands.ReceivedMessage]) -> list[str]:
    return [each.body for each in messages]


def test_queues_keep_settings_tags_and_times(house: House) -> None:
    host = house.first
    host.create(DEAD)
    host.create(visibility_timeout_s=7, dead_letter_queue=DEAD, receives_max=3)
    host.advance(5_000)
    host.set_queue(delay_s=9)
    host.do(commands.TagQueue(queue=QUEUE, tags={"team": "mail"}))
    before = [host.do(commands.ShowQueue(queue=name, counts=True)) for name in (QUEUE, DEAD)]
    there = house.move()
    assert [there.do(commands.ShowQueue(queue=name, counts=True)) for name in (QUEUE, DEAD)] == before
    page = there.do(commands.ListDeadLetterSources(queue=DEAD))
    assert page.names == [QUEUE]


def test_attempts_go_along_between_folders(house: House) -> None:
    """The same id gives the same messages, hidden anew, and their receipts act, those of before too."""
    host = house.first
    host.create(FIFO, fifo=True)
    sent(host, FIFO, fifo("a", "g", "1"), fifo("b", "g", "2"))
    attempt = commands.Receive(queue=FIFO, count=2, timeout_s=60, attempt_id="again")
    before = host.do(attempt).messages
    host.advance(59_000)
    there = house.move()
    after = there.do(attempt).messages
    if not house.keeps_attempts:
        assert after == []
        return
    assert [(each.id, each.receive_count) for each in after] == [(each.id, 1) for each in before]
    there.advance(59_000)
    receipts = [before[0].receipt, after[1].receipt]
    assert there.delete(*receipts, queue=FIFO) == [ReceiptState.LIVE, ReceiptState.LIVE]


def test_dead_letters_keep_where_they_came_from(house: House) -> None:
    """Source, receives there, first receive; of a standard queue the retention goes on from the first sending."""
    host = house.first
    host.create(DEAD, retention_s=600)
    host.create(dead_letter_queue=DEAD, receives_max=1, retention_s=600)
    host.send("poison")
    (dead,) = host.receive(1, timeout_s=0)
    host.advance(1_000)
    assert host.receive(1) == []
    host.receive(1, queue=DEAD, timeout_s=10)
    there = house.move()
    there.advance(10_000)
    (letter,) = there.receive(1, queue=DEAD, timeout_s=0)
    assert (letter.body, letter.source, letter.receive_count) == ("poison", QUEUE, 3)
    assert (letter.first_received_at_ms, letter.sent_at_ms) == (dead.first_received_at_ms, dead.sent_at_ms)
    there.advance(600 * SECOND_MS - (there.clock.now_ms() - dead.sent_at_ms))
    assert there.counts(DEAD) == (0, 0, 0)
    assert there.receive(1, queue=DEAD) == []


def test_move_tasks_and_their_history_go_along(house: House) -> None:
    host = house.first
    host.create(DEAD)
    host.create(dead_letter_queue=DEAD, receives_max=1)
    task = host.do(commands.StartMove(source=DEAD))
    host.advance(1_000)
    before = host.do(commands.ListMoves(source=DEAD, count=10))
    assert [each.id for each in before] == [task.id]
    there = house.move()
    assert there.do(commands.ListMoves(source=DEAD, count=10)) == before
    there.do(commands.StartMove(source=DEAD))
    assert len(there.do(commands.ListMoves(source=DEAD, count=10))) == 2


def test_accounts_keep_their_settings_and_queues_their_numbers(house: House) -> None:
    """A new queue gets none that a deleted one had: its receipts would name the new one's messages."""
    host = house.first
    host.create()
    host.create("000000000000/deleted")
    host.send("a", queue="000000000000/deleted")
    (old,) = host.receive(1, queue="000000000000/deleted", timeout_s=600)
    host.drop("000000000000/deleted")
    host.do(SetAccount(account="000000000000", settings=AccountSettings(logging_bucket="logs")))
    there = house.move()
    assert there.do(ShowAccount(account="000000000000")).logging_bucket == "logs"
    there.create("000000000000/deleted")
    assert isinstance(there.delete(old.receipt, queue="000000000000/deleted")[0], ReceiptInvalid)


def test_groups_share_fairly_in_the_copy(house: House) -> None:
    """A quiet group's message comes before those of one that has much in flight."""
    host = house.first
    host.create()
    sent(host, QUEUE, *(message(f"noisy {number}", group="noisy") for number in range(50)))
    host.receive(40, timeout_s=600)
    host.advance(10)
    sent(host, QUEUE, message("quiet", group="quiet"), message("none"))
    there = house.move()
    assert bodies(there.receive(2, timeout_s=600)) == ["quiet", "none"]
    assert bodies(there.receive(10, timeout_s=600)) == [f"noisy {number}" for number in range(40, 50)]


def test_topics_and_subscriptions_go_along(house: House) -> None:
    host = house.first
    host.create()
    host.do(CreateTopic(topic="000000000000/news"))
    for wanted in (
        Subscription(topic="000000000000/news", name="here", endpoint="here", queue=QUEUE),
        Subscription(topic="000000000000/news", name="there", endpoint="there", push_url="http://example.com/"),
    ):
        host.do(Subscribe(subscription=wanted))
    before = host.do(ListPushes())
    there = house.move()
    assert there.do(ListPushes()) == before
    there.do(PublishToTopic(topic="000000000000/news", size_bytes=5, make=lambda _: message("hello")))
    assert bodies(there.receive(1)) == ["hello"]


def test_between_databases_everything_goes_on(postgres_url: str) -> None:
    """Receipts, duplicates and claims: every table is as it was, and counters go on."""
    host = PostgresHost.on_empty(postgres_url)
    host.create()
    host.create(FIFO, fifo=True)
    host.send("claimed", "received", "ready")
    opened = host.do(OpenSource(queue=QUEUE, source="reader"))
    host.do(Claim(queue=QUEUE, source="reader", epoch=opened.epoch, number=1, messages_max=1))
    (received,) = host.receive(1, timeout_s=600)
    (answer,) = sent(host, FIFO, fifo("a", "g", "one"))
    with making_database(postgres_url) as url:
        asyncio.run(prepare(url))
        asyncio.run(set_clock(url, host.clock.now_ms()))
        host.close()
        assert copied(postgres_url, url, host.clock.now_ms()) == 4
        there = PostgresHost(url)
        try:
            assert there.delete(received.receipt) == [ReceiptState.LIVE]
            assert sent(there, FIFO, fifo("again", "g", "one")) == [answer]
            acknowledge = AcknowledgeClaims(queue=QUEUE, source="reader", epoch=opened.epoch, number=1)
            assert there.do(acknowledge).acknowledged == 1
            assert bodies(there.receive(10)) == ["ready"]
            there.create("000000000000/new")
            there.check()
        finally:
            there.close()


def test_what_is_only_to_be_dropped_stays_behind(house: House) -> None:
    """What goes with its queue, and is only to be dropped, is no obstacle."""
    host = house.first
    host.create()
    host.do(Stage(queue=QUEUE, writer="job", batch=1, attempt="a", part=0, messages=(message("staged"),)))
    host.drop()
    assert house.move().do(commands.ListQueues(account="000000000000")).names == []


def test_events_of_what_was_purged_are_not_lost(house: House) -> None:
    """That a receipt has ended by a purge is in the log when its message is removed, which may be later."""
    house.first.create(event_log="closed")
    house.first.send("in flight")
    house.first.receive(1, timeout_s=600)
    house.first.purge()
    if house.keeps_all:
        house.move()
        return
    with pytest.raises(CopyRefused, match=r"export the event log|purged and deleted messages are removed"):
        house.move()


def test_open_stages_are_named(house: House) -> None:
    """A copy to another kind of store would lose what they have."""
    house.first.create()
    house.first.do(Stage(queue=QUEUE, writer="job", batch=1, attempt="a", part=0, messages=(message("staged"),)))
    if house.keeps_all:
        house.move()
        return
    with pytest.raises(CopyRefused, match="stage"):
        house.move()


# Stores that move house at random, between folders and a database: the naive models notice nothing of it.
#
# But for what attempts gave, which a database does not take over, and the sequence numbers of messages.


UNBOUNDED = replace(RESTLESS, free_space_reserve_bytes=0)


class Moving(ModelFrame):
    """A machine with one more rule; it moves to a store of each of the kinds in turn: `database`, or a new folder."""

    kinds: ClassVar[tuple[type[Host], ...]]
    database: ClassVar[str]
    moves = 0

    @precondition(lambda self: self.host is not None)
    @rule()
    def move_house(self) -> None:
        self.live.advance(10)  # sequence numbers of a folder go on from the next millisecond
        kind = self.kinds[self.moves % len(self.kinds)]
        self.moves += 1
        keeps_attempts = PostgresHost not in (type(self.live), kind)
        if kind is PostgresHost:
            self.host = moved_to_database(self.live, self.database)
        else:
            self.host = moved_to_folder(self.live, self.base / f"moved-{self.moves}" / "store", UNBOUNDED)
        self.live.check()
        self.note_move(keeps_attempts=keeps_attempts)

    def note_move(self, *, keeps_attempts: bool) -> None:
        """Have the models forget what does not move."""

    def suffer(self, kind: str) -> None:
        """Have an accident; what two nodes are sent in one millisecond has no order."""
        super().suffer(kind)
        self.live.advance(1)


class MovingStandard(Moving, test_model.StandardAndModel):
    """Standard queues."""


class MovingFifo(Moving, test_model.FifoAndModel):
    """A FIFO queue."""

    def note_move(self, *, keeps_attempts: bool) -> None:
        """Forget what attempts gave, and the sequence numbers of the messages that are there."""
        if not keeps_attempts:
            self.model.attempts.clear()
        self.model.terms = NaiveQueue.terms  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kinds", [(PostgresHost, Host), (Host,)], ids=["database", "folder"])
@pytest.mark.parametrize("machine", [MovingStandard, MovingFifo], ids=["standard", "fifo"])
def test_a_store_that_moves_answers_as_before(
    machine: type[Moving], kinds: tuple[type[Host], ...], postgres_url: str
) -> None:
    terms = {"database": postgres_url, "kinds": kinds}
    run_model(type(machine.__name__, (machine,), terms), examples=5, steps=30)


def test_duplicates_stay_duplicates(house: House) -> None:
    """Also of what was deleted before the copy; for five minutes from their sending, and in their own queue."""
    host = house.first
    for name in (FIFO, "000000000000/other"):
        host.create(name, fifo=True)
    (answer,) = sent(host, FIFO, fifo("a", "g", "one"))
    host.delete(*(each.receipt for each in host.receive(1, queue=FIFO)), queue=FIFO)
    host.advance(100_000)
    there = house.move()
    assert sent(there, FIFO, fifo("again", "g", "one")) == [answer]
    assert there.counts(FIFO) == (0, 0, 0)
    sent(there, "000000000000/other", fifo("another", "g", "one"))
    assert there.counts("000000000000/other") == (1, 0, 0)
    there.advance(200_000)
    assert sent(there, FIFO, fifo("anew", "g", "one")) != [answer]
    assert there.counts(FIFO) == (1, 0, 0)


def test_what_is_past_its_retention_stays_behind(house: House) -> None:
    """As if it had been looked at then."""
    host = house.first
    host.create(retention_s=60)
    host.send("old")
    host.advance(59_999)
    host.send("new")
    host.advance(1)
    there = house.move()
    there.set_queue(retention_s=345_600)
    assert bodies(there.receive(10)) == ["new"]
