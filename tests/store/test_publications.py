"""Publications: staging, publishing in order, rates, restarts and full stores."""

import pytest

from tests.store.host import QUEUE, Host, message
from tests.store.postgres_host import on_sqlite
from veilmq.core import errors
from veilmq.core.claims import Abandon, ListWriters, Publish, Published, Stage, Staged, WriterView
from veilmq.core.limits import DEDUPLICATION_S, WRITER_SILENCE_S
from veilmq.core.messages import NewMessage

WRITER = "query"
FIFO = "000000000000/jobs.fifo"
PIECE = 500  # messages of a piece, by which a publication is staged and published
MANY = 2 * PIECE + 1


def stage(
    host: Host, *messages: NewMessage, batch: int = 0, attempt: str = "a", part: int = 0, queue: str = QUEUE
) -> Staged:
    staged: Staged = host.do(
        Stage(queue=queue, writer=WRITER, batch=batch, attempt=attempt, part=part, messages=messages)
    )
    return staged


def bodies(*names: str) -> list[NewMessage]:
    return [message(name) for name in names]


def many(count: int = MANY, prefix: str = "m") -> list[NewMessage]:
    return bodies(*(f"{prefix}{number}" for number in range(count)))


def publish(host: Host, *attempts: tuple[str, int], batch: int = 0, queue: str = QUEUE) -> Published:
    published: Published = host.do(Publish(queue=queue, writer=WRITER, batch=batch, attempts=attempts))
    return published


def publish_all(host: Host, *attempts: tuple[str, int], batch: int = 0, queue: str = QUEUE) -> Published:
    first = published = publish(host, *attempts, batch=batch, queue=queue)
    while published.more:
        published = publish(host, *attempts, batch=batch, queue=queue)
    return first


def received(host: Host, queue: str = QUEUE) -> list[str]:
    found: list[str] = []
    while got := host.receive(500, queue=queue, timeout_s=600):
        found += [each.body for each in got]
        host.delete(*(each.receipt for each in got), queue=queue)
    return found


def writer(host: Host, queue: str = QUEUE) -> WriterView:
    only: WriterView
    (only,) = host.do(ListWriters(queue=queue))
    return only


def settle(host: Host, time_ms: int = 500) -> None:
    for _ in range(0, time_ms, 10):
        host.advance(10)


def rows(host: Host) -> int:
    return sum(host.rows(table) for table in ("stage", "piece", "publication"))


@pytest.fixture
def ready(host: Host) -> Host:
    host.create()
    host.create(FIFO, fifo=True, content_deduplication=True)
    return host


@pytest.mark.parametrize(("queue", "new", "reason"), [
    (QUEUE, message("x" * 1_025), errors.MessageTooLong), (FIFO, message("x", dedup_id="x"), errors.GroupMissing),
    (FIFO, message("x", group="g"), errors.DeduplicationIdMissing),
    (FIFO, message("x", group="g", dedup_id="x", delay_s=1), errors.SettingsConflict),
    (QUEUE, message("x", dedup_id="x"), errors.SettingsConflict),
], ids=["size", "group", "deduplication-id", "delay", "standard"])  # fmt: skip
def test_a_stage_with_an_invalid_message_is_refused(
    ready: Host, queue: str, new: NewMessage, reason: type[Exception]
) -> None:
    ready.set_queue(message_bytes_max=1_024)
    ready.set_queue(FIFO, content_deduplication=False)
    with pytest.raises(errors.StageRefused) as caught:
        stage(ready, message("a", group="g", dedup_id="a" if queue == FIFO else None), new, queue=queue)
    assert (caught.value.index, type(caught.value.reason)) == (1, reason)
    assert ready.do(ListWriters(queue=queue)) == []


def test_publications_to_a_missing_queue_fail(ready: Host) -> None:
    with pytest.raises(errors.QueueNotFound):
        stage(ready, *bodies("a"), queue="000000000000/none")
    with pytest.raises(errors.QueueNotFound):
        publish(ready, queue="000000000000/none")
    with pytest.raises(errors.QueueNotFound):
        ready.do(Abandon(queue="000000000000/none", writer=WRITER, batch=0))


def test_an_attempt_named_twice_is_published_once(ready: Host) -> None:
    stage(ready, *bodies("a", "b"))
    assert publish(ready, ("a", 2), ("a", 2)) == Published(messages=2)
    assert received(ready) == ["a", "b"]


def test_a_publish_drops_unnamed_attempts_and_earlier_batches(ready: Host) -> None:
    stage(ready, *many(), batch=0, attempt="old")
    stage(ready, *many(), batch=1, attempt="failed")
    stage(ready, *bodies("a"), batch=1, attempt="good")
    stage(ready, *bodies("next"), batch=2)
    publish_all(ready, ("good", 1), batch=1)
    settle(ready)
    assert received(ready) == ["a"]
    assert writer(ready).staged == 1
    assert rows(ready) == 2  # of the next batch: a stage and its piece


