"""The conversion of a data folder of the engine before: everything is taken over, killed at any moment too."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from veilmq.engines.embedded import FolderError

from tests.internals.store.converted import killed
from tests.store.host import QUEUE, RESTLESS, Host, SqliteHost, hosting, message
from tests.store.logged import LOGGED, numbered
from veilmq.core import claims, commands
from veilmq.core.account_settings import AccountSettings, SetAccount, ShowAccount
from veilmq.core.commands import NewMessage, Receive, Send
from veilmq.core.errors import CursorInvalid, QueueDeletedRecently
from veilmq.core.events import CountEvents, ForgetEvents, Outcome, PlanExport
from veilmq.core.publications import ListWriters, Publish, Stage
from veilmq.core.results import MoveStatus, ReceiptState
from veilmq.core.topics import CreateTopic, ListPushes, PublishToTopic, ShowTopic, Subscribe, Subscription, push_queue
from veilmq.store.sqlite import conversion

FIFO = QUEUE + ".fifo"
DEAD = "000000000000/dead"
GONE = "000000000000/gone"
SLICED = replace(RESTLESS, claim_slice_rows=40)
OLD, NEW, ASIDE = "veilmq.db", "store.db", "veilmq.db.before-store"


TOPIC = "000000000000/news"
URL = "https://there.example/"


@pytest.fixture
def old(tmp_path: Path) -> Host:
    """A store of the engine before, in a folder."""
    return Host(tmp_path / "store")


def send(host: Host, queue: str, *messages: NewMessage) -> None:
    """Send them."""
    host.do(Send(queue=queue, messages=messages))


def attempt(host: Host, count: int = 10) -> list[tuple[str, str]]:
    """Return body and receipt of what a receive attempt gives."""
    received = host.do(Receive(queue=FIFO, count=count, attempt_id="x", timeout_s=30))
    return [(each.body, each.receipt) for each in received.messages]


def test_messages_keep_leases_counts_and_receipts(old: Host) -> None:
    """Each receipt acts as before; what was never received comes in its order."""
    old.create()
    old.send(*"abcdef")
    first, second, third = old.receive(3, timeout_s=30)
    old.change(second.receipt, 0)
    old.advance(10)
    old.send("late", delay_s=60)
    old.send("soon", priority=1)
    host = killed(old)
    assert host.counts() == (5, 2, 1)
    assert host.delete(first.receipt) == [ReceiptState.LIVE]
    host.change(third.receipt, 90)
    again = host.receive(10)
    assert again[0].body == "soon"
    assert [each.body for each in again if each.receive_count == 1][1:] == ["d", "e", "f"]
    (b,) = [each for each in again if each.body == "b"]
    assert (b.receive_count, b.first_received_at_ms) == (2, second.first_received_at_ms)
    assert host.delete(second.receipt) == [ReceiptState.SUPERSEDED]
    host.advance(60_000)
    assert "late" in [each.body for each in host.receive(10)]
    host.check()
    host.close()


def test_groups_keep_order_duplicates_and_attempts(old: Host) -> None:
    """What is in flight blocks its group as before; a message sent twice is one; an attempt gives the same."""
    old.create(FIFO, fifo=True)
    send(old, FIFO, *(message(body, group=body[0], dedup_id=body) for body in ("a1", "a2", "b1", "b2", "a3")))
    given = attempt(old, 1)
    assert [body for body, _ in given] == ["a1"]
    host = killed(old)
    send(host, FIFO, message("a3", group="a", dedup_id="a3"), message("a4", group="a", dedup_id="a4"))
    assert [body for body, _ in attempt(host, 1)] == ["a1"]
    assert [each.body for each in host.receive(10, queue=FIFO)] == ["b1", "b2"]
    assert host.delete(given[0][1], queue=FIFO) == [ReceiptState.LIVE]
    assert [each.body for each in host.receive(10, queue=FIFO)] == ["a2", "a3", "a4"]
    host.check()
    host.close()


def read(host: Host, queue: str, number: int, shards: int) -> list[list[str]]:
    """Return the bodies of each shard of a claim."""
    found: list[list[str]] = []
    for shard in range(shards):
        found.append([])
        cursor: str | None = None
        while cursor != "":
            terms: dict[str, Any] = {
                "queue": queue,
                "source": "s",
                "number": number,
                "shard": shard,
                "cursor": cursor or "",
            }
            page = host.do(claims.ReadClaim(**terms))
            found[-1] += [each.body for each in page.messages]
            cursor = page.cursor
    return found


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_claims_keep_their_messages_in_their_shards(tmp_path: Path, *, fifo: bool) -> None:
    """Open ones are read, and end, as before; one that was acknowledged goes on to be deleted."""
    queue = FIFO if fifo else QUEUE
    old = Host(tmp_path / "store", options=SLICED)
    old.create(queue, fifo=fifo)
    for number in range(20):
        group = "abc"[number % 3] if fifo or number % 2 else None
        news = [message(f"{number}-{each}", group=group, dedup_id=f"{number}-{each}") for each in range(10)]
        send(old, queue, *news)
    earlier = old.receive(4, queue=queue, timeout_s=0)
    old.advance(1)
    old.do(claims.OpenSource(queue=queue, source="s", hold_s=1_000))
    bounds = []
    for number in (1, 2):
        terms: dict[str, Any] = {
            "queue": queue,
            "source": "s",
            "epoch": 1,
            "number": number,
            "messages_max": 60,
            "shard_messages": 20,
        }
        bound = old.do(claims.Claim(**terms))
        while bound.more:
            bound = old.do(claims.Claim(**terms))
        bounds.append(bound)
        if fifo:
            break  # it has all groups
    before = [read(old, queue, bound.number, bound.shards) for bound in bounds]
    begun = old.do(claims.ReadClaim(queue=queue, source="s", number=1, messages_max=1)).cursor
    before_counts = old.counts(queue)
    host = killed(old)
    assert host.counts(queue) == before_counts
    after = [read(host, queue, bound.number, bound.shards) for bound in bounds]
    assert [list(map(sorted, claim)) for claim in after] == [list(map(sorted, claim)) for claim in before]
    if fifo:
        assert after == before
    with pytest.raises(CursorInvalid):
        host.do(claims.ReadClaim(queue=queue, source="s", number=1, cursor=begun))
    assert host.delete(earlier[0].receipt, queue=queue) != [ReceiptState.LIVE]
    host.do(claims.ReleaseClaim(queue=queue, source="s", number=bounds[-1].number))
    host.advance(1_000)
    if not fifo:
        host.do(claims.AcknowledgeClaims(queue=queue, source="s", epoch=1, number=1))
        host.advance(1_000)
    host.check()
    host.close()


def test_publications_go_on(old: Host) -> None:
    """What is staged can be published; what is decided enters; what was published is not published again."""
    old.create()

    def stage(batch: int, *bodies: str) -> None:
        messages = tuple(message(body) for body in bodies)
        old.do(Stage(queue=QUEUE, writer="w", batch=batch, attempt="a", part=0, messages=messages))

    many = [f"m{number}" for number in range(1_001)]
    stage(1, *many)
    old.do(Publish(queue=QUEUE, writer="w", batch=1, attempts=(("a", 1_001),), messages_per_s_max=1_000))
    stage(2, "x", "y")
    waiting = old.counts()[0]
    assert waiting < 1_001, "it is half-way"
    host = killed(old)
    while host.do(Publish(queue=QUEUE, writer="w", batch=1, attempts=(("a", 1_001),))).more:
        host.advance(1_000)
    assert host.counts()[0] == 1_001
    (writer,) = host.do(ListWriters(queue=QUEUE))
    assert (writer.batch, writer.staged) == (1, 2)
    host.do(Publish(queue=QUEUE, writer="w", batch=2, attempts=(("a", 2),)))
    assert host.counts()[0] == 1_003
    host.check()
    host.close()


def test_events_keep_their_numbers_and_late_deletes_correct_them(tmp_path: Path) -> None:
    """Also of messages that are gone; and a receipt that is in flight ends in an event as it would have."""
    old = Host(tmp_path / "store", options=LOGGED)
    old.create()
    old.send("late", "gone", "held", "done")
    late, gone, held, done = old.receive(4, timeout_s=10)
    old.delete(done.receipt)
    old.change(held.receipt, 60)
    old.advance(10_000)
    again = {each.body: each for each in old.receive(4, timeout_s=100)}
    old.delete(again["gone"].receipt)
    planned = old.do(PlanExport(events_max=2))
    before, counts = numbered(old), old.do(CountEvents())
    host = killed(old)
    assert (numbered(host), host.do(CountEvents())) == (before, counts)
    assert host.do(PlanExport(events_max=2)) == planned
    host.delete(late.receipt, gone.receipt, held.receipt)
    added = [event for _, event in numbered(host)[len(before) :]]
    assert {each.message_id: each.outcome for each in added} == {
        late.id: Outcome.LATE_DELETED,
        gone.id: Outcome.LATE_DELETED,
        held.id: Outcome.DELETED,
    }
    assert len(added) == 3
    host.do(ForgetEvents(last=planned.last))
    host.check()
    host.close()


def test_what_was_purged_still_ends_in_the_event_log(tmp_path: Path) -> None:
    """The janitor had not come to it."""
    old = Host(tmp_path / "store", options=LOGGED)
    for queue in (QUEUE, FIFO):
        old.create(queue, fifo=queue == FIFO)
        send(old, queue, *(message(each, group=each, dedup_id=each) for each in "ab"))
    received = {queue: old.receive(2, queue=queue, timeout_s=30) for queue in (QUEUE, FIFO)}
    old.advance(5)

    async def purge() -> None:
        for queue in (QUEUE, FIFO):
            old.engine.submit(commands.PurgeQueue(queue=queue), lambda _: None)

    old.run(purge())
    old.do(commands.ListQueues(account="nobody"))
    host = killed(old)
    host.delete(received[QUEUE][0].receipt)
    host.sweep()
    ends = sorted((event.queue, event.message_id) for _, event in numbered(host) if event.outcome is Outcome.EXPIRED)
    assert ends == sorted((queue, each.id) for queue in received for each in received[queue])
    host.check()
    host.close()


def test_everything_else_is_there(tmp_path: Path) -> None:
    """Topics and what waits to be pushed, move tasks, cooldowns, dead letters, tags, accounts, keys, the clock."""
    old = Host(tmp_path / "store", options=replace(RESTLESS, queue_name_pause_s=60))
    old.create(DEAD)
    old.create(dead_letter_queue=DEAD, receives_max=1)
    old.do(commands.TagQueue(queue=QUEUE, tags={"team": "red"}))
    old.do(SetAccount(account="a", settings=AccountSettings(logging_bucket="b")))
    old.do(CreateTopic(topic=TOPIC))
    old.do(Subscribe(subscription=Subscription(topic=TOPIC, name="s", endpoint=URL, push_url=URL)))
    old.do(PublishToTopic(topic=TOPIC, size_bytes=1, make=lambda _: message("n")))
    old.create(GONE)
    old.do(commands.DeleteQueue(queue=GONE))
    old.send("dead", "too", "waits")
    old.receive(2, timeout_s=0)
    old.advance(1)
    old.receive(2, timeout_s=0)
    asked = commands.ShowQueue(queue=QUEUE), ShowAccount(account="a"), ShowTopic(topic=TOPIC), ListPushes()
    before = [old.do(each) for each in asked]
    task = old.do(commands.StartMove(source=DEAD, moves_per_s_max=1))
    token_key, now_ms = old.engine.token_key, old.clock.now_ms()
    host = killed(old)
    assert (host.engine.token_key, host.clock.now_ms()) == (token_key, now_ms)
    (running,) = host.do(commands.ListMoves(source=DEAD))
    assert running.id == task.id
    assert running.status is MoveStatus.RUNNING
    host.do(commands.CancelMove(source=DEAD, task=task.id))
    assert [host.do(each) for each in asked] == before
    assert before[0].settings.tags == {"team": "red"}
    assert host.counts()[0] + host.counts(DEAD)[0] == 3
    assert [each.body for each in host.receive(1, queue=push_queue(TOPIC, "s"))] == ["n"]
    with pytest.raises(QueueDeletedRecently):
        host.create(GONE)
    (letter, *_) = host.receive(10, queue=DEAD)
    assert (letter.source, letter.receive_count) == (QUEUE, 2)
    host.check()
    host.close()


# The steps.


def filled(folder: Path) -> str:
    """Make an old folder with two messages, one of them in flight; return its receipt."""
    with hosting(folder) as host:
        host.create()
        host.send("a", "b")
        return host.receive(1)[0].receipt


def check_whole(folder: Path, receipt: str) -> None:
    """Assert that the converted folder has both messages."""
    assert not list(folder.glob("*unfinished*"))
    assert not list(folder.glob(f"{OLD}-*"))
    assert ((folder / NEW).is_file(), (folder / ASIDE).is_file(), (folder / OLD).exists()) == (True, True, False)
    with hosting(folder, kind=SqliteHost) as host:
        host.check()
        assert host.counts() == (1, 1, 0)
        assert host.delete(receipt) == [ReceiptState.LIVE]


def killed_at(folder: Path, step: int, patched: Callable[[Callable[[], None]], None]) -> bool:
    """Convert in a process that ends at the step of that number; tell whether it had so many."""
    child = os.fork()
    if not child:
        left = [step]

        def count() -> None:
            left[0] -= 1
            if not left[0]:
                os._exit(9)

        patched(count)
        try:
            conversion.convert(folder, told=lambda *_: count())
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_conversion_that_is_killed_at_any_step_is_done_by_the_next_start(tmp_path: Path) -> None:
    """At each sync and each rename, before and after it."""
    receipt = filled(tmp_path / "old")

    def patched(count: Callable[[], None]) -> None:
        def around(call: Callable[..., object]) -> Callable[..., object]:
            def counted(*args: object, **how: object) -> object:
                count()
                done = call(*args, **how)
                count()
                return done

            return counted

        os.fsync = around(os.fsync)  # type: ignore[assignment]
        os.rename = around(os.rename)  # type: ignore[assignment]
        Path.rename = around(Path.rename)  # type: ignore[assignment,method-assign]
        shutil.rmtree = around(shutil.rmtree)  # type: ignore[assignment]

    steps = 0
    while True:
        folder = tmp_path / f"killed-{steps}"
        shutil.copytree(tmp_path / "old", folder)
        steps += 1
        if not killed_at(folder, steps, patched):
            break
        if conversion.is_old(folder):
            conversion.convert(folder)
        check_whole(folder, receipt)
        shutil.rmtree(folder)
    assert steps > 12
    check_whole(folder, receipt)


def test_too_little_space_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says what is needed and what is there."""
    folder = tmp_path / "store"
    receipt = filled(folder)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    real = os.statvfs(folder)
    full = os.statvfs_result((real.f_bsize, real.f_frsize, 0, 0, 1, *tuple(real)[5:]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: full)
        with pytest.raises(FolderError, match=rf"needs \d+ bytes, and its disk has {real.f_frsize} bytes free"):
            conversion.convert(folder)
    after = {each.name: each.read_bytes() for each in folder.iterdir()}
    assert {name: after[name] for name in before} == before
    conversion.convert(folder)
    check_whole(folder, receipt)


def test_progress_is_told(tmp_path: Path) -> None:
    """Messages converted, and messages in all."""
    filled(tmp_path / "store")
    told: list[tuple[int, int]] = []
    conversion.convert(tmp_path / "store", told=lambda *progress: told.append(progress))
    assert told == [(2, 2)]


def test_another_format_is_refused(tmp_path: Path) -> None:
    """An older one, which was never released, and what is not ours."""
    folder = tmp_path / "store"
    filled(folder)
    with closing(apsw.Connection(str(folder / OLD))) as connection:
        connection.execute("PRAGMA user_version = 11")
    with pytest.raises(FolderError, match="format 11"):
        conversion.convert(folder)
    with closing(apsw.Connection(str(folder / OLD))) as connection:
        connection.execute("PRAGMA application_id = 1")
    with pytest.raises(FolderError, match="not a veilmq database"):
        conversion.convert(folder)


def test_an_old_database_that_was_used_after_its_conversion_is_not_set_aside(tmp_path: Path) -> None:
    """Nobody knows which of the two counts."""
    folder = tmp_path / "store"
    filled(folder)
    conversion.convert(folder)
    (folder / ASIDE).rename(folder / OLD)
    with hosting(folder) as host:
        host.advance(3_600_000)
        host.send("c")
    with pytest.raises(FolderError, match="was changed after its conversion"):
        conversion.convert(folder)


def test_an_old_database_that_was_set_aside_is_not_replaced(tmp_path: Path) -> None:
    """It is the operator's to remove."""
    folder = tmp_path / "store"
    filled(folder)
    (folder / ASIDE).write_text("kept")
    with pytest.raises(FolderError, match="nothing is replaced"):
        conversion.convert(folder)
    assert ((folder / OLD).is_file(), (folder / NEW).exists()) == (True, False)