def test_a_large_publication_is_published_in_slices(ready: Host) -> None:
    stage(ready, *many())
    first = publish(ready, ("a", MANY))
    assert (first.more, first.again) == (True, False)
    assert 0 < ready.counts()[0] < MANY
    second = publish(ready, ("a", MANY))
    assert (second.more, second.again, second.messages) == (True, True, MANY)
    ready.send("between")
    publish_all(ready, ("a", MANY))
    found = received(ready)
    assert found.index("between") > 0
    assert [name for name in found if name != "between"] == [each.body for each in many()]


def test_publications_of_one_writer_are_ordered_and_of_others_interleaved(ready: Host) -> None:
    for batch in range(2):
        stage(ready, *many(prefix=f"{batch}-"), batch=batch)
    ready.do(Stage(queue=QUEUE, writer="other", batch=0, attempt="a", part=0, messages=tuple(many(prefix="o-"))))
    publish(ready, ("a", MANY), batch=0)
    publish(ready, ("a", MANY), batch=1)
    ready.do(Publish(queue=QUEUE, writer="other", batch=0, attempts=(("a", MANY),)))
    settle(ready)
    found = received(ready)
    of_writer = [name for name in found if not name.startswith("o-")]
    assert of_writer == [each.body for batch in range(2) for each in many(prefix=f"{batch}-")]
    assert found.index("o-0") < found.index(f"0-{MANY - 1}")


@pytest.mark.parametrize("restart", [False, True])
def test_a_publication_keeps_its_rate_in_commands_and_in_the_background(durable: Host, *, restart: bool) -> None:
    durable.create()
    stage(durable, *many(100))
    slow = Publish(queue=QUEUE, writer=WRITER, batch=0, attempts=(("a", 100),), messages_per_s_max=100)
    for tenth in range(1, 10):
        published = durable.do(slow)
        assert (published.more, published.next_due_ms) == (True, durable.clock.now_ms() + 100)
        assert durable.counts()[0] == 10 * tenth
        if restart:
            durable.crash()
        durable.advance(99)
        assert durable.counts()[0] == 10 * tenth
        durable.advance(1)
    durable.advance(100)
    assert not durable.do(slow).more
    assert received(durable) == [each.body for each in many(100)]


def test_a_later_publication_waits_for_an_earlier_one_of_its_writer(ready: Host) -> None:
    stage(ready, *many(20, "slow"))
    stage(ready, *many(5, "fast"), batch=1)
    ready.do(Publish(queue=QUEUE, writer=WRITER, batch=0, attempts=(("a", 20),), messages_per_s_max=10))
    assert publish(ready, ("a", 5), batch=1).more
    settle(ready, 1_800)
    assert ready.counts() == (19, 0, 0)
    settle(ready)
    assert received(ready) == [each.body for each in many(20, "slow") + many(5, "fast")]


def test_a_publish_of_many_attempts_takes_several_commands(ready: Host) -> None:
    attempts = tuple((f"a{number}", 1) for number in range(150))
    for name, _ in attempts:
        stage(ready, message(name), attempt=name)
    assert publish(ready, *attempts).more
    assert publish_all(ready, *attempts).again
    assert received(ready) == [name for name, _ in attempts]


def test_a_published_message_is_sent_at_its_publication(ready: Host) -> None:
    stage(ready, message("now"), message("later", delay_s=30), message("grouped", group="g"))
    ready.advance(60_000)
    publish_all(ready, ("a", 3))
    assert ready.counts() == (2, 0, 1)
    got = {each.body: each.sent_at_ms for each in ready.receive(10, timeout_s=600)}
    assert got == dict.fromkeys(("now", "grouped"), ready.clock.now_ms())
    ready.advance(30_000)
    assert ready.receive_one().body == "later"


def test_a_publication_wakes_waiters(ready: Host) -> None:
    woken = ready.watch()
    ready.engine.watch(FIFO, woken.append)
    stage(ready, *bodies("a"))
    stage(ready, message("a", group="g"), queue=FIFO)
    assert woken == []
    publish(ready, ("a", 1))
    assert woken == [ready.clock.now_ms()]
    publish(ready, ("a", 1), queue=FIFO)
    assert woken == [ready.clock.now_ms()] * 2


def test_a_publication_to_a_fifo_queue_is_ordered_without_duplicates(ready: Host) -> None:
    ready.put(message("b", group="g"), queue=FIFO)
    stage(ready, *(message(name, group="g") for name in "abac"), queue=FIFO)
    published = publish_all(ready, ("a", 4), queue=FIFO)
    assert (published.messages, published.duplicates) == (4, 2)
    got = []
    while one := ready.receive(1, queue=FIFO):
        got.append((one[0].body, one[0].sequence))
        ready.delete(one[0].receipt, queue=FIFO)
    assert [body for body, _ in got] == ["b", "a", "c"]
    assert [sequence for _, sequence in got] == sorted(sequence for _, sequence in got if sequence is not None)
    assert writer(ready, FIFO).duplicates == 2


def test_duplicates_are_determined_at_the_publication(ready: Host) -> None:
    stage(ready, message("a", group="g", dedup_id="1"), queue=FIFO)
    ready.advance(DEDUPLICATION_S * 1_000)
    publish_all(ready, ("a", 1), queue=FIFO)
    ready.put(message("again", group="g", dedup_id="1"), queue=FIFO)
    assert received(ready, FIFO) == ["a"]


def test_staged_messages_are_published_even_if_the_settings_change(ready: Host) -> None:
    stage(ready, message("x" * 2_000, group="g"), queue=FIFO)
    ready.set_queue(FIFO, message_bytes_max=1_024, content_deduplication=False)
    publish_all(ready, ("a", 1), queue=FIFO)
    assert received(ready, FIFO) == ["x" * 2_000]


def test_deleting_a_queue_deletes_its_writers(ready: Host) -> None:
    stage(ready, *many())
    stage(ready, *bodies("next"), batch=1)
    publish(ready, ("a", MANY))
    ready.drop()
    settle(ready)
    assert rows(ready) == 0
    ready.create()
    assert ready.do(ListWriters(queue=QUEUE)) == []
    assert ready.counts() == (0, 0, 0)


def test_a_silent_writer_is_deleted_with_its_stages(ready: Host) -> None:
    stage(ready, *many())
    ready.advance(WRITER_SILENCE_S * 1_000 - 1)
    assert writer(ready).staged == MANY
    ready.advance(1)
    settle(ready)
    assert ready.do(ListWriters(queue=QUEUE)) == []
    assert rows(ready) == 0


def test_a_stage_keeps_its_writer_alive(ready: Host) -> None:
    stage(ready, *bodies("a"))
    ready.advance(WRITER_SILENCE_S * 1_000 - 1)
    stage(ready, *bodies("b"), part=1)
    ready.advance(WRITER_SILENCE_S * 1_000 - 1)
    assert publish_all(ready, ("a", 2)) == Published(messages=2)


@pytest.mark.parametrize("how", ["crash", "reopen"])
def test_a_publication_resumes_after_a_restart(durable: Host, how: str) -> None:
    durable.create()
    stage(durable, *many())
    stage(durable, *many(3 * PIECE, "b"), attempt="b")
    stage(durable, *bodies("never"), attempt="unnamed")
    wanted = (("b", 3 * PIECE), ("a", MANY))
    slices = 0
    while publish(durable, *wanted).more:
        durable.advance(1)  # two nodes assign different positions at one instant
        getattr(durable, how)()
        slices += 1
    assert slices > 3
    settle(durable)
    assert durable.counts() == (MANY + 3 * PIECE, 0, 0)
    assert rows(durable) == 0
    durable.check()
    found = received(durable)
    assert found == [each.body for each in many(3 * PIECE, "b") + many()]


def fill(host: Host, body: str) -> int:
    for part in range(1_000):
        try:
            stage(host, message(f"{part}-{body}"), part=part)
        except errors.StoreFull:
            return part
    pytest.fail("the store took everything")


@pytest.mark.parametrize("pages", [500, 600])
def test_a_full_store_refuses_stages_but_publishes(pages: int) -> None:
    """Published messages take the room of their pieces, so that less than a slice must be free."""
    with on_sqlite(None).open(database_pages_max=pages, free_space_reserve_bytes=0) as host:
        host.create()
        part = fill(host, body := "x" * 50_000)
        assert part > 10
        publish(host, ("a", part))
        settle(host)
        assert host.counts() == (part, 0, 0)
        assert received(host) == [f"{number}-{body}" for number in range(part)]
        settle(host)
        assert stage(host, *bodies("a"), batch=1) == Staged(messages=1)


def test_batches_belong_to_one_writer_and_queue(ready: Host) -> None:
    ready.create("000000000000/other")
    publish(ready, batch=3)
    assert not publish(ready, batch=3, queue="000000000000/other").again
    assert not ready.do(Publish(queue=QUEUE, writer="other", batch=0, attempts=())).again


def test_a_publish_with_wrong_message_counts_is_refused(ready: Host) -> None:
    stage(ready, *bodies("a", "b"))
    for wanted in (("a", 3), ("a", 1), ("never", 1)):
        with pytest.raises(errors.StageMissing):
            publish(ready, wanted)
    assert writer(ready) == WriterView(
        writer=WRITER, batch=None, messages=0, duplicates=0, staged=2, seen_at_ms=ready.clock.now_ms()
    )
    assert publish_all(ready, ("a", 2), ("empty", 0)) == Published(messages=2)
